package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// TestSlowServerDelaysAndKeepsOrder catches responses that arrive early, in another order or not at all.
func TestSlowServerDelaysAndKeepsOrder(t *testing.T) {
	echo := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = echo.Close() }()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	s := must.Value(newSlowServer(echo.Addr().String()))(t)
	defer s.close()
	const delay = 100 * time.Millisecond
	s.delay.Store(int64(delay))
	c := must.Value(net.Dial("tcp", s.address()))(t)
	defer func() { _ = c.Close() }()
	sent := bytes.Repeat([]byte("0123456789"), 20_000) // large enough for many reads
	began := time.Now()
	go func() { _, _ = c.Write(sent) }()
	got := make([]byte, len(sent))
	must.Value(io.ReadFull(c, got[:1]))(t)
	if took := time.Since(began); took < delay {
		t.Errorf("the first byte took %v, want at least %v", took, delay)
	}
	must.Value(io.ReadFull(c, got[1:]))(t)
	if !bytes.Equal(got, sent) {
		t.Error("the bytes arrived in another order")
	}
}

// TestHeadlinesKeepWhatWasNotMeasured catches a run of one subject that removes the figures of other subjects.
func TestHeadlinesKeepWhatWasNotMeasured(t *testing.T) {
	b := &bench{sizes: sizes{csrs: 2000, slow: 500, tokens: []int{12_000}}, report: &report{}}
	b.defineRows()
	row := csrRows(csrLoads(2000)[0]).rate
	for _, rate := range []float64{300, 100, 200} {
		b.report.add(row, ours, rate)
		b.report.add(row, theirs, rate*2)
	}
	file := filepath.Join(t.TempDir(), "page.md")
	kept := "| " + rowJoinRate + " | 1 /s | 2 /s | 0.50 | long ago |\n"
	must.OK(t, os.WriteFile(file, []byte("before\n"+headlinesBegin+"\n| "+row+" | 9 /s | | | long ago |\n"+kept+"| no such row | 1 |\n"+figuresEnd+"\nafter\n"), 0o600))
	must.OK(t, b.report.replaceFigures(file, []byte("the whole table\n"), 3))
	text := must.Value(os.ReadFile(file))(t)
	got := string(text)
	for _, want := range []string{"before\n", "| " + row + " | 200 /s | 400 /s | 0.50 | ", ", 3 rounds |\n" + kept + figuresEnd + "\nafter\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q in it", got, want)
		}
	}
	for _, dropped := range []string{"9 /s", "no such row", "the whole table"} {
		if strings.Contains(got, dropped) {
			t.Errorf("got\n%s\nwant it without %q", got, dropped)
		}
	}
}

// TestIssuedTimesCountsEachRequest catches a count that hides a lost request behind a request of another client.
func TestIssuedTimesCountsEachRequest(t *testing.T) {
	times := &issuedTimes{at: map[string]time.Time{"a": time.Now(), "of-another": time.Now()}}
	if _, got := times.of([]string{"a", "lost"}); got != 1 {
		t.Errorf("got %d issued requests, want 1", got)
	}
}

func TestWorkerNodeHasRealSize(t *testing.T) {
	// The API server adds about 1 KB of managedFields.
	if size := workerNode(99_999).Size(); size < 8_500 || size > mostNode-500 {
		t.Errorf("a Node has %d bytes, want 8500 to %d", size, mostNode-500)
	}
	if a, b := workerNode(65_535), workerNode(65_536); a.Name == b.Name || a.Status.Addresses[0] == b.Status.Addresses[0] {
		t.Errorf("two Nodes have the same name or address: %s, %s", a.Name, b.Name)
	}
}

// TestPageOfFiguresIsShort catches too many main rows for docs/benchmarks.md, which may have 110 lines.
func TestPageOfFiguresIsShort(t *testing.T) {
	text := must.Value(os.ReadFile("../../docs/benchmarks.md"))(t)
	page := string(text)
	missing := 0 // number of rows that no run has measured yet
	for _, row := range headlineRows() {
		switch strings.Count(page, "| "+row+" |") {
		case 0:
			missing++
		case 1:
		default:
			t.Errorf("docs/benchmarks.md has row %q more than once", row)
		}
	}
	if lines := strings.Count(page, "\n") + missing; lines >= 105 {
		t.Errorf("docs/benchmarks.md has %d lines with all rows, want fewer than 105", lines)
	}
	if missing == len(headlineRows()) {
		t.Error("docs/benchmarks.md has none of the main rows")
	}
}
