// Package rowstore stores bootstrap tokens, claims, revocations, the issuance record and the CA rotation as rows of a
// database. The database only needs to compare and swap several rows in one transaction: see [DB]. Package memdb is such a
// database in memory.
//
// The rows are JSON and contain the token secrets in clear text. Their form may change without notice. If a field or its
// meaning changes, the schema versions of the databases on disk must change too.
package rowstore

import (
	"bytes"
	"context"
	"errors"
	"math"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// Folders of the rows.
const (
	tokensFolder      = "tokens/"      // ID: a token
	claimsFolder      = "claims/"      // NODE: a claim
	holdersFolder     = "holders/"     // ID/NODE: an index of the claims of each token; the values are empty
	revocationsFolder = "revocations/" // KEY: a row of signer/revocation
	rotationsFolder   = "ca-rotation/" // KEY: a row of signer/rotation/rowstate
	issuedFolder      = "issued/"      // PLACE: an entry of signer/issuance; issued.go explains this row and the next
	issuedByFolder    = "issued-by/"   // NAME/PLACE
	issuedEndsFolder  = "issued-ends/" // TIME-PLACE
	unissuedFolder    = "unissued/"    // TIME-PLACE
)

// A Row is a value under a key. No code may change the bytes of a Value.
type Row struct {
	Key   string
	Value []byte
	// Version changes whenever the value does. A key never gets an earlier version again, even after a deletion. It is a
	// positive decimal number. An empty Version means that there is no row.
	Version string
}

// A Condition holds if the row of a key has this version. An empty Version means that there is no row.
type Condition struct{ Key, Version string }

// A Change sets the value of a key. A nil Value deletes the row, if there is one.
type Change struct {
	Key   string
	Value []byte
}

// A Range is the keys that are at least From and less than To. A scan visits at most Limit of them; 0 means unlimited.
type Range struct {
	From, To string
	Limit    int
}

// A Reader reads rows. Its methods fail with the error of ctx if ctx has ended. All other errors mean that the database
// is unavailable or damaged.
type Reader interface {
	// Get returns the row of each key, all from one point in time. The Version is empty if there is no row.
	Get(ctx context.Context, keys ...string) ([]Row, error)
	// Scan calls visit with each row of a range, sorted by key. All rows are from one point in time. Scan stops at the
	// first error of visit and returns it unwrapped. visit must not use the database or keep the Value.
	Scan(ctx context.Context, keys Range, visit func(Row) error) error
	// Count returns the number of rows in a folder. Its name ends with a slash.
	Count(ctx context.Context, folder string) (int, error)
}

// A DB is a database of rows. Its own reads are live. Its methods may be called concurrently.
type DB interface {
	Reader
	// Cached returns a Reader that may lag behind writes and is very cheap.
	Cached() Reader
	// Commit makes all changes if all conditions hold, in one transaction, and returns the version of all rows that it
	// wrote. If a condition does not hold, Commit changes nothing and returns an error that wraps [tokens.ErrConflict].
	// After any other error, including the error of ctx, the changes may have been made.
	Commit(ctx context.Context, conditions []Condition, changes []Change) (version string, err error)
	// Append is like Commit without conditions. It adds the rows of one entry of the issuance record. No row has had these
	// keys before. To make space, a database may delete other entries.
	Append(ctx context.Context, changes []Change) error
	// View calls do with a Reader whose calls all see one point in time. For a row without a valid version, the Reader's
	// Scan does not call visit, but damaged. View returns the error of do unwrapped.
	View(ctx context.Context, damaged func(key string, err error), do func(Reader) error) error
	// MaxChanges is the maximum number of changes in one Commit, and also of conditions. It is at least 4, enough for a
	// token and a claim with its index.
	MaxChanges() int
	// Damaged returns an error for a row that kubejoin did not write in this form, with err as the reason. The error names
	// the row, and does not contain the value.
	Damaged(key string, err error) error
	// Watch sends hints about changes of keys that begin with folder, like [tokens.Store.Watch].
	Watch(ctx context.Context, folder string) <-chan struct{}
}

// reader returns the Reader for a kind of read.
func reader(db DB, read tokens.Read) Reader {
	if read == tokens.Cached {
		return db.Cached()
	}
	return db
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
	return r.Scan(ctx, Range{From: folder, To: after(folder)}, func(row Row) error { return visit(row.Key[len(folder):], row) })
}

// after returns the first possible key behind all keys of a folder.
func after(folder string) string { return folder[:len(folder)-1] + "0" }

// page returns the rows of a range.
func page(ctx context.Context, r Reader, keys Range) (rows []Row, err error) {
	err = r.Scan(ctx, keys, func(row Row) error {
		row.Value = bytes.Clone(row.Value)
		rows = append(rows, row)
		return nil
	})
	return rows, err
}

// maxPage is the maximum number of rows that EachPage, or a walk through the issuance record, reads at once.
const maxPage = 1000

// EachPage calls visit with all rows of a folder, in pages. visit may use the database.
func EachPage(ctx context.Context, r Reader, folder string, visit func([]Row) error) error {
	keys := Range{From: folder, To: after(folder), Limit: maxPage}
	if folder == issuedFolder {
		newest, oldest := math.MaxInt64-nanos(time.Now()), int64(math.MaxInt64)
		err := timed(ctx, r, folder, "", newest, oldest, maxPage, func(rows []Row) (bool, error) {
			if len(rows) == 0 {
				return true, nil
			}
			return true, visit(rows)
		})
		if err != nil {
			return err
		}
		keys.From = folder + digits(oldest) + last // damaged keys may sort behind all times
	}
	for {
		rows, err := page(ctx, r, keys)
		if err != nil || len(rows) == 0 {
			return err
		}
		if err := visit(rows); err != nil || len(rows) < keys.Limit {
			return err
		}
		keys.From = rows[len(rows)-1].Key + "\x00"
	}
}

// mustHaveChanged returns nil if an index row was deleted or replaced since it was read, and otherwise an error that it is
// damaged. A transaction writes a row together with its index rows. So an index row without its row is damaged, unless it
// has changed meanwhile.
func mustHaveChanged(ctx context.Context, db DB, index Row, defect string) error {
	now, err := get(ctx, db, index.Key)
	if err == nil && now.Version == index.Version {
		err = db.Damaged(index.Key, errors.New(defect))
	}
	return err
}
