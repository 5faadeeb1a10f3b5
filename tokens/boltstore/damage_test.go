package boltstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"go.etcd.io/bbolt"
)

// edit changes a closed file directly with bbolt.
func edit(t *testing.T, path string, change func(*bbolt.Tx) error) {
	t.Helper()
	db := must.Value(bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second}))(t)
	must.OK(t, db.Update(change))
	must.OK(t, db.Close())
}

const secret = "s3cr3ts3cr3ts3cr"

// The error for a damaged row must name the file and the row, and the key must stay in use. The tests of package rowstore
// check which rows are damaged.
func TestReportsDamagedRow(t *testing.T) {
	for name, row := range map[string][]byte{"value": append([]byte{7: 1}, secret...), "no version": make([]byte, 7), "version 0": make([]byte, 8)} {
		path := filepath.Join(t.TempDir(), "tokens.db")
		must.OK(t, open(t, path).Close())
		edit(t, path, func(tx *bbolt.Tx) error {
			return errors.Join(tx.Bucket([]byte("tokens")).Put([]byte("abc123"), row), tx.Bucket([]byte("claims")).Put([]byte("worker-1"), row))
		})
		s := open(t, path)
		token := must.Value(tokens.New("abc123", "0123456789abcdeg"))(t)
		_, listErr := s.List(t.Context())
		_, createErr := s.Create(t.Context(), tokens.Record{Token: token})
		_, getErr := s.Claims().Get(t.Context(), "worker-1", tokens.Live)
		for key, err := range map[string]error{"abc123": listErr, "abc12": createErr, "worker-1": getErr} {
			if !errors.Is(err, boltstore.ErrDamaged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), `"`+key) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "version is missing") != (name != "value") {
				t.Errorf("%s, %s: got %v, want ErrDamaged with the file and the key", name, key, err)
			}
		}
	}
}

func TestOpenRefusesOtherSchema(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*bbolt.Tx) error
		want   string
	}{
		"newer": {func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("12"))
		}, `schema version "12", want "11"`},
		"older": {func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("9"))
		}, `schema version "9", want "11": another version of kubejoin wrote the file; run that version, or move the file away, which loses its tokens, claims, revocations and issuance record`},
		"none": {func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("meta")).Delete([]byte("schema"))
		}, `schema version "", want "11"`},
		"another program's": {func(tx *bbolt.Tx) error {
			if err := tx.DeleteBucket([]byte("meta")); err != nil {
				return err
			}
			_, err := tx.CreateBucket([]byte("members"))
			return err
		}, `not a kubejoin file: found buckets "ca-rotation", "claims", "holders", "issued", "issued-by", "issued-ends", "members", "reserve", "revocations", "tokens", "unissued", want "meta"`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.db")
			must.OK(t, open(t, path).Close())
			edit(t, path, test.change)
			was := read(t, path)
			for range 2 { // twice: the first Open must leave no change and no lock
				_, err := boltstore.Open(path)
				if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("Open = %v, want %q and the file in it", err, test.want)
				}
			}
			if is := read(t, path); is != was {
				t.Error("the refused file has changed")
			}
		})
	}
}

// If one byte in the name of a bucket is damaged, Open must fail. Catches an Open that creates the bucket again, without
// its rows, for example without all revocations.
func TestOpenRefusesFileWithoutBucket(t *testing.T) {
	for _, bucket := range []string{"tokens", "claims", "holders", "revocations", "ca-rotation", "issued", "issued-by", "issued-ends", "unissued"} {
		path := filepath.Join(t.TempDir(), "tokens.db")
		must.OK(t, open(t, path).Close())
		edit(t, path, func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(bucket)) })
		if _, err := boltstore.Open(path); !errors.Is(err, boltstore.ErrDamaged) || !strings.Contains(err.Error(), fmt.Sprintf("bucket %q is missing", bucket)) || !strings.Contains(err.Error(), path) {
			t.Errorf("without %s: Open = %v, want ErrDamaged with the bucket and the file", bucket, err)
		}
	}
	for _, bucket := range []string{"meta", "revocations"} {
		path := filepath.Join(t.TempDir(), "tokens.db")
		must.OK(t, open(t, path).Close())
		content := []byte(read(t, path))
		must.OK(t, os.WriteFile(path, bytes.ReplaceAll(content, []byte(bucket), []byte(bucket[:len(bucket)-1]+"z")), 0o600))
		if _, err := boltstore.Open(path); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", bucket)) {
			t.Errorf("with another byte in the name of %s: Open = %v, want an error with the bucket", bucket, err)
		}
	}
}

// Catches an Open that ignores the journal with entries of certificates, or that changes it.
func TestOpenRefusesJournalOfEarlierKubejoin(t *testing.T) {
	zeros := make([]byte, 2<<20)
	entry := bytes.Clone(zeros)
	entry[7] = 1 // the number of the entry
	for name, test := range map[string]struct {
		journal []byte
		want    string
	}{
		"empty":         {nil, ""},
		"no entry":      {zeros, ""},
		"entry":         {entry, "-journal is of an earlier kubejoin"},
		"in its middle": {append(bytes.Clone(zeros[:1<<20]), entry...), "start and stop that version once"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.db")
			must.OK(t, open(t, path).Close())
			must.OK(t, os.WriteFile(path+"-journal", test.journal, 0o600))
			for what, open := range map[string]func(string) (*boltstore.Store, error){"Open": boltstore.Open, "OpenReadOnly": boltstore.OpenReadOnly} {
				s, err := open(path)
				switch {
				case test.want == "" && err == nil:
					must.OK(t, s.Close())
				case test.want == "" || err == nil || !strings.Contains(err.Error(), path+"-journal is") || !strings.Contains(err.Error(), test.want):
					t.Errorf("%s = %v, want %q and the file in it", what, err, test.want)
				}
			}
			if read(t, path+"-journal") != string(test.journal) {
				t.Error("the journal has changed")
			}
		})
	}
	path := filepath.Join(t.TempDir(), "tokens.db")
	must.OK(t, os.Mkdir(path+"-journal", 0o700))
	if _, err := boltstore.Open(path); err == nil || !strings.Contains(err.Error(), path+"-journal") {
		t.Errorf("with a folder instead: Open = %v, want an error that names it", err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content := must.Value(os.ReadFile(path))(t)
	return string(content)
}

// TestReportsDamagedFile overwrites pages of the file and truncates it. The store must return errors and never panic.
func TestReportsDamagedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	for range 300 {
		must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Description: strings.Repeat("x", 200)}))(t)
	}
	must.OK(t, s.Close())
	whole := must.Value(os.ReadFile(path))(t)
	use := func(content []byte) error {
		// Use another file each time: the memory map of a damaged file may hold the file lock until the process ends.
		path = filepath.Join(t.TempDir(), "tokens.db")
		must.OK(t, os.WriteFile(path, content, 0o600))
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
