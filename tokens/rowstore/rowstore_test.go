package rowstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// faulty is a database whose commits can fail, and whose cached reads can come from another database.
type faulty struct {
	rowstore.DB
	cache       rowstore.Reader // nil: the same database
	commits     error
	failCommits int // number of commits that fail
}

func (f *faulty) Cached() rowstore.Reader {
	if f.cache != nil {
		return f.cache
	}
	return f
}

func (f *faulty) Commit(ctx context.Context, conditions []rowstore.Condition, changes []rowstore.Change) (string, error) {
	if f.failCommits != 0 {
		f.failCommits--
		return "", f.commits
	}
	return f.DB.Commit(ctx, conditions, changes)
}

var noon = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

// fill stores the token abc123, its claim on worker-1 and a revocation.
func fill(t *testing.T, s *rowstore.Store) (tokens.Record, tokens.Claim) {
	t.Helper()
	token := must.Value(tokens.New("abc123", "0123456789abcdef"))(t)
	r := must.Value(s.Create(t.Context(), tokens.NewRecord(token, time.Hour, time.Now())))(t)
	c := must.Value(storetest.CreateClaim(t.Context(), s.Claims(), tokens.Claim{Node: "worker-1", TokenID: "abc123", TokenUID: r.UID}))(t)
	must.OK(t, s.Revocations().Update(t.Context(), "k", func([]byte) ([]byte, error) { return []byte("v"), nil }))
	return r, c
}

func edit(r *tokens.Record) error     { r.Description += "."; return nil }
func editClaim(c *tokens.Claim) error { c.NodeUID += "."; return nil }

// A write may get a conflict although its own row has not changed, for example because of an index row.
func TestRetriesAfterConflict(t *testing.T) {
	db := &faulty{DB: &memdb.DB{}, commits: tokens.ErrConflict}
	s := rowstore.New(db)
	r, c := fill(t, s)
	for what, write := range map[string]func() error{
		"Store.Update": func() (err error) { r, err = s.Update(t.Context(), "abc123", edit); return err },
		"Claims.Update": func() (err error) {
			c, err = storetest.UpdateClaim(t.Context(), s.Claims(), "worker-1", editClaim)
			return err
		},
		"Revocations.Update": func() error {
			return s.Revocations().Update(t.Context(), "k", func(v []byte) ([]byte, error) { return append(v, '.'), nil })
		},
	} {
		db.failCommits = 2
		if err := write(); err != nil || db.failCommits != 0 {
			t.Errorf("%s = %v with %d conflicts left", what, err, db.failCommits)
		}
	}
	db.failCommits = 2
	if err := errors.Join(s.Delete(t.Context(), r), storetest.DeleteClaim(t.Context(), s.Claims(), c)); err != nil || db.failCommits != 0 {
		t.Errorf("Delete = %v with %d conflicts left", err, db.failCommits)
	}
}

func TestReportsDamagedRow(t *testing.T) {
	db := &memdb.DB{}
	s := rowstore.New(db)
	r, _ := fill(t, s)
	must.Value(db.Commit(t.Context(), nil, []rowstore.Change{
		{Key: "tokens/abc123", Value: []byte(`{"secret":"hunter2"}`)}, {Key: "claims/worker-1", Value: []byte(`hunter2`)},
	}))(t)
	errs := map[string]error{}
	_, errs["create tokens/abc123"] = s.Create(t.Context(), r)
	_, errs["get tokens/abc123"] = s.Get(t.Context(), "abc123", tokens.Live)
	_, errs["list tokens/abc123"] = s.List(t.Context())
	_, errs["get claims/worker-1"] = s.Claims().Get(t.Context(), "worker-1", tokens.Live)
	_, errs["held claims/worker-1"] = s.Claims().HeldBy(t.Context(), "abc123", tokens.Live)
	for what, err := range errs {
		_, key, _ := strings.Cut(what, " ")
		if !errors.Is(err, memdb.ErrDamaged) || !strings.Contains(err.Error(), key) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want ErrDamaged with the key and without the value", what, err)
		}
	}
}

// betweenReads runs do after each Scan.
type betweenReads struct {
	rowstore.DB
	do func()
}

func (b betweenReads) Scan(ctx context.Context, keys rowstore.Range, visit func(rowstore.Row) error) error {
	err := b.DB.Scan(ctx, keys, visit)
	b.do()
	return err
}

