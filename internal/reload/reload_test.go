package reload_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

// pair is a value in two files that must have the same content.
type pair struct {
	*testing.T
	a, b    string
	reg     *prometheus.Registry
	log     bytes.Buffer
	failed  []string
	changed []string
	broken  atomic.Bool // whether Changed fails
	onLoad  atomic.Pointer[func()]
	value   *reload.Value[string]
}

func (p *pair) write(a, b string) {
	p.Helper()
	for path, content := range map[string]string{p.a: a, p.b: b} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			p.Fatal(err)
		}
	}
}

func (p *pair) load() (string, error) {
	if f := p.onLoad.Load(); f != nil {
		(*f)()
	}
	a, err := os.ReadFile(p.a)
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(p.b)
	if err != nil {
		return "", err
	}
	if string(a) != string(b) {
		return "", fmt.Errorf("%s and %s do not match at %s", a, b, time.Now())
	}
	return string(a), nil
}

// open writes a pair of files and follows them until the test ends. Call open in a synctest bubble.
func open(t *testing.T, content string) *pair {
	t.Helper()
	dir := t.TempDir()
	p := &pair{T: t, a: filepath.Join(dir, "a"), b: filepath.Join(dir, "b"), reg: prometheus.NewPedanticRegistry()}
	p.write(content, content)

	p.value = must.Value(reload.Files[string]{
		Name: "pair", Paths: []string{p.a, p.b}, Load: p.load,
		Changed: func(s string) error {
			p.changed = append(p.changed, s)
			if p.broken.Load() {
				return errors.New("disk full")
			}
			return nil
		},
		Failed:     func(err error) { p.failed = append(p.failed, err.Error()) },
		Logger:     slog.New(slog.NewTextHandler(&p.log, nil)),
		Registerer: p.reg,
	}.Open())(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.value.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
	return p
}

// settle waits for two checks of the files.
func (p *pair) settle() {
	time.Sleep(2*reload.Interval + time.Millisecond)
	synctest.Wait()
}

// want checks the value in use and the error of the files.
func (p *pair) want(when, value, failure string) {
	p.Helper()
	if got := p.value.Get(); got != value {
		p.Errorf("%s: %q is in use, want %q", when, got, value)
	}
	err := p.value.Err()
	if (err == nil) != (failure == "") || err != nil && !strings.Contains(err.Error(), failure) {
		p.Errorf("%s: error %v, want %q", when, err, failure)
	}
	inUse := 1
	if failure != "" {
		inUse = 0
	}
	if err := testutil.GatherAndCompare(p.reg, strings.NewReader(fmt.Sprintf(`
# HELP kubejoin_files_in_use 1 if the current files are in use, 0 if they cannot be used and the last valid ones are in use.
# TYPE kubejoin_files_in_use gauge
kubejoin_files_in_use{files="pair"} %d
`, inUse)), "kubejoin_files_in_use"); err != nil {
		p.Errorf("%s: %v", when, err)
	}
}

func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, "1")
		p.settle()
		p.want("at the start", "1", "")

		p.write("2", "2")
		p.settle()
		p.want("replaced", "2", "")

		p.write("3", "2")
		p.settle()
		p.want("half of a pair", "2", "3 and 2 do not match")
		time.Sleep(time.Hour)
		synctest.Wait()
		p.write("3", "3")
		p.settle()
		p.want("the other half", "3", "")

		must.OK(t, os.Remove(p.b))
		p.settle()
		p.want("one is missing", "3", "no such file")
		p.write("3", "3")
		p.settle()
		p.want("as before", "3", "")

		must.OK(t, errors.Join(os.Remove(p.a), os.Mkdir(p.a, 0o700)))
		p.settle()
		p.want("one cannot be read", "3", "is a directory")
		must.OK(t, os.Remove(p.a))
		p.write("4", "4")
		p.settle()
		p.want("another one", "4", "")

		if want := []string{"2", "3", "4"}; !slices.Equal(p.changed, want) {
			t.Errorf("changes told: %q, want %q", p.changed, want)
		}
		// The error contains the time. It must still be reported only once.
		if len(p.failed) != 3 || strings.Count(p.log.String(), "level=ERROR") != 3 || strings.Count(p.log.String(), "files are valid again") != 3 {
			t.Errorf("want 3 failures and their ends, have %q:\n%s", p.failed, &p.log)
		}
	})
}

