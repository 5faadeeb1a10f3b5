// Package desk has the policy of revocation: what a request to revoke a node, a certificate or a token revokes, until
// when, and in which order. A [Revoker] stores the entries in a [revocation.Guard]. docs/revocation.md describes the
// policy.
package desk

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// A Revoker revokes nodes, certificates, and what was issued on a token. It may be used concurrently.
type Revoker struct {
	// Guard has the revocations. It is required.
	Guard *revocation.Guard
	// Tokens stores the tokens. It is required.
	Tokens tokens.Store
	// ClusterInfo provides the kubeconfig of cluster-info, whose CAs may have signed certificates. It is required.
	ClusterInfo interface {
		Config(ctx context.Context) (kubeconfig []byte, err error)
	}
	// Claims stores the claims, by which the Revoker finds the nodes of a token. With nil, the Revoker finds nodes
	// only by their certificates.
	Claims tokens.Claims
	// IssuanceRecord is the issuance record. With nil, the Revoker knows only certificates that Requested returns.
	IssuanceRecord issuance.Store
	// Requested returns recently issued certificates with the tokens that requested them, in addition to
	// IssuanceRecord. They are usually from the cluster's CertificateSigningRequests. It is required if an Authority
	// signs requests with objects. Nil means none.
	Requested func(ctx context.Context) ([]revocation.Certificate, error)
	// Withdraw makes approved requests fail that have no certificate and for which revoked returns true: a replica that
	// read the revocations earlier may be about to write the certificate. The Certificate that revoked gets has only
	// TokenID and Requester. Withdraw is required with Requested.
	Withdraw func(ctx context.Context, revoked func(revocation.Certificate) bool) error
	// Node reads the current Node of a name, for warnings. The error wraps [tokens.ErrNotFound] if there is no such
	// Node. It is nil without a cluster.
	Node func(ctx context.Context, name string) (tokens.NodeRef, error)
	// ClientCAs returns the CAs of client certificates that kube-apiserver accepts. Nil means that there is no
	// API server.
	ClientCAs func(ctx context.Context) ([]*x509.Certificate, error)
	// Lifetime returns how long any certificate may still be valid, in addition to what the CAs of cluster-info and
	// ClientCAs say. It is usually MaxRemainingLifetime of an Authority. Nil adds nothing.
	Lifetime func() time.Duration
	// RejoinWindow is how long a node may rejoin with a certificate that has expired. Revocations last longer by
	// RejoinWindow.
	RejoinWindow time.Duration
}

// An Order says what to revoke: exactly one of Node, Serial, Fingerprint and TokenID.
type Order struct {
	Node string
	// Serial is the serial number of a certificate, in hexadecimal digits.
	Serial string
	// Fingerprint is the fingerprint of a certificate, in any form that [revocation.ParseFingerprint] accepts.
	Fingerprint string
	// TokenID is the ID of a token. Revoke revokes all certificates that were issued on the token, and deletes it.
	TokenID string
	// Reason is the reason of the revocation, and By is the user who revokes; either may be empty. Revoked
	// machines see the reason.
	Reason, By string
	// DryRun makes Revoke change nothing, and return the result that it would have.
	DryRun bool
}

// A Result is what [Revoker.Revoke] has revoked.
type Result struct {
	// Entries are the stored entries, sorted by key. If Revoke fails, they are the entries that it stored before.
	Entries []revocation.Entry
	// Warnings are for the person who revokes. They include [NoEnd] if an entry has no end.
	Warnings []string
	// EndUnknown is why the Revoker could not determine when the last certificate expires. The entries then have no
	// end. It is nil if this time is known.
	EndUnknown error

	end    time.Time                       // when the last certificate of a node expires; zero if it is unknown
	before map[revocation.Fingerprint]bool // certificates issued to the revoked requesters before Entries were stored
	unseen error                           // why before could not be read

	barred   bool  // the key of a machine is barred, and certificates of its token may come late
	unbarred error // why the key of a machine could not be barred
}

// NoEnd is the warning in a [Result] for an entry without an end.
const NoEnd = "kubejoin cannot read now when the last certificate ends, so the revocation stays until 'kubejoin revoke undo'"

