package storecopy

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"golang.org/x/sync/errgroup"
)

// forever is the retention of a file while it is copied: no entry ends meanwhile.
const forever = 200 * 365 * 24 * time.Hour

// Counts are numbers of rows.
type Counts struct {
	Tokens      int `json:"tokens"`
	Claims      int `json:"claims"`
	Revocations int `json:"revocations"`
	Issued      int `json:"issued"`
}

// Options are the options of Copy.
type Options struct {
	// Resume continues an interrupted copy: rows that are in the destination and equal are skipped.
	Resume bool
	// DryRun makes Copy only check both stores and count what it would copy. The source may then be open read-only.
	DryRun bool
	// Progress is called after each row with the numbers so far, and the number of entries that were read back. Nil is not
	// called.
	Progress func(counts Counts, compared int)
}

var (
	// ErrNotEmpty means that the destination has rows, and is not an interrupted copy.
	ErrNotEmpty = errors.New("the destination has rows already; give a new file, or another --etcd-prefix")
	// ErrInterrupted means that the destination is an interrupted copy, and Resume is not set.
	ErrInterrupted = errors.New("the destination has an interrupted copy; continue it with --resume, or give it up: delete")
	// ErrDiffers means that a row of the destination is not the one of the source.
	ErrDiffers = errors.New("differs from the source")
)

// writers is how many rows Copy writes at once.
const writers = 32

// Copy copies all rows of one store to another one, reads them back and compares them. Created and UID stay, Version is
// the destination's own. It makes the source read-only meanwhile. It leaves out refusals and failures that are old enough
// to be deleted. A record in etcd has no certificates.
func Copy(ctx context.Context, from, to *Store, o Options) (counts Counts, err error) {
	interrupted, err := to.interrupted(ctx)
	if err != nil {
		return counts, err
	}
	// Resume must not make a store incomplete that others use.
	o.Resume = o.Resume && interrupted
	if !o.Resume {
		if err := to.mustBeEmpty(ctx, interrupted); err != nil {
			return counts, err
		}
	}
	c := copyRun{from: from, to: to, Options: o, before: time.Now().Add(-boltstore.KeepUnissued + time.Hour)}
	if o.DryRun {
		return from.count(ctx, func(e issuance.Entry) bool { return !c.isOld(e) })
	}
	verify := func(context.Context) error { return nil } // a file is locked
	if from.freeze != nil {
		frozen, thaw, freezeErr := from.freeze(ctx)
		if freezeErr != nil {
			return counts, fmt.Errorf("%s: %w", from.name, freezeErr)
		}
		defer func() { err = errors.Join(err, thaw()) }()
		verify = frozen
	}
	if err := to.begin(ctx); err != nil {
		return counts, fmt.Errorf("%s: %w", to.name, err)
	}
	if !o.Resume { // somebody may have written since
		if err := to.mustBeEmpty(ctx, interrupted); err != nil {
			return counts, errors.Join(err, to.complete(ctx))
		}
	}
	for _, step := range []func(context.Context) error{c.tokens, c.claims, c.revocations, c.record, c.noMore, verify, to.complete} {
		if err := step(ctx); errors.Is(err, ErrDiffers) {
			return c.counts, fmt.Errorf("%w; to give up this copy, delete %s", err, to.giveUp)
		} else if err != nil {
			return c.counts, fmt.Errorf("%w; the copy is incomplete: repeat the command with --resume, or give it up: delete %s", err, to.giveUp)
		}
	}
	return c.counts, nil
}

// mustBeEmpty returns an error if a destination has rows.
func (s *Store) mustBeEmpty(ctx context.Context, interrupted bool) error {
	empty, err := s.empty(ctx)
	switch {
	case err != nil || empty:
		return err
	case interrupted:
		return fmt.Errorf("%s: %w %s", s.name, ErrInterrupted, s.giveUp)
	}
	return fmt.Errorf("%s: %w", s.name, ErrNotEmpty)
}

// empty reports whether a store has no rows.
func (s *Store) empty(ctx context.Context) (bool, error) {
	if s.tokens == nil { // a dry run has not created the file
		return true, nil
	}
	records, err := s.tokens.List(ctx)
	if err != nil {
		return false, err
	}
	claims, err := s.claims.List(ctx)
	if err != nil {
		return false, err
	}
	entries, err := s.revocations.List(ctx)
	if err != nil {
		return false, err
	}
	page, err := s.record.List(ctx, issuance.Query{Limit: 1})
	return len(records)+len(claims)+len(entries)+len(page.Entries) == 0, err
}

// A copyRun is a copy that runs.
type copyRun struct {
	from, to *Store
	Options
	before time.Time // entries without certificate from before are left out
	counts Counts

	compared int
}

func (c *copyRun) count(n *int) {
	*n++
	if c.Progress != nil {
		c.Progress(c.counts, c.compared)
	}
}

func (c *copyRun) tokens(ctx context.Context) error {
	all, err := c.from.tokens.List(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := c.to.tokens.Restore(ctx, r); err != nil && !(c.Resume && errors.Is(err, tokens.ErrExists)) {
			return err
		}
		stored, err := c.to.tokens.Get(ctx, r.Token.ID())
		if err != nil {
			return err
		}
		r.Version, stored.Version = "", ""
		if !reflect.DeepEqual(plain(r), plain(stored)) {
			return fmt.Errorf("%s: token %s %w", c.to.name, r.Token.ID(), ErrDiffers)
		}
		c.count(&c.counts.Tokens)
	}
	return nil
}

