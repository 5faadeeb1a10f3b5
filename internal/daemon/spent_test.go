package daemon

import (
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

func TestStandaloneServesNoSignatureOfSpentToken(t *testing.T) {
	s := openStandalone(t, newData(t), Options{CA: CA{Duration: time.Hour}})
	r := tokens.NewRecord(tokens.Generate(), 0, time.Now())
	r.Limits.MaxNodes = 1
	r = must.Value(s.tokens.Create(t.Context(), r))(t)
	counted := r.Clone()
	counted.Nodes = []string{"worker-1"}
	claim := tokens.Claim{Node: "worker-1", TokenID: r.Token.ID(), TokenUID: r.UID, Limits: r.Limits, Keys: []string{"sha256:a"}, NodeUID: tokens.ByCertificate}
	must.OK(t, must.Value(s.claims.Commit(t.Context(), r, counted, []tokens.ClaimChange{{After: claim}}))(t)[0].Err)
	key := clusterinfo.SignatureKey(r.Token.ID())
	if must.Value(s.info.Data(t.Context()))(t)[key] == "" {
		t.Error("the machine has just joined: got no signature")
	}
	s.info.Now = func() time.Time { return time.Now().Add(11 * time.Minute) }
	if must.Value(s.info.Data(t.Context()))(t)[key] != "" {
		t.Error("the machine has joined 11 minutes ago: got a signature")
	}
}
