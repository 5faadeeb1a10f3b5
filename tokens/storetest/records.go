package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// recordsOf returns the kind whose values are the records of a store.
func recordsOf(s tokens.Store) kind[tokens.Record] {
	type record = tokens.Record
	return kind[record]{
		sample: sample, blank: func() record { return record{Token: tokens.Generate()} }, key: func(r record) string { return r.Token.ID() },
		keyed: func(id string) record {
			r := sample()
			token, err := tokens.New(id, r.Token.RevealSecret())
			if err != nil {
				panic(err)
			}
			r.Token = token
			return r
		},
		keys:   []string{"zzzzzz", "abcdef", "000000", "a00000", "0a0000", "999999", "bcdefg", "aaaaaa", "zaaaaa", "0zzzzz"},
		stamps: func(r *record) (uid, version *string, created *time.Time) { return &r.UID, &r.Version, &r.Created },
		text:   func(r *record) *string { return &r.Description },
		alter: func(r *record) {
			r.Expires, r.Signing, r.Groups, r.Description = r.Expires.Add(time.Hour), false, []string{"system:bootstrappers:c"}, ""
			r.Limits, r.Nodes = tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour}, append(slices.Clone(r.Nodes), "worker-3")
		},
		spoil: func(r record) {
			r.Groups[0], r.Nodes[0], r.Limits.NodeNames[0] = "system:bootstrappers:changed", "changed", "changed"
		},
		clone: record.Clone, same: same,
		stored: func(r record) record {
			if r.Expires.IsZero() {
				r.Expires = time.Time{}
			} else {
				r.Expires = r.Expires.UTC().Truncate(time.Second)
			}
			return r
		},
		assign: func(to *record, from record) {
			to.Expires, to.Signing, to.Authentication, to.Groups = from.Expires, from.Signing, from.Authentication, from.Groups
			to.Description, to.Limits, to.Nodes, to.Marks, to.Creator = from.Description, from.Limits, from.Nodes, from.Marks, from.Creator
		},
		fields: map[string]func(*record){
			"no usage":            func(r *record) { *r = record{Token: r.Token} },
			"signing only":        func(r *record) { r.Authentication, r.Groups = false, nil },
			"authentication only": func(r *record) { r.Signing = false },
			"long group":          func(r *record) { r.Groups = []string{"system:bootstrappers:" + strings.Repeat("a:-9", 63) + "abcd"} },
			"unicode":             func(r *record) { r.Description = `Größe "日本語" 🚀 <&> \ '` + "\u00a0\u202e" },
			"long description":    func(r *record) { r.Description = strings.Repeat("ü", tokens.MaxDescription/2) },
			"never":               func(r *record) { r.Expires = time.Time{}.In(time.FixedZone("", 7200)) },
			"expired":             func(r *record) { r.Expires = time.Unix(0, 0).UTC() },
			"year 9999":           func(r *record) { r.Expires = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) },
			"fraction of a second, another zone": func(r *record) {
				r.Expires = time.Date(2040, 5, 6, 7, 8, 9, 999_999_999, time.FixedZone("", -5400))
			},
			"limits that are empty": func(r *record) { r.Limits, r.Nodes, r.Marks = tokens.Limits{NodeNames: []string{}}, []string{}, nil },
			"a Node to replace": func(r *record) {
				r.Limits = tokens.Limits{Node: tokens.NodeProperties{ReadyAfter: tokens.ReadyAfterServingCertificate}, Replaces: tokens.NodeRef{Name: "worker.1", UID: "4f5e5b0c-f15f-4a57-9a2e-3a5a7a8e2b6d"}}
			},
			"smallest limits": func(r *record) {
				r.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{"*"}, CertificateDuration: tokens.MinCertificateDuration}
			},
			"largest limits": func(r *record) {
				r.Limits = tokens.Limits{MaxNodes: tokens.MaxNodes, CertificateDuration: tokens.MaxCertificateDuration}
				for i := range tokens.MaxNodeNamesBytes / 254 {
					r.Limits.NodeNames = append(r.Limits.NodeNames, longName(i))
				}
			},
			"certificates of an hour, a minute and a second": func(r *record) {
				r.Limits.CertificateDuration = time.Hour + time.Minute + time.Second
			},
			"more nodes than allowed": func(r *record) {
				r.Limits.MaxNodes, r.Nodes, r.Marks = 1, nil, nil
				for i := range 500 {
					r.Nodes = append(r.Nodes, longName(i))
				}
			},
		},
		wrong: map[string]func(*record){
			"a group":             func(r *record) { r.Groups = append(r.Groups, "system:masters") },
			"a description":       func(r *record) { r.Description = "a\nb" },
			"a problem":           func(r *record) { r.Problem = errors.New("known before") },
			"a problem of limits": func(r *record) { r.Limits.Problem = errors.New("known before") },
			"limits":              func(r *record) { r.Limits.MaxNodes = -1 },
			"node properties":     func(r *record) { r.Limits.Node.Labels = "a" },
			"nodes":               func(r *record) { r.Nodes = []string{"a,b"} },
		},
		fixed: map[string]func(*record){
			"Token":   func(r *record) { r.Token = tokens.Generate() },
			"Created": func(r *record) { r.Created = r.Created.Add(time.Second) },
			"UID":     func(r *record) { r.UID = "another" },
		},
		shows:  func(t *testing.T, want ...record) { t.Helper(); wantList(t, s, want...) },
		exists: tokens.ErrExists, gone: tokens.ErrNotFound, comparesUID: true,
		read: s.Get, list: s.List, create: s.Create, update: s.Update, delete: s.Delete, watch: s.Watch,
	}
}

