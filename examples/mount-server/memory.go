package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// A memory is a tokens.Store in memory. Your own store needs the same methods and must pass
// tokens/storetest. A memory copies records when it stores and returns them.
type memory struct {
	hints tokens.Hints // listeners of Watch

	mu    sync.Mutex
	rows  map[string]tokens.Record // by ID
	count int                      // source of UIDs and versions
}

var _ tokens.Store = (*memory)(nil)

func (m *memory) Get(ctx context.Context, id string) (tokens.Record, error) {
	if err := cmp.Or(ctx.Err(), tokens.CheckID(id)); err != nil {
		return tokens.Record{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, found := m.rows[id]
	if !found {
		return r, fmt.Errorf("token %s: %w", id, tokens.ErrNotFound)
	}
	return r.Clone(), nil
}

func (m *memory) Find(ctx context.Context, id string) (tokens.Record, error) { return m.Get(ctx, id) }

func (m *memory) List(ctx context.Context) ([]tokens.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]tokens.Record, 0, len(m.rows))
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		list = append(list, m.rows[id].Clone())
	}
	return list, ctx.Err()
}

func (m *memory) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	if err := cmp.Or(ctx.Err(), r.Check()); err != nil {
		return tokens.Record{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, found := m.rows[r.Token.ID()]; found {
		return tokens.Record{}, fmt.Errorf("token %s: %w", r.Token.ID(), tokens.ErrExists)
	}
	r.Created = time.Now().UTC().Truncate(time.Second)
	r.UID = "uid-" + m.next()
	return m.put(r), nil
}

func (m *memory) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	for {
		was, err := m.Get(ctx, id)
		if err != nil {
			return tokens.Record{}, err
		}
		now, err := was.Edit(change) // without the lock, because change may be slow
		if err != nil {
			return tokens.Record{}, err
		}
		if stored, done := m.replace(was, now); done {
			return stored, nil
		}
	}
}

// replace stores now if the stored record is still was. Otherwise done is false.
func (m *memory) replace(was, now tokens.Record) (_ tokens.Record, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.rows[was.Token.ID()]; r.UID != was.UID || r.Version != was.Version {
		return now, false
	}
	return m.put(now), true
}

func (m *memory) Delete(ctx context.Context, r tokens.Record) error {
	id := r.Token.ID()
	if err := cmp.Or(ctx.Err(), tokens.CheckID(id)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch now, found := m.rows[id]; {
	case !found:
		return fmt.Errorf("token %s: %w", id, tokens.ErrNotFound)
	case now.UID != r.UID || now.Version != r.Version:
		return fmt.Errorf("token %s: %w", id, tokens.ErrConflict)
	}
	delete(m.rows, id)
	m.hints.Send()
	return nil
}

func (m *memory) Watch(ctx context.Context) <-chan struct{} { return m.hints.Watch(ctx) }

// put stores a record under a new version. The caller holds the lock.
func (m *memory) put(r tokens.Record) tokens.Record {
	if m.rows == nil {
		m.rows = map[string]tokens.Record{}
	}
	r.Expires = r.Expires.UTC().Truncate(time.Second)
	r.Version = m.next()
	m.rows[r.Token.ID()] = r.Clone()
	m.hints.Send()
	return r
}

func (m *memory) next() string {
	m.count++
	return strconv.Itoa(m.count)
}
