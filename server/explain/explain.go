package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// Explain returns why a machine with the name has or has not joined at the time now. The newest request decides;
// older requests are only counted.
func Explain(f Facts, now time.Time) api.NodeExplanation {
	v := &view{Facts: f, now: now}
	v.e = api.NodeExplanation{APIVersion: api.GroupVersion, Kind: api.KindNodeExplanation, Node: f.Node, Unread: slices.Clone(f.Unread)}
	slices.SortFunc(v.e.Unread, func(a, b api.UnreadFact) int { return cmp.Compare(a.Fact, b.Fact) })

	newest := slices.Clone(f.Requests)
	slices.SortFunc(newest, func(a, b api.RequestEvidence) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.Name, a.Name))
	})
	for _, r := range newest {
		switch {
		case r.Signer == servingSigner:
			v.serving = append(v.serving, r)
			continue
		case r.Signer != clientSigner:
			continue
		}
		v.client = append(v.client, r)
		if refusal, _ := refusalOf(r); refusal != nil {
			v.e.Evidence.Refused++
		}
	}
	v.e.Evidence.Requests = slices.Concat(v.client, v.serving)
	v.e.Evidence.RequestCount = len(v.e.Evidence.Requests)
	v.e.Evidence.Requests = v.e.Evidence.Requests[:min(len(v.e.Evidence.Requests), api.MaxEvidence)]
	v.e.Evidence.Object, v.e.Evidence.Claim = f.Object, claimEvidence(f.Claim)

	v.e.Evidence.Revocation = f.Revocation
	if !v.waits() {
		v.explain()
		v.shared()
		v.revoked()
		v.machine()
	}
	v.properties()
	v.turn()
	v.e.Sentence = f.Node + ": " + v.e.Sentence
	if len(v.missing) > 0 {
		v.e.Sentence += fmt.Sprintf(" (could not be read: %s)", strings.Join(v.missing, ", "))
	}
	return cleaned(v.e)
}

// A view builds an explanation from facts.
type view struct {
	Facts
	now             time.Time
	client, serving []api.RequestEvidence // newest first
	missing         []string              // facts
	e               api.NodeExplanation
}

// readable reports whether a fact could be read. If not, it adds the fact to v.missing, and the explanation says that
// the fact could not be read.
func (v *view) readable(f api.Fact) bool {
	if !v.isUnread(f) {
		return true
	}
	if !slices.Contains(v.missing, string(f)) {
		v.missing = append(v.missing, string(f))
	}
	return false
}

// isUnread reports whether a fact could not be read. Unlike readable, it does not mention that in the sentence.
func (v *view) isUnread(f api.Fact) bool {
	return slices.ContainsFunc(v.Unread, func(u api.UnreadFact) bool { return u.Fact == f })
}

// say sets the state and the sentence. [view.next] adds commands.
func (v *view) say(s api.NodeState, since time.Time, format string, args ...any) {
	v.e.State, v.e.Since, v.e.Sentence = s, since, fmt.Sprintf(format, args...)
}

// next adds a command. If words are given, it also adds both to the sentence. A command may contain untrusted text only
// if [safetext.SafeInShell] allows it.
func (v *view) next(words, command string) {
	if command == "" || slices.Contains(v.e.Next, command) {
		return
	}
	if words != "" && !strings.Contains(v.e.Sentence, command) {
		v.e.Sentence += "; " + words + ": " + command
	}
	v.e.Next = append(v.e.Next, command)
}

func (v *view) explain() {
	requests := v.readable(FactRequests)
	if v.readable(FactNode) && v.Object != nil {
		// Explain a request by another machine for the name of this Node if it is newer than the Node and unsigned.
		// A signed request needs no explanation: its certificate created the Node, or replaces the certificate of
		// the Node.
		other := slices.IndexFunc(v.client, func(r api.RequestEvidence) bool { return r.User != tokens.NodeUserPrefix+v.Node })
		if other < 0 || v.client[other].Certificate != nil || !v.client[other].Created.After(v.Object.Created) {
			v.joined()
			return
		}
		v.explainRequest(v.client[other])
		v.e.Sentence += "; the Node of that name is " + v.readiness()
		return
	}
	switch {
	case v.runsWithoutNode():
		v.say(NodeDeleted, v.serving[0].Created, "its Node was deleted, and its kubelet runs: its request %s for a serving certificate, created %s, waits for the Node", title(v.serving[0]), ago(v.serving[0].Created, v.now))
		v.next("a kubelet registers its Node only when it starts; on the machine, run", "systemctl restart kubelet")
	case len(v.client) > 0:
		v.explainRequest(v.client[0])
	case !requests:
		v.say(Unknown, time.Time{}, "its state is unknown without its certificate requests")
	default:
		v.noRequest()
	}
}

