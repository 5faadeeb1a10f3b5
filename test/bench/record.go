package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	certificates "k8s.io/api/certificates/v1"
)

const (
	// recordQuota is the limit of etcd's database: the maximum that etcd recommends. The default is 2 GiB.
	recordQuota = 8 << 30
	// ofNode is how many entries have the same node, and ofToken how many have the same token.
	ofNode, ofToken = 200, 10
	// recordWriters is how many entries are written at the same time.
	recordWriters = 64
	recordSpan    = 300 * 24 * time.Hour // time between the first and the last entry
	recordQueries = 200                  // number of queries of each kind
)

// A recordWorld is an issuance record in etcd, and the data that its entries share.
type recordWorld struct {
	*bench
	*signingWorld
	etcd    *etcd.Cluster
	dir     string
	entries int
	began   time.Time
	tokens  []tokens.Token
}

// measureRecord measures a kubejoin on etcd with an empty record, and with a record of many entries.
func (b *bench) measureRecord(ctx context.Context, dir string) (err error) {
	world, err := newSigningWorld(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		return err
	}
	c, err := etcd.Start(ctx, etcd.Options{Sync: true, Quota: recordQuota, Dir: filepath.Join(dir, "etcd"), Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	w := &recordWorld{bench: b, signingWorld: world, etcd: c, dir: dir, entries: b.sizes.entries, began: time.Now().Add(-recordSpan)}
	w.tokens, _ = generate((w.entries + ofToken - 1) / ofToken)
	empty, err := w.measureSize(ctx, nil)
	if err != nil {
		return fmt.Errorf("empty record: %w", err)
	}
	if err := w.fill(ctx); err != nil {
		return fmt.Errorf("write entries: %w", err)
	}
	var queries strings.Builder
	full, err := w.measureSize(ctx, &queries)
	if err != nil {
		return fmt.Errorf("%s entries: %w", thousands(w.entries), err)
	}
	b.report.notes = append(b.report.notes, queries.String(), w.sizeTable(empty, full))
	return nil
}

// entry returns the n-th entry: a certificate for a year. It has all indexes.
func (w *recordWorld) entry(n int) issuance.Entry {
	node, id := fmt.Sprintf("worker-%d.example.com", n%((w.entries+ofNode-1)/ofNode)), w.tokens[n%len(w.tokens)].ID()
	at := w.began.Add(recordSpan / time.Duration(w.entries) * time.Duration(n))
	return issuance.Entry{
		Time: at, Outcome: issuance.Issued, Signer: certificates.KubeAPIServerClientKubeletSignerName, Requester: "system:bootstrap:" + id, TokenID: id,
		From: "10.20.30.40", Node: node, Subject: "CN=system:node:" + node + ",O=system:nodes", Usages: []string{"digital signature", "client auth"},
		SPKI: fmt.Sprintf("sha256:%064x", n), Serial: serialOf(n), Fingerprint: fmt.Sprintf("sha256:%064x", n), NotBefore: at.Add(-5 * time.Minute), NotAfter: at.AddDate(1, 0, 0),
		Approver: "kubejoin", Rule: "nodeclient", Evidence: []string{`"system:bootstrap:` + id + `" may create certificatesigningrequests/nodeclient`},
	}
}

// serialOf returns the serial number of the n-th entry. It is as long as kubejoin's serial numbers.
func serialOf(n int) string { return fmt.Sprintf("7%038x", n) }

// fill writes the entries, each as kubejoin does, and restarts etcd.
func (w *recordWorld) fill(ctx context.Context) error {
	store, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // ignore the error: everything is written
	record := rowrecord.NewWithoutCertificates(store.Issued())
	var next atomic.Int64
	var running sync.WaitGroup
	errs := make([]error, recordWriters)
	start := time.Now()
	for i := range errs {
		running.Go(func() {
			for errs[i] == nil && ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= w.entries {
					return
				}
				if n%100_000 == 0 {
					w.say("%d entries in %s", n, time.Since(start).Round(time.Second))
				}
				errs[i] = record.Append(ctx, w.entry(n))
			}
		})
	}
	running.Wait()
	w.say("%d entries in %s", w.entries, time.Since(start).Round(time.Second))
	return errors.Join(append(errs, ctx.Err())...)
}

func (w *recordWorld) open(ctx context.Context) (*etcdstore.Store, error) {
	files, err := w.etcd.User("root")
	if err != nil {
		return nil, err
	}
	return etcdstore.Open(ctx, etcdstore.Config{Endpoints: w.etcd.Endpoints(), CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key, NoCache: true})
}

// A recordSize has the measurements for one number of entries.
type recordSize struct {
	start, sweep       float64 // in milliseconds
	idle, most         float64 // memory of kubejoin, in bytes
	etcd, size, keeper float64 // memory and database of etcd, in bytes; time of its start in seconds
}

// measureSize restarts etcd and starts a kubejoin. With queries, it writes their table.
func (w *recordWorld) measureSize(ctx context.Context, queries *strings.Builder) (s recordSize, err error) {
	w.etcd.Kill(0)
	began := time.Now()
	if err := w.etcd.Restart(ctx, 0); err != nil {
		return s, err
	}
	s.keeper = time.Since(began).Seconds()
	// The first sweep is slow: an etcd that has just started reads its database into memory, page by page.
	if s.sweep, err = w.sweep(ctx); err != nil {
		return s, err
	}
	store, err := backendOf(w.etcd, w.dir)
	if err != nil {
		return s, err
	}
	var starts []float64
	for range w.rounds {
		took, idle, err := w.started(ctx, store, nil)
		if err != nil {
			return s, err
		}
		starts, s.idle = append(starts, took), idle
	}
	s.start = percentile(starts, 50)
	if s.etcd, err = memoryOf(store.pids[0], "RssAnon"); err != nil {
		return s, err
	}
	if queries != nil {
		if _, s.most, err = w.started(ctx, store, queries); err != nil {
			return s, err
		}
	}
	status, err := w.etcd.Client().Status(ctx, w.etcd.Endpoints()[0])
	if err != nil {
		return s, err
	}
	s.size = float64(status.DbSize)
	w.say("start %.0f ms, sweep %.0f ms, kubejoin %.0f and %.0f MB, etcd %.0f MB, database %.0f MB, start of etcd %.1f s", s.start, s.sweep, s.idle/1e6, s.most/1e6, s.etcd/1e6, s.size/1e6, s.keeper)
	return s, nil
}

// sweep returns how long a sweep takes that deletes nothing, in milliseconds.
func (w *recordWorld) sweep(ctx context.Context) (float64, error) {
	store, err := w.open(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = store.Close() }() // ignore the error: only reads
	var took []float64
	for range 10 {
		began := time.Now()
		if out, err := store.Issued().Sweep(ctx, time.Now(), recordSpan); err != nil || out.Deleted > 0 {
			return 0, fmt.Errorf("sweep deleted %d entries: %w", out.Deleted, err)
		}
		took = append(took, time.Since(began).Seconds()*1000)
	}
	return percentile(took, 50), nil
}

// started starts a kubejoin. It returns how many milliseconds pass until kubejoin has created a token, and its maximum
// memory. If queries is not nil, it also sends queries and writes their table.
func (w *recordWorld) started(ctx context.Context, store backend, queries *strings.Builder) (took, memory float64, err error) {
	s, stop, err := w.startStore(ctx, w.signingWorld, store, w.dir)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = stop(err) }()
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		r, err := storeLoads[0].request(s, 0)
		if err == nil {
			err = s.do(r.WithContext(ready))
		}
		if err == nil {
			break
		}
		select {
		case <-s.process.Done():
			return 0, 0, err
		case <-ready.Done():
			return 0, 0, err
		case <-time.After(2 * time.Millisecond):
		}
	}
	began, err := startedAt(s.process.PID())
	if err != nil {
		return 0, 0, err
	}
	took = time.Since(began).Seconds() * 1000
	if queries != nil {
		if err := w.query(ctx, s, store, queries); err != nil {
			return 0, 0, err
		}
	}
	memory, err = memoryOf(s.process.PID(), "VmHWM")
	return took, memory, err
}

