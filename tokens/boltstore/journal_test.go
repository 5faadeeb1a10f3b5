package boltstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/bbolt"
)

func newSerial() string { return fmt.Sprintf("%x%016x", 1+rand.Uint64N(1<<60), rand.Uint64()) }

// largeEntry is an entry size with which the journal changes halves after a few entries.
const largeEntry = 8 << 10

func large(e issuance.Entry) issuance.Entry {
	e.Message = strings.Repeat("x", largeEntry)
	return e
}

func journalOf(path string) string { return path + "-journal" }

// crash copies the files of a store, as a crash between two writes leaves them.
func crash(t *testing.T, path string) string {
	t.Helper()
	left := filepath.Join(t.TempDir(), "tokens.db")
	for _, name := range []func(string) string{func(p string) string { return p }, journalOf} {
		content := must.Value(os.ReadFile(name(path)))(t)
		must.OK(t, os.WriteFile(name(left), content, 0o600))
	}
	return left
}

func inDatabase(t *testing.T, path string) int {
	t.Helper()
	n := 0
	edit(t, path, func(tx *bbolt.Tx) error {
		n = tx.Bucket([]byte("issued")).Stats().KeyN
		return nil
	})
	return n
}

func TestJournalAfterCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	now := time.Now()
	add(t, s.Issued(), issuancetest.Issued(now, "1f", time.Hour), issuancetest.Refused(now.Add(1), 7), issuancetest.Issued(now.Add(2), "2f", time.Hour))
	left := crash(t, path)
	if n := inDatabase(t, left); n != 0 {
		t.Fatalf("got %d entries in the database, want all in the journal only: otherwise this test checks nothing", n)
	}
	again := open(t, left)
	if got := list(t, again.Issued(), issuance.Query{}); !slices.Equal(got, []string{"2f", "7", "1f"}) || again.Truncated() {
		t.Errorf("after a crash the record has %v, cut: %t", got, again.Truncated())
	}
	if _, err := os.Stat(journalOf(left)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the journal that was imported is still there: %v", err)
	}
	add(t, again.Issued(), issuancetest.Issued(now.Add(3), "3f", time.Hour))
	must.OK(t, again.Close())
	if n := inDatabase(t, left); n != 4 {
		t.Errorf("after Close %d entries are in the database, want 4", n)
	}
	if _, err := os.Stat(journalOf(left)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got a journal after Close: %v", err)
	}
	// After a crash between the import and the removal of the journal, no entry may be there twice.
	journal := must.Value(os.ReadFile(journalOf(path)))(t)
	must.OK(t, os.WriteFile(journalOf(left), journal, 0o600))
	twice := open(t, left)
	if got := list(t, twice.Issued(), issuance.Query{}); !slices.Equal(got, []string{"3f", "2f", "7", "1f"}) || twice.Truncated() {
		t.Errorf("with the journal again the record has %v, cut: %t", got, twice.Truncated())
	}
	if got := list(t, twice.Issued(), issuance.Query{EndsAfter: now}); len(got) != 3 {
		t.Errorf("in the order of their ends there are %v", got)
	}
}

// Queries must return all entries, from both halves of the journal and from the database.
func TestQueriesReadBothJournalHalves(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	size, entries := 0, 0
	for start := time.Now(); size < 5*boltstore.JournalHalf; entries++ {
		e := issuancetest.Issued(start.Add(time.Duration(entries)), newSerial(), time.Hour)
		e.Message = strings.Repeat("x", 1+rand.IntN(20_000))
		size += len(e.Message)
		add(t, s.Issued(), e)
		if entries%50 == 0 {
			if got, err := rowrecord.New(s.Issued()).Get(t.Context(), e.Serial); err != nil || got.Message != e.Message {
				t.Fatalf("entry %d: %v", entries, err)
			}
		}
	}
	// An entry that is larger than the journal.
	large := issuancetest.Issued(time.Now(), "1f", time.Hour)
	large.Message = strings.Repeat("x", boltstore.JournalHalf)
	small := issuancetest.Issued(time.Now(), "2f", time.Hour)
	add(t, s.Issued(), large, small)
	left := crash(t, path)
	again := open(t, left)
	if got := list(t, again.Issued(), issuance.Query{Limit: issuance.MaxLimit}); len(got) != entries+2 || again.Truncated() {
		t.Errorf("after a crash there are %d entries, want %d; cut: %t", len(got), entries+2, again.Truncated())
	}
	if info, err := os.Stat(journalOf(path)); err != nil || info.Size() != 2*boltstore.JournalHalf {
		t.Errorf("the journal has %d bytes, %v", info.Size(), err)
	}
}

