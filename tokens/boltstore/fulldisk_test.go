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
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// limitFiles makes writes beyond a file size fail, as on a full disk.
func limitFiles(size uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	limit.Cur = min(size, limit.Max)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
}

// fullDisk runs in the child process of TestRecordAppendsOnFullDisk.
func fullDisk(s *boltstore.Store, path string) error {
	signal.Ignore(syscall.SIGXFSZ)
	var kept []string
	add := func(most int) error {
		for range most {
			e := large(issuancetest.Issued(time.Now(), newSerial(), time.Hour))
			if err := rowrecord.New(s.Issued()).Append(context.Background(), e); err != nil {
				return err
			}
			kept = append(kept, e.Serial)
		}
		return nil
	}
	// check fails unless all acknowledged entries that were not dropped, the newest entries, are in the record.
	check := func() error {
		found, err := serials(s.Issued())
		if err != nil {
			return err
		}
		dropped, _ := s.Dropped()
		for _, serial := range kept[dropped:] {
			if found[serial] != 1 {
				return fmt.Errorf("got acknowledged certificate %s %d times, want once; %d of %d were dropped", serial, found[serial], dropped, len(kept))
			}
		}
		return nil
	}
	if err := add(10); err != nil {
		return err
	}
	// The database cannot grow, so new entries must replace old ones.
	if err := limitFiles(2 << 20); err != nil {
		return err
	}
	if err := add(500); err != nil {
		return fmt.Errorf("with a full disk: %w", err)
	}
	if err := check(); err != nil {
		return err
	}
	if dropped, last := s.Dropped(); len(kept)-dropped < 80 || dropped < 250 || time.Since(last) > time.Minute {
		return fmt.Errorf("dropped %d of %d entries, the last at %s: the disk has space for more than 80", dropped, len(kept), last)
	}
	// Tokens and claims need space too.
	for range 100 {
		if _, err := s.Create(context.Background(), tokens.Record{Token: tokens.Generate(), Description: strings.Repeat("x", 200)}); err != nil {
			return fmt.Errorf("a token with a full disk: %w", err)
		}
	}
	// From here on no write succeeds. Failed writes must not lose stored entries.
	before, _ := s.Dropped()
	if err := limitFiles(4096); err != nil {
		return err
	}
	if err := rowrecord.New(s.Issued()).Append(context.Background(), issuancetest.Issued(time.Now(), newSerial(), time.Hour)); err == nil || !strings.Contains(err.Error(), path) {
		return fmt.Errorf("append with a disk that refuses every write: %w", err)
	}
	if after, _ := s.Dropped(); after != before {
		return fmt.Errorf("dropped %d entries, want 0", after-before)
	}
	if err := limitFiles(1 << 40); err != nil {
		return err
	}
	if err := add(300); err != nil {
		return fmt.Errorf("with free space again: %w", err)
	}
	if after, _ := s.Dropped(); after != before {
		return fmt.Errorf("dropped %d entries with free space again, want 0", after-before)
	}
	if err := check(); err != nil {
		return err
	}
	// Failed appends must not break later appends.
	if err := limitFiles(1); err != nil {
		return err
	}
	if err := rowrecord.New(s.Issued()).Append(context.Background(), issuancetest.Issued(time.Now(), newSerial(), time.Hour)); err == nil {
		return errors.New("kept with a full disk")
	}
	if err := limitFiles(1 << 40); err != nil {
		return err
	}
	if err := add(3); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	dropped, _ := s.Dropped()
	for _, serial := range kept[dropped:] {
		fmt.Println(serial)
	}
	fmt.Println("end")
	hold()
	return nil
}

// On a full disk, the store must drop the certificates that expire first, and continue to write. Acknowledged entries that
// were not dropped must survive this, and a crash.
func TestRecordAppendsOnFullDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.db")
	c := child(t, "full", path)
	var kept []string
	for c.out.Scan() && c.out.Text() != "end" {
		kept = append(kept, c.out.Text())
	}
	c.kill(t)
	_ = c.cmd.Wait() // fails because it was killed
	if len(kept) < 300 {
		t.Fatalf("%d entries were kept", len(kept))
	}
	found, err := serials(open(t, path).Issued())
	for _, serial := range kept {
		if found[serial] != 1 {
			t.Fatalf("got acknowledged certificate %s %d times, want once: %v", serial, found[serial], err)
		}
	}
}

