package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func testEmpty(t *testing.T, s tokens.Store) {
	wantList(t, s)
	_, err := s.Get(t.Context(), "abcdef")
	wantError(t, "Get", err, tokens.ErrNotFound)
	_, err = s.Find(t.Context(), "abcdef")
	wantError(t, "Find", err, tokens.ErrNotFound)
}

func testCreate(t *testing.T, s tokens.Store) {
	r := sample()
	r.Created, r.UID, r.Version = time.Unix(1, 0), "chosen", "17"
	before := time.Now().Add(-time.Minute) // the clock of the API server may differ
	got := create(t, s, r)
	if got.UID == "" || got.UID == r.UID || got.Version == "" || got.Version == r.Version {
		t.Errorf("got from Create: UID %q and Version %q, want the store's", got.UID, got.Version)
	}
	if got.Created.Before(before) || got.Created.After(time.Now().Add(time.Minute)) {
		t.Errorf("got Created %v from Create, want now", got.Created)
	}
	want := r
	want.Created, want.UID, want.Version = got.Created, got.UID, got.Version
	wantSame(t, "Create", got, want)
	wantSame(t, "Get", get(t, s, r.Token.ID()), want)
	wantList(t, s, want)
}

func testCreateExists(t *testing.T, s tokens.Store) {
	first := create(t, s, sample())
	other, err := tokens.New(first.Token.ID(), tokens.Generate().RevealSecret())
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []tokens.Token{first.Token, other} {
		_, err := s.Create(t.Context(), tokens.Record{Token: token})
		wantError(t, "Create of an ID that is taken", err, tokens.ErrExists)
		if err != nil && strings.Contains(err.Error(), token.RevealSecret()) {
			t.Error("the error of Create contains the secret")
		}
	}
	wantSame(t, "Get", get(t, s, first.Token.ID()), first)
}

func testCreateRefuses(t *testing.T, s tokens.Store) {
	onlyID, err := tokens.OnlyID("abcdef")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		spoil func(*tokens.Record)
	}{
		{"no token", func(r *tokens.Record) { r.Token = tokens.Token{} }},
		{"no secret", func(r *tokens.Record) { r.Token = onlyID }},
		{"group", func(r *tokens.Record) { r.Groups = []string{"system:masters"} }},
		{"group with a comma", func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:a,system:bootstrappers:b"} }},
		{"groups without authentication", func(r *tokens.Record) { r.Authentication = false }},
		{"description of 1025 bytes", func(r *tokens.Record) { r.Description = strings.Repeat("x", tokens.MaxDescription+1) }},
		{"description of two lines", func(r *tokens.Record) { r.Description = "a\nb" }},
		{"problem", func(r *tokens.Record) { r.Problem = errors.New("known before") }},
		{"problem of limits", func(r *tokens.Record) { r.Limits.Problem = errors.New("known before") }},
		{"1001 nodes", func(r *tokens.Record) { r.Limits.MaxNodes = tokens.MaxNodes + 1 }},
		{"less than no nodes", func(r *tokens.Record) { r.Limits.MaxNodes = -1 }},
		{"node name", func(r *tokens.Record) { r.Limits.NodeNames = []string{"Worker"} }},
		{"node name with a comma", func(r *tokens.Record) { r.Limits.NodeNames = []string{"a,b"} }},
		{"empty node name", func(r *tokens.Record) { r.Limits.NodeNames = []string{""} }},
		{"certificate duration", func(r *tokens.Record) { r.Limits.CertificateDuration = time.Minute }},
		{"certificate duration with a fraction", func(r *tokens.Record) { r.Limits.CertificateDuration = time.Hour + 1 }},
		{"role", func(r *tokens.Record) { r.Limits.Role = "worker" }},
		{"rejoin", func(r *tokens.Record) { r.Limits.Rejoin = "maybe" }},
		{"Node without UID", func(r *tokens.Record) { r.Limits = tokens.Limits{Replaces: tokens.NodeRef{Name: "a"}} }},
		{"Node beside another name", func(r *tokens.Record) {
			r.Limits = tokens.Limits{NodeNames: []string{"b"}, Replaces: tokens.NodeRef{Name: "a", UID: "1"}}
		}},
		{"node", func(r *tokens.Record) { r.Nodes = []string{"a,b"} }},
		{"node twice", func(r *tokens.Record) { r.Nodes = []string{"a", "a"} }},
		{"year 10000", func(r *tokens.Record) { r.Expires = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }},
	} {
		r := sample()
		test.spoil(&r)
		if got, err := s.Create(t.Context(), r); err == nil {
			t.Errorf("%s: Create gives %+v, want an error: Record.Check has %v", test.name, got, r.Check())
		}
	}
	wantList(t, s)
}