// notLooked is the warning of a revoked node whose requests cannot be read.
const notLooked = "kubejoin cannot read or withdraw the certificate requests now: a certificate of another name that the node has just got stays valid"

// add adds a later Result. Its entries replace entries with the same key.
func (r *Result) add(late Result) {
	r.Entries = append(late.Entries, r.Entries...)
	slices.SortStableFunc(r.Entries, func(a, b revocation.Entry) int { return cmp.Compare(a.Key(), b.Key()) })
	r.Entries = slices.CompactFunc(r.Entries, func(a, b revocation.Entry) bool { return a.Key() == b.Key() })
	if len(r.Warnings) == 0 {
		r.Warnings = late.Warnings
	}
	r.EndUnknown, r.unbarred = cmp.Or(r.EndUnknown, late.EndUnknown), cmp.Or(r.unbarred, late.unbarred)
	r.barred = r.barred || late.barred
	for f := range late.before {
		r.before[f] = true
	}
	r.unseen = cmp.Or(r.unseen, late.unseen)
}

func invalid(field, format string, args ...any) error {
	return &tokens.FieldError{Field: field, Err: fmt.Errorf(format, args...)}
}

// Check returns an error if the request is invalid: a [*tokens.FieldError] with a field of the HTTPS API. Revoke also
// checks the names of nodes and the certificates.
func (r Order) Check() error {
	if len(r.Reason) > revocation.MaxReason {
		return invalid("reason", "has %d bytes, want at most %d", len(r.Reason), revocation.MaxReason)
	}
	given := 0
	for _, s := range []string{r.Node, r.Serial, r.Fingerprint, r.TokenID} {
		if s != "" {
			given++
		}
	}
	if given != 1 {
		return invalid("node", "%d of node, serial, fingerprint and tokenID given, want exactly one", given)
	}
	if r.TokenID != "" {
		if err := tokens.CheckID(r.TokenID); err != nil {
			return invalid("tokenID", "%w", err)
		}
	}
	return nil
}

// Revoke revokes a node, a certificate, or everything that was issued on a token. The error of an invalid request is a
// [*tokens.FieldError] with a field of the HTTPS API. All other errors wrap a [*tokens.Refusal], or the error of ctx.
// If a token was disabled before the failure, the error is an [*Incomplete].
func (d *Revoker) Revoke(ctx context.Context, r Order) (Result, error) {
	if err := r.Check(); err != nil {
		return Result{}, err
	}
	if r.TokenID != "" {
		result, err := d.revokeToken(ctx, r)
		return result, refusal(err)
	}
	result, err := d.revokeOne(ctx, r)
	return result, refusal(err)
}

// refusal returns the error of a Revoker, and converts errors of the stores of tokens and claims to refusals. It
// returns context.Canceled unchanged: a caller that disconnects is not a failure of the stores.
func refusal(err error) error {
	// Do not unwrap a FieldError: errors of stores may wrap a FieldError about a stored record.
	if _, invalid := err.(*tokens.FieldError); err == nil || invalid || errors.As(err, new(*tokens.Refusal)) || errors.Is(err, context.Canceled) {
		return err
	}
	return mint.StoreError(err)
}

func (d *Revoker) revokeOne(ctx context.Context, r Order) (Result, error) {
	e, err := d.entryOf(ctx, r)
	if err != nil {
		return Result{}, err
	}
	known, unknown := d.known(ctx, issuance.Query{Node: e.Node}, e.Covers) // they only determine when the revocation ends
	result, err := d.revoke(ctx, r, []revocation.Entry{e}, nil, known, unknown)
	if err == nil && !r.DryRun {
		switch err = d.settle(ctx, r, &result, result.Entries); {
		case err == nil:
		case r.Node != "" && !result.barred && ctx.Err() == nil: // the node is revoked: only its certificates of other names may be missed
			result.Warnings, err = append(result.Warnings, notLooked), nil
		default:
			err = &Incomplete{Err: refusal(err)}
		}
	}
	if err == nil && result.unbarred != nil {
		err = &Incomplete{Err: refusal(result.unbarred)}
	}
	if err == nil && r.Node != "" {
		result.Warnings = slices.Concat(result.Warnings, d.tokenWarnings(ctx, r.Node, known, unknown), d.nodeWarnings(ctx, r.Node))
	}
	return result, err
}