// randomNodes runs in the child process of TestRecordDropsEntriesOfRandomNodes.
func randomNodes(s *boltstore.Store, path string) error {
	signal.Ignore(syscall.SIGXFSZ)
	boltstore.SetMaxDrop(1 << 20) // small, so that a small record has the same effect as a large record
	for range 5 {
		if err := appendAll(s, func(yield func(issuance.Entry) bool) {
			for i := range 1000 {
				if !yield(ofRandomNode(issuancetest.Refused(time.Now(), i))) || !yield(ofRandomNode(issuancetest.Issued(time.Now(), newSerial(), time.Hour))) {
					return
				}
			}
		}); err != nil {
			return err
		}
	}
	if err := fill(s, path); err != nil {
		return err
	}
	kept := map[string]bool{}
	for i := range 1800 {
		e := ofRandomNode(issuancetest.Refused(time.Now(), i))
		if i%4 == 0 {
			e = ofRandomNode(issuancetest.Issued(time.Now(), newSerial(), 2*time.Hour)) // the other entries expire before this one
			kept[e.Serial] = true
		}
		if err := rowrecord.New(s.Issued()).Append(context.Background(), e); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
	}
	found, err := serials(s.Issued())
	if err != nil {
		return err
	}
	for serial := range kept {
		if found[serial] != 1 {
			return fmt.Errorf("got acknowledged certificate %s %d times, want once", serial, found[serial])
		}
	}
	dropped, _ := s.Dropped()
	fmt.Println("end", dropped)
	hold()
	return nil
}

// together runs in the child process of TestWritesThatShareATransactionFitOnFullDisk.
func together(s *boltstore.Store, path string) error {
	signal.Ignore(syscall.SIGXFSZ)
	boltstore.SetMaxDrop(1 << 20) // less than what one transaction with all entries needs
	if err := appendAll(s, func(yield func(issuance.Entry) bool) {
		for range 4000 {
			if !yield(ofRandomNode(issuancetest.Issued(time.Now(), newSerial(), time.Hour))) {
				return
			}
		}
	}); err != nil {
		return err
	}
	if err := fill(s, path); err != nil {
		return err
	}
	kept := map[string]bool{}
	if err := appendAll(s, func(yield func(issuance.Entry) bool) {
		for range 500 {
			e := ofRandomNode(issuancetest.Issued(time.Now(), newSerial(), 2*time.Hour)) // the other entries expire before this one
			if kept[e.Serial] = true; !yield(e) {
				return
			}
		}
	}); err != nil {
		return err
	}
	found, err := serials(s.Issued())
	if err != nil {
		return err
	}
	for serial := range kept {
		if found[serial] != 1 {
			return fmt.Errorf("got acknowledged certificate %s %d times, want once", serial, found[serial])
		}
	}
	dropped, _ := s.Dropped()
	if err := dropInVain(s); err != nil {
		return err
	}
	fmt.Println("end", dropped)
	hold()
	return nil
}

// dropInVain keeps a reader open, so that pages of dropped entries stay in use. It returns an error if the failing writes
// drop many entries.
func dropInVain(s *boltstore.Store) error {
	boltstore.SetMaxDrop(8 << 10) // some four entries
	if err := s.Fill(); err != nil {
		return err
	}
	before, _ := s.Dropped()
	err := s.DB().View(context.Background(), nil, func(rowstore.Reader) error {
		return appendAll(s, func(yield func(issuance.Entry) bool) {
			for range 100 {
				if !yield(ofRandomNode(issuancetest.Issued(time.Now(), newSerial(), 2*time.Hour))) {
					return
				}
			}
		})
	})
	if after, _ := s.Dropped(); err == nil || after-before > 25 {
		return fmt.Errorf("dropped %d entries beside a reader, %w", after-before, err)
	}
	return nil
}

// A transaction with many writes can need more free pages than a full disk has, although each single write fits.
func TestWritesThatShareATransactionFitOnFullDisk(t *testing.T) {
	t.Parallel()
	if dropped := droppedBy(t, "together"); dropped < 500 || dropped > 2000 {
		t.Errorf("dropped %d of 4,000 entries for 500 new ones", dropped)
	}
}

// fill makes the disk full and uses all free pages of the file.
func fill(s *boltstore.Store, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if err := limitFiles(uint64(info.Size())); err != nil {
		return err
	}
	return s.Fill()
}

// The index rows of an entry are on pages all over the file, and a transaction needs a free page for each of these. Even
// so, the store must be able to replace old entries by new ones.
func TestRecordDropsEntriesOfRandomNodes(t *testing.T) {
	t.Parallel()
	if dropped := droppedBy(t, "random nodes"); dropped <= 0 || dropped >= 9_000 {
		t.Errorf("dropped %d of 10,000 entries for 1,800 new ones", dropped)
	}
}

// droppedBy runs a child process that prints how many entries were dropped.
func droppedBy(t *testing.T, role string) int {
	c := child(t, role, filepath.Join(t.TempDir(), "tokens.db"))
	dropped := -1
	for dropped < 0 && c.out.Scan() {
		_, _ = fmt.Sscanf(c.out.Text(), "end %d", &dropped) // any other line is an error of the child
	}
	c.kill(t)
	_ = c.cmd.Wait() // fails because it was killed
	return dropped
}
