package boltstore_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
)

// The record must not exceed its maximum size. It must drop refusals first, then the certificates that end first.
func TestRecordHasMaximumSize(t *testing.T) {
	const most = 2 << 20
	s := open(t, filepath.Join(t.TempDir(), "tokens.db"))
	record := s.Issued()
	s.SetMaxSize(most)
	now := time.Now()
	for i := range 20 {
		add(t, record, issuancetest.Refused(now, i), issuancetest.Issued(now, fmt.Sprintf("a%x", i), 365*24*time.Hour))
	}
	if n, last := s.Dropped(); n != 0 || !last.IsZero() {
		t.Fatalf("dropped %d entries at %s, want 0: there is space for all", n, last)
	}
	var last []string
	for round := range 12 {
		last = nil
		must.OK(t, appendAll(s, func(yield func(issuance.Entry) bool) {
			for i := range 100 {
				serial := fmt.Sprintf("b%x%03x", round, i)
				if last = append(last, serial); !yield(large(issuancetest.Issued(now.Add(time.Duration(round)), serial, time.Duration(round+1)*time.Hour))) {
					return
				}
			}
		}))
		if n := s.InUse(); round > 3 && n > most+2<<20 { // plus the size of one import
			t.Errorf("round %d: %d bytes are in use", round, n)
		}
	}
	found := must.Value(serials(record))(t)
	for i := range 20 {
		if found[fmt.Sprintf("a%x", i)] != 1 {
			t.Errorf("dropped certificate a%x, which ends last", i)
		}
	}
	if slices.ContainsFunc(last, func(serial string) bool { return found[serial] != 1 }) || found["b0000"] != 0 {
		t.Errorf("got %d certificates of the first round, but not all of the last", found["b0000"])
	}
	if got := list(t, record, issuance.Query{Outcome: issuance.Refused}); len(got) != 0 {
		t.Errorf("got %d refusals, want 0 because certificates were dropped", len(got))
	}
	if n, at := s.Dropped(); n != 1240-len(found) && n != 1240-len(found)+1 || at.IsZero() {
		t.Errorf("got %d dropped entries and %d certificates", n, len(found))
	}
}

// The store must not count entries as dropped that it deletes at the end of their retention.
func TestDueEntriesAreNotDropped(t *testing.T) {
	s := openNew(t)
	record := s.Issued()
	now := time.Now()
	old := now.Add(-200 * 24 * time.Hour)
	add(t, record, issuancetest.Issued(old, "1f", time.Hour), issuancetest.Refused(old, 1), issuancetest.Issued(now, "2f", time.Hour))
	if got := list(t, record, issuance.Query{}); !slices.Equal(got, []string{"2f"}) {
		t.Errorf("the record has %v", got)
	}
	if n, _ := s.Dropped(); n != 0 {
		t.Errorf("got %d dropped entries, want 0", n)
	}
}