func testCreateAtOnce(t *testing.T, s tokens.Store) {
	const n = 16
	id := tokens.Generate().ID()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		made []tokens.Record
	)
	for range n {
		wg.Go(func() {
			token, err := tokens.New(id, tokens.Generate().RevealSecret())
			if err != nil {
				t.Error(err)
				return
			}
			switch r, err := s.Create(t.Context(), tokens.Record{Token: token}); {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				made = append(made, r)
			default:
				wantError(t, "Create", err, tokens.ErrExists)
			}
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Fatalf("%d of %d concurrent creations of one ID succeeded, want 1", len(made), n)
	}
	wantSame(t, "Get", get(t, s, id), made[0])
}

// testKeepsFields stores records with a field at the limit of its valid values.
func testKeepsFields(t *testing.T, s tokens.Store) {
	var all []tokens.Record
	for _, test := range []struct {
		name    string
		set     func(*tokens.Record)
		expires time.Time // as stored, if it differs from the given time
	}{
		{name: "no usage", set: func(r *tokens.Record) { *r = tokens.Record{Token: r.Token} }},
		{name: "signing only", set: func(r *tokens.Record) { r.Authentication, r.Groups = false, nil }},
		{name: "authentication only", set: func(r *tokens.Record) { r.Signing = false }},
		{name: "no groups", set: func(r *tokens.Record) { r.Groups = nil }},
		{name: "long group", set: func(r *tokens.Record) {
			r.Groups = []string{"system:bootstrappers:" + strings.Repeat("a:-9", 63) + "abcd"}
		}},
		{name: "unicode", set: func(r *tokens.Record) { r.Description = `Größe "日本語" 🚀 <&> \ '` + "\u00a0\u202e" }},
		{name: "long description", set: func(r *tokens.Record) { r.Description = strings.Repeat("ü", tokens.MaxDescription/2) }},
		{name: "never", set: func(r *tokens.Record) { r.Expires = time.Time{} }},
		{name: "never, elsewhere", set: func(r *tokens.Record) { r.Expires = time.Time{}.In(time.FixedZone("", 7200)) }},
		{name: "expired", set: func(r *tokens.Record) { r.Expires = time.Unix(0, 0).UTC() }},
		{name: "year 9999", set: func(r *tokens.Record) { r.Expires = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }},
		{name: "no limits", set: func(r *tokens.Record) { r.Limits, r.Nodes = tokens.Limits{}, nil }},
		{name: "limits that are empty", set: func(r *tokens.Record) { r.Limits, r.Nodes = tokens.Limits{NodeNames: []string{}}, []string{} }},
		{name: "a Node to replace", set: func(r *tokens.Record) {
			r.Limits = tokens.Limits{Replaces: tokens.NodeRef{Name: "worker.1", UID: "4f5e5b0c-f15f-4a57-9a2e-3a5a7a8e2b6d"}}
		}},
		{name: "smallest limits", set: func(r *tokens.Record) {
			r.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{"*"}, CertificateDuration: tokens.MinCertificateDuration}
		}},
		{name: "largest limits", set: func(r *tokens.Record) {
			r.Limits = tokens.Limits{MaxNodes: tokens.MaxNodes, CertificateDuration: tokens.MaxCertificateDuration}
			for i := range tokens.MaxNodeNamesBytes / 254 {
				r.Limits.NodeNames = append(r.Limits.NodeNames, longName(i))
			}
		}},
		{name: "certificates of an hour, a minute and a second", set: func(r *tokens.Record) {
			r.Limits.CertificateDuration = time.Hour + time.Minute + time.Second
		}},
		{name: "more nodes than allowed", set: func(r *tokens.Record) {
			r.Limits.MaxNodes = 1
			r.Nodes = nil
			for i := range 500 {
				r.Nodes = append(r.Nodes, longName(i))
			}
		}},
		{
			name:    "fraction of a second",
			set:     func(r *tokens.Record) { r.Expires = time.Date(2040, 5, 6, 7, 8, 9, 999_999_999, time.UTC) },
			expires: time.Date(2040, 5, 6, 7, 8, 9, 0, time.UTC),
		},
		{
			name:    "another zone",
			set:     func(r *tokens.Record) { r.Expires = time.Date(2040, 5, 6, 7, 8, 9, 5, time.FixedZone("", -5400)) },
			expires: time.Date(2040, 5, 6, 8, 38, 9, 0, time.UTC),
		},
	} {
		r := sample()
		test.set(&r)
		maps.DeleteFunc(r.Marks, func(name, _ string) bool { return !slices.Contains(r.Nodes, name) })
		if err := r.Check(); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		want := r
		if !test.expires.IsZero() {
			want.Expires = test.expires
		} else if r.Expires.IsZero() {
			want.Expires = time.Time{}
		}
		got := create(t, s, r)
		want.Created, want.UID, want.Version = got.Created, got.UID, got.Version
		wantSame(t, test.name+": Create", got, want)
		wantSame(t, test.name+": Get", get(t, s, r.Token.ID()), want)

		// Update must store the same fields.
		blank := create(t, s, tokens.Record{Token: tokens.Generate()})
		got, err := s.Update(t.Context(), blank.Token.ID(), func(b *tokens.Record) error {
			b.Expires, b.Signing, b.Authentication = r.Expires, r.Signing, r.Authentication
			b.Groups, b.Description, b.Limits, b.Nodes, b.Marks, b.Creator = r.Groups, r.Description, r.Limits, r.Nodes, r.Marks, r.Creator
			return nil
		})
		if err != nil {
			t.Fatalf("%s: Update: %v", test.name, err)
		}
		updated := want
		updated.Token, updated.Created, updated.UID, updated.Version = blank.Token, blank.Created, blank.UID, got.Version
		wantSame(t, test.name+": Update", got, updated)
		wantSame(t, test.name+": Get after Update", get(t, s, blank.Token.ID()), updated)
		all = append(all, want, updated)
	}
	wantList(t, s, all...)
}

