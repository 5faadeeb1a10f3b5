package issuance_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance"
)

// TestMain appends entries until it is killed if ISSUANCE_TEST_FILE is set: TestConcurrentWritersKeepWholeLines
// starts such programs.
func TestMain(m *testing.M) {
	if path := os.Getenv("ISSUANCE_TEST_FILE"); path != "" {
		w, err := issuance.OpenFile(path)
		for i := 0; err == nil; i++ {
			err = w.Append(context.Background(), issuance.Entry{Signer: fmt.Sprint(os.Getpid()), Serial: fmt.Sprintf("%x", i+1), Message: strings.Repeat("x", 5000)})
			if i == 20 {
				fmt.Println("ready")
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// readRecord returns the entries of a record and the number of malformed lines.
func readRecord(t *testing.T, path string) (entries []issuance.Entry, torn int) {
	t.Helper()
	content := must.Value(os.ReadFile(path))(t)
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e issuance.Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			torn++
			continue
		}
		entries = append(entries, e)
	}
	return entries, torn
}

func serials(entries []issuance.Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Serial)
	}
	return strings.Join(all, " ")
}

func openFile(t *testing.T, path string) *issuance.Writer {
	t.Helper()
	w := must.Value(issuance.OpenFile(path))(t)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func mustAppend(t *testing.T, w issuance.Log, serial string) {
	t.Helper()
	must.OK(t, w.Append(t.Context(), issuance.Entry{Serial: serial}))
}

func TestEntryIsOneJSONLine(t *testing.T) {
	var out bytes.Buffer
	at := time.Date(2026, 11, 20, 1, 2, 3, 4000, time.UTC)
	e := issuance.Entry{
		Time: at, Outcome: issuance.Issued, Signer: "kubernetes.io/kubelet-serving", Requester: "system:node:worker-1", Serial: "1f",
		NotBefore: at, NotAfter: at.Add(time.Hour), DNSNames: []string{"worker-1"}, Certificate: "-----BEGIN CERTIFICATE-----\nx\n",
	}
	must.OK(t, issuance.NewWriter(&out).Append(t.Context(), e))
	const want = `{"time":"2026-11-20T01:02:03.000004Z","outcome":"issued","signer":"kubernetes.io/kubelet-serving","requester":"system:node:worker-1","dnsNames":["worker-1"],` +
		`"serial":"1f","notBefore":"2026-11-20T01:02:03.000004Z","notAfter":"2026-11-20T02:02:03.000004Z","certificate":"-----BEGIN CERTIFICATE-----\nx\n"}` + "\n"
	if out.String() != want {
		t.Errorf("got line\n%swant\n%s", &out, want)
	}
	var back issuance.Entry
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || !reflect.DeepEqual(back, e) {
		t.Errorf("got %+v, %v, want the same entry", back, err)
	}
}

func TestAppendWritesNothingOfMalformedEntry(t *testing.T) {
	var out bytes.Buffer
	if err := issuance.NewWriter(&out).Append(t.Context(), issuance.Entry{Time: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}); err == nil || out.Len() > 0 {
		t.Errorf("Append = %v and wrote %q, want an error and nothing", err, &out)
	}
}

// For any subject, an entry must be one line of printable, valid UTF-8, and must be readable.
func TestEntryWithHostileTextIsOneCleanLine(t *testing.T) {
	for name, text := range map[string]string{
		"line breaks": "a\nb\r\nc\u2028d\u2029e\u0085f\v\f", "quotes": `a"b\c`, "terminal": "\x1b[2J\u009b2J\x07\x7f", "NUL": "a\x00b",
		"direction": "a\u202eb\u2066c", "beyond 16 bits": "\U000e0001x\U0001f600\U0010ffff", "letters": "Müller 李 ﬃ", "markup": "<a&b>", "no-break space": "a\u00a0b",
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			must.OK(t, issuance.NewWriter(&out).Append(t.Context(), issuance.Entry{Subject: text, DNSNames: []string{text}}))
			line, rest, _ := strings.Cut(out.String(), "\n")
			if rest != "" || strings.ContainsFunc(line, func(r rune) bool {
				return r < ' ' || r >= 0x7f && r <= 0x9f || strings.ContainsRune("\u2028\u2029\u202e\u2066\ufffd\u00a0\U000e0001\U0010ffff", r)
			}) {
				t.Errorf("got line %q", out.String())
			}
			var e issuance.Entry
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Subject != text || e.DNSNames[0] != text {
				t.Errorf("%q: got %q, %v after reading back", text, e.Subject, err)
			}
		})
	}
	var out bytes.Buffer
	var e issuance.Entry
	if err := errors.Join(issuance.NewWriter(&out).Append(t.Context(), issuance.Entry{Subject: "a\xff\xc3(b"}), json.Unmarshal(out.Bytes(), &e)); err != nil || e.Subject != "a\ufffd\ufffd(b" {
		t.Errorf("invalid UTF-8: got %q, %v after reading back", e.Subject, err)
	}
}

