package cleaner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// clean runs c in a synctest bubble until the test ends.
func clean(t *testing.T, c cleaner.Tokens) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil at the end of its context", err)
		}
	})
	synctest.Wait()
}

// secret is the secret of all tokens in these tests.
const secret = "s3cr3ts3cr3ts3cr"

func newToken(t *testing.T, id string) tokens.Token {
	t.Helper()
	return must.Value(tokens.New(id, secret))(t)
}

var errBroken = errors.New("the store is broken")

// memory is a store in memory whose faults can change at any time.
type memory struct {
	tokens.Store // with the faults
	live         *rowstore.Store

	mu      sync.Mutex
	fault   storetest.Faulty // nil: none
	deletes []string         // IDs in the order of the calls
}

func newMemory() *memory {
	m := &memory{live: memdb.Open()}
	m.Store = storetest.Faulty(func(c *storetest.Call, do func() error) error {
		m.mu.Lock()
		if c.Method == "Store.Delete" {
			m.deletes = append(m.deletes, c.Key)
		}
		fault := m.fault
		m.mu.Unlock()
		if fault == nil {
			return do()
		}
		return fault(c, do)
	}).Store(m.live)
	return m
}

func (m *memory) fail(fault storetest.Faulty) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// tried returns the IDs that Delete was called with since the last call of tried.
func (m *memory) tried() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := slices.Sorted(slices.Values(m.deletes))
	m.deletes = nil
	return t
}

// add stores a token with this ID that expires after d; zero means never.
func (m *memory) add(t *testing.T, id string, d time.Duration) {
	t.Helper()
	r := tokens.Record{Token: newToken(t, id)}
	if d != 0 {
		r.Expires = time.Now().Add(d)
	}
	must.Value(m.live.Create(t.Context(), r))(t)
}

func (m *memory) wantLeft(t *testing.T, when string, want ...string) {
	t.Helper()
	synctest.Wait()
	records := must.Value(m.live.List(t.Context()))(t)
	var got []string
	for _, r := range records {
		got = append(got, r.Token.ID())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got tokens %v, want %v", when, got, want)
	}
}

func TestTokensDeletesAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.add(t, "aaaaaa", -time.Hour)
		m.add(t, "bbbbbb", 30*time.Minute)
		m.add(t, "cccccc", 90*time.Minute)
		m.add(t, "dddddd", 0)
		reg := prometheus.NewPedanticRegistry()
		clean(t, cleaner.Tokens{Store: m, Sweep: 24 * time.Hour, Registerer: reg})
		m.wantLeft(t, "at the start", "bbbbbb", "cccccc", "dddddd")

		time.Sleep(30*time.Minute - time.Nanosecond)
		m.wantLeft(t, "just before the deadline", "bbbbbb", "cccccc", "dddddd")
		time.Sleep(time.Nanosecond)
		m.wantLeft(t, "at the deadline", "cccccc", "dddddd")

		// This new token expires earlier than the token that the cleaner waits for.
		m.add(t, "eeeeee", time.Minute)
		time.Sleep(time.Minute)
		m.wantLeft(t, "at the new deadline", "cccccc", "dddddd")

		must.Value(m.Update(t.Context(), "cccccc", func(r *tokens.Record) error {
			r.Expires = r.Expires.Add(time.Hour)
			return nil
		}))(t)
		time.Sleep(time.Hour)
		m.wantLeft(t, "at the deadline of a renewed token", "cccccc", "dddddd")
		time.Sleep(time.Hour)
		m.wantLeft(t, "at the later deadline", "dddddd")
		if want := []string{"aaaaaa", "bbbbbb", "cccccc", "eeeeee"}; !slices.Equal(m.tried(), want) {
			t.Errorf("deletions differ from %v", want)
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP kubejoin_tokens_expired_deleted_total Bootstrap tokens deleted because they had expired.
# TYPE kubejoin_tokens_expired_deleted_total counter
kubejoin_tokens_expired_deleted_total 4
`), "kubejoin_tokens_expired_deleted_total"); err != nil {
			t.Error(err)
		}
	})
}

// The cleaner must use Now, even if it differs from the clock of the timer.
func TestTokensUsesNow(t *testing.T) {
	for _, ahead := range []time.Duration{10 * time.Hour, -10 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			m.add(t, "aaaaaa", ahead+time.Hour)
			reg := prometheus.NewPedanticRegistry()
			clean(t, cleaner.Tokens{Store: m, Sweep: 24 * time.Hour, Registerer: reg, Now: func() time.Time { return time.Now().Add(ahead) }})
			time.Sleep(time.Hour - time.Nanosecond)
			m.wantLeft(t, "just before the deadline", "aaaaaa")
			if n := steps(t, reg, "ok"); n > 2 { // two steps: the start, and the hint at the start
				t.Errorf("got %d steps before the deadline, want at most 2", n)
			}
			time.Sleep(time.Nanosecond)
			m.wantLeft(t, "at the deadline")
		})
	}
}

// The cleaner must not delete a renewed token, even if the list still shows the old expiration.
func TestTokensKeepsRenewedToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.add(t, "aaaaaa", time.Hour)
		m.add(t, "bbbbbb", time.Hour)
		reg := prometheus.NewPedanticRegistry()
		clean(t, cleaner.Tokens{Store: m, Sweep: 24 * time.Hour, Registerer: reg})
		m.fail(storetest.Stale(t, m.live, nil))
		must.Value(m.Update(t.Context(), "aaaaaa", func(r *tokens.Record) error {
			r.Expires = r.Expires.Add(time.Hour)
			return nil
		}))(t)
		time.Sleep(time.Hour)
		m.wantLeft(t, "when the old deadline has passed", "aaaaaa")
		if got, want := m.tried(), []string{"aaaaaa", "bbbbbb"}; !slices.Equal(got[:2], want) {
			t.Errorf("deletions tried: %v, want %v", got, want)
		}
		// ErrConflict and ErrNotFound only mean that the list lags, so they must cause no backoff.
		wantSteps(t, reg, "error", 0)
		m.fail(nil)
		m.add(t, "cccccc", 0) // sends a hint
		time.Sleep(time.Hour)
		m.wantLeft(t, "when the new deadline has passed", "cccccc")
	})
}

func wantSteps(t *testing.T, reg *prometheus.Registry, result string, want int) {
	t.Helper()
	if got := steps(t, reg, result); got != want {
		t.Errorf("%d steps with result %s, want %d", got, result, want)
	}
}

func steps(t *testing.T, reg *prometheus.Registry, result string) int {
	t.Helper()
	synctest.Wait()
	families := must.Value(reg.Gather())(t)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "kubejoin_loop_steps_total" && l.GetName() == "result" && l.GetValue() == result {
					return int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return 0
}

func TestTokensRetries(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		t.Run("fails "+when+" taking effect", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				for _, id := range []string{"aaaaaa", "bbbbbb", "cccccc"} {
					m.add(t, id, -time.Minute)
				}
				failures := 0
				m.fail(func(c *storetest.Call, do func() error) error {
					if c.Method != "Store.Delete" || c.Key != "bbbbbb" || failures == 3 {
						return do()
					}
					failures++
					if when == "after" {
						return errors.Join(do(), errBroken)
					}
					return errBroken
				})
				var log bytes.Buffer
				clean(t, cleaner.Tokens{Store: m, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
				time.Sleep(5 * time.Second) // backoff 0.1, 0.2, 0.4 s
				m.wantLeft(t, "in the end")
				if want := map[string]int{"before": 3, "after": 1}[when]; failures != want {
					t.Errorf("%d failures, want %d", failures, want)
				}
				for _, part := range []string{"delete expired token bbbbbb: the store is broken", "expired token deleted", "token=aaaaaa", "token=cccccc"} {
					if !strings.Contains(log.String(), part) {
						t.Errorf("no %q in the log:\n%s", part, log.String())
					}
				}
				if strings.Contains(log.String(), secret) {
					t.Errorf("a secret in the log:\n%s", log.String())
				}
			})
		})
	}
}

func TestTokensRetriesFailedList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.fail(storetest.Fail(errBroken, "Store.List"))
		m.add(t, "aaaaaa", -time.Minute)
		reg := prometheus.NewPedanticRegistry()
		clean(t, cleaner.Tokens{Store: m, Registerer: reg})
		wantSteps(t, reg, "error", 1)
		m.fail(nil)
		time.Sleep(time.Second)
		m.wantLeft(t, "when the list works again")
	})
}

// If the deletion of some tokens always fails, the cleaner must delete the others. The log must not grow with the
// number of failures.
func TestTokensDeletesOthersAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		var stay []string
		for i := range 500 {
			id := fmt.Sprintf("%06d", i)
			m.add(t, id, time.Hour)
			if i%10 == 0 {
				stay = append(stay, id)
			}
		}
		var mu sync.Mutex
		running, most := 0, 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			running += n
			most = max(most, running)
		}
		m.fail(func(c *storetest.Call, do func() error) error {
			if c.Method != "Store.Delete" {
				return do()
			}
			count(1)
			defer count(-1)
			time.Sleep(10 * time.Millisecond)
			if strings.HasSuffix(c.Key, "0") {
				return errBroken
			}
			return do()
		})
		var log bytes.Buffer
		clean(t, cleaner.Tokens{Store: m, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		// 500 deletions of 10 ms, 8 at once, take 630 ms. The retry begins at least 50 ms later. So read most and the log
		// before the retry, which would write them at the same time.
		time.Sleep(time.Hour + 650*time.Millisecond)
		m.wantLeft(t, "after the first try", stay...)
		if most != 8 {
			t.Errorf("got %d concurrent deletions, want 8", most)
		}
		if got := log.String(); strings.Count(got, "the store is broken") != 10 || !strings.Contains(got, "and 40 more tokens") {
			t.Errorf("got log without 10 of the 50 errors and the number of the others:\n%s", got)
		}
	})
}

// A token with a malformed expiration must be treated as expired, as in kube-controller-manager. The cleaner must ignore a
// token that is already being deleted.
func TestTokensHandlesMalformedAndDeletedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.add(t, "aaaaaa", 0)
		m.add(t, "bbbbbb", -time.Hour)
		m.fail(storetest.Alter(func(r *tokens.Record) {
			if r.Token.ID() == "aaaaaa" {
				r.Expires, r.Problem = time.Unix(0, 0), errors.New("expiration is not RFC 3339")
			} else {
				r.Problem = fmt.Errorf("finalizer x: %w", tokens.ErrDeleting)
			}
		}))
		clean(t, cleaner.Tokens{Store: m})
		time.Sleep(time.Hour)
		m.wantLeft(t, "in the end", "bbbbbb")
		if got, want := m.tried(), []string{"aaaaaa"}; !slices.Equal(got, want) {
			t.Errorf("deletions tried: %v, want %v", got, want)
		}
	})
}

func TestTokensNeedsStore(t *testing.T) {
	if err := (cleaner.Tokens{}).Run(t.Context()); err == nil {
		t.Error("got nil from Run without a Store, want an error")
	}
}
