package rotation

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
)

// A CA is one of the certificate authorities of a cluster that kubeadm makes.
type CA string

// The CAs that can be replaced.
const (
	Cluster    CA = "cluster"
	FrontProxy CA = "front-proxy"
	Etcd       CA = "etcd"
)

// CAs are all values of CA.
var CAs = []CA{Cluster, FrontProxy, Etcd}

func (ca CA) check() error {
	if !slices.Contains(CAs, ca) {
		return invalid("ca", "is %.40q, want %s, %s or %s", ca, Cluster, FrontProxy, Etcd)
	}
	return nil
}

// Command returns a subcommand of 'kubejoin ca' for this CA.
func (ca CA) Command(step string) string {
	if ca == Cluster {
		return "kubejoin ca " + step
	}
	return "kubejoin ca " + step + " --ca " + string(ca)
}

// A Stage says which CAs are trusted and which one signs.
type Stage string

// The stages, in their order.
const (
	Prepare Stage = "prepare" // the new CA exists, and nothing trusts it
	Trust   Stage = "trust"   // both CAs are trusted, the old CA signs
	Switch  Stage = "switch"  // both CAs are trusted, the new CA signs
	Finish  Stage = "finish"  // only the new CA is trusted
)

var stages = []Stage{Prepare, Trust, Switch, Finish}

// A Rotation is the state of the replacement of one CA. It is public: it has no key. The zero Rotation means that there
// has been no rotation.
type Rotation struct {
	// ID distinguishes this rotation from earlier rotations of the same CA: 16 hexadecimal digits.
	ID    string `json:"id"`
	CA    CA     `json:"ca"`
	Stage Stage  `json:"stage"`
	// Aborting is true after an abort. The rotation then goes back through its stages.
	Aborting bool `json:"aborting,omitempty"`
	// Old are the certificates that were trusted before. New are the certificates that will be trusted; the first one
	// is the CA that will sign.
	Old Bundle `json:"old"`
	New Bundle `json:"new"`
	// Cross is the cross certificate, which the old CA signed for the key of the new CA; empty if there is none. It
	// proves to hosts that a holder of the old key made this rotation. With it, a client that knows only the old CA can
	// verify certificates of the new CA.
	Cross Bundle `json:"cross,omitempty"`
	// HasKey is true if the key of the new CA is stored, encrypted, until the rotation ends. Otherwise the operator
	// copies the key to the hosts.
	HasKey bool `json:"hasKey,omitempty"`

	Started time.Time `json:"started"`
	// Since is when the stage began.
	Since time.Time `json:"since"`
	// Nodes is how many nodes the cluster had when the stage began; zero without a cluster. See [Rotation.Start].
	Nodes int `json:"nodes,omitempty"`
	// Settled is when kubejoin first observed that all hosts have the files of this stage. Without a cross certificate,
	// the next stage waits from this time until clients have read the files. It is zero until a step needs it.
	Settled time.Time `json:"settled,omitzero"`
	// Trusting is when the stage Trust began, from which on join commands pin both CAs; zero before.
	Trusting time.Time `json:"trusting,omitzero"`
	// Finishing is when the stage Finish began, from which on join commands pin only the new CA; zero before.
	Finishing time.Time `json:"finishing,omitzero"`
	// Ended is when the last stage was complete; zero while the rotation is in progress.
	Ended time.Time `json:"ended,omitzero"`
	// LeftBehind are the nodes, and LeftFiles the files as NODE:PATH, that the operator has left behind in this
	// rotation.
	LeftBehind []string `json:"leftBehind,omitempty"`
	LeftFiles  []string `json:"leftFiles,omitempty"`
	// Replaced are the latest CAs that earlier rotations took out of use, until they expire.
	Replaced []Replaced `json:"replaced,omitempty"`
}

// A Replaced is a CA that a rotation took out of use: the old CA or, after an abort, the new CA.
type Replaced struct {
	// Rotation is the ID of the rotation that took the CA out of use.
	Rotation string `json:"rotation"`
	// Pin is empty once the CA has expired, or is in use again.
	Pin      string    `json:"pin,omitempty"`
	NotAfter time.Time `json:"notAfter"`
}