// A claim may be deleted, or go to another token, after HeldBy has read its index row. Catches a HeldBy that returns such a
// claim or fails.
func TestSkipsClaimsThatTokenNoLongerHolds(t *testing.T) {
	for name, do := range map[string]func(*rowstore.Store) error{
		"deleted": func(s *rowstore.Store) error {
			c, err := s.Claims().Get(t.Context(), "worker-1", tokens.Live)
			return errors.Join(err, storetest.DeleteClaim(t.Context(), s.Claims(), c))
		},
		"taken": func(s *rowstore.Store) error {
			_, err := storetest.UpdateClaim(t.Context(), s.Claims(), "worker-1", func(c *tokens.Claim) error { c.TokenID = "fedcba"; return nil })
			return err
		},
	} {
		db := &memdb.DB{}
		s := rowstore.New(db)
		fill(t, s)
		hooked := rowstore.New(betweenReads{db, func() {
			if err := do(s); err != nil {
				t.Error(err)
			}
		}})
		if held, err := hooked.Claims().HeldBy(t.Context(), "abc123", tokens.Live); err != nil || len(held) != 0 {
			t.Errorf("%s: got %+v, %v, want none", name, held, err)
		}
	}
}

// A row that no store writes must be an error, not another value, so that the name of a damaged claim stays taken. No error
// may contain the secret.
func TestDecodeReportsDamage(t *testing.T) {
	const secret = "s3cr3ts3cr3ts3cr"
	const record = `{"secret":"` + secret + `","signing":true,"authentication":true,"created":"2026-01-02T03:04:05Z","uid":"u"}`
	const claim = `{"tokenID":"abc123","tokenUID":"u","limits":{"maxNodes":1,"replaces":{"name":"worker-1","uid":"n"}},"keys":["k"],"created":"2026-01-02T03:04:05Z","uid":"u"}`
	const created, never = "2026-01-02T03:04:05Z", "0001-01-01T00:00:00Z"
	for _, test := range []struct{ of, key, old, new, want string }{
		{of: record, key: "abc123"},
		{record, "abc123", record, "", "unexpected end of JSON"},
		{record, "abc123", "{", "\x00" + secret, "invalid JSON at byte 1"},
		{record, "abc123", record, record + record, "unexpected data after"},
		{record, "abc123", record, "[]", "wrong type"},
		{record, "abc123", "uid", secret, "known fields only"},
		{record, "abc123", "true", `"` + secret + `"`, `field "signing" has the wrong type`},
		{record, "abc123", created, secret, "times in RFC 3339"},
		{record, "abc123", secret, secret + "x", "malformed secret of token abc123"},
		{record, "abcdef", secret, "0123456789abcdef", "published example"},
		{record, "ABC", "", "", "malformed token ID"},
		{record, "abc123", `"u"`, `""`, "missing"},
		{record, "abc123", "{", `{"limits":{"role":"` + secret + `"},`, "invalid limits"},
		{record, "abc123", "{", `{"nodes":["a,` + secret + `"],`, "invalid node name in nodes"},
		{record, "abc123", created, never, "missing"},
		{of: claim, key: "worker-1"},
		{claim, "worker-1", claim, "", "unexpected end of JSON"},
		{claim, "worker-1", claim, claim + claim, "unexpected data after"},
		{claim, "worker-1", "tokenUID", "tokenUid2", "known fields only"},
		{claim, "worker-1", `["k"]`, `"k"`, `field "keys" has the wrong type`},
		{claim, "worker-1", `"maxNodes":1`, `"maxNodes":-1`, "limits"},
		{claim, "worker-1", `"maxNodes":1`, `"certificateDuration":9223372036854775807`, "limits"},
		{claim, "worker-1", `"maxNodes":1`, `"certificateDuration":36028797018967568`, "limits"},
		{claim, "worker-1", `"uid":"u"`, `"past":{"until":"2026-01-02T03:04:05Z","certificateDuration":36028797018967568},"uid":"u"`, "invalid claim"},
		{claim, "worker-1", `"name":"worker-1","uid":"n"`, `"name":"","uid":""`, "limits"},
		{claim, "worker-1", "abc123", "", "invalid claim"},
		{claim, "worker-1", `["k"]`, `["1","2","3","4"]`, "invalid claim"},
		{claim, "worker-1", `"tokenID":"abc123",`, "", "invalid claim"},
		{claim, "worker-1", created, never, "missing"},
		{claim, "worker-1", `"uid":"u"`, `"uid":""`, "missing"},
	} {
		row := []byte(strings.Replace(test.of, test.old, test.new, 1))
		_, err := rowstore.DecodeClaim(test.key, row)
		if test.of == record {
			_, err = rowstore.DecodeRecord(test.key, row)
		}
		if (err == nil) != (test.want == "") || err != nil && (!strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), secret)) {
			t.Errorf("%s: got %v, want %q without the secret", row, err, test.want)
		}
	}
}

