package secretstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// A prover is a freshness whose proofs begin at the second read, and succeed unless the test sets err or lost.
type prover struct {
	freshness
	began int
	takes time.Duration
	err   error
	hang  chan struct{} // a proof waits for it
	lost  map[string]bool
	buf   bytes.Buffer
}

func newProver() *prover {
	p := &prover{lost: map[string]bool{}}
	p.freshness = freshness{
		what: "tokens", log: slog.New(slog.NewTextHandler(&p.buf, nil)), price: func() int { return 2 },
		prove: func() (func(name, version string) bool, error) {
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
	return p.proves(name, version)
}

// want reads an entry a few times, so that a proof begins if none is valid, and checks whether it is proven then.
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
			p.wrote("a", "group")
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
			p.wrote("a")
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
				p.wrote(fmt.Sprint(i))
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
				time.Sleep(time.Minute) // ends a proof that is slow
			})
		})
	}
}

// After a restore of etcd, the watch omits all changes up to the version of the cache.
func TestRestoredEtcdEndsProofs(t *testing.T) {
	c := fake.NewClientset()
	c.PrependReactor("list", "leases", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: "5000"}}, nil
	})
	var version string
	write := func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: ProofLease, ResourceVersion: version}}, nil
	}
	c.PrependReactor("create", "leases", write)
	c.PrependReactor("update", "leases", write)
	s, err := OpenClaims(t.Context(), c, nil, "ns", nil)
	if err == nil {
		_, err = s.List(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, version = range []string{"1000", "6000"} {
		if _, err := s.writeProof(t.Context()); !errors.Is(err, errRestored) {
			t.Errorf("a proof of version %s beside a cache of version 5000: %v, want %v", version, err, errRestored)
		}
	}
}

// A proof changes no claim, so it must not send hints to those that watch claims.
func TestProofIsNoHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		c := fake.NewClientset()
		s, err := OpenClaims(ctx, c, nil, "ns", nil)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		hints := s.Watch(ctx)
		hinted := func() bool {
			synctest.Wait()
			select {
			case <-hints:
				return true
			default:
				return false
			}
		}
		for i := range 3 {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: ProofLease, Labels: map[string]string{claimLabel: proof}, ResourceVersion: fmt.Sprint(i + 1)}}
			if i == 0 {
				_, err = c.CoordinationV1().Leases("ns").Create(ctx, lease, metav1.CreateOptions{})
			} else {
				_, err = c.CoordinationV1().Leases("ns").Update(ctx, lease, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			if hinted() && i > 0 {
				t.Errorf("proof %d was a hint", i+1)
			}
		}
		if seen := s.cache.Peek(ProofLease); seen == nil {
			t.Fatal("the watch has brought no proof")
		}
		if _, err := s.create(ctx, worker); err != nil || !hinted() {
			t.Errorf("a claim, %v, was no hint", err)
		}
		if all, err := s.List(ctx); err != nil || len(all) != 1 {
			t.Errorf("List gives %+v, %v, want the claim alone", all, err)
		}
		if _, err := s.Get(ctx, ProofLease, tokens.Cached); !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("cached Get of the proof gives %v", err)
		}
	})
}

// A wall clock that goes back may hide how long a paused machine stood still.
func TestRecentNeedsBothClocks(t *testing.T) {
	since := time.Now()
	for after, want := range map[time.Duration]bool{0: true, tokens.MaxAge - 1: true, tokens.MaxAge: false, -time.Second: false} {
		if got := recent(since, since.Round(0).Add(after)); got != want {
			t.Errorf("%s later by the wall clock: recent is %v, want %v", after, got, want)
		}
	}
}
