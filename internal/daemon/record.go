package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/boltrecord"
	"github.com/prometheus/client_golang/prometheus"
)

// openRecord opens the lines of the issuance record.
func (s *service) openRecord() error {
	switch file := s.options.IssuanceRecord; file {
	case "":
	case StandardOutput:
		s.lines = issuance.NewWriter(s.stdout)
	default:
		w, err := issuance.OpenFile(file)
		if err != nil {
			return fmt.Errorf("--issuance-record: %w", err)
		}
		s.lines, s.closers = w, append(s.closers, w.Close)
	}
	return nil
}

// record returns the issuance record of the authority: the store in DataDir and the lines of
// IssuanceRecord, or nil if there is neither.
func (s *service) record() issuance.Log {
	w := &watchedRecord{
		log:      s.log,
		failures: metrics.Counter(s.registry, "kubejoin_issuance_record_failures_total", "Entries of the issuance record that could not be kept: in the store of --data-dir, or in the lines of --issuance-record.", "log"),
		dropped:  metrics.Counter(s.registry, "kubejoin_issuance_record_dropped_total", "Entries of the issuance record in --data-dir that were dropped before they were due, since the disk was full or the file had its full size.").WithLabelValues(),
	}
	w.store, _ = s.kept.(*boltrecord.Record)
	if w.copies = issuance.Copies(w.failed, s.kept, s.lines); w.copies == nil {
		return nil
	}
	s.check("issuance-record", w.ready)
	return w
}

// recordNoticed is how long readiness reports that entries were dropped or not kept.
const recordNoticed = 24 * time.Hour

// recordWarned is the shortest time between two lines of the log about that.
const recordWarned = time.Minute

// A watchedRecord is the issuance record, and reports entries that are not kept.
type watchedRecord struct {
	copies   issuance.Log
	store    *boltrecord.Record // nil without DataDir
	log      *slog.Logger
	failures *prometheus.CounterVec
	dropped  prometheus.Counter

	mu       sync.Mutex
	counted  int // entries that the store has dropped
	warned   map[string]time.Time
	lastFail time.Time
}

// Append implements [issuance.Log].
func (w *watchedRecord) Append(ctx context.Context, e issuance.Entry) error {
	err := w.copies.Append(ctx, e)
	if w.store == nil {
		return err
	}
	if dropped, _ := w.store.Dropped(); w.drops(dropped) {
		w.log.Warn("entries of the issuance record were dropped to make room: the disk is full, or kubejoin.db has its full size", "entries", dropped)
	}
	return err
}

// drops counts entries that were dropped, and reports whether to log it.
func (w *watchedRecord) drops(dropped int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if dropped <= w.counted { // another request has reported more, or there is nothing new
		return false
	}
	w.dropped.Add(float64(dropped - w.counted))
	w.counted = dropped
	return w.due("dropped")
}

// due reports whether to log something of a kind. The caller holds the lock.
func (w *watchedRecord) due(kind string) bool {
	if now := time.Now(); now.Sub(w.warned[kind]) >= recordWarned {
		if w.warned == nil {
			w.warned = map[string]time.Time{}
		}
		w.warned[kind] = now
		return true
	}
	return false
}

// failed notes that a log has not kept an entry.
func (w *watchedRecord) failed(l issuance.Log, err error) {
	kind := "lines"
	if l == issuance.Log(w.store) {
		kind = "store"
	}
	w.failures.WithLabelValues(kind).Inc()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastFail = time.Now()
	if w.due(kind) {
		w.log.Error("the issuance record cannot be kept", "log", kind, "error", err)
	}
}

// ready returns a notice if entries are missing.
func (w *watchedRecord) ready(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.lastFail.IsZero() && time.Since(w.lastFail) < recordNoticed {
		return server.Notice("entries of the issuance record could not be kept, the last one at " + w.lastFail.UTC().Format(time.RFC3339) + ", see the log")
	}
	if w.store == nil {
		return nil
	}
	if dropped, last := w.store.Dropped(); dropped > 0 && time.Since(last) < recordNoticed {
		return server.Notice(fmt.Sprintf("%d entries of the issuance record were dropped to make room, the last one at %s: the disk is full, or kubejoin.db has its full size", dropped, last.UTC().Format(time.RFC3339)))
	}
	return nil
}