// maxReplaced is how many replaced CAs a rotation stores.
const maxReplaced = 16

// gone returns the CAs that earlier rotations and, if it has ended, this rotation took out of use.
func (r Rotation) gone() []Replaced {
	if r.ID == "" || r.InProgress() {
		return r.Replaced
	}
	side := r.Old
	if r.Stage == Prepare {
		side = r.New
	}
	gone := slices.Clone(r.Replaced)
	for _, c := range side {
		gone = append(gone, Replaced{r.ID, clusterinfo.Pin(c), c.NotAfter.UTC()})
	}
	return gone
}

// Outdated reports whether a rotation took one of the certificates out of use. A replica or host that still has such a
// certificate was left behind.
func (r Rotation) Outdated(certs ...*x509.Certificate) bool { return replaced(r.gone(), certs) }

// Gone returns the pins of the CAs that earlier rotations and, if it has ended, this rotation took out of use.
func (r Rotation) Gone() (pins []string) {
	for _, g := range r.gone() {
		if g.Pin != "" {
			pins = append(pins, g.Pin)
		}
	}
	return pins
}

func replaced(gone []Replaced, certs []*x509.Certificate) bool {
	return slices.ContainsFunc(certs, func(c *x509.Certificate) bool {
		return slices.ContainsFunc(gone, func(g Replaced) bool { return g.Pin == clusterinfo.Pin(c) })
	})
}

// Past reports whether the ID is the ID of an earlier rotation, which has ended.
func (r Rotation) Past(id string) bool {
	return slices.ContainsFunc(r.Replaced, func(g Replaced) bool { return g.Rotation == id })
}

// succeed adds the CAs that before and earlier rotations took out of use.
func (r *Rotation) succeed(before Rotation, now time.Time) {
	gone, used := before.gone(), clusterinfo.Pins(r.At(Switch).Trusted())
	r.Replaced = slices.Clone(gone[max(0, len(gone)-maxReplaced):])
	for i, g := range r.Replaced {
		if !now.Before(g.NotAfter) || slices.Contains(used, g.Pin) {
			r.Replaced[i].Pin = ""
		}
	}
}

// At returns the rotation in another stage.
func (r Rotation) At(stage Stage) Rotation {
	r.Stage = stage
	return r
}

// InProgress reports whether the rotation has begun and has not ended.
func (r Rotation) InProgress() bool { return r.ID != "" && r.Ended.IsZero() }

// Changed returns when the stage began, or when the rotation ended; zero if there has been no rotation.
func (r Rotation) Changed() time.Time {
	if r.Ended.IsZero() {
		return r.Since
	}
	return r.Ended
}

// TrustsOld reports whether hosts trust the old CA in this stage.
func (r Rotation) TrustsOld() bool { return r.Stage != Finish }

// TrustsNew reports whether hosts trust the new CA in this stage.
func (r Rotation) TrustsNew() bool { return r.Stage != Prepare }

// SignsNew reports whether the new CA signs in this stage.
func (r Rotation) SignsNew() bool { return r.Stage == Switch || r.Stage == Finish }

// An Observation describes one thing that a rotation has to change.
type Observation struct {
	// Kind is the kind of the thing, and Name is its name, for example KindAPIServer and "192.0.2.11:6443".
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Node is the node that the thing belongs to; empty if it belongs to none. File is the path of a file on
	// that node.
	Node string `json:"node,omitempty"`
	File string `json:"file,omitempty"`
	// Trusts are the CAs that the thing trusts; nil if that does not apply or was not observed.
	Trusts *Trusted `json:"trusts,omitempty"`
	// From is the CA that issued its certificates; empty if that does not apply or was not observed.
	From From `json:"from,omitempty"`
	// Until is when the last certificate from the old CA expires; zero if unknown.
	Until time.Time `json:"until,omitzero"`
	// Unseen says why the thing could not be observed. Next is the command that shows or corrects it, with the
	// host to run it on.
	Unseen string `json:"unseen,omitempty"`
	Next   string `json:"next,omitempty"`
	// Off is true if the node is not ready, so that it cannot be observed now.
	Off bool `json:"off,omitempty"`
	// Optional is true if the observation blocks no stage, because kubejoin can never make it from here. Next
	// shows the state.
	Optional bool `json:"optional,omitempty"`
}

