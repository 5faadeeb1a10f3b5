// Package memdb is a database in memory for tokens/rowstore. It is for tests and examples: nothing is left when the
// process ends.
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
	rows    []rowstore.Row // sorted by key
	hints   map[string]*tokens.Hints
}

var _ rowstore.DB = (*DB)(nil)

// Open returns a store in a new DB.
func Open() *rowstore.Store { return rowstore.New(&DB{}) }

// find returns the index at which a key is, or would be.
func (d *DB) find(key string) (int, bool) {
	return slices.BinarySearchFunc(d.rows, key, func(r rowstore.Row, key string) int { return strings.Compare(r.Key, key) })
}

func (d *DB) row(key string) (row rowstore.Row) {
	if i, found := d.find(key); found {
		row = d.rows[i]
	}
	return row
}

// Get implements [rowstore.Reader].
func (d *DB) Get(ctx context.Context, key string) (rowstore.Row, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.row(key), ctx.Err()
}

// Scan implements [rowstore.Reader].
func (d *DB) Scan(ctx context.Context, from, to string, visit func(rowstore.Row) error) error {
	d.mu.Lock()
	first, _ := d.find(from)
	end, _ := d.find(to)
	rows := slices.Clone(d.rows[first:end])
	d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, row := range rows {
		if err := visit(row); err != nil {
			return err
		}
	}
	return nil
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
		if row := d.row(c.Key); row.Version != c.Version {
			return "", fmt.Errorf("%w: version %q given, %q found", tokens.ErrConflict, c.Version, row.Version)
		}
	}
	d.commits++
	version := strconv.FormatUint(d.commits, 10)
	for _, c := range changes {
		i, found := d.find(c.Key)
		if found {
			d.rows = slices.Delete(d.rows, i, i+1)
		}
		if c.Value != nil {
			d.rows = slices.Insert(d.rows, i, rowstore.Row{Key: c.Key, Value: bytes.Clone(c.Value), Version: version})
		}
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
