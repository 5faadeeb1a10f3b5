package boltstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

var errBroken = fmt.Errorf("page 7: %w", boltstore.ErrDamaged)

// After a write fails because the file is damaged, the store must refuse all later writes with the same error.
func TestBrokenStoreRefusesWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	r := must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate()}))(t)
	c := must.Value(s.Claims().Create(t.Context(), tokens.Claim{Node: "worker-1", TokenID: "abc123"}))(t)
	s.Break(errBroken)
	_, createErr := s.Create(t.Context(), tokens.Record{Token: tokens.Generate()})
	_, updateErr := s.Update(t.Context(), r.Token.ID(), func(r *tokens.Record) error { r.Description = "x"; return nil })
	_, claimErr := s.Claims().Update(t.Context(), c.Node, func(c *tokens.Claim) error { c.NodeUID = "u"; return nil })
	for what, err := range map[string]error{
		"Create":       createErr,
		"Update":       updateErr,
		"Delete":       s.Delete(t.Context(), r),
		"claim Update": claimErr,
		"claim Delete": s.Claims().Delete(t.Context(), c),
		"Close":        s.Close(),
	} {
		if !errors.Is(err, errBroken) {
			t.Errorf("%s = %v, want %v", what, err, errBroken)
		}
	}
}

// Entries that cannot be imported into the database must stay in the journal. Neither Append nor Close may drop them.
func TestBrokenStoreKeepsItsJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	s.Break(errBroken)
	var kept []string
	for {
		e := large(issuancetest.Issued(time.Now(), newSerial(), time.Hour))
		if err := rowrecord.New(s.Issued()).Append(t.Context(), e); errors.Is(err, errBroken) {
			break
		} else if err != nil || len(kept)*largeEntry > 4*boltstore.JournalHalf {
			t.Fatalf("got Append = %[2]v after %[1]d entries, want %[3]v when the journal is full", len(kept), err, errBroken)
		}
		kept = append(kept, e.Serial)
	}
	if len(kept)*largeEntry < boltstore.JournalHalf {
		t.Fatalf("got %d entries, want both halves of the journal full", len(kept))
	}
	larger := issuancetest.Issued(time.Now(), "1f", time.Hour)
	larger.Message = strings.Repeat("x", boltstore.JournalHalf)
	if err := rowrecord.New(s.Issued()).Append(t.Context(), larger); !errors.Is(err, errBroken) {
		t.Errorf("Append of an entry that is larger than the journal = %v, want %v", err, errBroken)
	}
	if _, err := rowrecord.New(s.Issued()).List(t.Context(), issuance.Query{}); !errors.Is(err, errBroken) {
		t.Errorf("List = %v, want %v", err, errBroken)
	}
	if e, err := rowrecord.New(s.Issued()).Get(t.Context(), kept[0]); !errors.Is(err, errBroken) {
		t.Errorf("Get = %+v, %v, want %v", e, err, errBroken)
	}
	if err := s.Close(); !errors.Is(err, errBroken) {
		t.Errorf("Close = %v, want %v", err, errBroken)
	}
	left, _, err := boltstore.ReadJournal(journalOf(path), 0)
	if err != nil || len(left) != len(kept) {
		t.Fatalf("the journal has %d entries, %v, want %d", len(left), err, len(kept))
	}
	for i, v := range left {
		if !bytes.Contains(v, []byte(kept[i])) {
			t.Errorf("entry %d is not of certificate %s", i, kept[i])
		}
	}
}

// An entry that is larger than half of the journal must be in the database when Append returns.
func TestEntryLargerThanJournalSurvivesCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	add(t, s.Issued(), issuancetest.Issued(time.Now(), "1f", time.Hour))
	e := issuancetest.Issued(time.Now(), "2f", time.Hour)
	e.Message = strings.Repeat("x", 3*boltstore.JournalHalf)
	add(t, s.Issued(), e)
	again := open(t, crash(t, path))
	for _, serial := range []string{"1f", "2f"} {
		if _, err := rowrecord.New(again.Issued()).Get(t.Context(), serial); err != nil {
			t.Errorf("after a crash Get(%s) = %v", serial, err)
		}
	}
}

// Open must not treat an unreadable journal as empty, and must not delete it.
func TestUnreadableJournalStopsOpen(t *testing.T) {
	const good = "\x0aissued/100\x01x"
	for name, test := range map[string]struct {
		journal func(path string) error
		want    string
	}{
		"good":           {func(path string) error { return boltstore.WriteJournal(path, 1, []byte(good)) }, ""},
		"cut":            {func(path string) error { return boltstore.WriteJournal(path, 1, []byte(good), []byte(good[:11])) }, "file is damaged: entry 2: invalid length"},
		"too long":       {func(path string) error { return boltstore.WriteJournal(path, 1, []byte("\x7fhunter2")) }, "entry 1: invalid length"},
		"other folder":   {func(path string) error { return boltstore.WriteJournal(path, 1, []byte("\x0atokens/100\x01x")) }, "entry 1: invalid key"},
		"no such bucket": {func(path string) error { return boltstore.WriteJournal(path, 1, []byte("\x0ahunter/200\x01x")) }, "entry 1: invalid key"},
		"no key":         {func(path string) error { return boltstore.WriteJournal(path, 1, []byte("\x07issued/\x01x")) }, "file is damaged: entry 1: invalid key"},
		"folder":         {func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file but d"},
		"open to all":    {func(path string) error { return os.WriteFile(path, nil, 0o644) }, "file is accessible to other users"},
		"named socket":   {func(path string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) }, "no such device"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.db")
			must.OK(t, test.journal(journalOf(path)))
			s, err := boltstore.Open(path)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				must.OK(t, s.Close())
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), journalOf(path)) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("Open = %v, want %q and the file in it", err, test.want)
			}
			if _, err := os.Lstat(journalOf(path)); err != nil {
				t.Errorf("the journal is missing: %v", err)
			}
		})
	}
}

