//go:build unix

package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// limitFiles has every write beyond a size fail, as on a full disk.
func limitFiles(size uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	limit.Cur = min(size, limit.Max)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
}

// fullDisk is the other process of TestJournalFullDisk.
func fullDisk(s *boltstore.Store, path string) error {
	signal.Ignore(syscall.SIGXFSZ)
	kept := map[string]bool{}
	if err := appendUntil(s.Issued(), kept, 10); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	// The database cannot grow: the journal has what comes until it is full.
	if err := limitFiles(max(uint64(info.Size()), 2*boltstore.JournalHalf)); err != nil {
		return err
	}
	if err := appendUntil(s.Issued(), kept, 10_000); err == nil || !strings.Contains(err.Error(), syscall.EFBIG.Error()) || !strings.Contains(err.Error(), path) {
		return fmt.Errorf("with a full disk: %w, want %w that names the file", err, syscall.EFBIG)
	}
	if _, err := s.Issued().List(context.Background(), issuance.Query{}); err == nil {
		return errors.New("a record that cannot be read as a whole is shown in part")
	}
	// The journal cannot be written, either.
	if err := limitFiles(4096); err != nil {
		return err
	}
	if err := appendUntil(s.Issued(), map[string]bool{}, 1); err == nil {
		return errors.New("kept with a full disk")
	}
	if err := limitFiles(1 << 40); err != nil {
		return err
	}
	if err := appendUntil(s.Issued(), kept, 300); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	found, err := serials(s.Issued())
	for serial := range kept {
		if found[serial] != 1 {
			return fmt.Errorf("certificate %s was acknowledged, and is there %d times: %w", serial, found[serial], err)
		}
	}
	// In the middle of a half: the next ones go where the failed one would have gone.
	if err := limitFiles(1); err != nil {
		return err
	}
	if err := appendUntil(s.Issued(), map[string]bool{}, 1); err == nil {
		return errors.New("kept with a full disk")
	}
	if err := limitFiles(1 << 40); err != nil {
		return err
	}
	if err := appendUntil(s.Issued(), kept, 3); err != nil {
		return err
	}
	for serial := range kept {
		fmt.Println(serial)
	}
	fmt.Println("end")
	time.Sleep(time.Hour)
	return nil
}

// What a full disk has no room for is not acknowledged, and what was is there after it, and after a
// crash.
func TestJournalFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	c := child(t, "full", path)
	var kept []string
	for c.out.Scan() && c.out.Text() != "end" {
		kept = append(kept, c.out.Text())
	}
	c.kill(t)
	_ = c.cmd.Wait() // it was killed
	if len(kept)*largeEntry < 4*boltstore.JournalHalf {
		t.Fatalf("%d entries were kept", len(kept))
	}
	found, err := serials(open(t, path).Issued())
	for _, serial := range kept {
		if found[serial] != 1 {
			t.Fatalf("certificate %s was acknowledged, and is there %d times: %v", serial, found[serial], err)
		}
	}
}