// Undo removes an entry and returns it. If the node has a machine, Undo first allows its key again. With dryRun, it only returns the
// entry. The error is a [*tokens.Refusal].
func (d *Revoker) Undo(ctx context.Context, key revocation.Key, dryRun bool) (revocation.Entry, error) {
	e, err := d.Guard.Store.Get(ctx, key, tokens.Live)
	if err == nil && !dryRun {
		if _, err := d.bar(ctx, Order{Node: e.Node}, e.Node, false); err != nil {
			return e, err
		}
		e, err = d.Guard.Undo(ctx, key)
	}
	if errors.Is(err, revocation.ErrNotFound) && tokens.CheckNodeName(string(key)) == nil {
		// A revocation that failed, or has ended, may have left the key of a machine barred.
		if m, err := d.bar(ctx, Order{DryRun: dryRun}, string(key), false); err != nil || m.Revoked {
			return revocation.Entry{Node: string(key)}, err
		}
	}
	switch {
	case errors.Is(err, revocation.ErrNotFound):
		return e, &tokens.Refusal{Reason: NotRevoked, Message: key.String() + " is not revoked"}
	case err != nil:
		return e, listError(err)
	}
	return e, nil
}

// List returns the entries that have not ended, sorted by key. The error is a [*tokens.Refusal].
func (d *Revoker) List(ctx context.Context) ([]revocation.Entry, error) {
	entries, err := d.Guard.List(ctx)
	if err != nil {
		return nil, listError(err)
	}
	return entries, nil
}

// listError converts the error of a read or write of the revocations.
func listError(err error) error {
	switch {
	case errors.Is(err, revocation.ErrFull):
		return &tokens.Refusal{Reason: Full, Message: "the list of revocations is full; if machines on it were destroyed, remove their entries with 'kubejoin revoke undo'", Err: err}
	case mint.StoreError(err).Reason == mint.Refused:
		return &tokens.Refusal{Reason: Refused, Message: "the store of revocations refused this request", Err: err}
	}
	return &tokens.Refusal{Reason: Unavailable, Message: "the revocations cannot be read or written now; retry", Err: err, Retry: true}
}

// entryOf returns the entry that a request for a node or a certificate describes.
func (d *Revoker) entryOf(ctx context.Context, r Order) (e revocation.Entry, err error) {
	switch {
	case r.Node != "":
		if err := tokens.CheckNodeName(r.Node); err != nil {
			return e, invalid("node", "%w", err)
		}
		return revocation.Entry{Node: r.Node}, nil
	case r.Fingerprint != "":
		if e.Fingerprint, err = revocation.ParseFingerprint(r.Fingerprint); err != nil {
			return e, invalid("fingerprint", "%w", err)
		}
		return e, nil
	}
	serial, err := issuance.ParseSerial(r.Serial)
	if err != nil {
		return e, invalid("serial", "want a serial number in hexadecimal digits, as 'openssl x509 -noout -serial' prints it")
	}
	e.Fingerprint, err = d.bySerial(ctx, serial)
	return e, err
}

// maxGuesses is how many tokens tokenWarnings names if it does not know which one admitted a node.
const maxGuesses = 5