// If an index row has no claim, HeldBy must fail. Otherwise the token could claim more names than its limit.
func TestMissingClaimIsDamage(t *testing.T) {
	db := &memdb.DB{}
	s := rowstore.New(db)
	_, c := fill(t, s)
	must.Value(db.Commit(t.Context(), nil, []rowstore.Change{{Key: "holders/abc123/gone", Value: []byte{}}}))(t)
	if held, err := s.Claims().HeldBy(t.Context(), "abc123", tokens.Live); !errors.Is(err, memdb.ErrDamaged) {
		t.Errorf("HeldBy = %+v, %v, want ErrDamaged", held, err)
	}
	must.Value(db.Commit(t.Context(), nil, []rowstore.Change{{Key: "holders/fedcba/worker-1", Value: []byte{}}}))(t)
	if held, err := s.Claims().HeldBy(t.Context(), "fedcba", tokens.Live); !errors.Is(err, memdb.ErrDamaged) {
		t.Errorf("HeldBy of another token = %+v, %v, want ErrDamaged", held, err)
	}
	if of, err := s.Claims().HeldBy(t.Context(), "abc123", tokens.Cached); err != nil || len(of) != 1 || !of[0].Equal(c) {
		t.Errorf("cached HeldBy = %+v, %v, want the claim on worker-1: caches may be of different moments", of, err)
	}
}

// Catches a change of the index that depends on fields of a claim that is not stored.
func TestIndexesNewClaimWithFieldsBefore(t *testing.T) {
	s := memdb.Open()
	r, _ := fill(t, s)
	c := tokens.Claim{Node: "worker-2", TokenID: "abc123"}
	must.Value(s.Claims().Commit(t.Context(), r, r, []tokens.ClaimChange{{Before: c, After: c}}))(t)
	if held, err := s.Claims().HeldBy(t.Context(), "abc123", tokens.Live); err != nil || len(held) != 2 {
		t.Errorf("HeldBy = %+v, %v, want both claims", held, err)
	}
}

// Created is the time since which the token holds the name.
func TestOnlyNewHolderChangesCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memdb.Open()
		_, c := fill(t, s)
		time.Sleep(time.Minute)
		changed := must.Value(storetest.UpdateClaim(t.Context(), s.Claims(), c.Node, editClaim))(t)
		must.OK(t, tokens.Release(t.Context(), s.Claims(), changed, tokens.ReleasedClaim{Until: noon}))
		if left, err := s.Claims().Get(t.Context(), c.Node, tokens.Live); err != nil || !changed.Created.Equal(c.Created) || !left.Created.Equal(c.Created) {
			t.Errorf("got %+v, released %+v, %v, want both created %s", changed, left, err, c.Created)
		}
		taken := must.Value(storetest.UpdateClaim(t.Context(), s.Claims(), c.Node, func(c *tokens.Claim) error { c.TokenID = "fedcba"; return nil }))(t)
		if !taken.Created.After(c.Created) {
			t.Errorf("taken by another token: got %+v, want it created after %s", taken, c.Created)
		}
	})
}

// Update must not write an unchanged value. It must distinguish an empty value from a missing row.
func TestUpdateWritesOnlyChanges(t *testing.T) {
	db := &faulty{DB: &memdb.DB{}, commits: errAway}
	s := rowstore.New(db)
	fill(t, s)
	for _, test := range []struct {
		key    string
		after  []byte
		writes bool
	}{{"k", []byte("v"), false}, {"k", []byte("w"), true}, {"k", nil, true}, {"none", nil, false}, {"none", []byte{}, true}} {
		db.failCommits = 1
		err := s.Revocations().Update(t.Context(), test.key, func([]byte) ([]byte, error) { return test.after, nil })
		if errors.Is(err, errAway) != test.writes || err != nil && !test.writes {
			t.Errorf("update %s to %q: got %v, want a write: %t", test.key, test.after, err, test.writes)
		}
	}
}

// smallDB is a database that allows few changes in one commit.
type smallDB struct {
	memdb.DB
	maxChanges int
}

func (d *smallDB) MaxChanges() int { return d.maxChanges }

