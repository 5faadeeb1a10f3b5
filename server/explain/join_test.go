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
	registered := func(ready string, since time.Duration) *api.NodeEvidence {
		return &api.NodeEvidence{UID: "uid-node", Created: before(since), Ready: ready, Since: before(since)}
	}
	claimed := claim("abcdef")
	claimed.Created = before(5 * time.Minute)
	justClaimed := *claimed
	justClaimed.Created = before(30 * time.Second)
	had := claim("abcdef")
	had.NodeUID = "uid-node"
	known := tokens.Identity{NodeUID: "uid-node", NotAfter: now.Add(time.Hour), TokenID: "abcdef"}
	// requested makes the request 5 minutes ago.
	requested := func(change ...func(*api.RequestEvidence)) []api.RequestEvidence {
		return []api.RequestEvidence{request(bootstrap, append([]func(*api.RequestEvidence){made(5*time.Minute, "csr-1")}, change...)...)}
	}
	joined := requested(issued("kubejoin", leaf), func(r *api.RequestEvidence) { r.Certificate.At = before(290 * time.Second) })
	justNow := func(r *api.RequestEvidence) { r.Certificate.At = before(10 * time.Second) }
	replaced := func(ready string, since time.Duration) *api.NodeEvidence {
		return &api.NodeEvidence{UID: "uid-node", Created: before(100 * time.Hour), Ready: ready, Since: before(since)}
	}
	learner := turn("", 0, name)
	learner.Learner = "cp-9"
	for about, c := range map[string]struct {
		facts explain.Facts
		state api.JoinState
		steps string
		token string
	}{
		"expected":                  {explain.Facts{Tokens: []tokens.Record{token(t, "abcdef", forNames(name))}, ClusterInfo: signed}, api.JoinExpected, "dwwwww", "abcdef"},
		"two tokens may":            {explain.Facts{Tokens: []tokens.Record{token(t, "abcdef", forNames(name)), token(t, "bbbbbb", forNames(name))}, ClusterInfo: signed}, api.JoinExpected, "uwwwww", ""},
		"requests just now":         {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, made(time.Second, "csr-1"))}, Tokens: all}, api.JoinJoining, "ddwwww", "abcdef"},
		"waits for approval":        {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: all}, api.JoinStuck, "ddwwww", "abcdef"},
		"refused":                   {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, denied("TokenSpent", "no"))}, Tokens: all}, api.JoinStuck, "ddwrww", "abcdef"},
		"claimed and issued":        {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, ClusterInfo: signed}, api.JoinStuck, "ddddww", "abcdef"},
		"just issued":               {explain.Facts{Requests: requested(issued("kubejoin", leaf), justNow), Claim: claimed, Tokens: all, ClusterInfo: signed}, api.JoinJoining, "ddddww", "abcdef"},
		"registered":                {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("False", 20*time.Second)}, api.JoinJoining, "dddddw", "abcdef"},
		"long not Ready":            {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("False", 4*time.Minute)}, api.JoinStuck, "dddddw", "abcdef"},
		"Ready":                     {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("True", 10*time.Second)}, api.JoinJoined, "dddddd", "abcdef"},
		"Ready, with its taint":     {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("True", 10*time.Second), Joining: true}, api.JoinJoining, "dddddd", "abcdef"},
		"long with its taint":       {explain.Facts{Requests: joined, Claim: claimed, Tokens: all, Object: registered("True", 4*time.Minute), Joining: true}, api.JoinStuck, "dddddd", "abcdef"},
		"no request any more":       {explain.Facts{Claim: claimed, Tokens: all, Object: registered("True", time.Hour)}, api.JoinJoined, "dududd", "abcdef"},
		"nothing but its Node":      {explain.Facts{Object: registered("True", time.Hour)}, api.JoinJoined, "uuuudd", ""},
		"a claim without more":      {explain.Facts{Claim: &justClaimed, Tokens: all}, api.JoinJoining, "duduww", "abcdef"},
		"token deleted":             {explain.Facts{Requests: joined, Claim: claimed, Object: registered("True", time.Second)}, api.JoinJoined, "uddddd", "abcdef"},
		"token created again":       {explain.Facts{Requests: joined, Tokens: []tokens.Record{token(t, "abcdef", fresh)}, Object: registered("True", time.Second)}, api.JoinJoined, "ududdd", "abcdef"},
		"no token":                  {explain.Facts{Requests: []api.RequestEvidence{request("jane", made(time.Second, "csr-1"))}}, api.JoinJoining, "udwwww", ""},
		"Node of another":           {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, denied("NodeExists", "no"))}, Tokens: all, Object: registered("True", time.Hour)}, api.JoinStuck, "ddwrww", "abcdef"},
		"claim of another":          {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: all, Claim: claim("bbbbbb")}, api.JoinStuck, "ddwwww", "abcdef"},
		"renews":                    {explain.Facts{Requests: []api.RequestEvidence{request(itself)}, Object: registered("True", time.Hour)}, api.JoinJoined, "uuuudd", ""},
		"waits for its turn":        {explain.Facts{Turn: turn("cp-1", 0, name)}, api.JoinJoining, "uwwwww", ""},
		"turn is free":              {explain.Facts{Turn: turn("", 0, name)}, api.JoinJoining, "uwwwww", ""},
		"turn of a learner":         {explain.Facts{Turn: learner}, api.JoinStuck, "uwwwww", ""},
		"signature may come":        {explain.Facts{Tokens: []tokens.Record{token(t, "abcdef", forNames(name), fresh)}, ClusterInfo: info(t, ca)}, api.JoinJoining, "dwwwww", "abcdef"},
		"no signature comes":        {explain.Facts{Tokens: []tokens.Record{token(t, "abcdef", forNames(name))}, ClusterInfo: info(t, ca)}, api.JoinStuck, "dwwwww", "abcdef"},
		"token may come":            {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, made(time.Second, "csr-1"))}}, api.JoinJoining, "udwwww", "abcdef"},
		"no token comes":            {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}}, api.JoinStuck, "udwwww", "abcdef"},
		"another signer":            {explain.Facts{Requests: requested(issued("kube-controller-manager", leaf), justNow), Tokens: all, ClusterInfo: signed}, api.JoinJoining, "ddudww", "abcdef"},
		"failed with a certificate": {explain.Facts{Requests: requested(issued("other", leaf), failed("X", "no")), Tokens: all}, api.JoinStuck, "ddwrww", "abcdef"},

		// The Node was deleted, or the request.
		"renews without its Node":   {explain.Facts{Requests: []api.RequestEvidence{request(itself)}}, api.JoinStuck, "uuuuuu", ""},
		"its Node was deleted":      {explain.Facts{Claim: had, Tokens: all}, api.JoinStuck, "duduuu", "abcdef"},
		"deleted, and the request":  {explain.Facts{Requests: joined, Claim: had, Tokens: all, ClusterInfo: signed}, api.JoinStuck, "dddduu", "abcdef"},
		"joined long ago":           {explain.Facts{Identity: known, Tokens: []tokens.Record{token(t, "abcdef", forNames(name))}, ClusterInfo: signed}, api.JoinExpected, "duuuuu", "abcdef"},
		"machine joined long ago":   {explain.Facts{Machine: tokens.Machine{Key: "lusab-babad-gutih-tugad", Joined: true}}, api.JoinExpected, "uuuuuu", ""},
		"joins again":               {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, made(time.Second, "csr-2"))}, Identity: known, Tokens: all}, api.JoinJoining, "ddwwww", "abcdef"},
		"token of the Identity":     {explain.Facts{Object: registered("True", time.Minute), Identity: known, Tokens: all}, api.JoinJoined, "duuudd", "abcdef"},
		"Identity of another Node":  {explain.Facts{Object: replaced("True", time.Minute), Identity: tokens.Identity{NodeUID: "other", TokenID: "abcdef"}, Tokens: all}, api.JoinJoined, "uuuudd", ""},
		"joined with another token": {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, made(time.Hour, "csr-1"))}, Claim: claim("bbbbbb"), Tokens: all, Object: registered("True", time.Minute)}, api.JoinJoined, "uududd", "bbbbbb"},
		"two requests":              {explain.Facts{Requests: append(requested(issued("kubejoin", leaf)), request(bootstrap, made(4*time.Minute, "csr-2"))), Tokens: all, Object: registered("True", time.Minute)}, api.JoinJoined, "dduddd", "abcdef"},
		"two requests at once":      {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, made(time.Minute, "csr-2"), denied("TokenSpent", "no")), request(bootstrap, made(time.Minute, "csr-1"))}, Tokens: all}, api.JoinStuck, "ddwrww", "abcdef"},
		"claim of a deleted token":  {explain.Facts{Claim: claimed, Tokens: []tokens.Record{token(t, "abcdef", fresh, func(r *tokens.Record) { r.UID = "other" })}}, api.JoinStuck, "uuduww", "abcdef"},
		"claim before its token":    {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, made(time.Second, "csr-1"))}, Claim: claimed, Tokens: []tokens.Record{token(t, "abcdef", func(r *tokens.Record) { r.UID, r.Created = "other", before(time.Minute) })}}, api.JoinStuck, "ddwwww", "abcdef"},

		// A machine replaces a Node.
		"replaces a Node":     {explain.Facts{Requests: requested(issued("kubejoin", leaf), justNow), Tokens: all, Object: replaced("Unknown", 50*time.Hour)}, api.JoinJoining, "dduddw", "abcdef"},
		"does not replace it": {explain.Facts{Requests: joined, Tokens: all, Object: replaced("Unknown", 50*time.Hour)}, api.JoinStuck, "dduddw", "abcdef"},
		"Ready before it":     {explain.Facts{Requests: joined, Tokens: all, Object: replaced("True", 50*time.Hour)}, api.JoinJoining, "dduddu", "abcdef"},
		"Ready again":         {explain.Facts{Requests: joined, Tokens: all, Object: replaced("True", time.Minute)}, api.JoinJoined, "dduddd", "abcdef"},

		// Clocks differ.
		"kubelet is behind":        {explain.Facts{Requests: joined, Tokens: all, Object: &api.NodeEvidence{Created: before(time.Minute), Ready: "False", Since: before(time.Hour)}}, api.JoinJoining, "dduddw", "abcdef"},
		"Ready, kubelet is behind": {explain.Facts{Requests: joined, Tokens: all, Object: &api.NodeEvidence{Created: before(time.Minute), Ready: "True", Since: before(time.Hour)}}, api.JoinJoined, "dduddd", "abcdef"},
		"kubelet is ahead":         {explain.Facts{Requests: joined, Tokens: all, Object: &api.NodeEvidence{Created: before(3 * time.Minute), Ready: "False", Since: now.Add(time.Hour)}}, api.JoinStuck, "dduddw", "abcdef"},
		"we are behind":            {explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, made(-20*time.Second, "csr-1"))}, Tokens: all}, api.JoinJoining, "ddwwww", "abcdef"},

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
