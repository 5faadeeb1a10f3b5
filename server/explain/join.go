package explain

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// Normal maximum times, after which a machine is stuck.
const (
	usualStart = time.Minute     // from the certificate to the Node
	usualReady = 3 * time.Minute // from the Node to Ready, with the images of a network plugin
)

// transient are the reasons with which a machine is not stuck until the time has passed. With all other reasons, a machine that
// has not joined needs help.
var transient = map[api.NodeState]time.Duration{
	NotApproved: usualDelay, NotSigned: usualDelay, CertificateIssued: usualStart, Claimed: usualStart, api.JoinedNotReady: usualReady,
}

// Join returns how far the machine has joined at the time now. [Explain] gives the reason.
func Join(f Facts, now time.Time) api.Join {
	e := Explain(f, now)
	first := firstRequest(f)
	j := api.Join{Node: e.Node, Reason: e.State, Since: e.Since, TokenID: tokenOf(f, first), Steps: steps(f, first)}
	usual, passes := transient[e.State]
	switch {
	case e.State == api.Joined && !f.Joining:
		j.State = api.JoinJoined
	case e.State == api.Joined: // and its taint keeps pods away
		j.State = api.JoinJoining
		passes, usual = true, usualReady
	case e.State == NothingArrived:
		j.State = api.JoinExpected
	case e.State == WaitsForTurn && f.Turn.Learner == "":
		j.State = api.JoinJoining
	case passes:
		j.State = api.JoinJoining
	default:
		j.State = api.JoinStuck
	}
	if passes && now.Sub(j.Since) >= usual {
		j.State = api.JoinStuck
	}
	if j.State == api.JoinStuck {
		j.Sentence, j.Next = e.Sentence, e.Next
	}
	j.SortKey, j.Version = sortKey(j), version(j, now)
	return j
}

// JoinList returns a list with these machines as Items in order, with Counts, and with a Cursor of 8 bytes that differ after each
// change. It sorts all.
func JoinList(all []api.Join) api.JoinList {
	list := api.JoinList{Items: all, Counts: map[api.JoinState]int{}}
	for _, s := range api.JoinStates {
		list.Counts[s] = 0
	}
	slices.SortFunc(all, func(a, b api.Join) int { return strings.Compare(a.SortKey, b.SortKey) })
	sum := sha256.New()
	for _, j := range all {
		list.Counts[j.State]++
		_, _ = io.WriteString(sum, j.Version) // never fails
	}
	list.Cursor = string(sum.Sum(nil)[:8])
	return list
}

// sortKey orders machines by state. Of those that have joined, the last one is first. In other states, the machine that waits
// longest is first.
func sortKey(j api.Join) string {
	at := j.Since.Unix()
	if j.State == api.JoinJoined {
		at = -at
	}
	return fmt.Sprintf("%d/%020d/%s", slices.Index(api.JoinStates, j.State), uint64(at)^1<<63, j.Node) // as text, in the order of signed numbers
}

// version returns a hash of what a client shows of a machine. The sentence says how long ago things happened, so it counts as
// changed after each minute.
func version(j api.Join, now time.Time) string {
	if j.State == api.JoinStuck {
		j.Sentence = (now.Sub(j.Since) / time.Minute).String()
	}
	content, _ := json.Marshal(j) // strings and times have a JSON form
	sum := sha256.Sum256(content)
	return string(sum[:8])
}

// firstRequest returns the newest request of a client certificate that the node did not send itself, or nil. A node requests
// only the renewal of its certificate itself.
func firstRequest(f Facts) (newest *api.RequestEvidence) {
	for i, r := range f.Requests {
		if r.Signer == clientSigner && r.User != tokens.NodeUserPrefix+f.Node && (newest == nil || r.Created.After(newest.Created)) {
			newest = &f.Requests[i]
		}
	}
	return newest
}

// tokenOf returns the ID of the token with which the machine joins; empty if it is unknown.
func tokenOf(f Facts, first *api.RequestEvidence) string {
	switch {
	case first != nil:
		return tokens.IDOfUser(first.User)
	case f.Claim != nil:
		return f.Claim.TokenID
	case f.Machine.TokenID != "":
		return f.Machine.TokenID
	}
	id := ""
	for _, r := range f.Tokens {
		if slices.Contains(r.Nodes, f.Node) || f.Object == nil && slices.Contains(r.Limits.Strictest().NodeNames, f.Node) {
			if id != "" {
				return "" // any of several tokens
			}
			id = r.Token.ID()
		}
	}
	return id
}

// steps returns the steps of a join. A step has not happened only if the facts prove it. For example, a Node without a request
// may have joined with a request that was deleted since.
func steps(f Facts, first *api.RequestEvidence) []api.JoinStep {
	unread := func(facts ...api.Fact) bool {
		return slices.ContainsFunc(f.Unread, func(u api.UnreadFact) bool { return slices.Contains(facts, u.Fact) })
	}
	done := func(name string, at time.Time) api.JoinStep {
		return api.JoinStep{Name: name, State: api.StepDone, At: at.UTC()}
	}
	// A Node from before an unsigned request belongs to another machine.
	registered := f.Object != nil && (first == nil || first.Certificate != nil || !first.Created.After(f.Object.Created))
	notYet := func(name string, happened bool) api.JoinStep {
		if happened {
			return api.JoinStep{Name: name, State: api.StepUnknown}
		}
		return api.JoinStep{Name: name, State: api.StepWaiting}
	}
	id := tokenOf(f, first)
	all := []api.JoinStep{{Name: api.StepToken, State: api.StepUnknown}}
	if at := slices.IndexFunc(f.Tokens, func(r tokens.Record) bool { return id != "" && r.Token.ID() == id }); at >= 0 {
		r := f.Tokens[at]
		same := (first == nil || !r.Created.After(first.Created)) && (f.Claim == nil || f.Claim.TokenID != id || f.Claim.TokenUID == "" || f.Claim.TokenUID == r.UID)
		if same && !r.Created.IsZero() { // a token that was deleted and created again is another one
			all[0] = done(api.StepToken, r.Created)
		}
	}
	if first != nil {
		all = append(all, done(api.StepRequested, first.Created))
	} else {
		all = append(all, notYet(api.StepRequested, registered || f.Claim != nil || unread(FactRequests, FactNode, FactClaim)))
	}
	issued := first != nil && first.Certificate != nil
	if f.Claim != nil && (first == nil || f.Claim.TokenID == id) {
		all = append(all, done(api.StepClaimed, f.Claim.Created))
	} else {
		all = append(all, notYet(api.StepClaimed, registered || issued || unread(FactClaim, FactNode)))
	}
	var refused *api.RequestCondition
	if first != nil {
		refused, _ = refusalOf(*first)
	}
	switch {
	case issued:
		all = append(all, done(api.StepIssued, first.Certificate.At))
	case refused != nil:
		all = append(all, api.JoinStep{Name: api.StepIssued, State: api.StepRefused, At: refused.At.UTC()})
	default:
		all = append(all, notYet(api.StepIssued, first == nil && (registered || f.Claim != nil || unread(FactRequests, FactNode, FactClaim))))
	}
	if !registered {
		return append(all, notYet(api.StepRegistered, unread(FactNode)), notYet(api.StepReady, unread(FactNode)))
	}
	all = append(all, done(api.StepRegistered, f.Object.Created))
	if f.Object.Ready != "True" {
		return append(all, notYet(api.StepReady, false))
	}
	return append(all, done(api.StepReady, f.Object.Since))
}