// partialWriter accepts only a number of bytes of each write. A negative number means all bytes.
type partialWriter struct {
	bytes.Buffer
	accepts int
	err     error
	calls   int
}

func (m *partialWriter) Write(p []byte) (int, error) {
	m.calls++
	if m.accepts >= 0 && m.accepts < len(p) {
		n, _ := m.Buffer.Write(p[:m.accepts])
		return n, m.err
	}
	return m.Buffer.Write(p)
}

// A partial write is an error, and the next entry must start on a new line.
func TestPartialWriteDoesNotSpoilNextLine(t *testing.T) {
	full := errors.New("no space left on device")
	for name, test := range map[string]struct {
		accepts int
		err     error
		want    error
		blanks  int
	}{
		"nothing":               {0, full, full, 0},
		"one byte":              {1, full, full, 1},
		"all but the newline":   {len(`{"time":"0001-01-01T00:00:00Z","outcome":"","signer":"","requester":"","serial":"2"}`), full, full, 1},
		"short write, no error": {10, nil, io.ErrShortWrite, 1},
	} {
		t.Run(name, func(t *testing.T) {
			out := &partialWriter{accepts: -1}
			w := issuance.NewWriter(out)
			mustAppend(t, w, "1")
			out.accepts, out.err = test.accepts, test.err
			for range 3 {
				if err := w.Append(t.Context(), issuance.Entry{Serial: "2"}); !errors.Is(err, test.want) {
					t.Fatalf("Append = %v, want %v", err, test.want)
				}
			}
			out.accepts = -1
			mustAppend(t, w, "3")
			mustAppend(t, w, "4")
			if out.calls != 6 {
				t.Errorf("got %d writes, want 6", out.calls)
			}
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			var got []string
			for _, line := range lines {
				var e issuance.Entry
				if json.Unmarshal([]byte(line), &e) == nil && e.Serial != "2" { // the failed entry is complete except for its newline
					got = append(got, e.Serial)
				}
			}
			if strings.Join(got, " ") != "1 3 4" {
				t.Errorf("got lines\n%s", out)
			}
		})
	}
}

func TestOpenFileContinuesAfterTornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	w := openFile(t, path)
	mustAppend(t, w, "1")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want mode 0600", info.Mode(), err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	if err := w.Append(t.Context(), issuance.Entry{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Append after Close = %v", err)
	}
	// If a killed program left a partial line, the Writer ends this line. Existing entries stay.
	f := must.Value(os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0))(t)
	must.Value(f.WriteString(`{"time":"2026-`))(t)
	_ = f.Close()
	mustAppend(t, openFile(t, path), "2")
	if entries, torn := readRecord(t, path); serials(entries) != "1 2" || torn != 1 {
		t.Errorf("got entries %s and %d torn lines, want 1 2 and 1", serials(entries), torn)
	}
	for _, bad := range []string{filepath.Dir(path), filepath.Join(path, "x"), filepath.Join(filepath.Dir(path), "no", "x")} {
		if _, err := issuance.OpenFile(bad); err == nil || strings.Count(err.Error(), bad) != 1 {
			t.Errorf("OpenFile(%s) = %v, want an error that names it once", bad, err)
		}
	}
}

func TestFullDiskErrorNamesFile(t *testing.T) {
	const full = "/dev/full"
	if _, err := os.Stat(full); errors.Is(err, fs.ErrNotExist) {
		t.Skip("this system has no " + full)
	}
	w := must.Value(issuance.OpenFile(full))(t)
	if err := w.Append(t.Context(), issuance.Entry{}); !errors.Is(err, syscall.ENOSPC) || err.Error() != "/dev/full: no space left on device" {
		t.Errorf("Append = %v", err)
	}
}