// sample returns a record with a new token and all fields set.
func sample() tokens.Record {
	return tokens.Record{
		Token:          tokens.Generate(),
		Expires:        time.Now().Add(time.Hour).UTC().Truncate(time.Second),
		Signing:        true,
		Authentication: true,
		Groups:         []string{"system:bootstrappers:b", tokens.DefaultGroup},
		Description:    "for the rack in the cellar",
		Limits: tokens.Limits{
			MaxNodes: 3, NodeNames: []string{"worker-*", "db.example"},
			CertificateDuration: 8 * time.Hour, Role: tokens.RoleControlPlane, Rejoin: tokens.RejoinDeny,
			Node: tokens.NodeProperties{Labels: "a=b,x.example/c=", Taints: "d:NoExecute,e=f:NoSchedule"},
		},
		Nodes:   []string{"worker-2", "worker-1"},
		Marks:   map[string]string{"worker-1": "-"},
		Creator: tokens.CreatorOf("ada"),
	}
}

func create(t *testing.T, s tokens.Store, r tokens.Record) tokens.Record {
	t.Helper()
	return recordsOf(s).mustCreate(t, r)
}

func get(t *testing.T, s tokens.Store, id string) tokens.Record {
	t.Helper()
	r, err := s.Get(t.Context(), id, tokens.Live)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return r
}

func wantSame(t *testing.T, what string, got, want tokens.Record) {
	t.Helper()
	if !same(got, want) {
		t.Errorf("%s gives\n%+v\nwant\n%+v", what, got, want)
	}
}

// same reports whether all fields are equal, including the secret. Both records must come from a store, because times are
// equal only with the same location.
func same(a, b tokens.Record) bool {
	return a.Token.Equal(b.Token) && a.Expires == b.Expires && a.Signing == b.Signing &&
		a.Authentication == b.Authentication && slices.Equal(a.Groups, b.Groups) &&
		a.Description == b.Description && a.Limits.Equal(b.Limits) && slices.Equal(a.Nodes, b.Nodes) && maps.Equal(a.Marks, b.Marks) && a.Creator == b.Creator && a.Problem == b.Problem && //nolint:errorlint // nil in both
		a.Created == b.Created && a.UID == b.UID && a.Version == b.Version
}

func testEmpty(t *testing.T, s tokens.Store) {
	wantList(t, s)
	_, err := s.Get(t.Context(), "abcdef", tokens.Live)
	wantError(t, "Get", err, tokens.ErrNotFound)
	_, err = s.Get(t.Context(), "abcdef", tokens.Cached)
	wantError(t, "cached Get", err, tokens.ErrNotFound)
}

func testMalformed(t *testing.T, s tokens.Store) {
	ctx := t.Context()
	whole := tokens.Generate().Reveal()
	for _, id := range []string{"", "abcde", "ABCDEF", "abc/ef", "../../", "abcdef\n", whole} {
		_, getErr := s.Get(ctx, id, tokens.Live)
		_, updateErr := s.Update(ctx, id, func(*tokens.Record) error { return nil })
		for what, err := range map[string]error{"Get": getErr, "Update": updateErr} {
			wantError(t, what, err, tokens.ErrMalformed)
			if err != nil && strings.Contains(err.Error(), whole) {
				t.Errorf("%s of a whole token as ID returned an error that contains it", what)
			}
		}
	}
	wantError(t, "Delete", s.Delete(ctx, tokens.Record{}), tokens.ErrMalformed)
}

// testDisable catches a token that still works after its revocation has begun, and a disabled token that lacks what a retry
// of the revocation needs.
func testDisable(t *testing.T, s tokens.Store) {
	r := create(t, s, sample())
	for range 2 { // a retry
		if _, err := s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error { c.Disable(); return nil }); err != nil {
			t.Fatalf("Update: %v", err)
		}
	}
	got := get(t, s, r.Token.ID())
	want := r
	want.Signing, want.Authentication, want.Groups, want.Version = false, false, nil, got.Version
	wantSame(t, "Get", got, want)
}

// longName returns a node name of the maximum length.
func longName(i int) string {
	label := strings.Repeat("a", 63)
	return fmt.Sprintf("%03d%s.%s.%s.%s", i, label[:60], label, label, label[:61])
}

// testHidesSecret creates a token whose ID exists already, with the same and with another secret. No error may contain a
// secret.
func testHidesSecret(t *testing.T, s tokens.Store) {
	first := create(t, s, sample())
	for _, r := range []tokens.Record{first, recordsOf(s).keyed(first.Token.ID())} {
		if _, err := s.Create(t.Context(), r); err == nil || strings.Contains(err.Error(), r.Token.RevealSecret()) {
			t.Errorf("got error %v from Create, want one without the secret", err)
		}
	}
}
