package explain_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
)

// Checks the state and the steps of machines. A step is a letter: d is done, w waits, r was refused, and u is unknown.
func TestJoin(t *testing.T) {
	ca := newCA(t, "kubernetes")
	leaf := leafOf(t, ca, now.Add(time.Hour))
	limited := token(t, "abcdef", func(r *tokens.Record) { r.Limits.MaxNodes = 2 })
	all := []tokens.Record{limited}
	signed := info(t, ca, limited)
	gone := func(facts ...api.Fact) (unread []api.UnreadFact) {
		for _, f := range facts {
			unread = append(unread, api.UnreadFact{Fact: f, Reason: "forbidden"})
		}
		return unread
	}
	registered := func(ready string, since time.Duration) *api.NodeEvidence {
		return &api.NodeEvidence{UID: "uid-node", Created: before(since), Ready: ready, Since: before(since)}
	}
	claimed := claim("abcdef")
	claimed.Created = before(30 * time.Second)
	joined := []api.RequestEvidence{request(bootstrap, issued("kubejoin", leaf))}
	justNow := func(r *api.RequestEvidence) { r.Certificate.At = before(10 * time.Second) }
	for about, c := range map[string]struct {
		facts explain.Facts
		state api.JoinState
		steps string
		token string
	}{
		"expected":               {explain.Facts{Tokens: []tokens.Record{token(t, "abcdef", forNames(name))}, ClusterInfo: signed}, api.JoinExpected, "dwwwww", "abcdef"},
		"two tokens may":         {explain.Facts{Tokens: []tokens.Record{token(t, "abcdef", forNames(name)), token(t, "bbbbbb", forNames(name))}, ClusterInfo: signed}, api.JoinExpected, "uwwwww", ""},
		"requests just now":      {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, made(time.Second, "csr-1"))}, Tokens: all}, api.JoinJoining, "ddwwww", "abcdef"},
		"waits for approval":     {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: all}, api.JoinStuck, "ddwwww", "abcdef"},
		"refused":                {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, denied("TokenSpent", "no"))}, Tokens: all}, api.JoinStuck, "ddwrww", "abcdef"},
		"claimed and issued":     {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, ClusterInfo: signed}, api.JoinStuck, "ddddww", "abcdef"},
		"just issued":            {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, issued("kubejoin", leaf), justNow)}, Claim: claimed, Tokens: all, ClusterInfo: signed}, api.JoinJoining, "ddddww", "abcdef"},
		"registered":             {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("False", 20*time.Second)}, api.JoinJoining, "dddddw", "abcdef"},
		"long not Ready":         {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("False", 4*time.Minute)}, api.JoinStuck, "dddddw", "abcdef"},
		"Ready":                  {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("True", 10*time.Second)}, api.JoinJoined, "dddddd", "abcdef"},
		"Ready, with its taint":  {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("True", 10*time.Second), Joining: true}, api.JoinJoining, "dddddd", "abcdef"},
		"long with its taint":    {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("True", time.Hour), Joining: true}, api.JoinStuck, "dddddd", "abcdef"},
		"no request any more":    {explain.Facts{Claim: claimed, Tokens: all, Object: registered("True", time.Hour)}, api.JoinJoined, "dududd", "abcdef"},
		"nothing but its Node":   {explain.Facts{Object: registered("True", time.Hour)}, api.JoinJoined, "uuuudd", ""},
		"a claim without more":   {explain.Facts{Claim: claimed, Tokens: all}, api.JoinJoining, "duduww", "abcdef"},
		"token deleted":          {explain.Facts{Requests: joined, Claim: claimed, Object: registered("True", time.Second)}, api.JoinJoined, "uddddd", "abcdef"},
		"token created again":    {explain.Facts{Requests: joined, Tokens: []tokens.Record{token(t, "abcdef", fresh)}, Object: registered("True", time.Second)}, api.JoinJoined, "ududdd", "abcdef"},
		"no token":               {explain.Facts{Requests: []api.RequestEvidence{request("jane", made(time.Second, "csr-1"))}}, api.JoinJoining, "udwwww", ""},
		"Node of another":        {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, denied("NodeExists", "no"))}, Tokens: all, Object: registered("True", time.Hour)}, api.JoinStuck, "ddwrww", "abcdef"},
		"claim of another":       {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: all, Claim: claim("bbbbbb")}, api.JoinStuck, "ddwwww", "abcdef"},
		"renews":                 {explain.Facts{Requests: []api.RequestEvidence{request(itself)}, Object: registered("True", time.Hour)}, api.JoinJoined, "uuuudd", ""},
		"claim unread":           {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: all, Unread: gone(explain.FactClaim)}, api.JoinStuck, "dduwww", "abcdef"},
		"requests unread":        {explain.Facts{Tokens: all, Unread: gone(explain.FactRequests)}, api.JoinStuck, "uuwuww", ""},
		"Node unread":            {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, ClusterInfo: signed, Unread: gone(explain.FactNode)}, api.JoinStuck, "dddduu", "abcdef"},
		"waits for its turn":     {explain.Facts{Turn: turn("cp-1", 0, name)}, api.JoinJoining, "uwwwww", ""},
		"a machine with its key": {explain.Facts{Machine: tokens.Machine{Key: "lusab-babad-gutih-tugad", Added: before(time.Hour)}}, api.JoinExpected, "uwwwww", ""},
	} {
		c.facts.Node = name
		j := explain.Join(c.facts, now)
		steps := ""
		for _, s := range j.Steps {
			steps += s.State[:1]
			if s.At.IsZero() != (s.State == api.StepWaiting || s.State == api.StepUnknown) {
				t.Errorf("%s: step %s is %s at %s", about, s.Name, s.State, s.At)
			}
		}
		if j.State != c.state || steps != c.steps || j.TokenID != c.token {
			t.Errorf("%s: got %s, steps %s and token %q, want %s, %s and %q (%s)", about, j.State, steps, j.TokenID, c.state, c.steps, c.token, j.Reason)
		}
		e := explain.Explain(c.facts, now)
		if j.Reason != e.State || (j.State == api.JoinStuck) != (j.Sentence == e.Sentence && slices.Equal(j.Next, e.Next)) {
			t.Errorf("%s: got %+v, want what the explanation says: %+v", about, j, e)
		}
	}
}