// Catches a New that accepts a database which cannot commit any claim. With such a database, the signer would wait endlessly.
func TestNewNeedsChangesForOneClaim(t *testing.T) {
	rowstore.New(&smallDB{maxChanges: 4})
	defer func() {
		if recover() == nil {
			t.Error("with 3 changes: New does not panic")
		}
	}()
	rowstore.New(&smallDB{maxChanges: 3})
}

// oneCommit is a database whose commits fail after the first one.
type oneCommit struct {
	smallDB
	done, begun bool
}

func (d *oneCommit) Commit(ctx context.Context, conditions []rowstore.Condition, changes []rowstore.Change) (string, error) {
	if d.done {
		return "", errors.New("connection reset")
	}
	d.done = d.begun
	return d.smallDB.Commit(ctx, conditions, changes)
}

// A commit of two claims fails half-way. Catches restored names that the token does not count although their claims exist.
// Also catches a name that is counted before its claim exists, and an expiration that is set before all claims are written.
func TestInterruptedCommitCountsNamesWithClaims(t *testing.T) {
	both := []string{"worker-1", "worker-2"}
	for name, test := range map[string]struct{ held, counted, want []string }{
		"restored":                     {held: both, want: both},
		"new":                          {want: []string{"worker-1"}},
		"released, and counted before": {counted: both, want: both},
	} {
		db := &oneCommit{smallDB: smallDB{maxChanges: 4}}
		s := rowstore.New(db)
		r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
		r.Limits.MaxNodes, r.Nodes = 2, test.counted
		before := must.Value(s.Create(t.Context(), r))(t)
		var changes []tokens.ClaimChange
		for _, node := range both {
			c := tokens.Claim{Node: node, TokenID: before.Token.ID(), TokenUID: before.UID, Limits: before.Limits, Keys: []string{"sha256:" + strings.Repeat("0", 64)}}
			change := tokens.ClaimChange{After: c}
			if slices.Contains(test.held, node) {
				c = must.Value(storetest.CreateClaim(t.Context(), s.Claims(), c))(t)
				change = tokens.ClaimChange{Before: c, After: c}
			}
			changes = append(changes, change)
		}
		after := before.Clone()
		after.Nodes, after.Expires = both, before.Expires.Add(-time.Minute)
		db.begun = true
		outcomes, err := s.Claims().Commit(t.Context(), before, after, changes)
		if err != nil || len(outcomes) != 2 || outcomes[0].Err != nil || outcomes[1].Err == nil {
			t.Errorf("%s: got %+v, %v, want an error for the second claim", name, outcomes, err)
		}
		now, err := s.Get(t.Context(), before.Token.ID(), tokens.Live)
		if err != nil || !slices.Equal(now.Nodes, test.want) || !now.Expires.Equal(before.Expires) {
			t.Errorf("%s: got %q until %s, %v, want %q until %s", name, now.Nodes, now.Expires, err, test.want, before.Expires)
		}
	}
}

// Without a version, Commit would create the record, and so create a deleted token again.
func TestCommitNeedsVersionOfRecord(t *testing.T) {
	s := memdb.Open()
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	if _, err := s.Claims().Commit(t.Context(), r, r, nil); !errors.Is(err, tokens.ErrConflict) {
		t.Errorf("got %v, want ErrConflict", err)
	}
	if all, err := s.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("got %+v, %v, want no token", all, err)
	}
}

// Catches a live read that comes from the cache, and a cached read that does not.
func TestReadsCacheOnlyIfAllowed(t *testing.T) {
	s := rowstore.New(&faulty{DB: &memdb.DB{}, cache: &memdb.DB{}})
	fill(t, s)
	ctx := t.Context()
	list, err := s.List(ctx)
	claims, claimsErr := s.Claims().List(ctx)
	of, ofErr := s.Claims().HeldBy(ctx, "abc123", tokens.Cached)
	if _, findErr := s.Get(ctx, "abc123", tokens.Cached); len(list)+len(claims)+len(of) != 0 || errors.Join(err, claimsErr, ofErr) != nil || !errors.Is(findErr, tokens.ErrNotFound) {
		t.Errorf("got %v, %v, %v and %v, want nothing of the empty cache", list, claims, of, findErr)
	}
	if _, err := s.Claims().Get(ctx, "worker-1", tokens.Cached); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("cached Get = %v, want ErrNotFound", err)
	}
	if v, err := s.Revocations().Get(ctx, "k", tokens.Cached); v != nil || err != nil {
		t.Errorf("cached Get = %q, %v, want no revocation", v, err)
	}
	_, err = s.Get(ctx, "abc123", tokens.Live)
	_, claimErr := s.Claims().Get(ctx, "worker-1", tokens.Live)
	v, revocationErr := s.Revocations().Get(ctx, "k", tokens.Live)
	if held, heldErr := s.Claims().HeldBy(ctx, "abc123", tokens.Live); len(held) != 1 || string(v) != "v" || errors.Join(err, claimErr, heldErr, revocationErr) != nil {
		t.Errorf("got %v, %q, %v, want what is stored", held, v, errors.Join(err, claimErr, heldErr, revocationErr))
	}
}

