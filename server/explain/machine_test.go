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

// Catches an explanation that asks for another token, although a machine with a key of its own holds the name.
func TestExplainsMachine(t *testing.T) {
	ca := newCA(t, "kubernetes")
	got := token(t, "abcdef", forNames(name))
	machine := func(change func(*tokens.Machine)) tokens.Machine {
		m := tokens.Machine{Key: "lusab-babad-gutih-tugad", Added: before(3 * time.Hour), TokenID: "abcdef", TokenUID: got.UID}
		if change != nil {
			change(&m)
		}
		return m
	}
	never := machine(func(m *tokens.Machine) { m.TokenID, m.TokenUID = "", "" })
	revoked := machine(func(m *tokens.Machine) { m.Revoked = true })
	over := machine(func(m *tokens.Machine) { m.Expires = before(2 * time.Hour) })
	cloned := machine(func(m *tokens.Machine) { m.RefusedSince, m.RefusedLast = before(10*time.Minute), before(time.Minute) })
	all, gone := []tokens.Record{got}, []tokens.Record{token(t, "abcdef", expired)}
	free := []string{"kubejoin machine delete worker-7"}
	const nobody, joined = "there is no certificate request for this name", "joined 3 h ago, Ready since 2 h ago"
	for about, c := range map[string]struct {
		facts    explain.Facts
		state    api.NodeState
		sentence string
		next     []string
	}{
		"has not proven its key": {
			facts: explain.Facts{Machine: never}, state: explain.NothingArrived,
			sentence: nobody + "; its machine was added 3 h ago and has not proven its key; run the script of 'kubejoin machine print-join-command' on it; to list keys that kubejoin does not know: kubejoin machine list --pending --url https://HOST:PORT",
			next:     []string{"kubejoin machine list --pending --url https://HOST:PORT"},
		},
		"has a token": {
			facts: explain.Facts{Machine: machine(nil), Tokens: all, ClusterInfo: info(t, ca, got)}, state: explain.NothingArrived,
			sentence: nobody + "; tokens limited to it: abcdef (signed, expires in 23 h); check on the machine what kubeadm join prints, and whether it reaches https://api.example.com:6443 and the HOST:PORT of its join command; its machine proved its key and got token abcdef 60 min ago",
		},
		"has an expired token": {
			facts: explain.Facts{Machine: machine(nil), Tokens: gone}, state: explain.NothingArrived,
			sentence: nobody + "; token abcdef of its machine was deleted or has expired; run the join script on the machine again; its machine proved its key and got token abcdef 60 min ago",
		},
		"has an ended token, and another one exists": {
			facts: explain.Facts{Machine: machine(nil), Tokens: []tokens.Record{token(t, "bbbbbb", forNames(name))}}, state: explain.NothingArrived,
			sentence: nobody + "; token abcdef of its machine was deleted or has expired; run the join script on the machine again",
		},
		"tokens unread": {
			facts: explain.Facts{Machine: machine(nil), ClusterInfo: info(t, ca), Unread: []api.UnreadFact{{Fact: explain.FactTokens}}}, state: explain.NothingKnown,
			sentence: nobody + "; check on the machine what kubeadm join prints, and whether it reaches https://api.example.com:6443 and the HOST:PORT of its join command, and whether its token is still valid (could not be read: tokens)",
			next:     []string{"kubejoin token list"},
		},
		"has not proven its key, tokens unread": {
			facts: explain.Facts{Machine: never, Unread: []api.UnreadFact{{Fact: explain.FactTokens}}}, state: explain.NothingArrived,
			next: []string{"kubejoin machine list --pending --url https://HOST:PORT"},
		},
		"revoked": {
			facts: explain.Facts{Machine: revoked, Tokens: all, Revocation: &api.RevocationEvidence{Since: before(2 * time.Hour), Reason: "stolen"}}, state: explain.Revoked,
			sentence: nobody + "; its certificates were revoked 2 h ago: stolen; the key of its machine is revoked; to give the name to another machine: kubejoin machine delete worker-7",
			next:     free,
		},
		"expired": {
			facts: explain.Facts{Machine: over}, state: explain.NothingKnown,
			sentence: nobody + "; its machine expired 2 h ago, and gets no more tokens; to let it join, delete it, then add it again: kubejoin machine delete worker-7",
			next:     free,
		},
		"expired, has a token": {
			facts: explain.Facts{Machine: over, Tokens: all}, state: explain.NoClusterInfo,
			sentence: "no machine can discover the cluster", next: free,
		},
		"ready":            {facts: explain.Facts{Machine: machine(nil), Tokens: all, Object: node("True", "")}, state: api.Joined, sentence: joined},
		"ready, expired":   {facts: explain.Facts{Machine: over, Object: node("True", "")}, state: api.Joined, sentence: joined},
		"cloned, NotReady": {facts: explain.Facts{Machine: cloned, Object: node("False", "")}, state: api.JoinedNotReady, sentence: "joined 3 h ago, NotReady since 2 h ago", next: []string{"kubectl describe node worker-7"}},
		"cloned": {
			facts: explain.Facts{Machine: cloned, Object: node("True", "")}, state: api.Joined,
			sentence: joined + "; another machine proves the key of Node worker-7, which is Ready; to lock out all machines with this key: kubejoin revoke worker-7",
			next:     []string{"kubejoin revoke worker-7"},
		},
		"certificate expired": {
			facts: explain.Facts{Machine: never, Object: node("Unknown", ""), Identity: tokens.Identity{NotAfter: before(2 * time.Hour)}}, state: explain.CertificateExpired,
			sentence: "expired 2 h ago: run the join script on the machine with --diagnose, do what it says, then run the script again", next: []string{"kubectl describe node worker-7"},
		},
		"request of its token": {
			facts: explain.Facts{Machine: machine(nil), Tokens: all, Claim: claim("zzzzzz"), Requests: []api.RequestEvidence{request(bootstrap)}}, state: explain.NotApproved,
			sentence: "its certificate request was created 40 s ago and is not approved: kubejoin's csr-approver",
			next:     []string{"kubejoin explain --csr csr-1", "kubectl certificate approve csr-1"},
		},
		"request of another token": {
			facts: explain.Facts{Machine: machine(func(m *tokens.Machine) { m.TokenUID = "later" }), Tokens: all, Requests: []api.RequestEvidence{request(bootstrap)}}, state: explain.NodeNameClaimed,
			sentence: "its certificate request was created 40 s ago and is not approved: the name belongs to a machine with a key of its own; to give the name to another machine: kubejoin machine delete worker-7", next: free,
		},
		"request of a revoked machine": {facts: explain.Facts{Machine: revoked, Tokens: all, Requests: []api.RequestEvidence{request(bootstrap)}}, state: explain.NodeNameClaimed, next: free},
		"request of a user":            {facts: explain.Facts{Machine: never, Requests: []api.RequestEvidence{request("jane")}}, state: explain.NodeNameClaimed, next: free},
		"request, tokens unread": {
			facts: explain.Facts{Machine: machine(nil), Requests: []api.RequestEvidence{request(bootstrap)}, Unread: []api.UnreadFact{{Fact: explain.FactTokens}}}, state: explain.NotApproved,
			next: []string{"kubejoin explain --csr csr-1", "kubectl certificate approve csr-1"},
		},
		"token deleted": {facts: explain.Facts{Machine: machine(nil), Requests: []api.RequestEvidence{request(bootstrap)}}, state: explain.TokenUnknown, sentence: "its token abcdef no longer exists; start its script again, which proves the key again"},
		"token expired, undecided": {
			facts: explain.Facts{Machine: machine(nil), Tokens: gone, Requests: []api.RequestEvidence{request(bootstrap)}}, state: explain.TokenExpired,
			sentence: "; start its script again, which proves the key again",
		},
		"Node exists": {
			facts: explain.Facts{Machine: machine(nil), Tokens: all, Requests: []api.RequestEvidence{request(bootstrap)}, Object: node("False", "")}, state: explain.NodeExists,
			sentence: "; start its script again, which proves the key again",
		},
		"claimed": {facts: explain.Facts{Machine: machine(nil), Tokens: all, Claim: claim("abcdef")}, state: explain.Claimed, sentence: "; start its script again, which proves the key again"},
	} {
		c.facts.Node = name
		if e := explain.Explain(c.facts, now); e.State != c.state || !strings.Contains(e.Sentence, c.sentence) || strings.HasPrefix(c.sentence, nobody) && e.Sentence != name+": "+c.sentence || !slices.Equal(e.Next, c.next) {
			t.Errorf("%s: got %s: %s\n%q\nwant %s: %s\n%q", about, e.State, e.Sentence, e.Next, c.state, c.sentence, c.next)
		}
	}
}