// A Kind is a kind of thing that a rotation has to change.
type Kind string

// Kinds of observations.
const (
	// The next three are servers: the certificate that a server presents, and the client CAs that it names.
	KindAPIServer Kind = "api-server"
	KindKubelet   Kind = "kubelet"
	KindEtcd      Kind = "etcd"

	// The next two are reports of 'kubejoin ca apply': a file, and a process that has not read its changed files again. A pod
	// of kube-proxy or CoreDNS is such a process, too.
	KindFile    Kind = "file"
	KindProcess Kind = "process"

	KindCertificate Kind = "certificate"  // a live certificate in the issuance record
	KindClusterInfo Kind = "cluster-info" // the ConfigMap kube-public/cluster-info
	KindRootCA      Kind = "root-ca"      // a ConfigMap kube-root-ca.crt
	KindCABundle    Kind = "ca-bundle"    // the caBundle of a webhook or an APIService
	KindMerged      Kind = "merged"       // a ConfigMap to which API servers only add CAs: see Desk.DropMerged
	KindToken       Kind = "token"        // a token whose join command pins only one of the CAs
	KindServer      Kind = "kubejoin"     // a replica of kubejoin
	KindSigner      Kind = "other-signer" // another signer of the cluster that would break
	KindState       Kind = "state"        // the copy that hosts read
)

// Trusted says which of the two CAs of a rotation a thing trusts, and whether it trusts a CA from an earlier
// rotation.
type Trusted struct {
	Old      bool `json:"old"`
	New      bool `json:"new"`
	Replaced bool `json:"replaced,omitempty"`
}

// From is the CA that issued a certificate.
type From string

// The values of From. A certificate of a third CA does not matter to the rotation.
const (
	FromOld   From = "old"
	FromNew   From = "new"
	FromOther From = "other"
)

// A Behind is a thing that blocks a stage.
type Behind struct {
	Observation
	// Why is a sentence without a full stop, for example `kubelet worker-4 does not trust the new CA`.
	Why string `json:"why"`
}

// NotReady reports that a stage cannot begin or end yet. The rotation has not changed.
type NotReady struct {
	// Doing is the refused step, for example "switch".
	Doing  string
	Behind []Behind
}

func (e *NotReady) Error() string {
	text := fmt.Sprintf("not ready to %s: ", e.Doing)
	for i, b := range e.Behind {
		if i == maxNamed {
			return text + fmt.Sprintf("; and %d more, which the status shows", len(e.Behind)-i)
		}
		if i > 0 {
			text += "; "
		}
		text += b.Why
		if b.Next != "" {
			text += " (next: " + b.Next + ")"
		}
	}
	return text
}

// only returns the names of the observations that block a step, if all of them are of this kind. Otherwise it returns
// none.
func only(kind Kind, err error) []string {
	var notReady *NotReady
	if !errors.As(err, &notReady) {
		return nil
	}
	var names []string
	for _, b := range notReady.Behind {
		if b.Kind != kind {
			return nil
		}
		names = append(names, b.Name)
	}
	return names
}

// maxNamed is how many things an error names.
const maxNamed = 5

// Unwrap returns a [tokens.Refusal].
func (e *NotReady) Unwrap() error { return &tokens.Refusal{Reason: "not-ready", Message: e.Error()} }

// WrongStep is the reason for refusing a step that is not possible in the current stage. Nothing has changed.
const WrongStep = "wrong-stage"

func wrongStep(format string, args ...any) error {
	return &tokens.Refusal{Reason: WrongStep, Message: fmt.Sprintf(format, args...)}
}

// ErrNone reports that no rotation is in progress.
var ErrNone error = &tokens.Refusal{Reason: "no-rotation", Message: "no rotation in progress; 'kubejoin ca prepare' begins one"}

