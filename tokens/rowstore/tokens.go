package rowstore

import (
	"context"
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
)

// A Store is a [tokens.Store] of rows. The Version of a record is the version of its row.
type Store struct {
	db     DB
	table  *table[tokens.Record]
	claims *Claims
	issued Issued
}

var _ tokens.Store = (*Store)(nil)

// New returns the Store in a database. Several Stores can use one database. New panics if [DB.MaxChanges] is below 4.
func New(db DB) *Store {
	if n := db.MaxChanges(); n < 4 {
		panic(fmt.Sprintf("rowstore: MaxChanges is %d, want at least 4", n))
	}
	s := &Store{db: db, table: &table[tokens.Record]{
		db: db, folder: tokensFolder, what: "token", check: tokens.CheckID,
		fields: func(r *tokens.Record) fields {
			return fields{r.Token.ID(), &r.Created, &r.UID, &r.Version}
		},
		normalize: normalizedRecord, encode: encodeRecord, decode: decodeRecord,
		begins: func(_, _ tokens.Record) bool { return false },
		index:  func(_, _ tokens.Record) []Change { return nil },
	}}
	s.claims, s.issued.db = newClaims(s), db
	return s
}

// DB returns the database.
func (s *Store) DB() DB { return s.db }

// Get implements [tokens.Store]. It treats [tokens.Recent] as [tokens.Live].
func (s *Store) Get(ctx context.Context, id string, read tokens.Read) (tokens.Record, error) {
	return s.table.get(ctx, reader(s.db, read), id)
}

// List implements [tokens.Store]. If it cannot decode a row, it returns an error of [DB.Damaged].
func (s *Store) List(ctx context.Context) ([]tokens.Record, error) { return s.table.list(ctx) }

// Create implements [tokens.Store].
func (s *Store) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	return s.table.create(ctx, r)
}

// Update implements [tokens.Store]. It writes nothing if nothing changes.
func (s *Store) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	return s.table.update(ctx, id, change)
}

// Delete implements [tokens.Store].
func (s *Store) Delete(ctx context.Context, r tokens.Record) error { return s.table.delete(ctx, r) }

// Watch implements [tokens.Store].
func (s *Store) Watch(ctx context.Context) <-chan struct{} { return s.db.Watch(ctx, tokensFolder) }
