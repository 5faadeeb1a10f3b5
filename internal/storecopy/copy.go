package storecopy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/rowstate"
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
	// DryRun makes Copy only check both stores and count the rows that it would copy.
	DryRun bool
	// Copy calls Progress after each row, with the numbers so far and the number of entries that were read back. It may be nil.
	Progress func(counts Counts, compared int)
}

var (
	// ErrNotEmpty means that the destination has rows.
	ErrNotEmpty = errors.New("the destination has rows already; give a new file, or another --etcd-prefix")
	// ErrDiffers means that a row of the destination differs from the source.
	ErrDiffers = errors.New("differs from the source")
	// ErrChanged means that the source was written during the copy.
	ErrChanged = errors.New("was written during the copy; stop its kubejoins, and repeat the command")
	// ErrRotating means that a CA rotation of the source has not ended. The destination could not decrypt a copy of
	// the new key.
	ErrRotating = errors.New("a CA rotation is in progress; first start its kubejoin, and end the rotation")
)

// Copy copies all rows of one revision of a store to another store, reads them back and compares them. It fails if the source
// has a new revision after that. Created and UID stay the same; the destination assigns Version. Copy skips recorded refusals
// and failures that are old enough to be deleted. For etcd, it drops the certificates from the issuance record.
func Copy(ctx context.Context, from, to *Backend, o Options) (counts Counts, err error) {
	if err := to.mustBeEmpty(ctx); err != nil {
		return counts, err
	}
	switch r, _, err := (rowstate.Store{Rows: from.rows.Rotations()}).Get(ctx, rotation.Cluster); {
	case err != nil:
		return counts, fmt.Errorf("%s: %w", from.name, err)
	case r.InProgress() && r.HasKey:
		return counts, fmt.Errorf("%s: %w", from.name, ErrRotating)
	}
	d := decoders(to.certificates, time.Now().Add(-rowstore.KeepUnissued+time.Hour))
	if o.DryRun {
		return from.count(ctx, d)
	}
	if err := to.begin(ctx); err != nil {
		return counts, fmt.Errorf("%s: %w", to.name, err)
	}
	if err := to.mustBeEmpty(ctx); err != nil { // check again: somebody may have written in the meantime
		return counts, errors.Join(err, to.complete(ctx))
	}
	c := copyRun{from: from, to: to, Options: o, kinds: d.Kinds(), copied: map[string]revision{}}
	for _, step := range []func(context.Context) error{c.copy, c.compare, c.unchanged, to.complete} {
		err := step(ctx)
		if errors.Is(err, ErrDiffers) { // if the source has changed, report that: a change also causes differences
			err = cmp.Or(c.unchanged(ctx), err)
		}
		if err != nil {
			return c.counts, fmt.Errorf("%w; the copy cannot be used: delete %s", err, to.giveUp)
		}
	}
	return c.counts, nil
}

// mustBeEmpty returns an error if a destination has rows.
func (b *Backend) mustBeEmpty(ctx context.Context) error {
	empty, err := b.empty(ctx)
	if err == nil && !empty {
		err = fmt.Errorf("%s: %w", b.name, ErrNotEmpty)
	}
	return err
}

// empty reports whether a store has no rows.
func (b *Backend) empty(ctx context.Context) (bool, error) {
	if b.rows == nil { // a dry run has not created the file
		return true, nil
	}
	n := 0
	for _, kind := range allRows().Kinds() {
		rows, err := b.rows.DB().Count(ctx, kind.Folder)
		if err != nil {
			return false, err
		}
		n += rows
	}
	return n == 0, nil
}

// A copyRun is one call of Copy.
type copyRun struct {
	from, to *Backend
	Options
	kinds    []rowstore.Kind
	copied   map[string]revision // maps a folder of the source to the revision that was copied
	counts   Counts
	compared int
}

// A revision of a folder changes with each write, because a written row gets the highest version, and a deleted row is missing.
type revision struct {
	rows    int
	highest uint64 // highest version of a row
}

