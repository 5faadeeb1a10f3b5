package ha

import (
	"errors"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
)

// TestClocksThatDiffer has a replica whose clock is wrong by five minutes. Limits must hold at each replica, and only the
// expiration of a token may move by this difference.
func TestClocksThatDiffer(t *testing.T) {
	harness.Parallel(t)
	c, ca, h := etcd.ForTest(t, etcd.Options{}), newCA(t), newHistory()
	right := newReplica(t, c, ca, h, 1, 0)
	for name, off := range map[string]time.Duration{"ahead": 5 * time.Minute, "behind": -5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			wrong := newReplica(t, c, ca, h, 2, 0)
			clock := func() time.Time { return time.Now().Add(off) }
			wrong.Now, wrong.Nodes.Now = clock, clock
			newToken := func(left time.Duration, limit int) tokens.Token {
				t.Helper()
				record := tokens.NewRecord(tokens.Generate(), left, time.Now())
				record.Limits.MaxNodes = limit
				must.Value(right.tokens.Create(t.Context(), record))(t)
				return record.Token
			}
			reason := func(at *replica, token tokens.Token, node string) string {
				t.Helper()
				ask := firstRequest(t, token, node)
				ask.Created = time.Time{} // as over HTTPS
				chain, err := at.Issue(t.Context(), ask)
				if no := (*approval.Error)(nil); errors.As(err, &no) && no.Err == nil {
					return no.Reason
				}
				must.OK(t, err)
				leaf := harness.ParseLeaf(t, chain)
				if now := time.Now(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
					t.Errorf("%s: the certificate is valid from %s to %s, and now it is %s", node, leaf.NotBefore, leaf.NotAfter, now)
				}
				return ""
			}

			two := newToken(time.Hour, 2)
			for i, at := range []*replica{wrong, right, wrong, right} {
				want := ""
				if i >= 2 {
					want = admission.ReasonTokenSpent
				}
				if got := reason(at, two, two.ID()+"-"+string(rune('a'+i))); got != want {
					t.Errorf("machine %d of a token for two nodes: got reason %q, want %q", i, got, want)
				}
			}

			expires := newToken(2*time.Minute, 5)
			want := ""
			if off > 0 {
				want = admission.ReasonTokenExpired
			}
			if got := reason(wrong, expires, expires.ID()+"-a"); got != want {
				t.Errorf("a token that expires in two minutes: got reason %q, want %q", got, want)
			}
			if got := reason(right, expires, expires.ID()+"-b"); got != "" {
				t.Errorf("a token that expires in two minutes, at the right clock: got reason %q", got)
			}
		})
	}
	// On a cluster, the time of a request comes from kube-apiserver's clock, and kubejoin checks the token with its own clock.
	record := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	_, err := right.tokens.Create(t.Context(), record)
	must.OK(t, err)
	ask := firstRequest(t, record.Token, "worker-1")
	ask.Created = time.Now().Add(-5 * time.Minute)
	_, err = right.Issue(t.Context(), ask)
	if refused := approval.Refused(err); refused == nil || refused.Reason != admission.ReasonTokenReplaced {
		t.Errorf("a request that seems older than its token: got %v, want reason %s", err, admission.ReasonTokenReplaced)
	}
}
