package storecopy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// Counts are numbers of rows.
type Counts struct {
	Tokens          int `json:"tokens"`
	Claims          int `json:"claims"`
	Revocations     int `json:"revocations"`
	IssuanceEntries int `json:"issued"`
	Rotations       int `json:"caRotation"` // the state of the CA rotation, and the key of its new CA
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

	after time.Duration // tests copy so much later than now
}

var (
	// ErrNotEmpty means that the destination has rows, and is not an interrupted copy.
	ErrNotEmpty = errors.New("the destination has rows already; give a new file, or another --etcd-prefix")
	// ErrInterrupted means that the destination is an interrupted copy, and Resume is not set.
	ErrInterrupted = errors.New("the destination has an interrupted copy; continue it with --resume, or give it up: delete")
	// ErrDiffers means that a row of the destination is not the one of the source.
	ErrDiffers = errors.New("differs from the source")
)

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
	d := decoders(to.certificates, time.Now().Add(o.after-rowstore.KeepUnissued+time.Hour))
	if o.DryRun {
		return from.count(ctx, d)
	}
	c := copyRun{from: from, to: to, Options: o, kinds: d.Kinds()}
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
	for _, step := range []func(context.Context) error{c.copy, c.compare, verify, to.complete} {
		err := step(ctx)
		if errors.Is(err, ErrDiffers) { // also if the source has changed
			err = cmp.Or(verify(ctx), err)
		}
		if errors.Is(err, ErrDiffers) {
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
	if s.rows == nil { // a dry run has not created the file
		return true, nil
	}
	n := 0
	for _, kind := range decoders(true, time.Time{}).Kinds() {
		rows, err := s.rows.DB().Count(ctx, kind.Folder)
		if err != nil {
			return false, err
		}
		n += rows
	}
	return n == 0, nil
}

// A copyRun is a copy that runs.
type copyRun struct {
	from, to *Store
	Options
	kinds    []rowstore.Kind
	counts   Counts
	compared int
}

func (c *copyRun) count(n *int, rows int) {
	for range rows {
		*n++
		if c.Progress != nil {
			c.Progress(c.counts, c.compared)
		}
	}
}

// eachPage calls visit with the rows of a kind, in pages. Each row has its rows in indexes.
func (c *copyRun) eachPage(ctx context.Context, kind rowstore.Kind, visit func([][]rowstore.Change) error) error {
	return rowstore.EachPage(ctx, c.from.rows.DB(), kind.Folder, func(page []rowstore.Row) error {
		var all [][]rowstore.Change
		for _, row := range page {
			changes, err := c.from.changes(kind, row.Key, row.Value)
			if err != nil {
				return fmt.Errorf("%s: %w", c.from.name, err)
			}
			if len(changes) > 0 {
				all = append(all, changes)
			}
		}
		return visit(all)
	})
}

// copy writes all rows that the destination lacks.
func (c *copyRun) copy(ctx context.Context) error {
	for _, kind := range c.kinds {
		if err := c.eachPage(ctx, kind, func(all [][]rowstore.Change) error {
			for len(all) > 0 {
				n, err := c.write(ctx, all)
				if err != nil {
					return err
				}
				all = all[n:]
				c.count(c.counts.of(kind), n)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// maxBytes is how many bytes of keys and values Copy commits at once, unless one row has more. By default, etcd limits a
// request to 1.5 MiB.
const maxBytes = 512 << 10

// fitting returns how many of the rows one commit can have. It is at least one.
func fitting(all [][]rowstore.Change, maxChanges int) int {
	changes, bytes := 0, 0
	for n, row := range all {
		changes += len(row)
		for _, c := range row {
			bytes += len(c.Key) + len(c.Value)
		}
		if n > 0 && (changes > maxChanges || bytes > maxBytes) {
			return n
		}
	}
	return len(all)
}

// write writes as many of the rows as one commit can have, and returns their number.
func (c *copyRun) write(ctx context.Context, all [][]rowstore.Change) (n int, err error) {
	n = fitting(all, c.to.rows.DB().MaxChanges())
	keys := make([]string, n)
	for i := range keys {
		keys[i] = all[i][0].Key
	}
	there, err := c.to.rows.DB().Get(ctx, keys...)
	if err != nil {
		return 0, err
	}
	var conditions []rowstore.Condition
	var changes []rowstore.Change
	for i, key := range keys {
		switch {
		case there[i].Version == "":
			conditions, changes = append(conditions, rowstore.Condition{Key: key}), append(changes, all[i]...)
		case !c.Resume || !bytes.Equal(there[i].Value, all[i][0].Value):
			return 0, c.differs(key)
		}
	}
	if len(changes) > 0 {
		_, err = c.to.rows.DB().Commit(ctx, conditions, changes)
	}
	return n, err
}

func (c *copyRun) differs(key string) error {
	return fmt.Errorf("%s: row %s %w", c.to.name, key, ErrDiffers)
}

// compare reads all rows back, and returns an error if the destination has other rows than the source. It may have rows
// that Copy leaves out: an earlier run copied them when they were younger.
func (c *copyRun) compare(ctx context.Context) error {
	complete := decoders(c.to.certificates, time.Time{}).Kinds()
	for i, kind := range c.kinds {
		rows := map[string]int{} // by folder
		if err := c.eachPage(ctx, complete[i], func(all [][]rowstore.Change) error {
			var keys []string
			for _, row := range slices.Concat(all...) {
				keys = append(keys, row.Key)
			}
			if len(keys) == 0 {
				return nil
			}
			got, err := c.to.rows.DB().Get(ctx, keys...)
			if err != nil {
				return err
			}
			copied := 0
			for _, want := range all {
				var there []rowstore.Row
				there, got = got[:len(want)], got[len(want):]
				if there[0].Version == "" && leavesOut(kind, want[0]) {
					continue
				}
				for i, row := range there {
					if row.Version == "" || !bytes.Equal(row.Value, want[i].Value) {
						return c.differs(want[i].Key)
					}
					rows[row.Key[:strings.Index(row.Key, "/")+1]]++
				}
				copied++
			}
			if c.counts.of(kind) == &c.counts.IssuanceEntries {
				c.count(&c.compared, copied)
			}
			return nil
		}); err != nil {
			return err
		}
		for _, folder := range append([]string{kind.Folder}, kind.Indexes...) {
			if n, err := c.to.rows.DB().Count(ctx, folder); err != nil {
				return err
			} else if n != rows[folder] {
				return fmt.Errorf("%s has %d rows in %s, and the source %d: it %w", c.to.name, n, folder, rows[folder], ErrDiffers)
			}
		}
	}
	return nil
}

// leavesOut reports whether a copy leaves out a row.
func leavesOut(kind rowstore.Kind, row rowstore.Change) bool {
	changes, err := kind.Rows(row.Key, row.Value)
	return err == nil && len(changes) == 0
}
