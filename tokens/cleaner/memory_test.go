package cleaner_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

var errBroken = errors.New("the store is broken")

// memory is a Store with the failures of a remote one: List lags, calls fail, and a call may fail although its
// write succeeded.
type memory struct {
	hints tokens.Hints

	mu      sync.Mutex
	rows    map[string]tokens.Record
	listed  []tokens.Record // what List returns while it lags
	lags    bool
	version int
	deletes []string // IDs in the order of the calls
	// failDelete runs before and after a deletion; Delete returns its error.
	failDelete func(id string, after bool) error
	failList   error
	slow       time.Duration // how long Delete takes
	running    int
	mostAtOnce int
}

var _ tokens.Store = (*memory)(nil)

func (m *memory) Get(_ context.Context, id string) (tokens.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, found := m.rows[id]
	if !found {
		return tokens.Record{}, fmt.Errorf("%s: %w", id, tokens.ErrNotFound)
	}
	return r, nil
}

func (m *memory) Find(ctx context.Context, id string) (tokens.Record, error) { return m.Get(ctx, id) }

func (m *memory) List(context.Context) ([]tokens.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failList != nil {
		return nil, m.failList
	}
	if m.lags {
		return slices.Clone(m.listed), nil
	}
	return m.sorted(), nil
}

func (m *memory) sorted() []tokens.Record {
	return slices.SortedFunc(maps.Values(m.rows), func(a, b tokens.Record) int { return cmp.Compare(a.Token.ID(), b.Token.ID()) })
}

// lag freezes the result of List, or lets it catch up.
func (m *memory) lag(lags bool) {
	m.mu.Lock()
	m.listed, m.lags = m.sorted(), lags
	m.mu.Unlock()
	m.hints.Send()
}

func (m *memory) Create(_ context.Context, r tokens.Record) (tokens.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, found := m.rows[r.Token.ID()]; found {
		return tokens.Record{}, fmt.Errorf("%s: %w", r.Token.ID(), tokens.ErrExists)
	}
	m.version++
	r.UID, r.Version = strconv.Itoa(m.version), strconv.Itoa(m.version)
	m.put(r)
	return r, nil
}

func (m *memory) put(r tokens.Record) {
	if m.rows == nil {
		m.rows = map[string]tokens.Record{}
	}
	m.rows[r.Token.ID()] = r
	m.hints.Send()
}

func (m *memory) Update(_ context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.rows[id]
	if err := change(&r); err != nil {
		return tokens.Record{}, err
	}
	m.version++
	r.Version = strconv.Itoa(m.version)
	m.put(r)
	return r, nil
}

func (m *memory) Delete(_ context.Context, r tokens.Record) error {
	m.mu.Lock()
	m.running++
	m.mostAtOnce = max(m.mostAtOnce, m.running)
	slow := m.slow
	m.mu.Unlock()
	time.Sleep(slow)

	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	id := r.Token.ID()
	m.deletes = append(m.deletes, id)
	if m.failDelete != nil {
		if err := m.failDelete(id, false); err != nil {
			return err
		}
	}
	switch now, found := m.rows[id]; {
	case !found:
		return fmt.Errorf("%s: %w", id, tokens.ErrNotFound)
	case now.UID != r.UID || now.Version != r.Version:
		return fmt.Errorf("%s: %w", id, tokens.ErrConflict)
	}
	delete(m.rows, id)
	m.hints.Send()
	if m.failDelete != nil {
		return m.failDelete(id, true)
	}
	return nil
}

func (m *memory) Watch(ctx context.Context) <-chan struct{} { return m.hints.Watch(ctx) }

func (m *memory) left() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.rows))
}

// tried returns the IDs that Delete was called with since the last call of tried.
func (m *memory) tried() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := slices.Sorted(slices.Values(m.deletes))
	m.deletes = nil
	return t
}
