package explain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
)

func nodeEvent(reason string, age time.Duration) api.EventEvidence {
	return api.EventEvidence{Namespace: "default", Kind: "Node", Object: name, UID: name, Source: "kubejoin", Reason: reason, Message: "because of " + reason, At: before(age)}
}

// A Node that is not Ready because its certificate expired must be explained as such, with why its machine may not rejoin.
func TestExplainsExpiredNode(t *testing.T) {
	expired := tokens.Identity{Keys: []string{"k"}, NotAfter: before(2 * time.Hour)}
	valid := tokens.Identity{Keys: []string{"k"}, NotAfter: now.Add(time.Hour)}
	foreign := nodeEvent("KeyNotCurrent", time.Minute)
	foreign.Source = "kubelet"
	for what, test := range map[string]struct {
		ready    string
		identity tokens.Identity
		events   []api.EventEvidence
		state    api.NodeState
		text     string
	}{
		"expired":                      {"Unknown", expired, nil, explain.CertificateExpired, "expired 2 h ago: run 'kubejoin rejoin' on the machine"},
		"valid":                        {"Unknown", valid, nil, api.JoinedNotReady, "NotReady"},
		"Ready":                        {"True", expired, []api.EventEvidence{nodeEvent("KeyNotCurrent", time.Minute)}, api.Joined, "Ready since"},
		"nothing known":                {"Unknown", tokens.Identity{}, nil, api.JoinedNotReady, "NotReady"},
		"old disk":                     {"Unknown", expired, []api.EventEvidence{nodeEvent("KeyNotCurrent", time.Minute)}, explain.KeyNotCurrent, "kubejoin refused 60 s ago to let its machine rejoin: because of KeyNotCurrent"},
		"off":                          {"Unknown", expired, []api.EventEvidence{nodeEvent("RejoinOff", time.Minute)}, explain.RejoinOff, "because of RejoinOff"},
		"too late":                     {"Unknown", expired, []api.EventEvidence{nodeEvent("RejoinTooLate", time.Minute)}, explain.RejoinTooLate, "because of"},
		"revoked":                      {"Unknown", expired, []api.EventEvidence{nodeEvent("Revoked", time.Minute)}, explain.Revoked, "because of"},
		"budget":                       {"Unknown", expired, []api.EventEvidence{nodeEvent("RejoinBudgetSpent", time.Minute)}, explain.RejoinBudgetSpent, "because of"},
		"Node created again":           {"Unknown", expired, []api.EventEvidence{nodeEvent("NodeReplaced", time.Minute)}, explain.NodeReplaced, "because of"},
		"rejoined after a refusal":     {"Unknown", valid, []api.EventEvidence{nodeEvent("KeyNotCurrent", time.Hour), nodeEvent("Rejoined", time.Minute)}, api.JoinedNotReady, "NotReady"},
		"refused after a rejoin":       {"Unknown", valid, []api.EventEvidence{nodeEvent("Rejoined", time.Hour), nodeEvent("KeyNotCurrent", time.Minute)}, explain.KeyNotCurrent, "because of"},
		"Event of somebody else":       {"Unknown", valid, []api.EventEvidence{foreign}, api.JoinedNotReady, "NotReady"},
		"Event of kubejoin, of others": {"Unknown", valid, []api.EventEvidence{event("KeyNotCurrent", "x")}, api.JoinedNotReady, "NotReady"},
	} {
		e := explain.Explain(explain.Facts{Node: name, Object: node(test.ready, ""), Identity: test.identity, Events: test.events}, now)
		if e.State != test.state || !strings.Contains(e.Sentence, test.text) {
			t.Errorf("%s: got %s: %s, want %s with %q", what, e.State, e.Sentence, test.state, test.text)
		}
		if refused := test.state != api.Joined && test.state != api.JoinedNotReady; refused && !strings.Contains(strings.Join(e.Next, "\n"), "--replace-node "+name) {
			t.Errorf("%s: got next %q, want a way out", what, e.Next)
		}
	}
}

// The certificates of a node before and after its rejoin are no two machines.
func TestRejoinedNodeIsNoSharedName(t *testing.T) {
	ca := newCA(t, "kubernetes")
	first := request("system:bootstrap:abcdef", made(time.Hour, "csr-1"), issued("kubejoin", leafOf(t, ca, now.Add(time.Hour))))
	second := request("system:bootstrap:qwertz", made(time.Minute, "csr-2"), issued("kubejoin", leafOf(t, ca, now.Add(time.Hour))))
	facts := explain.Facts{Node: name, Object: node("True", ""), Requests: []api.RequestEvidence{first, second}}
	if e := explain.Explain(facts, now); !strings.Contains(e.Sentence, "several machines may use it") {
		t.Errorf("two tokens: got %s", e.Sentence)
	}
	facts.Identity.TokenID = "qwertz"
	if e := explain.Explain(facts, now); strings.Contains(e.Sentence, "several machines may use it") {
		t.Errorf("a rejoin: got %s", e.Sentence)
	}
}