// plain returns a record in which empty slices are nil and times are UTC.
func plain(r tokens.Record) tokens.Record {
	r = r.Clone()
	for _, list := range []*[]string{&r.Groups, &r.Nodes, &r.Limits.NodeNames} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	r.Created, r.Expires = r.Created.UTC(), r.Expires.UTC()
	return r
}

func (c *copyRun) claims(ctx context.Context) error {
	all, err := c.from.claims.List(ctx)
	if err != nil {
		return err
	}
	for _, claim := range all {
		if err := c.to.claims.Restore(ctx, claim); err != nil && !(c.Resume && errors.Is(err, tokens.ErrExists)) {
			return err
		}
		stored, err := c.to.claims.Get(ctx, claim.Node)
		if err != nil {
			return err
		}
		if claim.Version = stored.Version; !claim.Equal(stored) {
			return fmt.Errorf("%s: claim of node %s %w", c.to.name, claim.Node, ErrDiffers)
		}
		c.count(&c.counts.Claims)
	}
	return nil
}

func (c *copyRun) revocations(ctx context.Context) error {
	all, err := c.from.revocations.List(ctx)
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.Malformed != nil {
			return fmt.Errorf("%s: revocation %s: %w", c.from.name, e.Key(), e.Malformed)
		}
		if _, err := c.to.revocations.Update(ctx, e.Key(), func(old *revocation.Entry) (*revocation.Entry, error) {
			if old != nil && (!c.Resume || !reflect.DeepEqual(*old, e)) {
				return nil, fmt.Errorf("%s: revocation %s %w", c.to.name, e.Key(), ErrDiffers)
			}
			return &e, nil
		}); err != nil {
			return err
		}
		stored, err := c.to.revocations.Get(ctx, e.Key())
		if err != nil {
			return err
		}
		if !reflect.DeepEqual(stored, e) {
			return fmt.Errorf("%s: revocation %s %w", c.to.name, e.Key(), ErrDiffers)
		}
		c.count(&c.counts.Revocations)
	}
	return nil
}

// noMore returns an error if the destination has rows that the source lacks.
func (c *copyRun) noMore(ctx context.Context) error {
	records, err := c.to.tokens.List(ctx)
	if err != nil {
		return err
	}
	claims, err := c.to.claims.List(ctx)
	if err != nil {
		return err
	}
	entries, err := c.to.revocations.List(ctx)
	if err != nil {
		return err
	}
	for what, more := range map[string]int{
		"tokens": len(records) - c.counts.Tokens, "claims": len(claims) - c.counts.Claims, "revocations": len(entries) - c.counts.Revocations,
	} {
		if more != 0 {
			return fmt.Errorf("%s has %d more %s than the source: it %w", c.to.name, more, what, ErrDiffers)
		}
	}
	return nil
}

// An entrySum identifies an entry. It includes the certificate only if both stores have certificates.
type entrySum [sha256.Size]byte

func (c *copyRun) sum(e issuance.Entry) (entrySum, error) {
	if !c.from.certificates || !c.to.certificates {
		e.Certificate = ""
	}
	text, err := json.Marshal(e)
	return sha256.Sum256(text), err
}

func (c *copyRun) record(ctx context.Context) error {
	there := map[entrySum]int{} // entries of the destination, and how often
	if err := each(ctx, c.to.record, func(page []issuance.Entry) error { return c.add(there, page, 1) }); err != nil {
		return err
	}
	if err := each(ctx, c.from.record, func(page []issuance.Entry) error {
		var writing errgroup.Group
		writing.SetLimit(writers)
		for _, e := range page {
			s, err := c.sum(e)
			if err != nil {
				return err
			}
			if c.isOld(e) {
				continue
			}
			if there[s]--; there[s] < 0 {
				writing.Go(func() error { return c.to.record.Append(ctx, e) })
			}
			c.count(&c.counts.Issued)
		}
		return writing.Wait()
	}); err != nil {
		return err
	}
	return c.verifyRecord(ctx)
}

// add adds entries to a count of entries.
func (c *copyRun) add(counts map[entrySum]int, page []issuance.Entry, by int) error {
	for _, e := range page {
		s, err := c.sum(e)
		if err != nil {
			return err
		}
		counts[s] += by
	}
	return nil
}

// verifyRecord compares the entries of both sides.
func (c *copyRun) verifyRecord(ctx context.Context) error {
	counts := map[entrySum]int{}
	for _, side := range []struct {
		*Store
		by int
	}{{c.from, 1}, {c.to, -1}} {
		if err := each(ctx, side.Store.record, func(page []issuance.Entry) error {
			var kept []issuance.Entry
			for _, e := range page {
				if !c.isOld(e) {
					kept = append(kept, e)
					c.count(&c.compared)
				}
			}
			return c.add(counts, kept, side.by)
		}); err != nil {
			return err
		}
	}
	for _, n := range counts {
		if n != 0 {
			return fmt.Errorf("%s: the issuance record %w", c.to.name, ErrDiffers)
		}
	}
	return nil
}

func (c *copyRun) isOld(e issuance.Entry) bool {
	return e.Outcome != issuance.Issued && e.Time.Before(c.before)
}

// each calls visit with all pages of a record.
func each(ctx context.Context, record issuance.Store, visit func([]issuance.Entry) error) error {
	q := issuance.Query{Limit: issuance.MaxLimit}
	for {
		page, err := record.List(ctx, q)
		if err != nil {
			return err
		}
		if err := visit(page.Entries); err != nil || page.Next == "" {
			return err
		}
		q.After = page.Next
	}
}
