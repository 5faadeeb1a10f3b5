package freshness

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// A prover is a Freshness whose proofs start at the second read. They succeed unless the test sets err or lost.
type prover struct {
	Freshness
	began int
	takes time.Duration
	err   error
	hang  chan struct{} // a proof waits until it is closed
	lost  map[string]bool
	buf   bytes.Buffer
}

func newProver() *prover {
	p := &prover{lost: map[string]bool{}}
	p.Freshness = Freshness{
		What: "tokens", Log: slog.New(slog.NewTextHandler(&p.buf, nil)), Price: func() int { return 2 },
		Prove: func() (Current, error) {
			p.began++
			time.Sleep(p.takes)
			if p.hang != nil {
				<-p.hang
			}
			return func(name, version string) bool { return !p.lost[name] && version == "1" }, p.err
		},
	}
	return p
}

// read reads an entry at once, and reports whether it was proven.
func (p *prover) read(name, version string) bool {
	defer synctest.Wait()
	return p.Proves(name, version)
}

// want reads an entry a few times, so that a proof starts if none is valid. It then checks whether the entry is proven.
func (p *prover) want(t *testing.T, what string, want bool) {
	t.Helper()
	p.read("a", "1")
	p.read("a", "1")
	if got := p.read("a", "1"); got != want {
		t.Errorf("%s: proven is %v, want %v", what, got, want)
	}
}

func TestFreshness(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, p *prover){
		"few reads begin no proof": func(t *testing.T, p *prover) {
			for range 10 {
				p.read("a", "1")
				time.Sleep(tokens.MaxAge)
			}
			if p.began > 0 {
				t.Errorf("%d proofs began, want none", p.began)
			}
		},
		"many reads share a proof": func(t *testing.T, p *prover) {
			for range 100 {
				p.read("a", "1")
				time.Sleep(10 * time.Millisecond)
			}
			if p.began != 2 {
				t.Errorf("%d proofs began within a second, want 2", p.began)
			}
		},
		"a proof ends": func(t *testing.T, p *prover) {
			p.want(t, "at once", true)
			time.Sleep(tokens.MaxAge - time.Nanosecond)
			p.err = errors.New("no more proofs")
			p.want(t, "just before it ends", true)
			time.Sleep(time.Nanosecond)
			p.want(t, "when it ends", false)
		},
		"a proof is as old as its beginning": func(t *testing.T, p *prover) {
			p.takes = tokens.MaxAge
			p.want(t, "a slow proof", false)
			time.Sleep(2 * tokens.MaxAge)
			p.want(t, "after the slow proof", false)
		},
		"nobody waits for a proof": func(t *testing.T, p *prover) {
			p.hang = make(chan struct{})
			before := time.Now()
			for range 10 {
				p.want(t, "while it hangs", false)
				time.Sleep(tokens.MaxAge)
			}
			if waited := time.Since(before); waited != 10*tokens.MaxAge || p.began != 1 {
				t.Errorf("reads took %s with %d proofs, want %s with 1", waited, p.began, 10*tokens.MaxAge)
			}
			close(p.hang)
			if synctest.Wait(); p.read("a", "1") {
				t.Error("a proof that was late proves an entry")
			}
		},
		"another version or name": func(t *testing.T, p *prover) {
			p.want(t, "the version of the proof", true)
			p.lost["b"] = true
			if p.read("a", "2") || p.read("b", "1") {
				t.Error("an entry that is not current was proven")
			}
		},
		"an own write": func(t *testing.T, p *prover) {
			p.want(t, "before the write", true)
			p.Wrote("a", "group")
			if p.read("a", "1") || p.read("group", "1") {
				t.Error("an entry was proven by a proof from before the write")
			}
			if !p.read("c", "1") {
				t.Error("the write of another entry ended the proof")
			}
			time.Sleep(proofAge)
			p.want(t, "by the next proof", true)
			if len(p.written) > 0 {
				t.Errorf("%d writes are recorded after a later proof, want none", len(p.written))
			}
		},
		"an own write during a proof": func(t *testing.T, p *prover) {
			p.hang = make(chan struct{})
			p.read("a", "1")
			p.read("a", "1")
			time.Sleep(time.Nanosecond)
			p.Wrote("a")
			close(p.hang)
			p.hang = nil
			synctest.Wait()
			if p.began != 1 || p.read("a", "1") {
				t.Errorf("%d proofs began, and one from before the write proves the entry", p.began)
			}
		},
		"more own writes than are recorded": func(t *testing.T, p *prover) {
			p.want(t, "before the writes", true)
			for i := range maxOwnWrites + 1 {
				p.Wrote(fmt.Sprint(i))
			}
			if len(p.written) > maxOwnWrites || p.read("0", "1") {
				t.Errorf("%d writes are recorded, and an old proof still proves the first entry", len(p.written))
			}
		},
		"failed proofs keep their pace": func(t *testing.T, p *prover) {
			p.err = errors.New("forbidden")
			for range 100 {
				p.read("a", "1")
				time.Sleep(time.Millisecond)
			}
			if p.began != 1 {
				t.Errorf("%d proofs began within 100 ms, want 1", p.began)
			}
		},
		"failures are logged once": func(t *testing.T, p *prover) {
			p.err = errors.New("forbidden")
			for range 5 {
				p.want(t, "a failed proof", false)
				time.Sleep(tokens.MaxAge)
			}
			p.err = nil
			p.want(t, "after the failures", true)
			if log := p.buf.String(); strings.Count(log, "level=WARN") != 1 || strings.Count(log, "level=INFO") != 1 || !strings.Contains(log, "forbidden") {
				t.Errorf("got log\n%swant one warning with the error, and one line when proofs work again", log)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(t, newProver())
				time.Sleep(time.Minute) // lets a slow proof end
			})
		})
	}
}

// If the wall clock is set back, it may hide how long a machine was paused.
func TestRecentNeedsBothClocks(t *testing.T) {
	since := time.Now()
	for after, want := range map[time.Duration]bool{0: true, tokens.MaxAge - 1: true, tokens.MaxAge: false, -time.Second: false} {
		if got := recent(since, since.Round(0).Add(after)); got != want {
			t.Errorf("%s later by the wall clock: recent is %v, want %v", after, got, want)
		}
	}
}