func TestReopensRotatedFile(t *testing.T) {
	t.Run("renamed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "record")
			w := openFile(t, path)
			mustAppend(t, w, "1")
			must.OK(t, os.Rename(path, path+".1"))
			mustAppend(t, w, "2") // within one second, so still in the old file
			time.Sleep(time.Second)
			mustAppend(t, w, "3")
			mustAppend(t, w, "4")
			must.OK(t, os.Rename(path, path+".2"))
			if err := os.WriteFile(path, nil, 0o640); err != nil { // as logrotate does with "create"
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			mustAppend(t, w, "5")
			for file, want := range map[string]string{path + ".1": "1 2", path + ".2": "3 4", path: "5"} {
				if entries, torn := readRecord(t, file); serials(entries) != want || torn > 0 {
					t.Errorf("%s: got %s, want %s", file, serials(entries), want)
				}
			}
		})
	})
	t.Run("emptied", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "record")
		w := openFile(t, path)
		for i := range 3 {
			mustAppend(t, w, fmt.Sprint(i))
			must.OK(t, os.Truncate(path, 0))
		}
		mustAppend(t, w, "3")
		if entries, torn := readRecord(t, path); serials(entries) != "3" || torn > 0 {
			t.Errorf("got %s, want 3 at the start of the file", serials(entries))
		}
	})
	// While the file cannot be opened again, Append fails.
	t.Run("directory in its place", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "record")
			w := openFile(t, path)
			must.OK(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
			time.Sleep(time.Second)
			for range 2 {
				if err := w.Append(t.Context(), issuance.Entry{}); !errors.Is(err, syscall.EISDIR) {
					t.Errorf("Append = %v", err)
				}
			}
			must.OK(t, os.Remove(path))
			mustAppend(t, w, "1")
			if entries, _ := readRecord(t, path); serials(entries) != "1" {
				t.Errorf("got %s, want 1", serials(entries))
			}
		})
	})
}

// Lines of several programs and goroutines do not mix. A killed program leaves at most one torn line. If another
// program appends its line to a torn line, this line is lost, too.
func TestConcurrentWritersKeepWholeLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	var children []*exec.Cmd
	for range 3 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "ISSUANCE_TEST_FILE="+path)
		out := must.Value(child.StdoutPipe())(t)
		must.OK(t, child.Start())
		children = append(children, child)
		if ready := bufio.NewScanner(out); !ready.Scan() {
			t.Error("a program did not start")
		}
	}
	w := openFile(t, path)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 50 {
				if err := w.Append(t.Context(), issuance.Entry{Signer: "here", Serial: fmt.Sprintf("%x", i+1)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, child := range children {
		_ = child.Process.Kill()
		_ = child.Wait()
	}
	mustAppend(t, openFile(t, path), "last")
	entries, torn := readRecord(t, path)
	count, lost := map[string]int{}, 0
	for _, e := range entries {
		count[e.Signer]++
		if e.Signer == "" || e.Signer == "here" {
			continue
		}
		if e.Serial == fmt.Sprintf("%x", count[e.Signer]+1) {
			count[e.Signer]++
			lost++
		}
		if e.Serial != fmt.Sprintf("%x", count[e.Signer]) {
			t.Fatalf("got entry %s of program %s at position %d", e.Serial, e.Signer, count[e.Signer])
		}
	}
	if torn > len(children) || lost > torn || count["here"] != 400 || len(count) != 5 || entries[len(entries)-1].Serial != "last" {
		t.Errorf("got %d torn lines and %d lost ones, entries by writer: %v", torn, lost, count)
	}
}

// Append succeeds if at least one log has stored the entry. Each failure is reported.
func TestCopiesSucceedIfOneLogSucceeds(t *testing.T) {
	if issuance.Copies(nil) != nil || issuance.Copies(nil, nil, nil) != nil {
		t.Error("Copies without logs: got a log, want nil")
	}
	var a, b bytes.Buffer
	mustAppend(t, issuance.Copies(nil, nil, issuance.NewWriter(&a)), "1")
	mustAppend(t, issuance.Copies(nil, issuance.NewWriter(&a), issuance.NewWriter(&b)), "2")
	if strings.Count(a.String(), "\n") != 2 || strings.Count(b.String(), "\n") != 1 {
		t.Errorf("got\n%s and\n%s", &a, &b)
	}
	full := &partialWriter{err: errors.New("no space left on device")}
	good, bad, reported := issuance.NewWriter(&a), issuance.NewWriter(full), []issuance.Log(nil)
	failed := func(l issuance.Log, err error) {
		if reported = append(reported, l); !errors.Is(err, full.err) {
			t.Errorf("got report of %v", err)
		}
	}
	for i, logs := range [][]issuance.Log{{good, bad}, {bad, good}} {
		if err := issuance.Copies(failed, logs...).Append(t.Context(), issuance.Entry{Serial: "3"}); err != nil || strings.Count(a.String(), "\n") != 3+i {
			t.Errorf("Append = %v, got entries\n%s", err, &a)
		}
	}
	if err := issuance.Copies(failed, bad, bad).Append(t.Context(), issuance.Entry{}); !errors.Is(err, full.err) {
		t.Errorf("Append = %v, want the error of the full logs", err)
	}
	if !slices.Equal(reported, []issuance.Log{bad, bad, bad, bad}) {
		t.Errorf("got reports of %v", reported)
	}
}
