package rotation

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
)

// ErrConflict reports that another writer changed a rotation meanwhile.
var ErrConflict error = &tokens.Refusal{Reason: "rotation-changed", Message: "another writer keeps changing the rotation; retry"}

// A Store keeps the last rotation of each CA.
type Store interface {
	// Get returns a rotation, and its version for Put. It returns the zero Rotation if there has been no rotation.
	Get(ctx context.Context, ca CA) (r Rotation, version string, err error)
	// Put writes a rotation if the stored rotation still has that version. Otherwise, the error wraps ErrConflict. If
	// Put fails for another reason, the rotation may be stored, and another Put of the same rotation completes the
	// write.
	Put(ctx context.Context, r Rotation, version string) error
}

// Keys keeps the keys of new CAs until their rotations end. Rotations have keys of their own, so a key is never replaced.
type Keys interface {
	// PutKey stores the key of a rotation in stage Prepare. It returns the CertificateKey that decrypts the key; zero
	// if the key is not encrypted. A nil key means that hosts get the key from the operator. A Keys that must store the
	// key returns an error for a nil key.
	PutKey(ctx context.Context, r Rotation, key crypto.Signer) (joinformat.CertificateKey, error)
	// KeepKey deletes the keys of all other rotations of a CA, and reports whether the key of this rotation is stored.
	// With an empty ID, it deletes all keys of the CA.
	KeepKey(ctx context.Context, ca CA, id string) (found bool, err error)
}

// A Copy is the copy of the stored rotations that hosts read.
type Copy interface {
	// Check returns an error if the copy differs from the stored state.
	Check(ctx context.Context) error
	// Publish copies the stored state. If that changed the copy, wrong says how the copy differed. Publish keeps a
	// rotation that the Store lacks: Check then still returns an error.
	Publish(ctx context.Context) (wrong, err error)
}

// An Observer observes everything that a rotation has to change. It also returns an Observation for a thing that it
// cannot see. The error means that it could observe nothing. After the end of a rotation, it reads only the reports of
// hosts.
type Observer interface {
	Observe(ctx context.Context, r Rotation) ([]Observation, error)
}

// A Status is a rotation and the observations of hosts and objects that it has to change.
type Status struct {
	// Rotation is the last rotation of the CA, which may have ended. It is the zero Rotation if there has been no
	// rotation.
	Rotation Rotation `json:"rotation"`
	// Seen is empty if there has been no rotation.
	Seen []Observation `json:"observations"`
	// Next is the next subcommand of 'kubejoin ca'. Behind lists what blocks it.
	Next   string   `json:"next"`
	Behind []Behind `json:"behind,omitempty"`
}

// Options of a step.
type Options struct {
	// DryRun changes nothing. The Status is the Status after such a step.
	DryRun bool
	// LeaveBehind are nodes, and LeaveBehindFiles are files as NODE:PATH, that no step of this rotation waits for.
	LeaveBehind, LeaveBehindFiles []string
	// ExpireTokens expires the tokens whose join commands pin only the CA that the step takes out of use. It has an
	// effect only if nothing else blocks the step.
	ExpireTokens bool
}

// A PrepareRequest says which CA replaces the currently trusted CA.
type PrepareRequest struct {
	CA CA
	// Certificates are the certificates of the operator's new CA. The first one signs. Without Certificates,
	// Prepare makes a CA.
	Certificates []*x509.Certificate
	// Key is the key of the first certificate. Without it, hosts get the key from the operator.
	Key crypto.Signer
	// Lifetime is the lifetime of a CA that Prepare makes; zero is DefaultLifetime.
	Lifetime time.Duration
	// Cross makes the old CA sign a cross certificate for the new CA: usually CrossSign of a signer.CA. Nil makes no
	// cross certificate. In a dry run, it certifies a throwaway key.
	Cross func(fresh *x509.Certificate) (*x509.Certificate, error)
	// DryRun changes nothing. The Status is the Status after such a step, without a CertificateKey and a cross
	// certificate.
	DryRun bool
}

