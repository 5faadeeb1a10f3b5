package etcdstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
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
	value, _, err := s.kv.get(ctx, schemaKey)
	switch string(value) {
	case schemaVersion:
		return InUse, err
	case readOnly:
		return ReadOnly, err
	case incomplete:
		return Incomplete, err
	case "":
		keys, countErr := s.issued.count(ctx, "")
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
		was := clientv3.Compare(clientv3.Value(s.kv.prefix+schemaKey), "=", before)
		version, err := s.kv.txn(ctx, []clientv3.Cmp{was}, []clientv3.Op{s.kv.put(schemaKey, []byte(value))})
		if err != nil || version != "" {
			return err
		}
	}
	return s.refused(ctx, errors.New("the schema changed; retry"))
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
	schema := clientv3.Compare(clientv3.Value(s.kv.prefix+schemaKey), "=", schemaVersion)
	version, err := s.kv.txn(ctx, []clientv3.Cmp{schema}, []clientv3.Op{clientv3.OpPut(s.kv.prefix+schemaKey, readOnly, clientv3.WithLease(lease))})
	if err == nil && version == "" {
		err = s.refused(ctx, errors.New("the schema changed; retry"))
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
		_, now, err := s.kv.get(ctx, schemaKey) // etcd deletes the key when the lease ends
		if err == nil && now != version {
			err = fmt.Errorf("%w: %s", ErrThawed, s.kv.prefix)
		}
		return err
	}
	return verify, func() error {
		defer release()
		return s.kv.call(held, func(ctx context.Context) error {
			frozen := clientv3.Compare(clientv3.Value(s.kv.prefix+schemaKey), "=", readOnly)
			_, err := s.kv.client.Txn(ctx).If(frozen).Then(clientv3.OpPut(s.kv.prefix+schemaKey, schemaVersion)).Commit()
			return err
		})
	}, nil
}

// Restore stores a record of another store, with its Created and UID. The error wraps [tokens.ErrExists] if there is a
// record with its ID.
func (s *Store) Restore(ctx context.Context, r tokens.Record) error {
	id := r.Token.ID()
	if err := errors.Join(ctx.Err(), r.Check()); err != nil {
		return fmt.Errorf("restore token %s: %w", id, err)
	}
	r.Version = ""
	row, err := rows.EncodeRecord(rows.NormalizedRecord(r))
	if err != nil {
		return err
	}
	key := tokensFolder + id
	return s.restore(ctx, "token "+id, []clientv3.Cmp{s.kv.absent(key)}, []clientv3.Op{s.kv.put(key, row)})
}

// Restore stores a claim of another store, with its Created and UID. The error wraps [tokens.ErrExists] if there is a
// claim of its name.
func (s *Claims) Restore(ctx context.Context, c tokens.Claim) error {
	if err := errors.Join(ctx.Err(), c.Check()); err != nil {
		return fmt.Errorf("restore claim %s: %w", tokens.Redact(c.Node), err)
	}
	w, err := s.write(tokens.Claim{}, c)
	if err != nil {
		return err
	}
	c.Version = ""
	row, err := rows.EncodeClaim(rows.NormalizedClaim(c)) // not that of write, which is new
	if err != nil {
		return err
	}
	w.ops[0] = s.store.kv.put(claimsFolder+c.Node, row)
	return s.store.restore(ctx, "claim "+c.Node, []clientv3.Cmp{w.condition}, w.ops)
}

func (s *Store) restore(ctx context.Context, what string, conditions []clientv3.Cmp, ops []clientv3.Op) error {
	version, err := s.write(ctx, conditions, ops)
	if err == nil && version == "" {
		err = s.refused(ctx, tokens.ErrExists)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", what, err)
	}
	return nil
}
