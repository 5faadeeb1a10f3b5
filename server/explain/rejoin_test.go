package explain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
)

// A Node that is not Ready because its certificate expired must be explained as such.
func TestExplainsExpiredNode(t *testing.T) {
	for what, test := range map[string]struct {
		ready string
		end   time.Time
		state api.NodeState
		text  string

		credentials []tokens.Credential
	}{
		"expired":       {"Unknown", before(2 * time.Hour), explain.CertificateExpired, "expired 2 h ago: run 'kubejoin rejoin' on the machine", []tokens.Credential{{Key: "k"}}},
		"may not":       {"Unknown", before(2 * time.Hour), explain.CertificateExpired, "its token does not allow it to rejoin", nil},
		"valid":         {"Unknown", now.Add(time.Hour), api.JoinedNotReady, "NotReady", nil},
		"Ready":         {"True", before(2 * time.Hour), api.Joined, "Ready since", nil},
		"nothing known": {"Unknown", time.Time{}, api.JoinedNotReady, "NotReady", nil},
	} {
		e := explain.Explain(explain.Facts{Node: name, Object: node(test.ready, ""), Identity: tokens.Identity{NotAfter: test.end, Credentials: test.credentials}}, now)
		if e.State != test.state || !strings.Contains(e.Sentence, test.text) {
			t.Errorf("%s: got %s: %s, want %s with %q", what, e.State, e.Sentence, test.state, test.text)
		}
		if test.state == explain.CertificateExpired && !strings.Contains(strings.Join(e.Next, "\n"), "--replace-node "+name) {
			t.Errorf("%s: got next %q, want a way out", what, e.Next)
		}
	}
}

// kubejoin must not treat the certificates of a node before and after its rejoin as two machines.
func TestRejoinedNodeIsNoSharedName(t *testing.T) {
	ca := newCA(t, "kubernetes")
	first := request("system:bootstrap:abcdef", made(time.Hour, "csr-1"), issued("kubejoin", leafOf(t, ca, now.Add(time.Hour))))
	for user, shared := range map[string]bool{"system:bootstrap:qwertz": true, "system:node:" + name: false} {
		second := request(user, made(time.Minute, "csr-2"), issued("kubejoin", leafOf(t, ca, now.Add(time.Hour))))
		facts := explain.Facts{Node: name, Object: node("True", ""), Requests: []api.RequestEvidence{first, second}}
		if e := explain.Explain(facts, now); strings.Contains(e.Sentence, "several machines may use it") != shared {
			t.Errorf("%s: got %s, want a warning: %t", user, e.Sentence, shared)
		}
	}
}
