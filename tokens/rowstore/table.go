package rowstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// A value is a [tokens.Record] or a [tokens.Claim].
type value[T any] interface {
	Check() error
	Clone() T
	Edit(change func(*T) error) (T, error)
}

// fields are the key of a value, and pointers to the fields that the store sets.
type fields struct {
	key          string
	created      *time.Time
	uid, version *string
}

// A table reads and writes the rows of one folder as values. It returns copies.
type table[T value[T]] struct {
	db     DB
	folder string
	what   string // "token" or "claim", for errors

	check     func(key string) error
	fields    func(*T) fields
	normalize func(T) T // as decode will return the value
	encode    func(T) ([]byte, error)
	decode    func(key string, v []byte) (T, error)
	begins    func(before, after T) bool     // reports whether Created changes
	index     func(before, after T) []Change // changes of index rows; a zero value means no row

	mu    sync.Mutex
	cache map[string]decoded[T] // by key; without it, a list spends most of its time on decoding JSON
}

type decoded[T any] struct {
	version string
	value   T
}

// maxCached is the number of cached values from which on keep adds no more. list caches all values regardless.
const maxCached = 1 << 14

// valueOf returns the value of a row, from the cache if it has this version.
func (t *table[T]) valueOf(key string, row Row) (d decoded[T], err error) {
	t.mu.Lock()
	d, found := t.cache[key]
	t.mu.Unlock()
	if found && d.version == row.Version {
		return d, nil
	}
	v, err := t.decode(key, row.Value)
	if err != nil {
		return d, t.db.Damaged(row.Key, err)
	}
	*t.fields(&v).version = row.Version
	return decoded[T]{row.Version, v}, nil
}

func (t *table[T]) get(ctx context.Context, from Reader, key string) (v T, err error) {
	if err := t.check(key); err != nil {
		return v, fmt.Errorf("get %s: %w", t.what, err)
	}
	all, err := t.getAll(ctx, from, key)
	if err != nil {
		return v, err
	}
	if *t.fields(&all[0]).version == "" {
		err = fmt.Errorf("%s %s: %w", t.what, key, tokens.ErrNotFound)
	}
	return all[0], err
}

// getAll returns the value of each key; the zero value if there is no row.
func (t *table[T]) getAll(ctx context.Context, from Reader, keys ...string) ([]T, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	rowKeys := make([]string, len(keys))
	for i, key := range keys {
		rowKeys[i] = t.folder + key
	}
	rows, err := from.Get(ctx, rowKeys...)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", t.what, keys[0], err)
	}
	all := make([]T, len(keys))
	for i, row := range rows {
		if row.Version == "" {
			continue
		}
		d, err := t.valueOf(keys[i], row)
		if err != nil {
			return nil, err
		}
		t.keep(keys[i], d)
		all[i] = d.value.Clone()
	}
	return all, nil
}

// keep adds a value to the cache, if there is space.
func (t *table[T]) keep(key string, d decoded[T]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cache == nil {
		t.cache = map[string]decoded[T]{}
	}
	if _, found := t.cache[key]; found || len(t.cache) < maxCached {
		t.cache[key] = d
	}
}

// list returns all values. It also replaces the cache, and so drops rows that other processes have deleted.
func (t *table[T]) list(ctx context.Context) (all []T, err error) {
	cache := map[string]decoded[T]{}
	err = scan(ctx, t.db.Cached(), t.folder, func(key string, row Row) error {
		d, err := t.valueOf(key, row)
		if err == nil {
			cache[key] = d
			all = append(all, d.value.Clone())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cache = cache
	return all, nil
}

// create stores a new value.
func (t *table[T]) create(ctx context.Context, v T) (none T, err error) {
	v = t.stamp(none, v)
	w, err := t.write(none, v)
	if err == nil {
		v, err = t.commit(ctx, w)
	}
	if errors.Is(err, tokens.ErrConflict) {
		err = tokens.ErrExists
		if _, getErr := t.get(ctx, t.db, t.fields(&v).key); getErr != nil && !errors.Is(getErr, tokens.ErrNotFound) {
			err = getErr // the row is damaged
		}
	}
	if err != nil {
		return none, fmt.Errorf("create %s %.253s: %w", t.what, tokens.Redact(t.fields(&v).key), err)
	}
	return v, nil
}

func (t *table[T]) update(ctx context.Context, key string, change func(*T) error) (none T, err error) {
	for {
		before, err := t.get(ctx, t.db, key)
		if err != nil {
			return none, err
		}
		after, err := before.Edit(change) // not in a transaction, so that change can use the store
		if err != nil {
			return none, err
		}
		w, err := t.write(before, t.stamp(before, after))
		if err == nil && w.nothing {
			return before, nil
		}
		if err == nil {
			after, err = t.commit(ctx, w)
		}
		switch {
		case err == nil:
			return after, nil
		case !errors.Is(err, tokens.ErrConflict):
			return none, fmt.Errorf("update %s %s: %w", t.what, key, err)
		}
	}
}

func (t *table[T]) delete(ctx context.Context, v T) error {
	var none T
	given := t.fields(&v)
	for {
		now, err := t.get(ctx, t.db, given.key)
		found := t.fields(&now)
		switch {
		case err != nil:
			return fmt.Errorf("delete: %w", err)
		case *found.uid != *given.uid:
			return fmt.Errorf("delete %s %s: %w: another %s has its name", t.what, given.key, tokens.ErrConflict, t.what)
		case *found.version != *given.version:
			return fmt.Errorf("delete %s %s: %w: version %q given, %q found", t.what, given.key, tokens.ErrConflict, *given.version, *found.version)
		}
		key := t.folder + given.key
		_, err = t.db.Commit(ctx, []Condition{{key, *found.version}}, append(t.index(now, none), Change{Key: key}))
		switch {
		case err == nil:
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.cache, given.key) // the value may contain a secret
			return nil
		case !errors.Is(err, tokens.ErrConflict):
			return fmt.Errorf("delete %s %s: %w", t.what, given.key, err)
		}
	}
}

// stamp returns after with the Created and the UID that the store will give it if it replaces before.
func (t *table[T]) stamp(before, after T) T {
	was, is := t.fields(&before), t.fields(&after)
	*is.created, *is.uid = *was.created, *was.uid
	if *was.version == "" {
		*is.uid = rand.Text()
	}
	if *was.version == "" || t.begins(before, after) {
		*is.created = time.Now()
	}
	return after
}

// A write is a value in the form in which it will be stored, with the condition and the changes to write it.
type write[T any] struct {
	value     T
	condition Condition
	changes   []Change
	nothing   bool // the stored value is already equal
}

// write returns the write that replaces before by after. For a new value, before is the zero value.
func (t *table[T]) write(before, after T) (w write[T], err error) {
	if err := after.Check(); err != nil {
		return w, err
	}
	w.condition = Condition{t.folder + t.fields(&after).key, *t.fields(&before).version}
	w.value = t.normalize(after)
	*t.fields(&w.value).version = ""
	stored, err := t.encode(w.value)
	if err != nil {
		return w, err
	}
	w.changes = append(t.index(before, w.value), Change{w.condition.Key, stored})
	if w.condition.Version != "" {
		now, err := t.encode(before)
		w.nothing = err == nil && bytes.Equal(now, stored)
	}
	return w, nil
}

// commit commits the write, and returns the stored value.
func (t *table[T]) commit(ctx context.Context, w write[T]) (T, error) {
	version, err := t.db.Commit(ctx, []Condition{w.condition}, w.changes)
	*t.fields(&w.value).version = version
	return w.value, err
}