// A partly written group at the end of the journal must be ignored. All groups before it must be read.
func TestIgnoresPartlyWrittenJournalGroup(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	now := time.Now()
	add(t, s.Issued(), issuancetest.Issued(now, "1f", time.Hour), issuancetest.Issued(now.Add(1), "2f", time.Hour))
	before := must.Value(os.ReadFile(journalOf(path)))(t)
	add(t, s.Issued(), issuancetest.Issued(now.Add(2), "3f", time.Hour))
	after := must.Value(os.ReadFile(journalOf(path)))(t)
	begin := len(bytes.TrimRight(before, "\x00"))
	end := len(bytes.TrimRight(after, "\x00"))
	if begin < 1000 || end < begin+500 {
		t.Fatalf("the last group goes from %d to %d", begin, end)
	}
	damaged := func(change func(content []byte) []byte) string {
		file := filepath.Join(t.TempDir(), "journal")
		must.OK(t, os.WriteFile(file, change(bytes.Clone(after)), 0o600))
		return file
	}
	whole := after
	after = after[:end+4096]
	for at := begin; at < end; at++ {
		if at > begin+100 && at < end-50 && at%97 != 0 {
			continue
		}
		for what, change := range map[string]func([]byte) []byte{
			"cut off":            func(c []byte) []byte { return c[:at] },
			"not written":        func(c []byte) []byte { clear(c[at:]); return c },
			"another byte":       func(c []byte) []byte { c[at] ^= 0x20; return c },
			"what was there":     func(c []byte) []byte { copy(c[at:], strings.Repeat("MIIB", 1000)); return c },
			"written at its end": func(c []byte) []byte { clear(c[begin:max(at+1, begin+8)]); return c },
		} {
			entries, complete, err := boltstore.ReadJournal(damaged(change), 0)
			if err != nil || len(entries) != 2 {
				t.Errorf("from %d on %s: %d entries, %v, want 2", at-begin, what, len(entries), err)
			}
			if what == "another byte" && at >= begin+8 && complete {
				t.Errorf("from %d on %s: got complete = true, want false", at-begin, what)
			}
		}
	}
	// If earlier entries are missing, the later ones must be kept.
	after = whole
	entries, complete, err := boltstore.ReadJournal(damaged(func(c []byte) []byte {
		copy(c[boltstore.JournalHalf:], c[begin:end])
		clear(c[:begin+16])
		return c
	}), 1)
	if err != nil || len(entries) != 1 || complete {
		t.Errorf("with a gap: %d entries, complete: %t, %v", len(entries), complete, err)
	}
	left := crash(t, path)
	must.OK(t, os.Truncate(journalOf(left), int64(end-1)))
	again := open(t, left)
	if got := list(t, again.Issued(), issuance.Query{}); !slices.Equal(got, []string{"2f", "1f"}) || !again.Truncated() {
		t.Errorf("the record has %v, cut: %t", got, again.Truncated())
	}
	add(t, again.Issued(), issuancetest.Issued(now.Add(3), "4f", time.Hour))
	if got := list(t, again.Issued(), issuance.Query{}); !slices.Equal(got, []string{"4f", "2f", "1f"}) {
		t.Errorf("then the record has %v", got)
	}
}

// FuzzReadJournal reads journals with any content. It must return valid entries only.
func FuzzReadJournal(f *testing.F) {
	path := filepath.Join(f.TempDir(), "tokens.db")
	s := open(f, path)
	add(f, s.Issued(), issuancetest.Refused(time.Now(), 1), issuancetest.Refused(time.Now(), 2))
	content := must.Value(os.ReadFile(journalOf(path)))(f)
	f.Add(bytes.TrimRight(content, "\x00"))
	f.Add([]byte(strings.Repeat("\x00", 7) + "\x01\xff\xff\xff\xff0000"))
	f.Fuzz(func(t *testing.T, content []byte) {
		file := filepath.Join(t.TempDir(), "journal")
		must.OK(t, os.WriteFile(file, content, 0o600))
		if _, _, err := boltstore.ReadJournal(file, 0); err != nil {
			t.Error(err)
		}
	})
}

// Append must fail while the journal cannot be created, and work as soon as it can.
func TestAppendFailsWithoutJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	must.OK(t, os.Mkdir(journalOf(path), 0o700))
	if err := rowrecord.New(s.Issued()).Append(t.Context(), issuancetest.Issued(time.Now(), "1f", time.Hour)); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Append = %v, want an error that names the file", err)
	}
	must.OK(t, os.Remove(journalOf(path)))
	add(t, s.Issued(), issuancetest.Issued(time.Now(), "2f", time.Hour))
	if got := list(t, s.Issued(), issuance.Query{}); !slices.Equal(got, []string{"2f"}) {
		t.Errorf("the record has %v", got)
	}
	if info, err := os.Stat(journalOf(path)); err != nil || info.Mode() != 0o600 {
		t.Errorf("the journal has %v, %v", info.Mode(), err)
	}
}

// serials counts the entries of each certificate.
func serials(s *rowstore.Issued) (map[string]int, error) {
	found := map[string]int{}
	for q := (issuance.Query{Limit: issuance.MaxLimit}); ; {
		page, err := rowrecord.New(s).List(context.Background(), q)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			found[e.Serial]++
		}
		if q.After = page.Next; q.After == "" {
			return found, nil
		}
	}
}

// Entries in the journal after a crash are kept as long as all others. Catches an Open that deletes those that are due after
// the default time.
func TestRetentionHoldsForJournal(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	add(t, s.Issued(), issuancetest.Issued(time.Now().Add(-2*boltstore.KeepEnded), "1f", time.Hour))
	for retention, want := range map[time.Duration]int{0: 0, 3 * boltstore.KeepEnded: 1} {
		s := must.Value(boltstore.OpenRetaining(crash(t, path), retention))(t)
		if got := list(t, s.Issued(), issuance.Query{}); len(got) != want {
			t.Errorf("retention %v: got entries %v, want %d", retention, got, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