func (r *revision) add(rows []rowstore.Row) error {
	for _, row := range rows {
		version, err := strconv.ParseUint(row.Version, 10, 64)
		if err != nil {
			return err
		}
		r.rows, r.highest = r.rows+1, max(r.highest, version)
	}
	return nil
}

// unchanged returns an error if the revision of the source is no longer the copied revision.
func (c *copyRun) unchanged(ctx context.Context) error {
	for _, kind := range c.kinds {
		var now revision
		if err := rowstore.EachPage(ctx, c.from.rows.DB(), kind.Folder, now.add); err != nil {
			return err
		}
		if now != c.copied[kind.Folder] {
			return fmt.Errorf("%s %w", c.from.name, ErrChanged)
		}
	}
	return nil
}

func (c *copyRun) count(n *int, rows int) {
	for range rows {
		*n++
		if c.Progress != nil {
			c.Progress(c.counts, c.compared)
		}
	}
}

// eachPage calls visit with the rows of a kind in the source, in pages. all has for each row the changes that store
// the row and its index rows.
func (c *copyRun) eachPage(ctx context.Context, r rowstore.Reader, kind rowstore.Kind, visit func(page []rowstore.Row, all [][]rowstore.Change) error) error {
	return rowstore.EachPage(ctx, r, kind.Folder, func(page []rowstore.Row) error {
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
		return visit(page, all)
	})
}

// copy writes all rows of one revision of the source.
func (c *copyRun) copy(ctx context.Context) error {
	var damaged error
	report := func(key string, err error) {
		damaged = errors.Join(damaged, fmt.Errorf("%s: %w", c.from.name, c.from.rows.DB().Damaged(key, err)))
	}
	err := c.from.rows.DB().View(ctx, report, func(r rowstore.Reader) error {
		for _, kind := range c.kinds {
			var read revision
			if err := c.eachPage(ctx, r, kind, func(page []rowstore.Row, all [][]rowstore.Change) error {
				for len(all) > 0 {
					n, err := c.write(ctx, all)
					if err != nil {
						return err
					}
					all = all[n:]
					c.count(c.counts.of(kind), n)
				}
				return read.add(page)
			}); err != nil {
				return err
			}
			c.copied[kind.Folder] = read
		}
		return nil
	})
	return cmp.Or(err, damaged)
}

// maxBytes is the maximum size of keys and values that Copy commits at once, unless one row is larger. By default, etcd
// limits a request to 1.5 MiB.
const maxBytes = 512 << 10

// fitting returns how many of the rows fit into one commit, at least one.
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

// write writes as many of the rows as fit into one commit, and returns their number.
func (c *copyRun) write(ctx context.Context, all [][]rowstore.Change) (n int, err error) {
	n = fitting(all, c.to.rows.DB().MaxChanges())
	var conditions []rowstore.Condition
	for _, row := range all[:n] {
		conditions = append(conditions, rowstore.Condition{Key: row[0].Key})
	}
	_, err = c.to.rows.DB().Commit(ctx, conditions, slices.Concat(all[:n]...))
	return n, err
}

func (c *copyRun) differs(key string) error {
	return fmt.Errorf("%s: row %s %w", c.to.name, key, ErrDiffers)
}

// compare reads all rows back, and returns an error if the destination differs from the source.
func (c *copyRun) compare(ctx context.Context) error {
	for _, kind := range c.kinds {
		rows := map[string]int{} // number of rows by folder
		if err := c.eachPage(ctx, c.from.rows.DB(), kind, func(_ []rowstore.Row, all [][]rowstore.Change) error {
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
			for _, want := range all {
				var there []rowstore.Row
				there, got = got[:len(want)], got[len(want):]
				for i, row := range there {
					if row.Version == "" || !bytes.Equal(row.Value, want[i].Value) {
						return c.differs(want[i].Key)
					}
					rows[row.Key[:strings.Index(row.Key, "/")+1]]++
				}
			}
			if c.counts.of(kind) == &c.counts.IssuanceEntries {
				c.count(&c.compared, len(all))
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
