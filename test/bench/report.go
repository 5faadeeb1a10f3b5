package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Rows of the table that belong to no burst.
const (
	rowStart      = "start to first signature"
	rowIdle       = "resident memory, idle"
	rowBinary     = "size of the program"
	rowJoinOne    = "join command, one after the other: p50"
	rowJoinUsable = "… until its token is signed: p50"
	rowJoinRate   = "join commands, 32 clients"
	rowJoinMany   = "… until signed: p50"
	rowJoinMany99 = "… until signed: p99"
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
	deleteP99, deleteWrites, deleteCPU                string
	expireP99, expireDeleted, expireWrites, expireCPU string
}

func tokenRows(n int) tokenRow {
	of := thousands(n) + " tokens "
	if n == 1 {
		of = "1 token "
	}
	return tokenRow{
		p50: of + "created: to signed, p50", p99: of + "created: to signed, p99", writes: of + "created: writes of cluster-info",
		cpu: of + "created: CPU", rss: of + "created: resident memory",
		deleteP99: of + "deleted: to unsigned, p99", deleteWrites: of + "deleted: writes", deleteCPU: of + "deleted: CPU",
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
	for _, load := range csrLoads(b.csrs) {
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
		r.define("ms", row.deleteP99)
		r.define("", row.deleteWrites)
		r.define("s", row.deleteCPU)
		r.define("ms", row.expireP99)
		r.define("s", row.expireDeleted)
		r.define("", row.expireWrites)
		r.define("s", row.expireCPU)
	}
	r.define("ms", rowJoinOne, rowJoinUsable)
	r.define("/s", rowJoinRate)
	r.define("ms", rowJoinMany, rowJoinMany99, rowStart)
	r.define("MB", rowIdle, rowBinary)
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
		ratio := ""
		if a, b := values[ours], values[theirs]; len(a) > 0 && len(b) > 0 && percentile(b, 50) > 0 {
			ratio = fmt.Sprintf("%.2f", percentile(a, 50)/percentile(b, 50))
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", row, r.cell(row, ours), r.cell(row, theirs), ratio, r.cell(row, stock))
	}
	for i, note := range r.notes {
		if i > 0 || len(r.found) > 0 {
			w.WriteString("\n")
		}
		w.WriteString(note)
	}
}

// The figures are between these lines of a document.
const (
	figuresBegin = "<!-- figures -->"
	figuresEnd   = "<!-- end of figures -->"
)

func replaceFigures(file string, table []byte) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(text, []byte(figuresBegin+"\n"))
	_, after, ended := bytes.Cut(rest, []byte(figuresEnd))
	if !found || !ended {
		return fmt.Errorf("%s has no lines %q and %q", file, figuresBegin, figuresEnd)
	}
	return os.WriteFile(file, slices.Concat(before, []byte(figuresBegin+"\n"), table, []byte(figuresEnd), after), 0o644)
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
