package etcdstore

import (
	"cmp"
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// incomplete is the value of the key "schema" between [Store.Begin] and [Store.Complete].
const incomplete = schemaVersion + " incomplete"

// ErrIncomplete is wrapped if the store is the destination of a copy that is not complete.
var ErrIncomplete = errors.New("etcd has an incomplete copy of 'kubejoin store copy': delete all keys below the prefix")

// A State says how a store can be used.
type State int

// The states of a store. A store is Unused before its first write, and Incomplete between [Store.Begin] and
// [Store.Complete].
const (
	Unused State = iota
	InUse
	Incomplete
)

// State returns the state of the store. It fails if another version of kubejoin wrote it.
func (s *Store) State(ctx context.Context) (State, error) {
	row, err := s.kv.get(ctx, schemaKey)
	switch string(row.Value) {
	case schemaVersion:
		return InUse, err
	case incomplete:
		return Incomplete, err
	case "":
		return Unused, err
	}
	return Unused, s.prepare(ctx)
}

// Begin makes the store the destination of a copy: until Complete, only this Store can write.
func (s *Store) Begin(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil && !errors.Is(err, ErrIncomplete) {
		return err
	}
	s.schema.Store(&schema{want: incomplete})
	return s.mark(ctx, incomplete, schemaVersion, incomplete)
}

// Complete marks the copy as complete, so that all Stores can write.
func (s *Store) Complete(ctx context.Context) error {
	if err := s.mark(ctx, schemaVersion, incomplete); err != nil {
		return err
	}
	s.schema.Store(&schema{want: schemaVersion})
	return nil
}

// mark sets the key "schema" to value if it now has one of the values in earlier.
func (s *Store) mark(ctx context.Context, value string, earlier ...string) error {
	for _, before := range earlier {
		version, _, err := s.kv.txn(ctx, []clientv3.Cmp{s.kv.schemaIs(before)}, []clientv3.Op{s.kv.put(schemaKey, []byte(value))})
		if err != nil || version != "" {
			return err
		}
	}
	return s.changed(ctx)
}

// changed returns an error for an unexpected value of the key "schema".
func (s *Store) changed(ctx context.Context) error {
	s.schema.Store(&schema{want: s.schema.Load().want})
	return cmp.Or(s.prepare(ctx), errors.New("the schema changed; retry"))
}
