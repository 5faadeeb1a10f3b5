package boltstore_test

import (
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
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

var errBroken = fmt.Errorf("page 7: %w", boltstore.ErrDamaged)

// After a write fails because the file is damaged, the store must refuse all later writes with the same error.
func TestBrokenStoreRefusesWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	r := must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate()}))(t)
	c := must.Value(storetest.CreateClaim(t.Context(), s.Claims(), tokens.Claim{Node: "worker-1", TokenID: "abc123"}))(t)
	s.Break(errBroken)
	_, createErr := s.Create(t.Context(), tokens.Record{Token: tokens.Generate()})
	_, updateErr := s.Update(t.Context(), r.Token.ID(), func(r *tokens.Record) error { r.Description = "x"; return nil })
	_, claimErr := storetest.UpdateClaim(t.Context(), s.Claims(), c.Node, func(c *tokens.Claim) error { c.NodeUID = "u"; return nil })
	for what, err := range map[string]error{
		"Create":       createErr,
		"Update":       updateErr,
		"Delete":       s.Delete(t.Context(), r),
		"claim Update": claimErr,
		"claim Delete": storetest.DeleteClaim(t.Context(), s.Claims(), c),
		"Append":       rowrecord.New(s.Issued()).Append(t.Context(), issuancetest.Issued(time.Now(), newSerial(), time.Hour)),
		"Close":        s.Close(),
	} {
		if !errors.Is(err, errBroken) {
			t.Errorf("%s = %v, want %v", what, err, errBroken)
		}
	}
}

// endsSoon is a context that ends after its first Err call.
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
