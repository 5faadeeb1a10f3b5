package rowrecord_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// counted returns the configuration of a store whose calls pass through Faults, which fail none.
func counted(t *testing.T, c *etcd.Cluster, prefix string) (etcdstore.Config, *etcd.Faults) {
	t.Helper()
	network := must.Value(c.Network())(t)
	t.Cleanup(network.Close)
	f := must.Value(c.Faults(network, "root", 1, 0))(t)
	t.Cleanup(f.Close)
	config := c.StoreConfig(t, prefix)
	config.Endpoints = f.Endpoints()
	return config, f
}

// The cost of a query depends on the entries that it finds, not on the size of the record: with a million entries, it
// must take milliseconds.
func TestQueriesReadOnlyWhatTheyFind(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	config, f := counted(t, c, "/queries")
	config.NoCache = true
	s := must.Value(etcdstore.Open(t.Context(), config))(t)
	t.Cleanup(func() { _ = s.Close() }) // only reads are left
	r := rowrecord.NewWithoutCertificates(s.Issued())

	const entries, ofNode, ofToken, refusals = 3000, 200, 10, 6 // of each kind more than a page
	start := time.Now().Add(-entries * time.Minute)
	at := func(n int) time.Time { return start.Add(time.Duration(n) * time.Minute) }
	numbers := make(chan int)
	var running sync.WaitGroup
	for range 32 {
		running.Go(func() {
			for n := range numbers {
				e := issuancetest.Issued(at(n), fmt.Sprintf("1%04x", n), 100*time.Hour)
				e.Node, e.TokenID = fmt.Sprint("worker-", n%(entries/ofNode)), fmt.Sprintf("%06d", n%(entries/ofToken))
				e.Requester = tokens.BootstrapUserPrefix + e.TokenID
				if err := r.Append(t.Context(), e); err != nil {
					t.Error(err)
				}
				if n%(entries/refusals) == 0 {
					if err := r.Append(t.Context(), issuancetest.Refused(at(n), n)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for n := range entries {
		numbers <- n
	}
	close(numbers)
	running.Wait()

	end := func(n int) time.Time { return at(n).Add(100 * time.Hour) }
	for _, test := range []struct {
		name              string
		q                 issuance.Query
		want, calls, rows int
		visited           int64
	}{
		// A page reads the index and the entries. Reading one more page shows whether there are more entries.
		{"node", issuance.Query{Node: "worker-7"}, 100, 4, 400, 200 + 100 + 200},
		{"unknown node", issuance.Query{Node: "worker"}, 0, 1, 0, 0},
		{"token", issuance.Query{TokenID: "000042"}, ofToken, 2, 2 * ofToken, 2 * ofToken},
		{"requester with a token", issuance.Query{Requester: tokens.BootstrapUserPrefix + "000042"}, ofToken, 2, 2 * ofToken, 2 * ofToken},
		{"node since", issuance.Query{Node: "worker-7", Since: at(entries - ofNode)}, 13, 2, 28, 28},
		{"token and end", issuance.Query{TokenID: "000042", EndsBefore: end(entries)}, ofToken, 2, 2 * ofToken, 2 * ofToken},
		{"refused", issuance.Query{Outcome: issuance.Refused}, refusals, 2, 2 * refusals, 2 * refusals},
		{"failed since", issuance.Query{Outcome: issuance.Failed, Since: at(entries - 600)}, 0, 1, 0, 0},
		// A read covers some hours, because each hour has 60 entries.
		{"since", issuance.Query{Since: at(entries - 10)}, 10, 1, 10, 10},
		{"newest", issuance.Query{}, 100, 3, 200, 1200},
		{"end", issuance.Query{EndsAfter: end(1000), EndsBefore: end(1010)}, 9, 4, 320, 1500},
		{"end, of no signer", issuance.Query{EndsAfter: end(1000), EndsBefore: end(1010), Signer: "example.com/x"}, 0, 4, 320, 1500},
		{"end late", issuance.Query{EndsAfter: end(entries - 11)}, 10, 8, 30, 100},
	} {
		f.TakeReads()
		found := issuancetest.List(t, r, test.q)
		reads := f.TakeReads()
		t.Logf("%s: %d calls, %d rows, %d keys visited", test.name, reads.Calls, reads.Rows, reads.Visited)
		if len(found) != test.want || reads.Calls > test.calls || reads.Rows > test.rows || reads.Visited > test.visited {
			t.Errorf("%s: found %d entries with %d calls, %d rows and %d keys, want %d with at most %d, %d and %d",
				test.name, len(found), reads.Calls, reads.Rows, reads.Visited, test.want, test.calls, test.rows, test.visited)
		}
	}
	f.TakeReads()
	if _, err := r.Get(t.Context(), "10abc"); err != nil {
		t.Error(err)
	}
	if reads := f.TakeReads(); reads.Calls > 2 || reads.Rows > 2 {
		t.Errorf("serial number: %d calls and %d rows, want at most 2 and 2", reads.Calls, reads.Rows)
	}
	rows := 0
	if err := rowstore.EachPage(t.Context(), s.DB(), "issued/", func(page []rowstore.Row) error { rows += len(page); return nil }); err != nil || rows != entries+refusals {
		t.Errorf("EachPage visits %d rows, %v, want %d", rows, err, entries+refusals)
	}
	// Without short ranges, List would visit twice as many keys as exist.
	if reads := f.TakeReads(); reads.Visited > 3*entries/2 || reads.Rows < rows {
		t.Errorf("all pages: %d keys visited and %d rows, want at most %d and at least %d", reads.Visited, reads.Rows, 3*entries/2, rows)
	}
	if _, err := s.Issued().Sweep(t.Context(), time.Now(), 1000*time.Hour); err != nil {
		t.Error(err)
	}
	// Sweep counts both kinds of entries, and then reads the entries that are due.
	if reads := f.TakeReads(); reads.Calls > 4 || reads.Rows > 0 || reads.Visited > entries+refusals {
		t.Errorf("sweep: %d calls, %d rows and %d keys, want at most 4, none and %d", reads.Calls, reads.Rows, reads.Visited, entries+refusals)
	}
}

// A start with a million entries must be as fast as a start without entries.
func TestOpenReadsNothingOfTheRecord(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	const prefix = "/start"
	issuancetest.Add(t, rowrecord.NewWithoutCertificates(c.StoreAt(t, prefix).Issued()), issuancetest.Issued(time.Now(), "1f", time.Hour))
	config, f := counted(t, c, prefix)
	s := must.Value(etcdstore.Open(t.Context(), config))(t)
	t.Cleanup(func() { _ = s.Close() }) // only reads are left
	rowrecord.NewWithoutCertificates(s.Issued())
	must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Authentication: true}))(t)
	// Each cache lists its folder and then watches it.
	var reads etcd.Reads
	for _, folder := range []string{"tokens/", "claims/", "revocations/"} {
		wait.Until(t, "a list and a watch of "+folder, func() bool {
			more := f.TakeReads()
			reads.Ranges = append(reads.Ranges, more.Ranges...)
			ranges := slices.DeleteFunc(slices.Clone(reads.Ranges), func(r [2]string) bool { return !etcd.Reads{Ranges: [][2]string{r}}.Touches(prefix + "/" + folder) })
			return len(ranges) >= 2
		})
	}
	if reads.Touches(prefix+"/issued") || reads.Touches(prefix+"/unissued/") {
		t.Errorf("read keys of the record: %q", reads.Ranges)
	}
}

// Lists read entries in ranges of time, which grow and shrink. Wherever a range begins and ends, no entry is lost or
// repeated.
func TestListFindsEntriesOfAnyTime(t *testing.T) {
	r := rowrecord.NewWithoutCertificates(etcd.ForTest(t, etcd.Options{}).Store(t).Issued())
	now := time.Now()
	var times []time.Time
	some := func(n int, first time.Time, step time.Duration) {
		for i := range n {
			times = append(times, first.Add(time.Duration(i)*step))
		}
	}
	some(2, time.Unix(0, 0), 1)
	some(150, time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), 0)
	some(1, now.AddDate(-1, 0, 0), 0)
	some(1100, now.Add(-time.Minute), time.Microsecond)
	some(3, now.Add(-2*time.Second), time.Second)
	some(2, now.AddDate(200, 0, 0), time.Hour)
	numbers := make(chan int)
	var running sync.WaitGroup
	for range 32 {
		running.Go(func() {
			for n := range numbers {
				e := issuancetest.Issued(times[n], fmt.Sprintf("1%04x", n), 0)
				e.NotBefore = times[n]
				if err := r.Append(t.Context(), e); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := range times {
		numbers <- n
	}
	close(numbers)
	running.Wait()
	for _, q := range []issuance.Query{{Limit: 1000}, {Limit: 7}, {Limit: 1000, EndsAfter: time.Unix(-1, 0)}, {Limit: 7, EndsAfter: time.Unix(-1, 0)}} {
		found := map[string]bool{}
		var last time.Time
		for pages := 0; ; pages++ {
			page, err := r.List(t.Context(), q)
			if err != nil || pages > len(times) {
				t.Fatalf("page %d: %v", pages, err)
			}
			for _, e := range page.Entries {
				later := e.Time.After(last)
				if found[e.Serial] || len(found) > 0 && !e.Time.Equal(last) && later != q.ByEnd() {
					t.Fatalf("%+v: entry %s of %s after one of %s", q, e.Serial, e.Time, last)
				}
				found[e.Serial], last = true, e.Time
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
		if len(found) != len(times) {
			t.Errorf("%+v: found %d entries, want %d", q, len(found), len(times))
		}
	}
}