// Catches a cache that a long list clears, that keeps secrets of deleted tokens, or that has no limit.
func TestCachesDecodedRows(t *testing.T) {
	db, n := &memdb.DB{}, rowstore.MaxCached+2
	s, other := rowstore.New(db), rowstore.New(db)
	var all []tokens.Record
	for i := range n {
		token := must.Value(tokens.New(fmt.Sprintf("%06d", i), "s3cr3ts3cr3ts3cr"))(t)
		r := must.Value(s.Create(t.Context(), tokens.NewRecord(token, time.Hour, noon)))(t)
		all = append(all, r)
	}
	list := func() {
		t.Helper()
		must.Value(s.List(t.Context()))(t)
	}
	want := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %d, want %d", what, got, want)
		}
	}
	decodes := s.CountDecodes()
	list()
	list()
	want("decoded by two lists", *decodes, n)
	must.OK(t, s.Delete(t.Context(), all[0]))
	want("cached after a deletion", s.Cached(), n-1)
	must.OK(t, other.Delete(t.Context(), all[1]))
	list()
	want("cached after a deletion in another process", s.Cached(), n-2)
	again := must.Value(s.Create(t.Context(), all[0]))(t)
	if r, err := s.Get(t.Context(), "000000", tokens.Live); err != nil || r.UID != again.UID {
		t.Errorf("Get = %+v, %v, want the record", r, err)
	}
	want("cached by get", s.Cached(), rowstore.MaxCached)
}

// countedReads counts the calls of Get.
type countedReads struct {
	rowstore.DB
	gets int
}

func (c *countedReads) Get(ctx context.Context, keys ...string) ([]rowstore.Row, error) {
	c.gets++
	return c.DB.Get(ctx, keys...)
}

// Catches a HeldBy that reads the database once for each claim.
func TestReadsClaimsOfTokenAtOnce(t *testing.T) {
	db := &countedReads{DB: &memdb.DB{}}
	s := rowstore.New(db)
	fill(t, s)
	for i := range 5 {
		must.Value(storetest.CreateClaim(t.Context(), s.Claims(), tokens.Claim{Node: fmt.Sprint("node-", i), TokenID: "abc123"}))(t)
	}
	db.gets = 0
	if held, err := s.Claims().HeldBy(t.Context(), "abc123", tokens.Live); err != nil || len(held) != 6 || db.gets != 1 {
		t.Errorf("HeldBy = %d claims, %v with %d calls of Get, want 6 with one", len(held), err, db.gets)
	}
}

// A token whose owner is lost would outlive it, and a claim without its rules would not limit renewals.
func TestRefusesWhatRowsDoNotKeep(t *testing.T) {
	s := memdb.Open()
	ruled := tokens.Claim{Node: "worker-1", TokenID: "abcdef", Limits: tokens.Limits{Rules: []tokens.Rule{{Name: "a", Limits: tokens.Limits{Rejoin: tokens.RejoinDeny}}}}}
	if _, err := storetest.CreateClaim(t.Context(), s.Claims(), ruled); !errors.Is(err, tokens.ErrRefused) {
		t.Errorf("got %v, want a refusal of rules", err)
	}
	r := must.Value(s.Create(t.Context(), tokens.NewRecord(tokens.Generate(), 0, time.Now())))(t)
	owner := tokens.Owner{APIVersion: "v1", Kind: "Node", Name: "worker-7", UID: "u"}
	_, updated := s.Update(t.Context(), r.Token.ID(), func(r *tokens.Record) error { r.Owner = owner; return nil })
	r.Token, r.Owner = tokens.Generate(), owner
	_, created := s.Create(t.Context(), r)
	for _, err := range []error{updated, created} {
		if field := (*tokens.FieldError)(nil); !errors.As(err, &field) || field.Field != "owner" || !errors.Is(err, tokens.ErrRefused) {
			t.Errorf("got %v, want a refusal of field owner", err)
		}
	}
}
