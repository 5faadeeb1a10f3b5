package tokens

import (
	"context"
	"errors"
)

var (
	// ErrNotFound is wrapped when a store has no token of that ID, or no claim of that name.
	ErrNotFound = errors.New("not found")
	// ErrExists is wrapped when a store has a token of that ID, or a claim of that name, already.
	ErrExists = errors.New("exists already")
	// ErrConflict is wrapped when a record or claim has changed since it was read, or is another
	// one of the same ID or name.
	ErrConflict = errors.New("has changed")
	// ErrDeleting is wrapped by the Problem of a record that has been deleted and stays only
	// until somebody else lets go of it (a finalizer).
	ErrDeleting = errors.New("token is being deleted")
)

// A Store keeps records. Its methods may be called side by side. Errors wrap [ErrNotFound],
// [ErrExists], [ErrConflict] or [ErrMalformed] where these apply; every other error may pass
// by itself, and the write that it is about may have taken effect.
//
// Stores keep whole seconds, in UTC: Create and Update cut fractions of Expires off, and
// return the record as it is kept. Records that a Store returns are the caller's to change.
//
// Package tokens/storetest is the suite that every Store passes.
type Store interface {
	// Get reads one record as it is now, never from a cache.
	Get(ctx context.Context, id string) (Record, error)

	// Find is Get that may lag behind writes, and costs next to nothing.
	Find(ctx context.Context, id string) (Record, error)

	// List gives all records in the order of their IDs. It may lag behind writes.
	List(ctx context.Context) ([]Record, error)

	// Create stores a record that passes [Record.Check] under an ID that is not taken, and
	// returns it with Created, UID and Version set, whatever they were. It is one atomic
	// write: of several at once with the same ID, one succeeds.
	Create(ctx context.Context, r Record) (Record, error)

	// Update reads the record as it is now, lets change alter it and writes it back if it is
	// still as it was read; otherwise it starts over with a fresh one. An error of change ends
	// it and is returned as it is, and so does a record that does not pass [Record.Check] (a
	// change that mends a record clears its Problem). It is an error to change Token, Created
	// or UID. Version is new whenever anything else is.
	Update(ctx context.Context, id string, change func(*Record) error) (Record, error)

	// Delete removes exactly the record given: one of another UID or Version is left alone,
	// with ErrConflict.
	Delete(ctx context.Context, r Record) error

	// Watch returns a channel that receives a value soon after anything in the store has
	// changed, and once at the start. Changes that come close together may be one value. It
	// is a hint to list again, not a record of what happened. The channel is never closed;
	// the store stops sending when ctx ends.
	Watch(ctx context.Context) <-chan struct{}
}