// Advance returns the rotation in the given stage, which must be its stage or the next one. It returns NotReady if an
// observation blocks the stage, or if clients need time. In the second case, Settled may have changed. Advance to the
// current stage changes nothing, with one exception: in the stage Finish it ends the rotation once nothing trusts the
// old CA any more.
func (r Rotation) Advance(to Stage, seen []Observation, now time.Time) (Rotation, error) {
	switch {
	case !r.InProgress():
		return r, ErrNone
	case r.Aborting:
		return r, wrongStep("cannot %s: the rotation is being aborted; next: %s", to, r.CA.Command(abort))
	case to == r.Stage && to != Finish:
		return r, nil
	case string(to) != r.Next():
		return r, wrongStep("cannot %s: the rotation is in stage %s; next: %s", to, r.Stage, r.CA.Command(r.Next()))
	}
	if behind := r.Pending(seen); len(behind) > 0 {
		return r, &NotReady{r.Next(), behind}
	}
	if to == r.Stage {
		r.Ended = now.UTC()
		return r, nil
	}
	if to == Switch && len(r.Cross) == 0 {
		if err := r.settle(r.Next(), now); err != nil {
			return r, err
		}
	}
	r = r.enter(to, seen, now)
	switch to {
	case Trust:
		r.Trusting = r.Since
	case Finish:
		r.Finishing = r.Since
	}
	return r, nil
}

func (r Rotation) enter(stage Stage, seen []Observation, now time.Time) Rotation {
	r.Stage, r.Since, r.Settled, r.Nodes = stage, now.UTC(), time.Time{}, countNodes(seen)
	return r
}

// countNodes returns the number of nodes in the observations.
func countNodes(seen []Observation) int {
	nodes := map[string]struct{}{}
	for _, o := range seen {
		if o.Node != "" {
			nodes[o.Node] = struct{}{}
		}
	}
	return len(nodes)
}

// Rereads is how long clients may take to use a changed CA file: client-go re-reads the file after 5 minutes, and the
// kubelet updates kube-root-ca.crt in pods in up to 90 seconds.
const Rereads = 7 * time.Minute

// settle returns NotReady until clients have read the files of this stage. The first call begins the wait.
func (r *Rotation) settle(doing string, now time.Time) error {
	if r.Settled.IsZero() {
		r.Settled = now.UTC()
	}
	until := r.Settled.Add(Rereads)
	if !now.Before(until) {
		return nil
	}
	return &NotReady{doing, []Behind{{
		Observation: Observation{Next: r.CA.Command(doing) + " after that"},
		Why:         fmt.Sprintf("clients need until %s to read their files again, because no cross certificate helps them", until.Format(time.RFC3339)),
	}}}
}

// Abort goes back by one stage, or ends the rotation if the stage is Prepare. It returns NotReady like Advance.
func (r Rotation) Abort(seen []Observation, now time.Time) (Rotation, error) {
	if !r.InProgress() {
		return r, ErrNone
	}
	if behind := r.behind(abort, r.abortNeeds(), seen); len(behind) > 0 {
		return r, &NotReady{abort, behind}
	}
	if r.Stage == Switch && r.Aborting { // hosts were in stage finish, and the new CA has not certified the old CA
		if err := r.settle(abort, now); err != nil {
			return r, err
		}
	}
	r.Aborting = true
	if r.Stage == Prepare {
		r.Ended = now.UTC()
		return r, nil
	}
	return r.enter(stages[slices.Index(stages, r.Stage)-1], seen, now), nil
}

// Pending returns what blocks the next step. After the end, it returns the hosts that are behind.
func (r Rotation) Pending(seen []Observation) []Behind {
	switch {
	case !r.InProgress() && len(seen) == 0:
		return nil
	case !r.InProgress():
		done := r.Stage == Finish
		return r.behind(r.Next(), needs{seen: true, notOld: done, fromNew: done, notNew: !done, fromOld: !done}, seen)
	case r.Aborting:
		return r.behind(abort, r.abortNeeds(), seen)
	}
	return r.behind(r.Next(), map[Stage]needs{
		Prepare: {noOther: true, seenServers: true},                                                                                       // to Trust
		Trust:   {noOther: true, seen: true, trustsNew: true, readyServers: true, ready: len(r.Cross) == 0, tokensNew: len(r.Cross) == 0}, // to Switch
		Switch:  {noOther: true, seen: true, ready: true, trustsNew: true, fromNew: true, tokensNew: true},                                // to Finish
		Finish:  {seen: true, ready: true, notOld: true},                                                                                  // ends
	}[r.Stage], seen)
}

