// Package memdb is a database in memory for tokens/rowstore. It is for tests and examples, because it loses everything when
// the process ends.
package memdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// A DB is a database in memory. Its caches never lag. The zero value is empty and ready to use.
type DB struct {
	mu      sync.Mutex
	commits uint64
	rows    rowstore.Sorted
	hints   map[string]*tokens.Hints
}

var _ rowstore.DB = (*DB)(nil)

// Open returns a store in a new DB.
func Open() *rowstore.Store { return rowstore.New(&DB{}) }

// Get implements [rowstore.Reader].
func (d *DB) Get(ctx context.Context, keys ...string) ([]rowstore.Row, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rows.Get(keys...), ctx.Err()
}

// Scan implements [rowstore.Reader].
func (d *DB) Scan(ctx context.Context, keys rowstore.Range, visit func(rowstore.Row) error) error {
	d.mu.Lock()
	rows := d.rows.In(keys)
	d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return rows.Visit(visit)
}

// Count implements [rowstore.Reader].
func (d *DB) Count(ctx context.Context, folder string) (n int, err error) {
	err = d.Scan(ctx, rowstore.Range{From: folder, To: folder + "\xff"}, func(rowstore.Row) error { n++; return nil })
	return n, err
}

// View implements [rowstore.DB].
func (d *DB) View(_ context.Context, _ func(string, error), do func(rowstore.Reader) error) error {
	d.mu.Lock()
	moment := &DB{rows: slices.Clone(d.rows)}
	d.mu.Unlock()
	return do(moment)
}

// Append implements [rowstore.DB].
func (d *DB) Append(ctx context.Context, changes []rowstore.Change) error {
	_, err := d.Commit(ctx, nil, changes)
	return err
}

// Cached implements [rowstore.DB].
func (d *DB) Cached() rowstore.Reader { return d }

// Commit implements [rowstore.DB].
func (d *DB) Commit(ctx context.Context, conditions []rowstore.Condition, changes []rowstore.Change) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conditions {
		if row := d.rows.Get(c.Key)[0]; row.Version != c.Version {
			return "", fmt.Errorf("%w: version %q given, %q found", tokens.ErrConflict, c.Version, row.Version)
		}
	}
	d.commits++
	version := strconv.FormatUint(d.commits, 10)
	for _, c := range changes {
		row := rowstore.Row{Key: c.Key}
		if c.Value != nil {
			row.Value, row.Version = bytes.Clone(c.Value), version
		}
		d.rows.Set(row)
		for folder, hints := range d.hints {
			if strings.HasPrefix(c.Key, folder) {
				hints.Send()
			}
		}
	}
	return version, nil
}

// MaxChanges implements [rowstore.DB]. There is no limit.
func (d *DB) MaxChanges() int { return math.MaxInt }

// ErrDamaged is wrapped if a row has a value that kubejoin did not write.
var ErrDamaged = errors.New("damaged row")

// Damaged implements [rowstore.DB].
func (d *DB) Damaged(key string, err error) error {
	return fmt.Errorf("%w %q: %w", ErrDamaged, key, err)
}

// Watch implements [rowstore.DB].
func (d *DB) Watch(ctx context.Context, folder string) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hints[folder] == nil {
		if d.hints == nil {
			d.hints = map[string]*tokens.Hints{}
		}
		d.hints[folder] = &tokens.Hints{}
	}
	return d.hints[folder].Watch(ctx)
}