// DefaultLifetime is the lifetime of a new CA, the same as kubeadm's.
const DefaultLifetime = 10 * 365 * 24 * time.Hour

// Prepared is the result of Prepare.
type Prepared struct {
	Status
	// CertificateKey decrypts the key of the new CA. kubejoin does not store it, and JSON omits it: show it once. It is
	// zero if the key is not encrypted, or not stored.
	CertificateKey joinformat.CertificateKey `json:"-"`
	// Warnings say which clients refuse certificates of the operator's CA, and why.
	Warnings []string `json:"warnings,omitempty"`
}

// A Desk carries out the steps of rotations: it reads the state, observes, decides and writes by compare-and-swap. It
// has no state, so each replica may continue what another replica began. To complete an interrupted step, repeat it.
//
// An invalid field of a request is a [*tokens.FieldError]. The error of a step that is not possible now is a
// [*NotReady] or a [*tokens.Refusal]. Other errors are errors of the stores and of the Observer.
type Desk struct {
	Store    Store
	Keys     Keys
	Observer Observer
	// ExpireTokens expires the tokens with these IDs. It is idempotent. If it is nil, Options.ExpireTokens is an error.
	ExpireTokens func(ctx context.Context, ids []string) error
	// DropMerged deletes objects to which API servers add CAs but from which they remove none. The API servers create
	// these objects again. Desk calls it after all API servers have dropped a CA: then only observations of
	// KindMerged block a step. Nil means that there are no such objects.
	DropMerged func(ctx context.Context, ca CA) error
	// Trusted returns the certificates of a CA that are trusted now.
	Trusted func(ctx context.Context, ca CA) ([]*x509.Certificate, error)
	// Check refuses a new CA whose certificates clients would not accept: usually CheckTrust of package signer. Nil checks
	// nothing.
	Check func(ca CA, fresh []*x509.Certificate) error
	// Copy is the copy that hosts read. Nil means that hosts read the Store.
	Copy Copy
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

func (d *Desk) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}

// Status returns the last rotation of a CA, and the current observations. It changes nothing.
func (d *Desk) Status(ctx context.Context, ca CA) (Status, error) {
	if err := ca.check(); err != nil {
		return Status{}, err
	}
	r, _, err := d.Store.Get(ctx, ca)
	if err != nil {
		return Status{}, err
	}
	seen, err := d.observe(ctx, r)
	s := status(r, seen)
	if err != nil || d.Copy == nil {
		return s, err
	}
	if wrong := d.Copy.Check(ctx); wrong != nil {
		s.Behind = append(s.Behind, Behind{Observation{Kind: KindState, Name: "state of the rotation", Next: "kubejoin doctor"}, wrong.Error()})
	}
	return s, nil
}

func (d *Desk) observe(ctx context.Context, r Rotation) ([]Observation, error) {
	if r.ID == "" {
		return nil, nil
	}
	return d.Observer.Observe(ctx, r)
}

func status(r Rotation, seen []Observation) Status {
	return Status{Rotation: r, Seen: seen, Next: r.Next(), Behind: r.Pending(seen)}
}

// Prepare begins a rotation. It stores the key first, under the ID of the rotation, and then the state. If the state is
// not stored, the next step deletes the key.
func (d *Desk) Prepare(ctx context.Context, p PrepareRequest) (Prepared, error) {
	if err := p.CA.check(); err != nil {
		return Prepared{}, err
	}
	return repeated(maxConflicts, func() (Prepared, error) { return d.prepare(ctx, p) })
}

// repeated retries do while it conflicts with another writer.
func repeated[T any](repeats int, do func() (T, error)) (done T, err error) {
	for range repeats + 1 {
		if done, err = do(); !errors.Is(err, ErrConflict) {
			break
		}
	}
	return done, err
}