// query measures the queries, one after the other, and writes their table.
func (w *recordWorld) query(ctx context.Context, s *storeWorld, store backend, table *strings.Builder) error {
	fmt.Fprintf(table, "| record of %s entries in etcd, one request after the other | p50 | p99 | calls | CPU of kubejoin | CPU of etcd |\n|---|---:|---:|---:|---:|---:|\n", thousands(w.entries))
	get := func(path func(entry int) string) func(*storeWorld, int) (*http.Request, error) {
		return func(s *storeWorld, _ int) (*http.Request, error) {
			r, err := http.NewRequest(http.MethodGet, path(rand.IntN(w.entries)), nil)
			if err == nil {
				r.Header.Set("Authorization", "Bearer "+s.bearer)
			}
			return r, err
		}
	}
	at := func(path string) func(int) string { return func(int) string { return path } }
	for _, q := range []struct {
		name     string
		requests int
		request  func(*storeWorld, int) (*http.Request, error)
	}{
		{fmt.Sprintf("list by node, 100 of %d", ofNode), recordQueries, get(func(n int) string { return "/v1/issued?node=" + w.entry(n).Node })},
		{fmt.Sprintf("list by token, all %d", ofToken), recordQueries, get(func(n int) string { return "/v1/issued?tokenID=" + w.entry(n).TokenID })},
		{"certificate by serial number", recordQueries, get(func(n int) string { return "/v1/issued/" + serialOf(n) })},
		{"list of the newest 100", recordQueries, get(at("/v1/issued"))},
		{"list of the next 100 that end", recordQueries, get(at("/v1/issued?endsWithin=90d"))},
		{"list of refusals, of which there are none", 1, get(at("/v1/issued?outcome=refused"))},
		{"new certificate, an admin", recordQueries, storeLoads[2].request},
	} {
		one, err := runStoreLoad(ctx, s, store, q.request, q.requests, 1)
		if err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
		line := fmt.Sprintf("| %s | %.1f ms | %.1f ms | %.1f | %.2f ms | %.2f ms |\n", q.name, one.p50, one.p99, one.calls, one.cpu, one.storeCPU)
		w.say("%s", strings.TrimSpace(line))
		table.WriteString(line)
	}
	return nil
}

