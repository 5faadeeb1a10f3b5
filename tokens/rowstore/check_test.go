package rowstore_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

var errNoRow = errors.New("no row of this kind")

// decoders leave out rows with the value "out", and return an error for rows with the value "bad".
var decoders = rowstore.Decoders{
	Revocation: func(_ string, v []byte) error { return bad(v) },
	Rotation:   func(_ string, v []byte) (bool, error) { return string(v) == "out", bad(v) },
	Issued: func(v []byte) (rowstore.IssuedRow, error) {
		if string(v) == "out" {
			return rowstore.IssuedRow{}, nil
		}
		n, _ := strconv.Atoi(string(v))
		return entry(n), bad(v)
	},
}

func bad(v []byte) error {
	if string(v) == "bad" {
		return errNoRow
	}
	return nil
}

// somePlace is the place of an entry from the year 2262.
const somePlace = "0000000000000000ABCDEFGH"

func TestCheckReportsDamage(t *testing.T) {
	for _, test := range []struct{ key, value, want string }{
		{"ca-rotation/b", "out", ""},
		{"issued/" + somePlace, "out", ""},
		{"claims/worker-1", "bad", "claims/worker-1: invalid JSON"}, // but no report about its index row
		{"revocations/k", "bad", "revocations/k: " + errNoRow.Error()},
		{"ca-rotation/b", "bad", "ca-rotation/b: " + errNoRow.Error()},
		{"issued/" + somePlace, "bad", "issued/" + somePlace + ": " + errNoRow.Error()},
		{"issued/" + somePlace, "1", "issued/" + somePlace + ": the time in the key is not that of the entry"},
		{"issued/x", "1", "issued/x: the time in the key is not that of the entry"},
		{"holders/abc123/worker-1", "", "holders/abc123/worker-1: missing in the index"},
		{"holders/abc123/worker-1", "x", "holders/abc123/worker-1: this row of an index does not agree with its row"},
		{"holders/abc123/worker-9", "x", "holders/abc123/worker-9: no row belongs to this row of an index"},
	} {
		db := &memdb.DB{}
		s := rowstore.New(db)
		fill(t, s)
		must.OK(t, s.Issued().Append(t.Context(), entry(1)))
		change := rowstore.Change{Key: test.key}
		if test.value != "" {
			change.Value = []byte(test.value)
		}
		must.OK(t, db.Append(t.Context(), []rowstore.Change{change}))
		var got []string
		must.OK(t, rowstore.Check(t.Context(), db, decoders, func(key string, err error) { got = append(got, key+": "+err.Error()) }))
		if all := strings.Join(got, "\n"); len(got) > 1 || (all == "") != (test.want == "") || !strings.HasPrefix(all, test.want) {
			t.Errorf("%s is %q: got %q, want %q", test.key, test.value, all, test.want)
		}
	}
}

// A copy of a store consists of the rows that Rows returns. Catches a lost row, and a row that a copy should leave out.
func TestRowsAreAllThatIsStored(t *testing.T) {
	db := &memdb.DB{}
	s := rowstore.New(db)
	fill(t, s)
	for n := range 2 { // one refusal and one certificate
		must.OK(t, s.Issued().Append(t.Context(), entry(n)))
	}
	must.OK(t, db.Append(t.Context(), []rowstore.Change{{Key: "ca-rotation/a", Value: []byte("v")}}))
	keys := func(r rowstore.Range) (all []string) {
		must.OK(t, db.Scan(t.Context(), r, func(row rowstore.Row) error { all = append(all, row.Key); return nil }))
		return all
	}
	want := keys(rowstore.Range{To: "\xff"})
	must.OK(t, db.Append(t.Context(), []rowstore.Change{{Key: "ca-rotation/b", Value: []byte("out")}, {Key: "issued/" + somePlace, Value: []byte("out")}}))
	var got []string
	for _, kind := range decoders.Kinds() {
		must.OK(t, rowstore.EachPage(t.Context(), db, kind.Folder, func(rows []rowstore.Row) error {
			for _, row := range rows {
				for _, c := range must.Value(kind.Rows(row.Key, row.Value))(t) {
					got = append(got, c.Key)
				}
			}
			return nil
		}))
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