// tokenWarnings warns of each token that admitted a node and still admits machines. issued has certificates of the node;
// unknown is why they could not be read.
func (d *Revoker) tokenWarnings(ctx context.Context, node string, issued []revocation.Certificate, unknown error) (warnings []string) {
	claim, working, guessed, err := d.admittedBy(ctx, node, issued)
	if !claim.Machine.IsZero() {
		warnings = []string{"this revokes the key of the machine, too; to give the name to another machine: kubejoin machine delete " + node}
		if guessed && len(issued) == 0 { // the machine has not joined
			working = nil
		}
	}
	var guesses []string
	for _, record := range working {
		switch id := record.Token.ID(); {
		case guessed:
			guesses = append(guesses, id)
		case !record.Spent() || claim.TokenID == id && claim.NodeUID == "":
			warnings = append(warnings, fmt.Sprintf("token %[1]s, which admitted the node, still works, and the machine may have it; run: kubejoin token delete %[1]s; to revoke all its nodes: kubejoin revoke --token %[1]s", id))
		}
	}
	if len(guesses) > 0 {
		warnings = append(warnings, fmt.Sprintf("kubejoin does not know which token admitted the node; it may be one of: %s; with 'kubejoin token delete', delete those that the machine may have", strings.Join(guesses, ", ")))
	}
	if cmp.Or(err, unknown) != nil {
		warnings = append(warnings, "kubejoin cannot read now which tokens admitted the node: delete the token that admitted the node, if 'kubejoin token list -o wide' has it")
	}
	return warnings
}

// admittedBy returns the claim on a node name, or a Claim without TokenID, and the tokens that admitted the node and can
// authenticate. issued has certificates of the node. If nothing names a token, it guesses: working then has up to
// maxGuesses tokens without a node limit. It reads each token live, because a list may lag behind a deletion. It omits the token of
// the node's machine: this token admits nobody once the key of the machine is barred.
func (d *Revoker) admittedBy(ctx context.Context, node string, issued []revocation.Certificate) (claim tokens.Claim, working []tokens.Record, guessed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if d.Claims != nil {
		if claim, err = d.Claims.Get(ctx, node, tokens.Live); err != nil && !errors.Is(err, tokens.ErrNotFound) {
			return claim, nil, false, err
		}
	}
	all, err := d.Tokens.List(ctx)
	if err != nil {
		return claim, nil, false, err
	}
	ids := map[string]bool{claim.TokenID: true, claim.Identity.TokenID: true}
	for _, record := range all {
		if slices.Contains(record.Nodes, node) {
			ids[record.Token.ID()] = true
		}
	}
	for _, c := range issued {
		ids[c.TokenID] = true
	}
	maps.DeleteFunc(ids, func(id string, _ bool) bool { return tokens.CheckID(id) != nil })
	guessed = len(ids) == 0
	for _, record := range all {
		if guessed && record.Limits.NodeLimit() == 0 && record.Limits.AllowsName(node) { // with a limit, it counts its nodes
			ids[record.Token.ID()] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		record, err := d.Tokens.Get(ctx, id, tokens.Live)
		switch {
		case errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrMalformed):
		case err != nil:
			return claim, nil, guessed, err
		case record.Authentication && !record.Expired(time.Now()) && record.ProblemText() == "" && record.UID != claim.Machine.TokenUID:
			working = append(working, record)
		}
		if guessed && len(working) == maxGuesses {
			break
		}
	}
	return claim, working, guessed, nil
}

// CheckRelease refuses to release the name of a revoked node if that gives a slot back to a token that still works. A claim that was
// made after the revocation is that of a machine that came back. A malformed entry does not say when the node was revoked. The
// error is a [*tokens.Refusal].
func (d *Revoker) CheckRelease(ctx context.Context, node string) error {
	key, err := revocation.NodeKey(node)
	if err != nil {
		return nil // the release itself refuses an invalid name
	}
	e, err := d.Guard.Store.Get(ctx, key, tokens.Live)
	switch {
	case errors.Is(err, revocation.ErrNotFound) || err == nil && e.Ended(time.Now()):
		return nil
	case err != nil:
		return listError(err)
	}
	claim, working, _, err := d.admittedBy(ctx, node, nil)
	if err != nil {
		return refusal(err)
	}
	for _, record := range working {
		id, held := record.Token.ID(), !claim.Released()
		if held && claim.TokenID == id && (e.Malformed != nil || !claim.Created.Truncate(time.Second).After(e.Since)) || !held && slices.Contains(record.Nodes, node) {
			return &tokens.Refusal{Reason: TokenWorks, Message: fmt.Sprintf("node %s is revoked, and a release gives its slot back to token %s, which the machine may have; before it, run: kubejoin token delete %s", node, id, id)}
		}
	}
	return nil
}