// Catches a list that hides stuck machines behind others, or shows the last one to wait first.
func TestJoinsAreInOrder(t *testing.T) {
	ready := func(node string, since time.Duration) explain.Facts {
		return explain.Facts{Node: node, Object: &api.NodeEvidence{Created: before(since), Ready: "True", Since: before(since)}}
	}
	asked := func(node string, since time.Duration) explain.Facts {
		return explain.Facts{Node: node, Requests: []api.RequestEvidence{request("jane", made(since, "csr-1"))}}
	}
	var keys []string
	for _, f := range []explain.Facts{
		asked("b", time.Hour), asked("a", time.Minute), asked("c", time.Minute), // stuck
		asked("a", 2*time.Second), asked("a", time.Second), // joining
		ready("a", time.Second), ready("b", time.Hour),
	} {
		keys = append(keys, explain.Join(f, now).SortKey)
	}
	if !slices.IsSorted(keys) {
		t.Errorf("got keys %s, want them in order", strings.Join(keys, " "))
	}
}

// Catches a watch that reports a change each second, because a sentence says how long ago things happened.
func TestJoinVersionDoesNotFollowTheClock(t *testing.T) {
	f := explain.Facts{Node: name, Requests: []api.RequestEvidence{request(bootstrap, denied("TokenSpent", "no"))}}
	at := func(after time.Duration) string { return explain.Join(f, now.Add(after)).Version }
	first := at(0)
	other := f
	other.Requests = []api.RequestEvidence{request(bootstrap, denied("TokenExpired", "no"))}
	if len(first) != 8 || at(time.Second) != first || at(time.Minute) == first || explain.Join(other, now).Version == first {
		t.Error("want a version that changes with the reason and after a minute, and not after a second")
	}
}
