package boltstore_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"go.etcd.io/bbolt"
)

// edit changes a closed file directly with bbolt.
func edit(t *testing.T, path string, change func(*bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(change); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// versioned returns a row with version 1.
func versioned(value string) []byte { return append([]byte{7: 1}, value...) }

const secret = "s3cr3ts3cr3ts3cr"

func TestReportsDamagedRow(t *testing.T) {
	const good = `{"secret":"` + secret + `","signing":true,"authentication":true,"created":"2026-01-02T03:04:05Z","uid":"u"}`
	for name, test := range map[string]struct{ key, value, want string }{
		"good":          {"abc123", good, ""},
		"empty":         {"abc123", "", "unexpected end of JSON"},
		"not JSON":      {"abc123", "\x00" + secret, "invalid JSON at byte 1"},
		"cut":           {"abc123", good[:60], "unexpected end of JSON"},
		"more":          {"abc123", good + good, "unexpected data after"},
		"array":         {"abc123", "[]", "wrong type"},
		"unknown field": {"abc123", strings.Replace(good, "uid", secret, 1), "known fields only"},
		"wrong type":    {"abc123", strings.Replace(good, "true", `"`+secret+`"`, 1), `field "signing" has the wrong type`},
		"bad time":      {"abc123", strings.Replace(good, "2026-01-02T03:04:05Z", secret, 1), "times in RFC 3339"},
		"bad secret":    {"abc123", strings.Replace(good, secret, secret+"x", 1), "malformed secret of token abc123"},
		"example":       {"abcdef", strings.Replace(good, secret, "0123456789abcdef", 1), "published example"},
		"bad key":       {"ABC", good, "malformed token ID"},
		"no uid":        {"abc123", strings.Replace(good, `"u"`, `""`, 1), "missing"},
		"limits":        {"abc123", strings.Replace(good, "{", `{"limits":{"role":"`+secret+`"},`, 1), "invalid limits"},
		"nodes":         {"abc123", strings.Replace(good, "{", `{"nodes":["a,`+secret+`"],`, 1), "invalid node name in nodes"},
		"not created":   {"abc123", strings.Replace(good, "2026-01-02T03:04:05Z", "0001-01-01T00:00:00Z", 1), "missing"},
		"no version":    {"abc123", "", "version is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.db")
			if err := open(t, path).Close(); err != nil {
				t.Fatal(err)
			}
			row := versioned(test.value)
			if name == "no version" {
				row = make([]byte, 8)
			}
			edit(t, path, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("tokens")).Put([]byte(test.key), row) })
			s := open(t, path)
			all, err := s.List(t.Context())
			if test.want == "" {
				if err != nil || len(all) != 1 || all[0].Token.RevealSecret() != secret {
					t.Errorf("List = %+v, %v, want the one record", all, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("List = %+v, want an error", all)
			}
			for _, part := range []string{path, strconv.Quote(test.key), test.want} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("List = %q, want %q in it", err, part)
				}
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error %q has the secret in it", err)
			}
			if tokens.CheckID(test.key) == nil {
				if r, err := s.Get(t.Context(), test.key); err == nil {
					t.Errorf("Get = %+v, want an error", r)
				}
				token, err := tokens.New(test.key, "0123456789abcdeg")
				if err != nil {
					t.Fatal(err)
				}
				if r, err := s.Create(t.Context(), tokens.Record{Token: token}); !errors.Is(err, boltstore.ErrDamaged) {
					t.Errorf("Create = %+v, %v, want ErrDamaged", r, err)
				}
			}
		})
	}
}

func TestOpenRefusesOtherSchema(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*bbolt.Tx) error
		want   string
	}{
		"newer": {func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("11"))
		}, `schema version "11", want "10"`},
		"older": {func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("9"))
		}, `schema version "9", want "10": another version of kubejoin wrote the file; run that version, or move the file away, which loses its tokens, claims, revocations and issuance record`},
		"none": {func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("meta")).Delete([]byte("schema"))
		}, `schema version "", want "10"`},
		"another program's": {func(tx *bbolt.Tx) error {
			if err := tx.DeleteBucket([]byte("meta")); err != nil {
				return err
			}
			_, err := tx.CreateBucket([]byte("members"))
			return err
		}, `not a kubejoin file: found buckets "claims", "holders", "issued", "issued-by", "issued-ends", "members", "reserve", "revocations", "tokens", "unissued", want "meta"`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.db")
			if err := open(t, path).Close(); err != nil {
				t.Fatal(err)
			}
			edit(t, path, test.change)
			journal := path + "-journal"
			if err := os.WriteFile(journal, []byte("entries of a crash"), 0o600); err != nil {
				t.Fatal(err)
			}
			was := [2]string{read(t, path), read(t, journal)}
			for range 2 { // the first Open must leave no change and no lock
				_, err := boltstore.Open(path)
				if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("Open = %v, want %q and the file in it", err, test.want)
				}
			}
			if is := [2]string{read(t, path), read(t, journal)}; is != was {
				t.Error("the refused file or its journal has changed")
			}
		})
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestReportsDamagedFile overwrites pages of the file and truncates it. The store must return errors and never panic.
func TestReportsDamagedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	for range 300 {
		if _, err := s.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Description: strings.Repeat("x", 200)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	use := func(content []byte) error {
		// The memory map of a damaged file may hold the file lock until the process ends.
		path = filepath.Join(t.TempDir(), "tokens.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := boltstore.Open(path)
		if err != nil {
			return err
		}
		_, listErr := s.List(t.Context())
		_, createErr := s.Create(t.Context(), tokens.Record{Token: tokens.Generate()})
		return errors.Join(listErr, createErr, s.Close())
	}
	failed := 0
	for page := 0; page*os.Getpagesize() < len(whole); page++ {
		content := bytes.Clone(whole)
		for i := range os.Getpagesize() {
			content[page*os.Getpagesize()+i] = 0xa5
		}
		if err := use(content); err != nil {
			failed++
			if !errors.Is(err, boltstore.ErrDamaged) || !strings.Contains(err.Error(), path) {
				t.Errorf("a file whose page %d is overwritten gives %v, want ErrDamaged and its name", page, err)
			}
		}
	}
	if failed < 3 {
		t.Errorf("got errors for %d damaged pages, want at least those of the tree", failed)
	}
	for _, size := range []int{1, 512, os.Getpagesize(), 2*os.Getpagesize() + 1, len(whole) / 4} {
		if err := use(whole[:size]); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("a file cut to %d bytes gives %v, want an error that names it", size, err)
		}
	}
	if err := use(whole); err != nil {
		t.Errorf("Open of the undamaged file = %v", err)
	}
}