// abortNeeds returns what Abort needs. At the first abort, no host can have files of a later stage, so Abort need not
// see every host. At later aborts, hosts may still have files of a later stage.
func (r Rotation) abortNeeds() needs {
	return map[Stage]needs{
		Prepare: {seen: r.Aborting, ready: r.Aborting, notNew: true},                   // ends
		Trust:   {seen: r.Aborting, ready: r.Aborting, fromOld: true, tokensOld: true}, // to Prepare
		Switch:  {seen: r.Aborting, ready: r.Aborting, trustsOld: true},                // to Trust
		Finish:  {},                                                                    // to Switch
	}[r.Stage]
}

// Next returns the subcommand of 'kubejoin ca' that comes next: "trust", "switch", "finish", "abort" or "prepare".
func (r Rotation) Next() string {
	switch {
	case !r.InProgress():
		return string(Prepare)
	case r.Aborting:
		return abort
	case r.Stage == Finish:
		return string(Finish)
	}
	return string(stages[slices.Index(stages, r.Stage)+1])
}

// abort is the subcommand that goes back.
const abort = "abort"

// last returns the subcommand that ends, or has ended, the rotation.
func (r Rotation) last() string {
	if r.Aborting {
		return abort
	}
	return string(Finish)
}

// needs are the conditions of a step, on every observation.
type needs struct {
	// Everything trusts this CA.
	trustsNew, trustsOld bool
	// Nothing trusts this CA.
	notOld, notNew bool
	// No live certificate is from the other CA.
	fromNew, fromOld bool
	// Each live join command pins this CA.
	tokensNew, tokensOld bool
	// No other signer would break.
	noOther bool
	// seen: everything was observed, and each process has read its files. seenServers: the same, but only on
	// nodes with an API server or etcd.
	seen, seenServers bool
	// ready: each node is ready, so that it can be observed. readyServers: each node with an API server or etcd
	// is ready.
	ready, readyServers bool
}

// behind returns the observations that do not fulfil the needs of a step. It ignores nodes and files that the operator
// left behind.
func (r Rotation) behind(step string, need needs, seen []Observation) []Behind {
	var all []Behind
	if len(seen) == 0 && need != (needs{}) {
		return []Behind{{Why: "nothing was observed"}}
	}
	servers := map[string]bool{}
	server := func(o Observation) bool { return o.Kind == KindAPIServer || o.Kind == KindEtcd }
	for _, o := range seen {
		servers[o.Node] = servers[o.Node] || o.Node != "" && (server(o) || r.CA != Cluster)
	}
	off := map[string]bool{}
	for _, o := range seen {
		if o.Node != "" && (off[o.Node] || slices.Contains(r.LeftBehind, o.Node) || o.File != "" && slices.Contains(r.LeftFiles, o.Node+":"+o.File)) {
			continue
		}
		need := need
		need.ready = need.ready || need.readyServers && servers[o.Node]
		need.seen = need.seen || need.seenServers && (servers[o.Node] || server(o))
		why := o.lacks(need)
		if why == "" {
			continue
		}
		if o.Off {
			off[o.Node] = true // one sentence is enough
			o.Next = fmt.Sprintf("bring it back, or if it is gone for good: %s --leave-behind %s", r.CA.Command(step), o.Node)
		}
		if o.Kind == KindToken {
			o.Next = "if no machine still joins with it: " + r.CA.Command(step) + " --expire-tokens"
		}
		all = append(all, Behind{o, why})
	}
	return all
}

