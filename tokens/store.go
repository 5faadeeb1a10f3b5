package tokens

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrNotFound is wrapped if a store has no token with this ID, or no claim of this name.
	ErrNotFound = errors.New("not found")
	// ErrExists is wrapped if a store already has a token with this ID, or a claim of this name.
	ErrExists = errors.New("exists already")
	// ErrConflict is wrapped if a record or claim has changed since it was read. This includes a record or claim that was
	// deleted and created again under the same ID or name.
	ErrConflict = errors.New("has changed")
	// ErrRefused is wrapped if the store has refused a write, and will refuse it until an operator acts. The write has no
	// effect.
	ErrRefused = errors.New("the store refuses writes")
	// ErrDeleting is wrapped by the Problem of a record that is being deleted. The record still
	// exists because of a finalizer.
	ErrDeleting = errors.New("token is being deleted")
)

// MaxAge is the maximum age of a result that is read with [Recent].
const MaxAge = time.Second

// A Read says how current the result of a read is.
type Read string

const (
	// Live never reads from a cache.
	Live Read = "live"
	// Recent may read from a cache if two things are proven: the cache is less than [MaxAge] old, and it has all completed
	// writes of the same Store.
	Recent Read = "recent"
	// Cached may lag behind writes. It is very cheap.
	Cached Read = "cached"
)

// A Store stores records. Its methods may be called concurrently. Errors wrap [ErrNotFound],
// [ErrExists], [ErrConflict] or [ErrMalformed] where these apply. Every other error may be
// temporary, and the write that failed with it may have taken effect.
//
// Stores keep times in UTC with a precision of one second: Create and Update truncate Expires, and
// return the record as stored. Callers may change the records that a Store returns.
//
// Every Store must pass the suite in package tokens/storetest.
type Store interface {
	// Get reads a record.
	Get(ctx context.Context, id string, read Read) (Record, error)

	// List returns all records, sorted by ID. It may lag behind writes.
	List(ctx context.Context) ([]Record, error)

	// Create stores a new record, which must pass [Record.Check]. It returns the record with new
	// values of Created, UID and Version. Create is atomic: of concurrent calls with the same ID, one
	// succeeds.
	Create(ctx context.Context, r Record) (Record, error)

	// Update reads the current record, calls change on it and writes it back. If the record has changed in the meantime,
	// Update starts over and calls change again with the new record. The first call of change may get a cached record.
	// Update uses the result of that call only if the record is unchanged when Update writes.
	//
	// Update returns an error of change unwrapped. It also fails if the changed record does not pass
	// [Record.Check], or if change alters Token, Created or UID. To repair a record, change must clear
	// its Problem. Whenever any other field changes, Update sets a new Version.
	Update(ctx context.Context, id string, change func(*Record) error) (Record, error)

	// Delete deletes the record only if it still has the UID and Version of r. Otherwise the error
	// wraps ErrConflict.
	Delete(ctx context.Context, r Record) error

	// Watch returns a channel that receives a value at the start and soon after every change in
	// the store. A value is a hint to list again. Changes in quick succession may share one. When ctx
	// ends, the store stops sending; it never closes the channel.
	Watch(ctx context.Context) <-chan struct{}
}