// nodeWarnings returns a warning if no Node has the name or, without a cluster, if no claim and no certificate
// has it. The name may be misspelt, or its Node was deleted.
func (d *Revoker) nodeWarnings(ctx context.Context, node string) []string {
	if d.Node == nil {
		if d.Claims == nil || d.IssuanceRecord == nil {
			return nil
		}
		if _, err := d.Claims.Get(ctx, node, tokens.Live); !errors.Is(err, tokens.ErrNotFound) {
			return nil
		}
		if page, err := d.IssuanceRecord.List(ctx, issuance.Query{Node: node, Limit: 1}); err != nil || len(page.Entries) > 0 {
			return nil
		}
		return []string{"kubejoin has no claim and no certificate of node " + node + "; check the name with 'kubejoin issued list'"}
	}
	if _, err := d.Node(ctx, node); errors.Is(err, tokens.ErrNotFound) {
		return []string{"there is no Node " + node + "; check the name if the Node was not deleted"}
	}
	return nil
}

// revoke stores entries and returns the stored entries. An entry that is also in kept is not changed. known are
// certificates that the entries may bar; unknown is why they could not be read.
func (d *Revoker) revoke(ctx context.Context, r Order, entries []revocation.Entry, kept map[revocation.Key]revocation.Entry, known []revocation.Certificate, unknown error) (Result, error) {
	result := Result{before: map[revocation.Fingerprint]bool{}}
	if len(entries) == 0 {
		return result, nil
	}
	end, err := d.lastEnd(ctx)
	if result.EndUnknown = errors.Join(unknown, err); result.EndUnknown == nil {
		result.end = end
	}
	stored, err := d.Guard.List(ctx)
	first := slices.DeleteFunc(slices.Clone(entries), func(e revocation.Entry) bool {
		return slices.ContainsFunc(stored, func(s revocation.Entry) bool { return s.Key() == e.Key() })
	})
	before, beforeErr := d.requestedBy(ctx, first)
	for _, c := range before {
		result.before[c.Fingerprint] = true
	}
	result.unseen = cmp.Or(err, beforeErr)
	return result, d.store(ctx, r, &result, entries, kept, known)
}

// store bars the keys of machines, stores entries, and adds the stored entries to the result. If an entry cannot be stored, store
// still stores the other entries.
func (d *Revoker) store(ctx context.Context, r Order, result *Result, entries []revocation.Entry, kept map[revocation.Key]revocation.Entry, known []revocation.Certificate) (err error) {
	var errs []error
	for _, e := range entries {
		e.Reason, e.By, e.TokenID, e.Until = safetext.Text(r.Reason, revocation.MaxReason), r.By, r.TokenID, e.End(result.end, d.RejoinWindow, known)
		old, found := kept[e.Key()]
		if found && (old.Until.IsZero() || !e.Until.IsZero() && !old.Until.Before(e.Until)) { // zero: no end
			e = old
		} else if !r.DryRun {
			key := e.Key()
			// Bar the key first: otherwise, the entry could allow a certificate of the machine's token. An earlier try may have barred it.
			barred, err := d.bar(ctx, r, e.Node, true)
			result.barred, result.unbarred = result.barred || !barred.IsZero(), cmp.Or(result.unbarred, err)
			if e, err = d.Guard.Revoke(ctx, e); err != nil {
				errs = append(errs, fmt.Errorf("revoke %s: %w", key, err))
				continue
			}
		}
		if e.Until.IsZero() && len(result.Warnings) == 0 {
			result.Warnings = []string{NoEnd}
		}
		result.Entries = append(result.Entries, e)
	}
	if len(errs) > 0 {
		return listError(errors.Join(errs...))
	}
	return nil
}