// lacks returns why an observation does not fulfil the needs; empty if it does.
func (o Observation) lacks(need needs) string {
	thing := string(o.Kind) + " " + o.Name
	switch {
	case o.Optional:
		return ""
	case o.Kind == KindSigner:
		if need.noOther {
			return thing + " " + o.Unseen
		}
		return ""
	case o.Kind == KindToken:
		if need.tokensNew && o.Trusts != nil && !o.Trusts.New {
			return fmt.Sprintf("the join command of token %s pins only the old CA", o.Name)
		}
		if need.tokensOld && o.Trusts != nil && !o.Trusts.Old {
			return fmt.Sprintf("the join command of token %s pins only the new CA", o.Name)
		}
		return ""
	case o.Off:
		if need.ready && o.Kind == KindServer {
			return thing + " is off: " + o.Unseen
		}
		if need.ready {
			return fmt.Sprintf("node %s is not ready, so it cannot be seen", o.Node)
		}
		return ""
	case o.Kind == KindProcess:
		if need.seen {
			return thing + " has not read its changed files"
		}
		return ""
	case o.Unseen != "":
		if need.seen {
			return fmt.Sprintf("%s was not seen: %s", thing, o.Unseen)
		}
		return ""
	case need.seen && o.Trusts != nil && o.Trusts.Replaced:
		return thing + " still trusts a CA that an earlier rotation replaced"
	case need.trustsNew && o.Trusts != nil && !o.Trusts.New:
		return thing + " does not trust the new CA"
	case need.trustsOld && o.Trusts != nil && !o.Trusts.Old:
		return thing + " does not trust the old CA"
	case need.notOld && o.Trusts != nil && o.Trusts.Old:
		return thing + " still trusts the old CA"
	case need.notNew && o.Trusts != nil && o.Trusts.New:
		return thing + " still trusts the new CA"
	case need.fromNew && o.From == FromOld:
		return thing + " is still from the old CA"
	case need.fromOld && o.From == FromNew:
		return thing + " is from the new CA"
	}
	return ""
}

// Fits reports whether an observation fits the stage. An empty field of the observation always fits.
func (r Rotation) Fits(o Observation) bool {
	return r.unfit(o) == ""
}

// unfit returns why an observation does not fit the stage; empty if it does.
func (r Rotation) unfit(o Observation) string {
	return o.lacks(needs{
		trustsOld: r.TrustsOld(), notOld: !r.TrustsOld(), trustsNew: r.TrustsNew(), notNew: !r.TrustsNew(),
		fromOld: !r.SignsNew(), fromNew: r.SignsNew(), tokensOld: r.TrustsOld(), tokensNew: r.TrustsNew(), seen: true,
	})
}

// maxLeftBehind is the maximum number of nodes, and of files, that a rotation may leave behind.
const maxLeftBehind = 500

// leave returns the rotation with the given nodes and files left behind. All of them must have been observed.
func (r Rotation) leave(nodes, files []string, seen []Observation) (Rotation, error) {
	for _, list := range []struct {
		field, what string
		left        *[]string
		more        []string
		of          func(o Observation) string
	}{
		{"leaveBehind", "node", &r.LeftBehind, nodes, func(o Observation) string { return o.Node }},
		{"leaveBehindFiles", "file", &r.LeftFiles, files, func(o Observation) string { return o.Node + ":" + o.File }},
	} {
		for _, name := range list.more {
			if name == "" || strings.HasSuffix(name, ":") || !slices.Contains(*list.left, name) && !slices.ContainsFunc(seen, func(o Observation) bool { return list.of(o) == name }) {
				return r, invalid(list.field, "there is no %s %.500q: '%s -o wide' shows what was seen", list.what, name, r.CA.Command("status"))
			}
		}
		left := slices.Concat(*list.left, list.more)
		slices.Sort(left)
		if left = slices.Compact(left); len(left) > maxLeftBehind {
			return r, invalid(list.field, "the rotation would leave %d behind, want at most %d", len(left), maxLeftBehind)
		}
		*list.left = left
	}
	return r, nil
}

