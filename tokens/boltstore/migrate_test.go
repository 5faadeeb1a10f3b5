package boltstore_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/boltrecord"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/bbolt"
)

// TestMigratesSchema1 opens a file of the version before claims. Its tokens must be unchanged, and it must accept limits
// and claims.
func TestMigratesSchema1(t *testing.T) {
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
	for range 2 { // the first Open migrates the file, the second does not
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

// TestMigratesSchema2 opens a file of the version before the issuance record. Its content must be unchanged, and it must
// accept a record.
func TestMigratesSchema2(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	r, err := s.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Signing: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claims().Create(t.Context(), tokens.Claim{Node: "worker-1", TokenID: r.Token.ID()}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	edit(t, path, func(tx *bbolt.Tx) error {
		return errors.Join(tx.DeleteBucket([]byte("issued")), tx.DeleteBucket([]byte("ends")), tx.DeleteBucket([]byte("unissued")),
			tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("2")))
	})
	for i := range 2 { // the first Open migrates the file, the second does not
		s := open(t, path)
		if kept, err := s.Get(t.Context(), r.Token.ID()); err != nil || kept.Token != r.Token || kept.UID != r.UID {
			t.Errorf("Get = %+v, %v, want %+v", kept, err, r)
		}
		if claims, err := s.Claims().List(t.Context()); err != nil || len(claims) != 1 || claims[0].Node != "worker-1" {
			t.Errorf("List of claims = %+v, %v, want worker-1's", claims, err)
		}
		if page, err := boltrecord.New(s.Issued()).List(t.Context(), issuance.Query{}); err != nil || len(page.Entries) != i {
			t.Errorf("List of issued = %+v, %v, want %d", page, err, i)
		}
		if err := boltrecord.New(s.Issued()).Append(t.Context(), issuancetest.Issued(time.Now(), "1f", time.Hour)); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	edit(t, path, func(tx *bbolt.Tx) error {
		if v := tx.Bucket([]byte("meta")).Get([]byte("schema")); string(v) != "8" {
			t.Errorf("schema %s, want 8", v)
		}
		return nil
	})
}

// TestMigratesSchema4 opens a file of the version before released claims. Its claim must have no Past, and must be
// releasable.
func TestMigratesSchema4(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	if err := open(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	edit(t, path, func(tx *bbolt.Tx) error {
		return errors.Join(tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("4")),
			tx.Bucket([]byte("holders")).Put([]byte("abc123/worker-1"), nil),
			tx.Bucket([]byte("claims")).Put([]byte("worker-1"), []byte(`{"tokenID":"abc123","tokenUID":"u","limits":{"maxNodes":1,"certificateDuration":600},"keys":["k"],"created":"2026-01-02T03:04:05Z","uid":"u","version":1}`)))
	})
	claims := open(t, path).Claims()
	c, err := claims.Get(t.Context(), "worker-1")
	if err != nil || c.Past != (tokens.ReleasedClaim{}) || c.Released() {
		t.Fatalf("Get = %+v, %v, want a claim without a past", c, err)
	}
	if err := tokens.Release(t.Context(), claims, c, c.PastAfterRelease(time.Now(), 0)); err != nil {
		t.Fatal(err)
	}
	if c, err = claims.Get(t.Context(), "worker-1"); err != nil || !c.Released() || c.Past.CertificateDuration != 10*time.Minute {
		t.Errorf("Get = %+v, %v, want one that was released", c, err)
	}
	if of, err := claims.OfToken(t.Context(), "abc123"); err != nil || len(of) > 0 {
		t.Errorf("OfToken = %+v, %v, want none", of, err)
	}
}

// TestMigratesSchema3 opens a file of the version before the journal. Its record must be unchanged, and must accept
// entries.
func TestMigratesSchema3(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	add(t, s.Issued(), issuancetest.Issued(time.Now(), "1f", time.Hour), issuancetest.Issued(time.Now(), "2f", time.Hour))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	edit(t, path, func(tx *bbolt.Tx) error {
		if n := tx.Bucket([]byte("issued")).Sequence(); n != 2 { // as NextSequence had set it
			t.Errorf("the last entry has number %d, want 2", n)
		}
		return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("3"))
	})
	s = open(t, path)
	add(t, s.Issued(), issuancetest.Issued(time.Now(), "3f", time.Hour))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := list(t, open(t, path).Issued(), issuance.Query{}); !slices.Equal(got, []string{"3f", "2f", "1f"}) {
		t.Errorf("the record has %v", got)
	}
}
