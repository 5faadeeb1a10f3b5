package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Rows of the table that do not belong to a burst.
const (
	rowStart    = "start to first signature"
	rowIdle     = "resident memory, idle"
	rowJoinRate = "join commands, 32 clients"
)

type csrRow struct{ rate, p50, p99, cpu, calls, plane, rss string }

func csrRows(l csrLoad) csrRow {
	of := fmt.Sprintf("%s CSRs, %s: ", thousands(l.requests), l.name)
	return csrRow{
		rate: of + "issued", p50: of + "p50", p99: of + "p99", cpu: of + "CPU for one", calls: of + "API calls for one",
		plane: of + "CPU of API server and etcd for one", rss: of + "resident memory",
	}
}

type tokenRow struct {
	p50, p99, writes, cpu, rss                        string
	expireP99, expireDeleted, expireWrites, expireCPU string
}

func tokenRows(n int) tokenRow {
	of := thousands(n) + " tokens "
	return tokenRow{
		p50: of + "created: to signed, p50", p99: of + "created: to signed, p99", writes: of + "created: writes of cluster-info",
		cpu: of + "created: CPU", rss: of + "created: resident memory",
		expireP99: of + "expired: to unsigned, p99", expireDeleted: of + "expired: until all are deleted", expireWrites: of + "expired: writes", expireCPU: of + "expired: CPU",
	}
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// A report is the table of results.
type report struct {
	rows  []string
	units map[string]string
	found map[string]map[contender][]float64
	notes []string // further tables
}

func (r *report) define(unit string, rows ...string) {
	if r.units == nil {
		r.units, r.found = map[string]string{}, map[string]map[contender][]float64{}
	}
	for _, row := range rows {
		if _, known := r.units[row]; !known {
			r.rows = append(r.rows, row)
		}
		r.units[row] = unit
	}
}

// defineRows defines the order of the rows and the units of their values.
func (b *bench) defineRows() {
	r := b.report
	for _, load := range slices.Concat(csrLoads(b.csrs), slowLoads(b.slow)) {
		row := csrRows(load)
		r.define("/s", row.rate)
		r.define("ms", row.p50, row.p99, row.cpu)
		r.define("", row.calls)
		r.define("ms", row.plane)
		r.define("MB", row.rss)
	}
	for _, n := range b.tokens {
		row := tokenRows(n)
		r.define("ms", row.p50, row.p99)
		r.define("", row.writes)
		r.define("s", row.cpu)
		r.define("MB", row.rss)
		r.define("ms", row.expireP99)
		r.define("s", row.expireDeleted)
		r.define("", row.expireWrites)
		r.define("s", row.expireCPU)
	}
	r.define("/s", rowJoinRate)
	r.define("ms", rowStart)
	r.define("MB", rowIdle)
	for _, tokens := range []string{"one token", "a token each"} {
		row := waitingRows(b.waiting, tokens)
		r.define("MB", row.resident, row.most)
	}
	for _, n := range b.nodes {
		row := nodeRows(n)
		r.define("MB", row.resident, row.most)
	}
}

func (r *report) add(row string, who contender, value float64) {
	if r.found[row] == nil {
		r.found[row] = map[contender][]float64{}
	}
	r.found[row][who] = append(r.found[row][who], value)
}

func (r *report) print(w *bytes.Buffer, rounds int, took time.Duration) {
	fmt.Fprintf(w, "%s, %d processors, %s/%s, %s, %s; medians of %d rounds in %s.\n\n",
		time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, processor(), runtime.Version(), rounds, took.Round(time.Second))
	if len(r.found) > 0 {
		fmt.Fprintf(w, "| | %s | %s | ratio | %s |\n|---|---:|---:|---:|---:|\n", ours, theirs, stock)
	}
	for _, row := range r.rows {
		values := r.found[row]
		if values == nil {
			continue
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", row, r.cell(row, ours), r.cell(row, theirs), r.ratio(row), r.cell(row, stock))
	}
	for i, note := range r.notes {
		if i > 0 || len(r.found) > 0 {
			w.WriteString("\n")
		}
		w.WriteString(note)
	}
}

// The figures in a document are between these lines. After headlinesBegin, only the main rows follow.
const (
	figuresBegin   = "<!-- figures -->"
	headlinesBegin = "<!-- main figures -->"
	figuresEnd     = "<!-- end of figures -->"
)

func (r *report) replaceFigures(file string, table []byte, rounds int) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, begin := range []string{figuresBegin, headlinesBegin} {
		before, rest, found := bytes.Cut(text, []byte(begin+"\n"))
		old, after, ended := bytes.Cut(rest, []byte(figuresEnd))
		if !found || !ended {
			continue
		}
		if begin == headlinesBegin {
			table = r.headlines(string(old), fmt.Sprintf("%s, %s, %d rounds", time.Now().UTC().Format("2006-01-02"), revision(), rounds))
		}
		return os.WriteFile(file, slices.Concat(before, []byte(begin+"\n"), table, []byte(figuresEnd), after), 0o644)
	}
	return fmt.Errorf("%s has no lines %q or %q, and %q", file, figuresBegin, headlinesBegin, figuresEnd)
}

// headlines returns a table of the main rows. It keeps the rows of the old table that this run has not measured.
func (r *report) headlines(old, measured string) []byte {
	var table bytes.Buffer
	fmt.Fprintf(&table, "| | %s | %s | ratio | measured |\n|---|---:|---:|---:|---|\n", ours, theirs)
	for _, row := range headlineRows() {
		if len(r.found[row][ours]) > 0 {
			fmt.Fprintf(&table, "| %s | %s | %s | %s | %s |\n", row, r.cell(row, ours), r.cell(row, theirs), r.ratio(row), measured)
			continue
		}
		for line := range strings.Lines(old) {
			if strings.HasPrefix(line, "| "+row+" |") {
				table.WriteString(line)
			}
		}
	}
	return table.Bytes()
}

// headlineRows returns the main rows of a run with the default sizes.
func headlineRows() (rows []string) {
	loads := csrLoads(2000)
	each, one, limited := csrRows(loads[0]), csrRows(loads[1]), csrRows(loads[2])
	rows = []string{each.rate, each.p99, each.cpu, each.plane, each.calls, one.rate, limited.rate}
	for _, load := range slowLoads(500) {
		rows = append(rows, csrRows(load).rate)
	}
	return append(rows, tokenRows(12_000).p99, rowJoinRate, rowIdle,
		waitingRows(20_000, "a token each").resident, nodeRows(20_000).resident, nodeRows(100_000).resident)
}

// revision returns the commit of this program, with a + if the build had uncommitted changes.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown commit"
	}
	commit, changed := "unknown commit", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(len(s.Value), 7)]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	return commit + changed
}

// ratio returns kubejoin's value in a row, divided by the value of kube-controller-manager without request limits. It is
// empty if one of the values is missing.
func (r *report) ratio(row string) string {
	a, b := r.found[row][ours], r.found[row][theirs]
	if len(a) == 0 || len(b) == 0 || percentile(b, 50) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", percentile(a, 50)/percentile(b, 50))
}

func (r *report) cell(row string, who contender) string {
	values := r.found[row][who]
	if len(values) == 0 {
		return ""
	}
	v := percentile(values, 50)
	digits := 0
	switch {
	case v == float64(int64(v)):
	case v < 10:
		digits = 2
	case v < 100:
		digits = 1
	}
	return strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, v, r.units[row]))
}

// percentile returns the p-th percentile of values, by the nearest-rank method.
func percentile(values []float64, p int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

func processor() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(data)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