// A file that is still being written must not be used, even if its content is valid.
func TestReloadWaitsUntilFilesAreComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, "0")
		for i := range 100 {
			s := fmt.Sprint("half ", i)
			p.write(s, s)
			time.Sleep(reload.Interval)
			synctest.Wait()
			p.want("while it is written", "0", "")
		}
		p.write("whole", "whole")
		p.settle()
		p.want("when it is", "whole", "")
		if len(p.failed) > 0 {
			t.Errorf("failures %q, want none", p.failed)
		}
	})
}

// If files change and change back between two checks, the loader must treat them as changed.
func TestReloadNoticesChangeBetweenChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, "1")
		p.write("2", "2")
		var once sync.Once
		write := func() { once.Do(func() { p.write("3", "3") }) }
		p.onLoad.Store(&write)
		p.settle()
		p.want("changed while they were read", "1", "")
		p.write("2", "2")
		p.settle()
		p.want("changed back", "2", "")
	})
}

func TestReloadRetriesWhenChangedFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, "1")
		p.broken.Store(true)
		p.write("2", "2")
		p.settle()
		p.want("not applied", "2", "disk full")
		time.Sleep(time.Minute)
		synctest.Wait()
		p.broken.Store(false)
		p.settle()
		p.want("applied", "2", "")
		calls := len(p.changed)
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls < 10 || len(p.changed) != calls || len(p.failed) != 1 {
			t.Errorf("got %d tries, %d after success, %d reported failures; want at least 10, 0, 1", calls, len(p.changed)-calls, len(p.failed))
		}
	})
}

// Files that another file names must be followed as long as it names them.
func TestReloadNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := func(name string) string { return filepath.Join(dir, name) }
		write := func(name, content string) {
			must.OK(t, os.WriteFile(path(name), []byte(content), 0o600))
		}
		named := func(content []byte) []string {
			var paths []string
			for name := range strings.FieldsSeq(string(content)) {
				paths = append(paths, path(name))
			}
			return paths
		}
		write("list", "a")
		write("a", "1")
		v := must.Value(reload.Files[string]{
			Name: "list", Paths: []string{path("list")}, Named: named,
			Load: func() (string, error) {
				list, err := os.ReadFile(path("list"))
				all := ""
				for _, p := range named(list) {
					content, readErr := os.ReadFile(p)
					all, err = all+string(content), errors.Join(err, readErr)
				}
				return all, err
			},
		}.Open())(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- v.Run(ctx) }()
		defer func() { cancel(); <-done }()
		want := func(value string, usable bool) {
			t.Helper()
			time.Sleep(2*reload.Interval + time.Millisecond)
			synctest.Wait()
			if v.Get() != value || (v.Err() == nil) != usable {
				t.Errorf("%q, %v; want %q, usable %t", v.Get(), v.Err(), value, usable)
			}
		}
		want("1", true)
		write("a", "2")
		want("2", true)
		write("list", "a b")
		want("2", false) // b does not exist
		write("b", "3")
		want("23", true)
		write("b", "4")
		want("24", true)
		write("list", "b")
		want("4", true)
		must.OK(t, os.Remove(path("a")))
		want("4", true)
	})
}

func TestOpenFails(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := (reload.Files[int]{Paths: []string{missing}, Load: func() (int, error) { return 1, nil }}).Open(); err == nil {
		t.Error("Open succeeded with missing files")
	}
	bad := errors.New("bad")
	if _, err := (reload.Files[int]{Paths: nil, Load: func() (int, error) { return 0, bad }}).Open(); !errors.Is(err, bad) {
		t.Errorf("got %v, want the error of Load", err)
	}
}

func TestRunLeaksNoGoroutines(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for range 1000 {
		v := must.Value(reload.Files[int]{Name: "x", Load: func() (int, error) { return 1, nil }}.Open())(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- v.Run(ctx) }()
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}
