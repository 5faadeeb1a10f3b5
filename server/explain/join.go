package explain

import (
	"cmp"
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

// transient has the reasons that need no help until this time has passed since the last step of the machine. [Join] decides
// when another reason needs none.
var transient = map[api.NodeState]time.Duration{
	TokenUnknown: usualDelay, TokenUnsigned: usualDelay, NotApproved: usualDelay, NotSigned: usualDelay, // caches may lag
	CertificateIssued: usualStart, SignedByOther: usualStart, Claimed: usualStart,
	api.JoinedNotReady: usualReady, api.Joined: usualReady, // its taint keeps pods away
}

// Join returns how far the machine has joined at the time now. [Explain] gives the reason. The requests, the Node, the claim and
// the tokens must not be unread.
func Join(f Facts, now time.Time) api.Join {
	e := Explain(f, now)
	j := api.Join{Node: e.Node, Reason: e.State}
	j.TokenID, j.Steps = steps(f)
	// The last step is later than e.Since if a Node was replaced. A time in the future is wrong: the kubelet's clock set it.
	for _, s := range append(j.Steps, api.JoinStep{At: e.Since}) {
		if s.At.After(j.Since) && !s.At.After(now.Add(leaseMargin)) {
			j.Since = s.At
		}
	}
	ready := j.Steps[len(j.Steps)-1].State == api.StepDone
	usual, passes := transient[e.State]
	switch {
	case e.State == api.Joined && ready && !f.Joining:
		j.State = api.JoinJoined
	case e.State == NothingArrived:
		j.State = api.JoinExpected
	case e.State == api.Joined && !ready, e.State == WaitsForTurn && f.Turn.Learner == "", passes && now.Sub(j.Since) < usual:
		j.State = api.JoinJoining
	default:
		j.State, j.Sentence, j.Next = api.JoinStuck, e.Sentence, e.Next
	}
	j.SortKey, j.Version = sortKey(j), version(j, now)
	return j
}

// JoinList returns a list with these machines as Items in order, with Counts, and with a Cursor of 8 bytes that change
// when a machine changes. It sorts all.
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
// only the renewal of its certificate itself. A Node that is newer than an unsigned request has joined with another one.
func firstRequest(f Facts) (newest *api.RequestEvidence) {
	for i, r := range f.Requests {
		if r.Signer == clientSigner && r.User != tokens.NodeUserPrefix+f.Node && (f.Object == nil || r.Certificate != nil || r.Created.After(f.Object.Created)) &&
			(newest == nil || cmp.Or(r.Created.Compare(newest.Created), cmp.Compare(r.Name, newest.Name)) > 0) {
			newest = &f.Requests[i]
		}
	}
	return newest
}

// tokenOf returns the ID of the token with which the machine joins, and when that token was created; zero if unknown. A token
// that was deleted and created again is another one.
func tokenOf(f Facts, first *api.RequestEvidence) (id string, created time.Time) {
	uid, by := "", time.Time{} // the UID of the token, or a time when it existed
	switch {
	case first != nil:
		id, by = tokens.IDOfUser(first.User), first.Created
	case f.Claim != nil:
		id, uid = f.Claim.TokenID, f.Claim.TokenUID
	case f.Object != nil && f.Identity.TokenID != "" && f.Identity.NodeUID == f.Object.UID:
		id, by = f.Identity.TokenID, f.Object.Created
	case f.Machine.TokenID != "":
		id, uid = f.Machine.TokenID, f.Machine.TokenUID
	default:
		for _, r := range f.Tokens {
			if slices.Contains(r.Nodes, f.Node) || f.Object == nil && slices.Contains(r.Limits.Strictest().NodeNames, f.Node) {
				if id != "" {
					return "", time.Time{} // any of several tokens
				}
				id, uid = r.Token.ID(), r.UID
			}
		}
	}
	for _, r := range f.Tokens {
		if id != "" && r.Token.ID() == id && (uid == r.UID || uid == "" && !r.Created.After(by)) {
			created = r.Created
		}
	}
	return id, created
}

// steps returns the steps of a join, and the ID of its token. A step waits only if nothing suggests that it has happened. For
// example, a machine may have joined over HTTPS, or with a request that was deleted since.
func steps(f Facts) (id string, all []api.JoinStep) {
	first := firstRequest(f)
	id, created := tokenOf(f, first)
	done := func(name string, at time.Time) {
		all = append(all, api.JoinStep{Name: name, State: api.StepDone, At: at.UTC()})
	}
	notYet := func(name string, perhaps bool) {
		all = append(all, api.JoinStep{Name: name, State: map[bool]string{true: api.StepUnknown, false: api.StepWaiting}[perhaps]})
	}
	var refused *api.RequestCondition
	if first != nil {
		refused, _ = refusalOf(*first)
	}
	issued := first != nil && first.Certificate != nil && refused == nil
	registered := f.Object != nil && (first == nil || first.Certificate != nil) // else the Node is of another machine
	ran := !f.Identity.IsZero() || f.Machine.Joined || f.Claim != nil && f.Claim.NodeUID != "" || slices.ContainsFunc(f.Requests, func(r api.RequestEvidence) bool {
		return r.User == tokens.NodeUserPrefix+f.Node
	})
	perhaps := first == nil && (registered || f.Claim != nil || ran)

	if created.IsZero() {
		notYet(api.StepToken, true)
	} else {
		done(api.StepToken, created)
	}
	if first != nil {
		done(api.StepRequested, first.Created)
	} else {
		notYet(api.StepRequested, perhaps)
	}
	if f.Claim != nil && (first == nil || f.Claim.TokenID == id && !f.Claim.Created.Before(created)) {
		done(api.StepClaimed, f.Claim.Created)
	} else {
		notYet(api.StepClaimed, perhaps || issued)
	}
	switch {
	case issued:
		done(api.StepIssued, first.Certificate.At)
	case refused != nil:
		all = append(all, api.JoinStep{Name: api.StepIssued, State: api.StepRefused, At: refused.At.UTC()})
	default:
		notYet(api.StepIssued, perhaps)
	}
	if !registered {
		perhaps = ran && (first == nil || issued) // and its Node was deleted
		notYet(api.StepRegistered, perhaps)
		notYet(api.StepReady, perhaps)
		return id, all
	}
	done(api.StepRegistered, f.Object.Created)
	switch n := f.Object; {
	case n.Ready != "True":
		notYet(api.StepReady, false)
	case issued && n.Created.Before(first.Certificate.At) && n.Since.Before(first.Certificate.At):
		notYet(api.StepReady, true) // the machine before this one was Ready
	default:
		done(api.StepReady, n.Since)
	}
	return id, all
}