func (w *recordWorld) sizeTable(empty, full recordSize) string {
	var table strings.Builder
	fmt.Fprintf(&table, "| record in etcd | empty | %s entries | for one entry |\n|---|---:|---:|---:|\n", thousands(w.entries))
	row := func(name, format string, scale float64, value func(recordSize) float64) {
		fmt.Fprintf(&table, "| %s | "+format+" | "+format+" | |\n", name, value(empty)/scale, value(full)/scale)
	}
	rowEach := func(name string, value func(recordSize) float64) {
		fmt.Fprintf(&table, "| %s | %.0f MB | %.0f MB | %.2f KB |\n", name, value(empty)/1e6, value(full)/1e6, (value(full)-value(empty))/1e3/float64(w.entries))
	}
	row("start of kubejoin to its first token", "%.0f ms", 1, func(s recordSize) float64 { return s.start })
	row("sweep that deletes nothing", "%.0f ms", 1, func(s recordSize) float64 { return s.sweep })
	row("kubejoin: most memory until its first token", "%.1f MB", 1e6, func(s recordSize) float64 { return s.idle })
	fmt.Fprintf(&table, "| … after the requests above | | %.1f MB | |\n", full.most/1e6)
	rowEach("etcd: memory without the file", func(s recordSize) float64 { return s.etcd })
	rowEach("etcd: size of its database", func(s recordSize) float64 { return s.size })
	row("etcd: time of its own restart", "%.1f s", 1, func(s recordSize) float64 { return s.keeper })
	return table.String()
}
