// Package rowstore stores bootstrap tokens, claims and revocations as rows of a database. The database only needs to
// compare and swap several rows in one transaction: see [DB]. Package memdb has one in memory.
//
// The rows are JSON, whose form may change without notice, and contain the token secrets in clear text. If a field or its
// meaning changes, the schema versions of the databases on disk must change too.
package rowstore

import "context"

// Folders of the rows.
const (
	tokensFolder      = "tokens/"      // ID: a token
	claimsFolder      = "claims/"      // NODE: a claim
	holdersFolder     = "holders/"     // ID/NODE: an index of the claims of each token; the values are empty
	revocationsFolder = "revocations/" // KEY: a row of signer/revocation
)

// A Row is a value under a key. Nobody changes the bytes of a Value.
type Row struct {
	Key   string
	Value []byte
	// Version changes whenever the value does. The key never has the same version again, also after it was deleted. It
	// is a positive decimal number. An empty Version means that there is no row.
	Version string
}

// A Condition holds if the row of a key has this version. An empty Version means that there is no row.
type Condition struct{ Key, Version string }

// A Change sets the value of a key. A nil Value deletes the row, if there is one.
type Change struct {
	Key   string
	Value []byte
}

// A Reader reads rows. Its methods fail with the error of ctx if ctx has ended. All other errors mean that the database
// is unavailable or damaged.
type Reader interface {
	// Get returns the row of each key, all of one moment. The Version is empty if there is no row.
	Get(ctx context.Context, keys ...string) ([]Row, error)
	// Scan calls visit with each row whose key is at least from and less than to, sorted by key. All rows are of one
	// moment. Scan stops at the first error of visit and returns it unwrapped. visit must not use the database, nor keep
	// the Value.
	Scan(ctx context.Context, from, to string, visit func(Row) error) error
}

// A DB is a database of rows. It reads live. Its methods may be called concurrently.
type DB interface {
	Reader
	// Cached returns a Reader that may lag behind writes and is very cheap.
	Cached() Reader
	// Commit makes all changes if all conditions hold, in one transaction, and returns the version of all rows that it
	// wrote. If a condition does not hold, Commit changes nothing and returns an error that wraps
	// [tokens.ErrConflict]. After any other error, also that of ctx, the changes may have been
	// made.
	Commit(ctx context.Context, conditions []Condition, changes []Change) (version string, err error)
	// MaxChanges is the maximum number of changes in one Commit. It is at least 4: a token and a claim with its index.
	MaxChanges() int
	// Damaged returns an error for a row that kubejoin did not write in this form, with err as the reason. It names the
	// row, and it does not contain the value.
	Damaged(key string, err error) error
	// Watch sends hints about changes of keys that begin with folder, like [tokens.Store.Watch].
	Watch(ctx context.Context, folder string) <-chan struct{}
}

// get returns the row of a key.
func get(ctx context.Context, r Reader, key string) (Row, error) {
	rows, err := r.Get(ctx, key)
	if err != nil {
		return Row{}, err
	}
	return rows[0], nil
}

// scan scans the rows of a folder.
func scan(ctx context.Context, r Reader, folder string, visit func(key string, row Row) error) error {
	end := folder[:len(folder)-1] + "0" // what follows the slash
	return r.Scan(ctx, folder, end, func(row Row) error { return visit(row.Key[len(folder):], row) })
}
