package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/server/api"
)

// span is a duration as a person says it.
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

// ago of the zero time is "at an unknown time".
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "at an unknown time"
	}
	return span(now.Sub(t)) + " ago"
}

// Bounds of a sentence and of another's message in it, in bytes.
const (
	maxSentence = 3000
	maxMessage  = 700
)

// clean makes a message that others wrote fit into a sentence.
func clean(message string) string {
	return strings.TrimRight(foreign.Text(message, maxMessage), " .")
}

// title names a request in a sentence. A name that could be mistaken for a part of it is quoted.
func title(r api.RequestEvidence) string {
	if foreign.SafeInShell(r.Name) {
		return r.Name
	}
	return fmt.Sprintf("%q", foreign.Text(r.Name, foreign.MaxName))
}

// approve adds the command that approves a request, or the one that shows it if its name must not be
// part of a command.
func (v *view) approve(words string, r api.RequestEvidence) {
	if foreign.SafeInShell(r.Name) {
		v.next(words, "kubectl certificate approve "+r.Name)
		return
	}
	v.next("its name must not be pasted into a shell; show it with", foreign.ShowCSR(r.Name, r.UID))
}

// ofNode is a command that ends with the name of the node; empty if that must not be part of one.
func (v *view) ofNode(command string) string {
	if !foreign.SafeInShell(v.Node) {
		return ""
	}
	return command + " " + v.Node
}

// cleaned is an explanation in which nothing that others wrote is more than text of some length. It
// changes no fact: what was concluded, was concluded from the text as it is.
func cleaned(e api.NodeExplanation) api.NodeExplanation {
	name := func(s *string) { *s = foreign.Text(*s, foreign.MaxName) }
	message := func(s *string) { *s = foreign.Text(*s, foreign.MaxMessage) }
	e.Sentence = foreign.Text(e.Sentence, maxSentence)
	name(&e.Node)
	for i := range e.Unread { // a clone of the facts'
		message(&e.Unread[i].Reason)
	}
	for i := range e.Evidence.Requests { // likewise
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
	if e.Evidence.Event != nil {
		event := *e.Evidence.Event
		for _, s := range []*string{&event.Namespace, &event.Name, &event.Kind, &event.Object, &event.Source, &event.Reason} {
			name(s)
		}
		message(&event.Message)
		e.Evidence.Event = &event
	}
	if e.Evidence.Object != nil {
		node := *e.Evidence.Object
		name(&node.Ready) // kube-apiserver accepts any text here
		name(&node.Reason)
		message(&node.Message)
		e.Evidence.Object = &node
	}
	if e.Evidence.Leader != nil {
		leader := *e.Evidence.Leader
		name(&leader.Holder)
		e.Evidence.Leader = &leader
	}
	return e
}
