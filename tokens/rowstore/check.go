package rowstore

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
)

// A Kind describes one kind of row, and its index rows.
type Kind struct {
	// Folder is the folder of the rows, and Indexes are the folders of their index rows.
	Folder  string
	Indexes []string

	rows  func(key string, value []byte) ([]Change, error)
	owner func(key string) string // the key of the row to which an index row points
}

// Decoders decode rows whose meaning other packages define. Their errors must not contain values.
type Decoders struct {
	Revocation func(key string, value []byte) error
	// Rotation reports whether a copy of the store must leave out the row.
	Rotation func(key string, value []byte) (leftOut bool, err error)
	// Issued decodes an entry of the issuance record. If it returns an IssuedRow without Value, a copy of the store leaves
	// out the entry.
	Issued func(value []byte) (IssuedRow, error)
}

// Kinds returns the kinds of rows: tokens, claims, revocations, the state of the CA rotation, and entries of the issuance
// record.
func (d Decoders) Kinds() []Kind {
	return []Kind{
		{Folder: tokensFolder, rows: func(id string, value []byte) ([]Change, error) {
			_, err := decodeRecord(id, value)
			return []Change{{tokensFolder + id, value}}, err
		}},
		{Folder: claimsFolder, Indexes: []string{holdersFolder}, rows: func(node string, value []byte) ([]Change, error) {
			c, err := decodeClaim(node, value)
			return append([]Change{{claimsFolder + node, value}}, holders(tokens.Claim{}, c)...), err
		}, owner: func(key string) string { return claimsFolder + key[strings.LastIndex(key, "/")+1:] }},
		{Folder: revocationsFolder, rows: func(key string, value []byte) ([]Change, error) {
			return []Change{{revocationsFolder + key, value}}, d.Revocation(key, value)
		}},
		{Folder: rotationsFolder, rows: func(key string, value []byte) ([]Change, error) {
			if leftOut, err := d.Rotation(key, value); err != nil || leftOut {
				return nil, err
			}
			return []Change{{rotationsFolder + key, value}}, nil
		}},
		{Folder: issuedFolder, Indexes: []string{issuedByFolder, issuedEndsFolder, unissuedFolder}, rows: func(place string, value []byte) ([]Change, error) {
			row, err := d.Issued(value)
			switch {
			case err != nil || row.Value == nil:
				return nil, err
			case len(place) != PlaceLen || place[:timeLen] != inverted(row.Time):
				return nil, errors.New("the time in the key is not that of the entry")
			}
			return row.rows(place), nil
		}, owner: func(key string) string { return issuedFolder + placeIn(key) }},
	}
}

// Rows returns what a store must contain for a row: the row itself, and then its index rows. It returns nothing for a row
// that a copy leaves out, and an error for a row that it cannot decode.
func (k Kind) Rows(key string, value []byte) ([]Change, error) {
	return k.rows(key[len(k.Folder):], value)
}

// Check calls report for each row that it cannot decode, and for each index row that is missing or wrong, or points to no
// row. It reports each row once. It reads all rows at one point in time.
func Check(ctx context.Context, db DB, d Decoders, report func(key string, err error)) error {
	reported := map[string]bool{}
	damaged := func(key string, err error) {
		if !reported[key] {
			reported[key] = true
			report(key, err)
		}
	}
	return db.View(ctx, damaged, func(r Reader) error {
		for _, kind := range d.Kinds() {
			if err := (check{r, kind, damaged}).run(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// A check checks the rows of a kind.
type check struct {
	Reader
	kind    Kind
	damaged func(key string, err error)
}

func (c check) run(ctx context.Context) error {
	found := 0 // number of index rows that belong to a row
	if err := EachPage(ctx, c, c.kind.Folder, func(rows []Row) error {
		var want []Change
		for _, row := range rows {
			changes, err := c.kind.Rows(row.Key, row.Value)
			if err != nil {
				c.damaged(row.Key, err)
			} else if len(changes) > 0 {
				want = append(want, changes[1:]...)
			}
		}
		n, err := c.compare(ctx, want)
		found += n
		return err
	}); err != nil {
		return err
	}
	for _, folder := range c.kind.Indexes {
		n, err := c.Count(ctx, folder)
		if err != nil {
			return err
		}
		found -= n
	}
	if found == 0 {
		return nil
	}
	for _, folder := range c.kind.Indexes {
		if err := EachPage(ctx, c, folder, func(rows []Row) error { return c.owners(ctx, rows) }); err != nil {
			return err
		}
	}
	return nil
}

// compare checks that the indexes have the wanted rows, and returns how many of these exist.
func (c check) compare(ctx context.Context, want []Change) (found int, err error) {
	rows, err := c.Get(ctx, keysOf(want)...)
	for i, row := range rows {
		switch {
		case row.Version == "":
			c.damaged(want[i].Key, errors.New("missing in the index"))
			continue
		case !bytes.Equal(row.Value, want[i].Value):
			c.damaged(row.Key, errors.New("this row of an index does not agree with its row"))
		}
		found++
	}
	return found, err
}

func keysOf(changes []Change) []string {
	keys := make([]string, len(changes))
	for i, c := range changes {
		keys[i] = c.Key
	}
	return keys
}

// owners calls damaged for each index row that belongs to no row.
func (c check) owners(ctx context.Context, index []Row) error {
	keys := make([]string, len(index))
	for i, row := range index {
		keys[i] = c.kind.owner(row.Key)
	}
	owners, err := c.Get(ctx, keys...)
	if err != nil {
		return err
	}
	for i, owner := range owners {
		var want []Change
		if owner.Version != "" {
			changes, err := c.kind.Rows(owner.Key, owner.Value)
			if err != nil {
				continue // the row is damaged, so its index rows are unknown
			}
			want = changes
		}
		if !slices.Contains(keysOf(want), index[i].Key) {
			c.damaged(index[i].Key, errors.New("no row belongs to this row of an index"))
		}
	}
	return nil
}