// Open must keep a journal if the database is damaged, so that an operator can repair the database.
func TestJournalOfDamagedDatabaseIsKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	must.OK(t, appendAll(s, func(yield func(issuance.Entry) bool) {
		for i := range 100 {
			if !yield(issuancetest.Issued(time.Now(), fmt.Sprintf("a%x", i), time.Hour)) {
				return
			}
		}
	}))
	add(t, s.Issued(), issuancetest.Issued(time.Now().Add(time.Hour), "1f", time.Hour))
	left := crash(t, path)
	whole := must.Value(os.ReadFile(left))(t)
	journal := must.Value(os.ReadFile(journalOf(left)))(t)
	failed := 0
	for page := 0; page*os.Getpagesize() < len(whole); page++ {
		content := bytes.Clone(whole)
		for i := range os.Getpagesize() {
			content[page*os.Getpagesize()+i] = 0xa5
		}
		path := filepath.Join(t.TempDir(), "tokens.db")
		must.OK(t, errors.Join(os.WriteFile(path, content, 0o600), os.WriteFile(journalOf(path), journal, 0o600)))
		s, err := boltstore.Open(path)
		if err != nil {
			failed++
			if after, err := os.ReadFile(journalOf(path)); err != nil || !bytes.Equal(after, journal) {
				t.Errorf("page %d is overwritten: the journal has changed, %v", page, err)
			}
			continue
		}
		if _, err := rowrecord.New(s.Issued()).Get(t.Context(), "1f"); err != nil {
			t.Errorf("page %d is overwritten: Open = nil, and then Get = %v", page, err)
		}
		_ = s.Close() // it may be damaged
	}
	if failed < 3 {
		t.Errorf("got errors for %d damaged pages, want more", failed)
	}
}

// endsSoon is a context that ends after its first check.
type endsSoon struct {
	context.Context
	looks int
}

func (c *endsSoon) Err() error {
	if c.looks++; c.looks > 1 {
		return context.Canceled
	}
	return nil
}

func TestListOfRecordStopsWithContext(t *testing.T) {
	s := openNew(t)
	must.OK(t, appendAll(s, func(yield func(issuance.Entry) bool) {
		for i := range 1500 {
			if !yield(issuancetest.Issued(time.Now(), fmt.Sprintf("a%x", i), time.Hour)) {
				return
			}
		}
	}))
	if page, err := rowrecord.New(s.Issued()).List(&endsSoon{Context: t.Context()}, issuance.Query{Signer: "none"}); !errors.Is(err, context.Canceled) {
		t.Errorf("List = %d entries, %v, want context.Canceled", len(page.Entries), err)
	}
}

// A refused write must not commit a transaction.
func TestRefusedWriteCommitsNothing(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "tokens.db"))
	r := must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate()}))(t)
	before := s.Transaction()
	if _, err := s.Create(t.Context(), r); !errors.Is(err, tokens.ErrExists) {
		t.Fatalf("Create = %v, want ErrExists", err)
	}
	if after := s.Transaction(); after != before {
		t.Errorf("transaction %d after the refusal, %d before", after, before)
	}
}

func TestIsFull(t *testing.T) {
	for err, want := range map[error]bool{
		&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}: true,
		&os.PathError{Op: "write", Path: "x", Err: syscall.EDQUOT}: true,
		&os.PathError{Op: "write", Path: "x", Err: syscall.EFBIG}:  true,
		errors.New("file resize error: no space left"):             true,
		&os.PathError{Op: "write", Path: "x", Err: syscall.EIO}:    false,
		errors.New("tx not writable"):                              false,
	} {
		if got := boltstore.IsFull(err); got != want {
			t.Errorf("%v: full %t, want %t", err, got, want)
		}
	}
}

func TestHolderIsProcessWithOpenFile(t *testing.T) {
	f := must.Value(os.Create(filepath.Join(t.TempDir(), "tokens.db")))(t)
	defer f.Close() //nolint:errcheck // it is empty
	info := must.Value(f.Stat())(t)
	line := func(kind, pid string) string {
		return fmt.Sprintf("1: %s  ADVISORY  WRITE %s fd:01:131085 0 EOF\n", kind, pid)
	}
	self := fmt.Sprint(os.Getpid())
	for name, test := range map[string]struct{ locks, want string }{
		"this process":        {line("FLOCK", self), "this process itself"},
		"after others":        {"1: FLOCK\n" + line("FLOCK", "x") + line("FLOCK", fmt.Sprint(os.Getppid())) + line("FLOCK", self), "this process itself"},
		"lock of POSIX":       {line("POSIX", self), "another process"},
		"short line":          {"1: FLOCK ADVISORY WRITE " + self + "\n", "another process"},
		"another file's lock": {line("FLOCK", fmt.Sprint(os.Getppid())), "another process"},
		"no locks":            {"", "another process"},
	} {
		if got := boltstore.HolderIn(strings.NewReader(test.locks), info); got != test.want {
			t.Errorf("%s: held by %q, want %q", name, got, test.want)
		}
	}
}
