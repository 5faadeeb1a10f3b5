package boltstore_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/bbolt"
)

// TestSchema1 has a file as the version before claims wrote it: its tokens are as they were, and
// can be given limits, and the file can keep claims.
func TestSchema1(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	edit(t, path, func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucket([]byte("meta"))
		if err != nil {
			return err
		}
		if err := meta.Put([]byte("schema"), []byte("1")); err != nil {
			return err
		}
		rows, err := tx.CreateBucket([]byte("tokens"))
		if err != nil {
			return err
		}
		return rows.Put([]byte("abc123"), []byte(`{"secret":"`+secret+`","expires":"2040-02-03T04:05:06Z","signing":true,"authentication":true,`+
			`"groups":["system:bootstrappers:a"],"description":"d","created":"2026-01-02T03:04:05Z","uid":"u","version":7}`))
	})
	for range 2 { // as it is migrated, and when it has been
		s := open(t, path)
		all, err := s.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("List = %+v, %v, want the one record", all, err)
		}
		r := all[0]
		if r.Token.Reveal() != "abc123."+secret || !r.Expires.Equal(time.Date(2040, 2, 3, 4, 5, 6, 0, time.UTC)) || !r.Signing || !r.Authentication ||
			len(r.Groups) != 1 || r.Description != "d" || !r.Created.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) || r.UID != "u" || r.Version != "7" ||
			!r.Limits.IsZero() || len(r.Nodes) > 0 {
			t.Errorf("List gives %+v, want what was written, without limits", r)
		}
		if claims, err := s.Claims().List(t.Context()); err != nil || len(claims) > 0 {
			t.Errorf("List of claims = %+v, %v, want none", claims, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, path)
	if _, err := s.Update(t.Context(), "abc123", func(r *tokens.Record) error {
		r.Limits.MaxNodes, r.Nodes = 1, []string{"worker-1"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claims().Create(t.Context(), tokens.Claim{Node: "worker-1", TokenID: "abc123"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	r, err := s.Get(t.Context(), "abc123")
	if err != nil || !r.Spent() || r.Version != "8" {
		t.Errorf("Get = %+v, %v, want a token that is spent", r, err)
	}
	if of, err := s.Claims().OfToken(t.Context(), "abc123"); err != nil || len(of) != 1 || of[0].Node != "worker-1" {
		t.Errorf("OfToken = %+v, %v, want the claim", of, err)
	}
}