// Find returns which CA of the rotation issued a chain of certificates, whose leaf is first. The first certificate that
// is a CA of the rotation, or that such a CA signed, decides: a cross-signed chain leads to both CAs. Find returns an
// empty From for an empty chain, and for more than 10 certificates.
func (r Rotation) Find(chain []*x509.Certificate) From {
	if len(chain) == 0 || len(chain) > maxCerts {
		return ""
	}
	for i, c := range chain {
		if i > 0 && chain[i-1].CheckSignatureFrom(c) != nil {
			break // not a chain from here on
		}
		of := func(by *x509.Certificate) bool { return c.Equal(by) || c.CheckSignatureFrom(by) == nil }
		switch {
		case slices.ContainsFunc(r.New, of):
			return FromNew
		case slices.ContainsFunc(r.Old, of):
			return FromOld
		}
	}
	return FromOther
}

// MaxSize is the maximum size of the JSON of a rotation, in bytes. One ConfigMap can hold the JSON of a
// rotation of every CA.
const MaxSize = 256 << 10

var idForm = regexp.MustCompile(`\A[0-9a-f]{16}\z`)

// check returns an error unless this package could have made the rotation.
func (r Rotation) check() error {
	if err := r.CA.check(); err != nil {
		return err
	}
	switch last := map[bool]Stage{false: Finish, true: Prepare}[r.Aborting]; {
	case !idForm.MatchString(r.ID):
		return fmt.Errorf("id is %.40q, want 16 hexadecimal digits", r.ID)
	case !slices.Contains(stages, r.Stage):
		return fmt.Errorf("stage is %.40q, want %s", r.Stage, safetext.List(stages, "or"))
	case r.Started.IsZero() || r.Since.IsZero():
		return errors.New("started and since are required")
	case !r.Ended.IsZero() && r.Stage != last:
		return fmt.Errorf("it has ended in stage %s, want %s", r.Stage, last)
	case len(r.Replaced) > maxReplaced:
		return fmt.Errorf("replaced has %d CAs, want at most %d", len(r.Replaced), maxReplaced)
	case len(r.LeftBehind) > maxLeftBehind || len(r.LeftFiles) > maxLeftBehind:
		return fmt.Errorf("leftBehind has %d nodes and leftFiles %d files, want at most %d", len(r.LeftBehind), len(r.LeftFiles), maxLeftBehind)
	}
	for _, node := range r.LeftBehind {
		if err := tokens.CheckNodeName(node); err != nil {
			return fmt.Errorf("leftBehind: %w", err)
		}
	}
	if err := errors.Join(r.Old.check("old", 1, maxCerts), r.New.check("new", 1, maxCerts), r.Cross.check("cross", 0, 1)); err != nil {
		return err
	}
	for _, c := range r.Old {
		if slices.ContainsFunc(r.New, c.Equal) {
			return fmt.Errorf("%q is both old and new", c.Subject)
		}
	}
	if len(r.Cross) == 0 {
		return nil
	}
	return checkCross(r.Cross[0], r.Old, r.New[0])
}

// Encode returns a rotation as JSON for [Decode].
func Encode(r Rotation) ([]byte, error) {
	data, err := json.Marshal(r)
	if err == nil && len(data) > MaxSize {
		err = fmt.Errorf("%d bytes, want at most %d", len(data), MaxSize)
	}
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, fmt.Errorf("rotation of the %s CA: %w", r.CA, err)
	}
	return data, nil
}

// Decode returns the stored rotation of a CA. It returns an error for anything that [Encode] does not write.
func Decode(data []byte, ca CA) (Rotation, error) {
	var r Rotation
	err := decode(data, MaxSize, &r)
	if err == nil && r.CA != ca {
		err = fmt.Errorf("it is of the CA %.40q", r.CA)
	}
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return Rotation{}, fmt.Errorf("stored rotation of the %s CA: %s", ca, safetext.Text(err.Error(), safetext.MaxMessage))
	}
	return r, nil
}

// decode reads one JSON value without unknown fields.
func decode(data []byte, most int, value any) error {
	if len(data) > most {
		return fmt.Errorf("%d bytes, want at most %d", len(data), most)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(value); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data behind the JSON value")
	}
	return nil
}
