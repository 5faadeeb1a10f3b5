package signer_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// Catches an entry that does not name the machine's key and who added it, and an entry that names a machine that did not join.
func TestRecordsMachineThatJoins(t *testing.T) {
	const want = "machine key lusab-babad-gutih-tugad added by "
	for name, test := range map[string]struct {
		by       string
		other    bool // the token is not that of the machine, which a person has deleted
		uid      string
		approver string
		window   time.Duration
		want     []string
	}{
		"HTTPS API":             {by: "ada", want: []string{"it is Monday", want + "ada"}},
		"HTTPS API, may rejoin": {by: "ada", window: time.Hour, want: []string{"it is Monday", want + "ada"}},
		"object":                {by: "ada", uid: "uid-1", window: time.Hour, want: []string{"it is Monday", want + "ada"}},
		"approved by a person":  {by: "ada", uid: "uid-1", approver: "jane", want: []string{want + "ada"}},
		"added by a kubeconfig": {want: []string{"it is Monday", want + "an unknown user"}},
		"another token":         {other: true, want: []string{"it is Monday"}},
	} {
		a, log, _ := recorded(t, rule{Verdict: approval.Approve, Reason: "Good", Evidence: []string{"it is Monday"}})
		db := memdb.Open()
		a.Nodes = &admission.Nodes{Tokens: db, Claims: db.Claims(), RejoinWindow: test.window}
		r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
		r.Limits.MaxNodes = 1
		r = must.Value(db.Create(t.Context(), r))(t)
		if !test.other {
			m := tokens.Machine{Key: "lusab-babad-gutih-tugad", By: test.by, TokenID: r.Token.ID(), TokenUID: r.UID}
			must.Value(storetest.CreateClaim(t.Context(), db.Claims(), tokens.Claim{Node: "worker-1", Machine: m}))(t)
		}
		join := nodeRequest(t, tokens.BootstrapUserPrefix+r.Token.ID(), "worker-1")
		join.UID, join.Approver = test.uid, test.approver
		renew := nodeRequest(t, tokens.NodeUserPrefix+"worker-1", "worker-1")
		renew.Groups = []string{tokens.NodesGroup}
		for _, r := range []approval.Request{join, renew} {
			issue := func(ctx context.Context) ([]byte, error) { return a.Issue(ctx, r) }
			if r.Approver != "" {
				issue = func(ctx context.Context) ([]byte, error) { return a.Sign(ctx, r) }
			}
			must.Value(issue(t.Context()))(t)
		}
		if len(log.all) != 2 || !slices.Equal(log.all[0].Evidence, test.want) || strings.Contains(strings.Join(log.all[1].Evidence, ""), "machine") {
			t.Errorf("%s: got %+v, want evidence %q, and no machine for the renewal", name, log.all, test.want)
		}
	}
}
