package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
)

// span formats a duration for people.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// ago formats the time since t; it returns "at an unknown time" for the zero time.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "at an unknown time"
	}
	return span(now.Sub(t)) + " ago"
}

// Limits of the sentence, and of an untrusted message in it, in bytes.
const (
	maxSentence = 3000
	maxMessage  = 700
)

// clean returns an untrusted message in a form that fits into a sentence.
func clean(message string) string {
	return strings.TrimRight(safetext.Text(message, maxMessage), " .")
}

// title returns the name of a request for a sentence. It quotes a name that is unsafe in a shell, because a reader could
// take such a name for a part of the sentence.
func title(r api.RequestEvidence) string {
	if safetext.SafeInShell(r.Name) {
		return r.Name
	}
	return fmt.Sprintf("%q", safetext.Text(r.Name, safetext.MaxName))
}

// approve adds the command that approves a request. If the name is unsafe in a shell, it adds the command that shows
// the request instead.
func (v *view) approve(words string, r api.RequestEvidence) {
	if safetext.SafeInShell(r.Name) {
		v.next(words, "kubectl certificate approve "+r.Name)
		return
	}
	v.next("its name is not safe to paste into a shell; show it with", safetext.ShowCSR(r.Name, r.UID))
}

// verdict adds the command that shows what kubejoin decides about a request. An explanation repeats no Events, because
// any node can write an Event that looks like kubejoin's.
func (v *view) verdict(r api.RequestEvidence) {
	if safetext.SafeInShell(r.Name) {
		v.next("see what kubejoin decides with", "kubejoin explain --csr "+r.Name)
	}
}

// ofNode returns the command with the node name appended; empty if the name is unsafe in a shell.
func (v *view) ofNode(command string) string {
	if !safetext.SafeInShell(v.Node) {
		return ""
	}
	return command + " " + v.Node
}

// cleaned returns the explanation with all untrusted text redacted, printable and truncated. It runs last, because
// Explain draws its conclusions from the original text.
func cleaned(e api.NodeExplanation) api.NodeExplanation {
	name := func(s *string) { *s = safetext.Text(*s, safetext.MaxName) }
	message := func(s *string) { *s = safetext.Text(*s, safetext.MaxMessage) }
	e.Sentence = safetext.Text(e.Sentence, maxSentence)
	name(&e.Node)
	for i := range e.Unread { // a copy: the facts keep the original text
		message(&e.Unread[i].Reason)
	}
	for i := range e.Evidence.Requests { // a copy, too
		r := &e.Evidence.Requests[i]
		for _, s := range []*string{&r.Name, &r.UID, &r.Signer, &r.User} {
			name(s)
		}
		for _, condition := range []**api.RequestCondition{&r.Approved, &r.Denied, &r.Failed} {
			if *condition != nil {
				c := **condition
				name(&c.Reason)
				message(&c.Message)
				*condition = &c
			}
		}
		if r.Certificate != nil {
			c := *r.Certificate
			name(&c.Writer)
			r.Certificate = &c
		}
	}
	if e.Evidence.Object != nil {
		node := *e.Evidence.Object
		name(&node.Ready) // kube-apiserver accepts any text here
		name(&node.Reason)
		message(&node.Message)
		e.Evidence.Object = &node
	}
	if e.Evidence.Turn != nil {
		turn := *e.Evidence.Turn
		name(&turn.Holder)
		turn.Learner = clean(turn.Learner)
		turn.Waiting = slices.Clone(turn.Waiting)
		for i := range turn.Waiting {
			name(&turn.Waiting[i].Node)
		}
		e.Evidence.Turn = &turn
	}
	if e.Evidence.Leader != nil {
		leader := *e.Evidence.Leader
		name(&leader.Holder)
		e.Evidence.Leader = &leader
	}
	return e
}
