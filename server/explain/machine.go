package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// unproven explains a machine with a key of its own that has no live token. It reports whether there is such a machine.
func (v *view) unproven(nobody string) bool {
	m := v.Machine
	switch {
	case m.IsZero(), !m.Revoked && m.TokenUID != "" && (v.isUnread(FactTokens) || slices.ContainsFunc(v.Tokens, func(r tokens.Record) bool {
		return r.UID == m.TokenUID && !r.Expired(v.now)
	})):
		return false
	case m.Revoked, m.Expired(v.now):
		v.say(NothingKnown, time.Time{}, "%s", nobody)
	case m.TokenID != "":
		v.say(NothingArrived, time.Time{}, "%s; token %s of its machine was deleted or has expired; run the join script on the machine again", nobody, m.TokenID)
	default:
		v.say(NothingArrived, time.Time{}, "%s; its machine was added %s and has not proven its key; run the script of 'kubejoin machine print-join-command' on it", nobody, ago(m.Added, v.now))
		v.next("to list keys that kubejoin does not know", "kubejoin machine list --pending --url https://HOST:PORT")
	}
	return true
}

// needToken are the states in which a machine needs another token.
var needToken = []api.NodeState{TokenSpent, TokenExpired, TokenRevoked, TokenReplaced, TokenUnknown, TokenLimitsMalformed, NodeExists, NodeReplaced, Claimed}

// machine adds the last token of a machine with a key of its own, or why the machine gets no token.
func (v *view) machine() {
	m, ready := v.Machine, v.Object != nil && v.Object.Ready == "True"
	another := v.ofNode("kubejoin machine delete")
	switch {
	case m.IsZero():
	case m.Revoked:
		v.e.Sentence += "; the key of its machine is revoked"
		v.next("to give the name to another machine", another)
	case ready && m.Cloned(v.now):
		v.e.Sentence += fmt.Sprintf("; another machine proves the key of Node %s, which is Ready", v.Node)
		v.next("to lock out all machines with this key", v.ofNode("kubejoin revoke"))
	case ready:
	case m.Expired(v.now):
		v.e.Sentence += fmt.Sprintf("; its machine expired %s, and gets no more tokens", ago(m.Expires, v.now))
		v.next("to let it join, delete it, then add it again", another)
	default:
		for _, r := range v.Tokens {
			if r.UID == m.TokenUID {
				v.e.Sentence += fmt.Sprintf("; its machine proved its key and got token %s %s", m.TokenID, ago(r.Created, v.now))
			}
		}
		if slices.Contains(needToken, v.e.State) && !strings.Contains(v.e.Sentence, "script") {
			v.e.Sentence += "; start its script again, which proves the key again"
		}
	}
}

// belongs reports whether the name belongs to a machine, and somebody else sent the request. token is the token of the request. It is
// the zero Record if the request has no token, or if kubejoin could not read the tokens.
func (v *view) belongs(r api.RequestEvidence, token tokens.Record) bool {
	m := v.Machine
	return !m.IsZero() && (token.UID != "" && (m.Revoked || token.UID != m.TokenUID) || tokens.IDOfUser(r.User) == "")
}