// bar bars the key of a node's machine: the machine then gets no token, and cannot use its present token. Without revoked, bar
// allows the key again. If the order names a token, bar changes only the machine that got this token last. It also changes a machine
// that joined with this token, if the token was for one node. bar returns the machine before the change; zero if it changes none.
// A dry run changes nothing.
func (d *Revoker) bar(ctx context.Context, r Order, node string, revoked bool) (before tokens.Machine, err error) {
	for range endAttempts {
		var c tokens.Claim
		if err = tokens.ErrNotFound; d.Claims != nil && node != "" {
			c, err = d.Claims.Get(ctx, node, tokens.Live)
		}
		if errors.Is(err, tokens.ErrNotFound) || err == nil && (c.Machine.IsZero() || r.TokenID != "" && r.TokenID != c.Machine.TokenID && !(r.TokenID == c.TokenID && c.Limits.NodeLimit() == 1)) {
			return tokens.Machine{}, nil
		}
		if err == nil && c.Machine.Revoked != revoked && !r.DryRun {
			after := c.Clone()
			after.Machine.Revoked = revoked
			_, err = tokens.CommitClaim(ctx, d.Claims, c, after)
		}
		if !errors.Is(err, tokens.ErrConflict) {
			return c.Machine, refusal(err)
		}
	}
	return tokens.Machine{}, refusal(err)
}

// views is how long after an entry was stored a replica may still deliver a certificate that it has checked against
// an older view. A view, and the last check, is at most a second old. Half a second is for the response.
const views = tokens.MaxAge + time.Second/2

// settle waits until all replicas see these entries. Then it withdraws the requests of the barred requesters, and
// revokes certificates that were issued to them meanwhile. It repeats this until there are no new certificates.
func (d *Revoker) settle(ctx context.Context, r Order, result *Result, entries []revocation.Entry) error {
	for len(entries) > 0 {
		wait := views
		if result.barred { // kubejoin may have admitted a request with the machine's token just before
			wait = settles
		}
		if err := loop.Sleep(ctx, wait); err != nil {
			return err
		}
		stored, err := d.List(ctx) // re-read: the entries may now allow certificates of a machine that has joined again
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(stored, func(s revocation.Entry) bool {
			return !slices.ContainsFunc(entries, func(e revocation.Entry) bool { return e.Key() == s.Key() })
		})
		for i, e := range entries {
			if result.barred && e.Node != "" && len(e.Allowed) > 0 { // the node got a certificate meanwhile
				if entries[i], err = d.Guard.Revoke(ctx, e); err != nil {
					return err
				}
			}
		}
		if result.barred = false; result.unseen != nil {
			return result.unseen
		}
		bars := barredBy(entries)
		withdrawn := d.withdraw(ctx, func(c revocation.Certificate) bool { return bars(c.Requester) })
		issued, err := d.requested(ctx)
		if err != nil {
			return err
		}
		var late []revocation.Entry
		for all := entries; ; { // also find certificates that were requested with those found
			next := slices.DeleteFunc(notBarred(issued, all), func(c revocation.Certificate) bool { return result.before[c.Fingerprint] })
			if len(next) == 0 {
				break
			}
			for _, c := range next {
				late, all = append(late, revocation.Entry{Fingerprint: c.Fingerprint}), append(slices.Clip(all), revocation.Entry{Fingerprint: c.Fingerprint})
			}
		}
		more := Result{EndUnknown: result.EndUnknown, end: result.end}
		err = d.store(ctx, r, &more, late, nil, issued)
		result.add(more)
		if err = cmp.Or(withdrawn, err); err != nil {
			return err
		}
		entries = more.Entries
	}
	return nil
}

// endTimeout limits how long a revocation waits for the CAs: the cache of an object that the user may not read never fills.
const endTimeout = 5 * time.Second

// lastEnd returns when the last CA expires that may have signed a certificate of a node. These are the CAs of
// cluster-info, of kube-apiserver's clients and of kubejoin's signers.
func (d *Revoker) lastEnd(ctx context.Context) (end time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	kubeconfig, err := d.ClusterInfo.Config(ctx)
	if err != nil {
		return end, err
	}
	_, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return end, err
	}
	if d.ClientCAs != nil {
		clients, err := d.ClientCAs(ctx)
		if err != nil {
			return end, err
		}
		cas = slices.Concat(cas, clients)
	}
	if d.Lifetime != nil {
		end = time.Now().Add(d.Lifetime())
	}
	for _, ca := range cas {
		if ca.NotAfter.After(end) {
			end = ca.NotAfter
		}
	}
	return end.UTC().Truncate(time.Second), nil
}