func testList(t *testing.T, s tokens.Store) {
	var all []tokens.Record
	for range 50 {
		all = append(all, create(t, s, sample()))
	}
	wantList(t, s, all...) // sorts all by ID
	var left []tokens.Record
	for i, r := range all {
		if i%2 == 0 {
			left = append(left, r)
			continue
		}
		if err := s.Delete(t.Context(), r); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
	wantList(t, s, left...)
}

// longName returns a node name of the maximum length.
func longName(i int) string {
	label := strings.Repeat("a", 63)
	return fmt.Sprintf("%03d%s.%s.%s.%s", i, label[:60], label, label, label[:61])
}

// testCopies changes records that were passed to the store or returned by it. The store must not change.
func testCopies(t *testing.T, s tokens.Store) {
	spoil := func(r tokens.Record) {
		r.Groups[0] = "system:bootstrappers:changed"
		r.Nodes[0], r.Limits.NodeNames[0] = "changed", "changed"
	}
	given := sample()
	want := given
	want.Groups, want.Nodes, want.Limits.NodeNames = slices.Clone(given.Groups), slices.Clone(given.Nodes), slices.Clone(given.Limits.NodeNames)
	made := create(t, s, given)
	want.Created, want.UID, want.Version = made.Created, made.UID, made.Version
	spoil(given)
	spoil(made)
	wantList(t, s, want)

	listed, err := s.List(t.Context())
	if err != nil || len(listed) != 1 {
		t.Fatalf("List = %+v, %v, want one record", listed, err)
	}
	spoil(listed[0])
	spoil(get(t, s, want.Token.ID()))
	wantSame(t, "Get after its record was changed", get(t, s, want.Token.ID()), want)
	listed[0].Description = "changed"
	wantList(t, s, want)

	// The record passed to change must not share memory with the stored one.
	var kept *tokens.Record
	updated, err := s.Update(t.Context(), want.Token.ID(), func(r *tokens.Record) error {
		r.Description, kept = "again", r
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	want.Description, want.Version = "again", updated.Version
	spoil(*kept)
	wantSame(t, "Get after the record in Update was changed", get(t, s, want.Token.ID()), want)
	wantList(t, s, want)
}
