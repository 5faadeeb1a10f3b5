package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// openLines opens the issuance record with one line for each entry, in a file or on standard output. Without
// --issuance-record, it returns nil.
func (s *service) openLines() (issuance.Log, error) {
	switch file := s.options.IssuanceRecord; file {
	case "":
		return nil, nil
	case StandardOutput:
		return issuance.NewWriter(s.stdout), nil
	default:
		w, err := issuance.OpenFile(file)
		if err != nil {
			return nil, fmt.Errorf("--issuance-record: %w", err)
		}
		s.closers = append(s.closers, w.Close)
		return w, nil
	}
}

// watchRecord returns the issuance record of the authority. That record writes to the record of the stores and to
// lines. It is nil if both are nil.
func (s *service) watchRecord(own stores, lines issuance.Log) issuance.Log {
	w := &watchedRecord{
		kept: own.record, store: own.dropper, log: s.log,
		warnDropped: rate.Sometimes{Interval: recordWarned}, warnStore: rate.Sometimes{Interval: recordWarned}, warnLines: rate.Sometimes{Interval: recordWarned},
		failures: metrics.Counter(s.registry, "kubejoin_issuance_record_failures_total", "Entries of the issuance record that could not be written, by log: the store in --data-dir or etcd, or the lines of --issuance-record.", "log"),
		dropped:  metrics.Counter(s.registry, "kubejoin_issuance_record_dropped_total", "Entries of the issuance record in --data-dir or etcd that were dropped early because the disk was full or there were too many.").WithLabelValues(),
	}
	if w.copies = issuance.Copies(w.failed, own.record, lines); w.copies == nil {
		return nil
	}
	s.check("issuance-record", w.ready)
	return w
}

// recordNoticed is how long readiness reports dropped and failed entries.
const recordNoticed = 24 * time.Hour

// recordWarned is the minimum time between two log lines about dropped and failed entries.
const recordWarned = time.Minute

// A dropper is a record that reports how many entries it dropped before they were due.
type dropper interface {
	Dropped() (entries int, last time.Time)
}

// A watchedRecord writes the issuance record, and reports entries that were dropped or could not be written.
type watchedRecord struct {
	copies   issuance.Log
	kept     issuance.Log
	store    dropper // nil without a store
	log      *slog.Logger
	failures *prometheus.CounterVec
	dropped  prometheus.Counter

	mu       sync.Mutex
	counted  int // number of dropped entries in the metric so far
	lastFail time.Time

	warnDropped, warnStore, warnLines rate.Sometimes
}

// Append implements [issuance.Log].
func (w *watchedRecord) Append(ctx context.Context, e issuance.Entry) error {
	err := w.copies.Append(ctx, e)
	if w.store == nil {
		return err
	}
	if dropped, _ := w.store.Dropped(); w.drops(dropped) {
		w.warnDropped.Do(func() {
			w.log.Warn("issuance record entries dropped early, disk full or too many entries", "entries", dropped)
		})
	}
	return err
}

// drops adds dropped entries to the metric, and reports whether there are new ones.
func (w *watchedRecord) drops(dropped int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if dropped <= w.counted { // no new ones, or another request has already reported more
		return false
	}
	w.dropped.Add(float64(dropped - w.counted))
	w.counted = dropped
	return true
}

// failed records that a log could not write an entry.
func (w *watchedRecord) failed(l issuance.Log, err error) {
	kind, warn := "lines", &w.warnLines
	if l == w.kept {
		kind, warn = "store", &w.warnStore
	}
	w.failures.WithLabelValues(kind).Inc()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastFail = time.Now()
	warn.Do(func() { w.log.Error("cannot write issuance record", "log", kind, "error", err) })
}

// ready returns a notice if entries are missing.
func (w *watchedRecord) ready(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.lastFail.IsZero() && time.Since(w.lastFail) < recordNoticed {
		return api.Notice("kubejoin could not write entries of the issuance record, the last one at " + w.lastFail.UTC().Format(time.RFC3339) + "; see the log")
	}
	if w.store == nil {
		return nil
	}
	if dropped, last := w.store.Dropped(); dropped > 0 && time.Since(last) < recordNoticed {
		return api.Notice(fmt.Sprintf("kubejoin dropped %d entries of the issuance record early, the last one at %s: the disk is full, or there are too many", dropped, last.UTC().Format(time.RFC3339)))
	}
	return nil
}
