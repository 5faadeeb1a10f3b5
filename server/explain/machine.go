package explain

import (
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// unproven explains a machine with a key of its own that has no token to join with, and reports whether that is so.
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
		v.say(NothingArrived, time.Time{}, "%s; token %s of its machine has ended; start its script again, which proves the key again", nobody, m.TokenID)
	default:
		v.say(NothingArrived, time.Time{}, "%s; its machine was added %s and has not proven its key; start it with the script of 'kubejoin machine print-join-command'", nobody, ago(m.Added, v.now))
		v.next("the keys that kubejoin does not know are in", "kubejoin machine list --pending --url https://HOST:PORT")
	}
	return true
}

// machine adds what a machine with a key of its own did last, or what bars its key.
func (v *view) machine() {
	m, ready := v.Machine, v.Object != nil && v.Object.Ready == "True"
	another := v.ofNode("kubejoin machine delete")
	switch {
	case m.IsZero():
	case m.Revoked:
		v.e.Sentence += "; the key of its machine is barred"
		v.next("to give the name to another machine", another)
	case ready && m.Cloned(v.now):
		v.e.Sentence += fmt.Sprintf("; machines prove the key of Node %s, which is Ready: one of them is a copy", v.Node)
		v.next("to lock out all that have the key", v.ofNode("kubejoin revoke"))
	case ready:
	case m.Expired(v.now):
		v.e.Sentence += fmt.Sprintf("; its machine expired %s, and gets no more tokens", ago(m.Expires, v.now))
		v.next("to let it join, add it again after", another)
	default:
		for _, r := range v.Tokens {
			if r.UID == m.TokenUID {
				v.e.Sentence += fmt.Sprintf("; its machine proved its key and got token %s %s", m.TokenID, ago(r.Created, v.now))
			}
		}
	}
}

// belongs reports whether the name belongs to a machine that did not send a request. The token of the request is the zero Record if
// no token sent it, or if the tokens could not be read.
func (v *view) belongs(r api.RequestEvidence, token tokens.Record) bool {
	m := v.Machine
	return !m.IsZero() && (token.UID != "" && (m.Revoked || token.UID != m.TokenUID) || tokens.IDOfUser(r.User) == "")
}