// prepare is Prepare without repeats.
func (d *Desk) prepare(ctx context.Context, p PrepareRequest) (Prepared, error) {
	before, version, err := d.Store.Get(ctx, p.CA)
	if err != nil {
		return Prepared{}, err
	}
	if before.InProgress() {
		return Prepared{}, wrongStep("cannot prepare: rotation %s is in stage %s; next: %s", before.ID, before.Stage, p.CA.Command(before.Next()))
	}
	old, err := d.Trusted(ctx, p.CA)
	if err != nil {
		return Prepared{}, fmt.Errorf("the CA that is trusted now: %w", err)
	}
	r, key, err := p.begin(old, d.now())
	if err != nil {
		return Prepared{}, err
	}
	r.succeed(before, d.now())
	if d.Check != nil && len(p.Certificates) > 0 {
		if err := d.Check(p.CA, p.Certificates); err != nil {
			return Prepared{}, invalid("certificates", "%w", err)
		}
	}
	seen, err := d.observe(ctx, r)
	if err != nil {
		return Prepared{}, err
	}
	r.Nodes = countNodes(seen)
	warnings := strict(p.Certificates)
	if r, err = p.certify(r, old); err != nil || p.DryRun { // do this last, so that no cross certificate exists without a rotation
		return Prepared{Status: status(r, seen), Warnings: warnings}, err
	}
	sealed, err := d.Keys.PutKey(ctx, r, key)
	if err != nil {
		return Prepared{}, fmt.Errorf("key of the new CA: %w", err)
	}
	if err := d.put(ctx, r, version); err != nil {
		return Prepared{}, err
	}
	// If an earlier Prepare was interrupted, the next step deletes its key.
	return Prepared{Status: status(r, seen), CertificateKey: sealed, Warnings: warnings}, nil
}

// put writes a rotation. If only the response was lost, put succeeds. Otherwise the key of a new CA would be lost, or a
// repeated abort would go back two stages.
func (d *Desk) put(ctx context.Context, r Rotation, version string) error {
	want, err := Encode(r)
	if err != nil {
		return err
	}
	failure := d.Store.Put(ctx, r, version)
	if failure == nil {
		return nil
	}
	stored, version, err := d.Store.Get(ctx, r.CA)
	if err != nil || stored.ID != r.ID {
		return failure
	}
	if got, err := Encode(stored); err != nil || !bytes.Equal(got, want) {
		return failure
	}
	return d.Store.Put(ctx, r, version) // complete the first Put
}

// Advance begins a stage, which must be the current stage or the next one. With Finish in stage Finish, it ends the
// rotation. With an error, it returns the Status before the step, if known.
func (d *Desk) Advance(ctx context.Context, ca CA, to Stage, o Options) (Status, error) {
	if !slices.Contains(stages, to) || to == Prepare {
		return Status{}, fmt.Errorf("invalid stage %q: want %s", to, safetext.List(stages[1:], "or"))
	}
	return d.take(ctx, ca, step{string(to), maxConflicts, func(r Rotation, seen []Observation) (Rotation, error) { return r.Advance(to, seen, d.now()) }}, o)
}

// Abort goes back by one stage, or ends the rotation in stage Prepare. With an error, it returns the Status before the
// step, if known. If two writers abort at the same moment, one gets ErrConflict. So the rotation goes back only one
// stage.
func (d *Desk) Abort(ctx context.Context, ca CA, o Options) (Status, error) {
	return d.take(ctx, ca, step{abort, 0, func(r Rotation, seen []Observation) (Rotation, error) { return r.Abort(seen, d.now()) }}, o)
}

// maxConflicts is how often a step is retried because another writer was faster.
const maxConflicts = 5

// A step is one subcommand of 'kubejoin ca' that changes a rotation.
type step struct {
	name    string
	repeats int // after a conflict
	decide  func(Rotation, []Observation) (Rotation, error)
}

