package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// readOnly is the value of the key "schema" while a [Store.Freeze] lasts. No write has it as its condition.
const readOnly = schemaVersion + " read-only"

// freezeSeconds is how long a freeze lasts after the program that made it has died.
const freezeSeconds = 30

// incomplete is the value of the key "schema" between [Store.Begin] and [Store.Complete].
const incomplete = schemaVersion + " incomplete"

// ErrIncomplete is wrapped if the store is the destination of a copy that is not complete.
var ErrIncomplete = errors.New("etcd has an incomplete copy: complete it with 'kubejoin store copy --resume', or delete all keys below the prefix")

// A State is what a store can be used for.
type State int

// The states of a store. A store is Unused if it has no keys. It is ReadOnly during [Store.Freeze], and Incomplete between
// [Store.Begin] and [Store.Complete].
const (
	Unused State = iota
	InUse
	ReadOnly
	Incomplete
)

// State returns the state of the store. It fails if another version of kubejoin wrote it.
func (s *Store) State(ctx context.Context) (State, error) {
	row, err := s.kv.get(ctx, schemaKey)
	switch string(row.Value) {
	case schemaVersion:
		return InUse, err
	case readOnly:
		return ReadOnly, err
	case incomplete:
		return Incomplete, err
	case "":
		keys, _, countErr := s.kv.count(ctx, 0, "")
		if err = errors.Join(err, countErr); err != nil || keys == 0 {
			return Unused, err
		}
		return InUse, nil // a freeze has ended with its lease
	}
	return Unused, s.prepare(ctx)
}

// Begin makes the store the destination of a copy: until Complete, only this Store can write.
func (s *Store) Begin(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil && !errors.Is(err, ErrIncomplete) {
		return err
	}
	s.schema.set(incomplete, false)
	return s.mark(ctx, incomplete, schemaVersion, incomplete)
}

// Complete ends Begin.
func (s *Store) Complete(ctx context.Context) error {
	if err := s.mark(ctx, schemaVersion, incomplete); err != nil {
		return err
	}
	s.schema.set(schemaVersion, false)
	return nil
}

// mark sets the key "schema" if it has one of the given values.
func (s *Store) mark(ctx context.Context, value string, earlier ...string) error {
	for _, before := range earlier {
		version, _, err := s.kv.txn(ctx, []clientv3.Cmp{s.kv.schemaIs(before)}, []clientv3.Op{s.kv.put(schemaKey, []byte(value))})
		if err != nil || version != "" {
			return err
		}
	}
	return s.changed(ctx)
}

// changed returns why the key "schema" has another value.
func (s *Store) changed(ctx context.Context) error {
	want, _ := s.schema.get()
	s.schema.set(want, false)
	return cmp.Or(s.prepare(ctx), errors.New("the schema changed; retry"))
}

// ErrReadOnly is wrapped by errors of writes while a copy is made.
var ErrReadOnly = errors.New("etcd is read-only for kubejoin while 'kubejoin store copy' runs; it ends with that command, or 30 s after it was killed")

// ErrThawed is wrapped if a freeze has ended early, because etcd was not available for too long.
var ErrThawed = errors.New("etcd was no longer read-only before the copy was complete, because it was not available; repeat the copy")

// Freeze makes every write of every replica fail until thaw is called. It fails if somebody else has frozen the store.
// Verify returns an error that wraps [ErrThawed] unless all writes have failed since.
func (s *Store) Freeze(ctx context.Context) (verify func(context.Context) error, thaw func() error, err error) {
	if err := s.prepare(ctx); err != nil {
		return nil, nil, err
	}
	var lease clientv3.LeaseID
	if err := s.kv.call(ctx, func(ctx context.Context) error {
		granted, err := s.kv.client.Grant(ctx, freezeSeconds)
		if err == nil {
			lease = granted.ID
		}
		return err
	}); err != nil {
		return nil, nil, err
	}
	version, _, err := s.kv.txn(ctx, []clientv3.Cmp{s.kv.schemaIs(schemaVersion)}, []clientv3.Op{clientv3.OpPut(s.kv.prefix+schemaKey, readOnly, clientv3.WithLease(lease))})
	if err == nil && version == "" {
		err = s.changed(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	held, release := context.WithCancel(context.WithoutCancel(ctx))
	alive, err := s.kv.client.KeepAlive(held, lease)
	if err != nil {
		release()
		return nil, nil, s.kv.explain(ctx, err)
	}
	go func() {
		for range alive {
		}
	}()
	verify = func(ctx context.Context) error {
		now, err := s.kv.get(ctx, schemaKey) // etcd deletes the key when the lease ends
		if err == nil && now.Version != version {
			err = fmt.Errorf("%w: %s", ErrThawed, s.kv.prefix)
		}
		return err
	}
	return verify, func() error {
		defer release()
		return s.kv.call(held, func(ctx context.Context) error {
			_, err := s.kv.client.Txn(ctx).If(s.kv.schemaIs(readOnly)).Then(clientv3.OpPut(s.kv.prefix+schemaKey, schemaVersion)).Commit()
			return err
		})
	}, nil
}