// runsWithoutNode reports whether the last request of a machine without a Node was for a serving certificate. A kubelet
// requests it only after it has registered its Node, so the Node existed.
func (v *view) runsWithoutNode() bool {
	if !v.readable(FactNode) || len(v.serving) == 0 || len(v.client) > 0 && !v.serving[0].Created.After(v.client[0].Created) {
		return false
	}
	r := v.serving[0]
	refusal, _ := refusalOf(r)
	return r.User == tokens.NodeUserPrefix+v.Node && refusal == nil && r.Certificate == nil && v.now.Sub(r.Created) >= usualDelay
}

// explainRequest explains a client certificate request.
func (v *view) explainRequest(r api.RequestEvidence) {
	refusal, state := refusalOf(r)
	switch {
	case refusal != nil:
		v.refused(r, *refusal, state)
	case r.Certificate != nil:
		v.issued(r)
	case r.User == tokens.NodeUserPrefix+v.Node && v.readable(FactNode) && v.Object == nil:
		v.say(NodeDeleted, r.Created, "its Node was deleted: the machine requested the renewal of its certificate %s, and the request waits for the Node", ago(r.Created, v.now))
		v.next(v.remedy(NodeDeleted))
	case r.Approved != nil:
		v.unsigned(r)
	default:
		v.pending(r)
	}
}

// joined explains a node that has joined.
func (v *view) joined() {
	state, since := api.Joined, v.Object.Since
	if v.Object.Ready != "True" {
		state = api.JoinedNotReady
	}
	if since.IsZero() {
		since = v.Object.Created
	}
	v.say(state, since, "joined %s, %s", ago(v.Object.Created, v.now), v.readiness())
	if state == api.JoinedNotReady {
		v.next("", v.ofNode("kubectl describe node"))
		v.offline()
	}
	if len(v.serving) == 0 {
		return
	}
	r := v.serving[0]
	refusal, _ := refusalOf(r)
	switch {
	case r.Certificate != nil:
	case refusal != nil:
		v.e.Sentence += fmt.Sprintf("; its request %s for a serving certificate was refused %s: %s", title(r), ago(refusal.At, v.now), conditionWords(*refusal))
	case r.Approved != nil:
		v.e.Sentence += fmt.Sprintf("; its request %s for a serving certificate was approved %s and is not signed", title(r), ago(r.Approved.At, v.now)) + v.failedWrite(r)
	default:
		v.e.Sentence += fmt.Sprintf("; its request %s for a serving certificate, created %s, waits for approval", title(r), ago(r.Created, v.now)) + v.failedWrite(r)
		v.verdict(r)
		v.approve("approve it with", r)
	}
}

// offline explains a node that is not Ready because its certificate has expired. A revoked node cannot rejoin.
func (v *view) offline() {
	if end := v.Identity.NotAfter; !end.IsZero() && end.Before(v.now) && v.Revocation == nil {
		how := "run 'kubejoin rejoin' on the machine, within --rejoin-window of kubejoin"
		if len(v.Identity.Credentials) == 0 {
			how = "its token does not allow it to rejoin, so let it join with a new one"
		}
		if !v.Machine.IsZero() {
			how = "run the join script on the machine with --diagnose, do what it says, then run the script again"
		}
		v.say(CertificateExpired, end, "%s; the last certificate that kubejoin issued for it expired %s: %s", v.e.Sentence, ago(end, v.now), how)
		_, command := v.remedy(CertificateExpired)
		v.next("", command)
	}
}

func (v *view) readiness() string {
	n := v.Object
	switch {
	case n.Ready == "True":
		return "Ready since " + ago(n.Since, v.now)
	case n.Ready == "":
		return "NotReady: its kubelet has reported nothing yet"
	}
	words := "NotReady since " + ago(n.Since, v.now)
	if n.Ready == "Unknown" {
		words = "NotReady, no status from its kubelet since " + ago(n.Since, v.now)
	}
	if m := clean(n.Message); m != "" {
		words += fmt.Sprintf("; the Node says %q", m) // its kubelet wrote this message
	}
	return words
}

// conditionWords returns the message of a condition, or else its reason.
func conditionWords(c api.RequestCondition) string {
	if m := clean(c.Message); m != "" {
		return m
	}
	if r := clean(c.Reason); r != "" {
		return "the reason given is " + r
	}
	return "no reason is given"
}