// take carries out a step.
func (d *Desk) take(ctx context.Context, ca CA, s step, o Options) (Status, error) {
	if err := ca.check(); err != nil {
		return Status{}, err
	}
	if o.ExpireTokens && d.ExpireTokens == nil {
		return Status{}, invalid("expireTokens", "there are no tokens here to expire")
	}
	return repeated(s.repeats, func() (Status, error) { return d.try(ctx, ca, s, o) })
}

// try decides a step once, and writes the result.
func (d *Desk) try(ctx context.Context, ca CA, s step, o Options) (Status, error) {
	before, version, err := d.Store.Get(ctx, ca)
	if err != nil {
		return Status{}, err
	}
	if d.Copy != nil && !o.DryRun { // publishes what an interrupted step has stored, even if this step is refused
		if _, err := d.Copy.Publish(ctx); err != nil {
			return status(before, nil), err
		}
	}
	if !before.InProgress() {
		if before.ID == "" || s.name != before.last() {
			return status(before, nil), ErrNone
		}
		return d.clean(ctx, before, nil, o)
	}
	seen, err := d.observe(ctx, before)
	if err != nil {
		return status(before, nil), err
	}
	r, err := before.leave(o.LeaveBehind, o.LeaveBehindFiles, seen)
	if err != nil {
		return status(before, seen), err
	}
	after, err := s.decide(r, seen)
	for _, last := range []struct { // things that the step itself corrects if nothing else blocks it
		kind    Kind
		allowed bool
		do      func(names []string) error
	}{
		{KindToken, o.ExpireTokens, func(ids []string) error { return d.ExpireTokens(ctx, ids) }},
		{KindMerged, d.DropMerged != nil, func([]string) error { return d.DropMerged(ctx, ca) }},
	} {
		names := only(last.kind, err)
		if len(names) == 0 || !last.allowed {
			continue
		}
		if o.DryRun {
			seen = slices.DeleteFunc(seen, func(o Observation) bool { return o.Kind == last.kind && slices.Contains(names, o.Name) })
		} else if err := last.do(names); err != nil {
			return status(before, seen), fmt.Errorf("%s %s: %w", last.kind, strings.Join(names, ", "), err)
		} else if seen, err = d.observe(ctx, before); err != nil {
			return status(before, nil), err
		}
		after, err = s.decide(r, seen)
	}
	if err != nil {
		if after.Settled != before.Settled && !o.DryRun {
			waits := before
			waits.Settled = after.Settled
			if err := d.put(ctx, waits, version); err != nil {
				return status(before, seen), err
			}
			before = waits
		}
		return status(before, seen), err
	}
	if after.InProgress() && !o.DryRun {
		found, err := d.Keys.KeepKey(ctx, ca, after.ID)
		if err != nil {
			return status(before, seen), fmt.Errorf("key of the new CA: %w", err)
		}
		if after.HasKey && !found && !after.Aborting && after.Stage != Finish { // from Finish on, hosts have the key
			return status(before, seen), wrongStep("the key of the new CA is not stored any more; next: %s", ca.Command(abort))
		}
	}
	if !o.DryRun && !reflect.DeepEqual(before, after) {
		if err := d.put(ctx, after, version); err != nil {
			return status(before, seen), err
		}
	}
	if !after.InProgress() {
		return d.clean(ctx, after, seen, o)
	}
	return status(after, seen), nil
}

// clean deletes the key of a rotation that has ended.
func (d *Desk) clean(ctx context.Context, ended Rotation, seen []Observation, o Options) (Status, error) {
	if !o.DryRun {
		if _, err := d.Keys.KeepKey(ctx, ended.CA, ""); err != nil {
			return status(ended, seen), fmt.Errorf("the rotation has ended, but the key of the new CA is still stored; run the same command again: %w", err)
		}
	}
	return status(ended, seen), nil
}
