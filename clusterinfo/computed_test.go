package clusterinfo_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// listed is a token store that counts calls of List. List returns records, or an error.
type listed struct {
	tokens.Store
	tokens.Hints
	records []tokens.Record
	err     error
	lists   int
}

func (l *listed) List(context.Context) ([]tokens.Record, error) {
	l.lists++
	return l.records, l.err
}

func (l *listed) Get(_ context.Context, id string, _ tokens.Read) (tokens.Record, error) {
	for _, r := range l.records {
		if r.Token.ID() == id {
			return r, l.err
		}
	}
	return tokens.Record{}, errors.Join(tokens.ErrNotFound, l.err)
}

func (l *listed) Watch(ctx context.Context) <-chan struct{} { return l.Hints.Watch(ctx) }

func TestComputed(t *testing.T) {
	expires := record(t, "aaaaaa.9876543210fedcba")
	expires.Expires = start.Add(time.Minute)
	store := &listed{records: []tokens.Record{expires}}
	now := start
	c := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig, Now: func() time.Time { return now }}
	if got, err := c.WaitSigned(t.Context(), expires.Token); err != nil || string(got) != string(kubeconfig) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := c.WaitSigned(t.Context(), mustToken(t, "aaaaaa.9876543210fedcbb")); !errors.Is(err, clusterinfo.ErrSignature) {
		t.Errorf("another secret: got %v", err)
	}
	now = expires.Expires
	if _, err := c.WaitSigned(t.Context(), expires.Token); !errors.Is(err, clusterinfo.ErrUnsigned) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: got %v", err)
	}
	if data, err := c.Data(t.Context()); err != nil || len(data) != 1 || data["kubeconfig"] != string(kubeconfig) {
		t.Errorf("got %v, %v, want only the kubeconfig", data, err)
	}
	store.err = errors.New("disk on fire")
	if _, err := c.Data(t.Context()); err != nil {
		t.Errorf("got %v without a change", err)
	}
	store.Send()
	for range 2 {
		if _, err := c.Data(t.Context()); !errors.Is(err, store.err) {
			t.Errorf("got %v", err)
		}
	}
	none := &clusterinfo.Computed{Tokens: &listed{}}
	if _, err := none.Data(t.Context()); !errors.Is(err, clusterinfo.ErrNoKubeconfig) {
		t.Errorf("got %v", err)
	}
	if _, err := none.WaitSigned(t.Context(), expires.Token); !errors.Is(err, clusterinfo.ErrNoKubeconfig) {
		t.Errorf("got %v", err)
	}
}

// Computed must keep its result until a hint, the next expiration, or a clock that was set back.
func TestComputedKeepsResult(t *testing.T) {
	a, b := record(t, "aaaaaa.9876543210fedcba"), record(t, "bbbbbb.9876543210fedcba")
	a.Expires = start.Add(time.Minute)
	store := &listed{records: []tokens.Record{a}}
	now := start
	c := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig, Now: func() time.Time { return now }}
	signed := func(want int, ids ...string) {
		t.Helper()
		for range 3 {
			data := must.Value(c.Data(t.Context()))(t)
			body := must.Value(c.JSON(t.Context()))(t)
			for _, id := range ids {
				if data[clusterinfo.SignatureKey(id)] == "" || !strings.Contains(string(body), clusterinfo.SignatureKey(id)) {
					t.Errorf("no signature of %s", id)
				}
			}
			if len(data) != len(ids)+1 {
				t.Errorf("got %d keys, want %d signatures and the kubeconfig", len(data), len(ids))
			}
		}
		if store.lists != want {
			t.Errorf("got %d calls of List, want %d", store.lists, want)
		}
	}
	signed(1, "aaaaaa")
	now = now.Add(time.Minute - time.Nanosecond)
	signed(1, "aaaaaa")
	now = now.Add(time.Nanosecond)
	signed(2)
	now = now.Add(-time.Second) // set back: the token is live again
	signed(3, "aaaaaa")
	store.records = append(store.records, b)
	store.Send()
	signed(4, "aaaaaa", "bbbbbb")
	// After WaitSigned returns, the token must be signed, even if its hint is late.
	late := record(t, "cccccc.9876543210fedcba")
	store.records = append(store.records, late)
	if _, err := c.WaitSigned(t.Context(), late.Token); err != nil {
		t.Error(err)
	}
	signed(5, "aaaaaa", "bbbbbb", "cccccc")
}

// The fast encoder must return the same JSON for thousands of tokens as encoding/json.
func TestComputedJSONEqualsEncodingJSON(t *testing.T) {
	store := newMany(50)
	config := []byte("a \"kubeconfig\": <&> \u2028 {\"data\":{\"kubeconfig\":1}}\n")
	c := &clusterinfo.Computed{Tokens: store, Kubeconfig: config}
	for range 2 {
		data := must.Value(c.Data(t.Context()))(t)
		want := must.Value(clusterinfo.MarshalConfigMap(data))(t)
		if got, err := c.JSON(t.Context()); err != nil || string(got) != string(want) {
			t.Errorf("%v\n%s\nwant\n%s", err, got, want)
		}
		store.records = nil
		store.Send()
	}
}

// If the list lags behind Get, WaitSigned must wait until the list has the token with this secret and its usage.
func TestComputedWaitsUntilListHasToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replaced, token := record(t, "aaaaaa.9876543210fedcba"), record(t, "aaaaaa.9876543210fedcbb")
		behind := &lagging{listed: &listed{}, live: token}
		c := &clusterinfo.Computed{Tokens: behind, Kubeconfig: kubeconfig, Now: func() time.Time { return start }}
		unsigned := token
		unsigned.Signing = false
		for _, before := range []tokens.Record{replaced, unsigned} {
			behind.records = []tokens.Record{before}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := c.WaitSigned(ctx, token.Token); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, clusterinfo.ErrUnsigned) {
				t.Errorf("got %v, want the end of the context", err)
			}
			cancel()
		}
		signed := make(chan error)
		go func() {
			_, err := c.WaitSigned(t.Context(), token.Token)
			signed <- err
		}()
		synctest.Wait()
		behind.records = []tokens.Record{token}
		behind.Send()
		must.OK(t, <-signed)
		data := must.Value(c.Data(t.Context()))(t)
		must.OK(t, clusterinfo.Verify(kubeconfig, data[clusterinfo.SignatureKey("aaaaaa")], token.Token))
	})
}

// lagging is a store whose List and cache lag behind a live Get.
type lagging struct {
	*listed
	live tokens.Record
}

func (l *lagging) Get(ctx context.Context, id string, read tokens.Read) (tokens.Record, error) {
	if read == tokens.Live {
		return l.live, nil
	}
	return l.listed.Get(ctx, id, read)
}

// Computed must follow the kubeconfig, which may change at any time, be malformed or missing.
func TestComputedFollowsKubeconfig(t *testing.T) {
	token := record(t, "aaaaaa.9876543210fedcba")
	good := must.Value(clusterinfo.Kubeconfig("https://api.example.com:6443", []*x509.Certificate{certtest.CA(t, "kubernetes").Leaf}))(t)
	other := must.Value(clusterinfo.WithServer(good, "https://other.example.com:6443"))(t)
	var live []byte
	var failure error
	c := &clusterinfo.Computed{Tokens: &listed{records: []tokens.Record{token}}, Follow: func(context.Context) ([]byte, error) { return live, failure }}
	for _, test := range []struct {
		name    string
		live    []byte
		failure error
		want    error
	}{
		{name: "good", live: good},
		{name: "another one", live: other},
		{name: "with a credential", live: append([]byte("users: [{name: x}]\n"), good...), want: clusterinfo.ErrKubeconfig},
		{name: "none in it", want: clusterinfo.ErrNoKubeconfig},
		{name: "none", failure: clusterinfo.ErrNotFound, want: clusterinfo.ErrNotFound},
		{name: "good again", live: good},
	} {
		live, failure = test.live, test.failure
		for range 2 {
			body, err := c.JSON(t.Context())
			if !errors.Is(err, test.want) {
				t.Errorf("%s: got %v, want %v", test.name, err, test.want)
			}
			if test.want != nil {
				continue
			}
			if got, err := clusterinfo.ReadAnswer(body, token.Token); err != nil || got != string(test.live) {
				t.Errorf("%s: %v, %s", test.name, err, got)
			}
			if got, err := c.WaitSigned(t.Context(), token.Token); err != nil || string(got) != string(test.live) {
				t.Errorf("%s: %v, %s", test.name, err, got)
			}
		}
	}
}

// With constant changes and constant requests, Computed must use at most half of a processor.
func TestComputedLimitsItsLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cost, span = 10 * time.Millisecond, time.Second
		store := &costlyList{listed: &listed{}, cost: cost}
		c := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig}
		for began := time.Now(); time.Since(began) < span; {
			store.Send()
			must.Value(c.JSON(t.Context()))(t)
		}
		if most := int(span/cost)/2 + 1; store.lists > most || store.lists < most/2 {
			t.Errorf("got %d calls of List, want %d", store.lists, most)
		}
		// A request after a pause does not wait.
		time.Sleep(span)
		store.Send()
		began := time.Now()
		if _, err := c.JSON(t.Context()); err != nil || time.Since(began) != cost {
			t.Errorf("got %s, %v; want %s", time.Since(began), err, cost)
		}
		// A request does not wait longer than its context.
		store.Send()
		ctx, cancel := context.WithTimeout(t.Context(), cost/2)
		defer cancel()
		if _, err := c.JSON(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.Sleep(span) // the computation ends
	})
}

// costlyList is a store whose List takes cost.
type costlyList struct {
	*listed
	cost time.Duration
}

func (d *costlyList) List(ctx context.Context) ([]tokens.Record, error) {
	time.Sleep(d.cost)
	return d.listed.List(ctx)
}

// Concurrent requests during changes: a response must include every change before its request.
func TestComputedReflectsEarlierChanges(t *testing.T) {
	store := must.Value(boltstore.Open(filepath.Join(t.TempDir(), "tokens.db")))(t)
	defer func() { _ = store.Close() }()
	c := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig}
	var everybody sync.WaitGroup
	for range 8 {
		everybody.Go(func() {
			for range 20 {
				r, err := store.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Signing: true})
				if err != nil {
					t.Error(err)
					return
				}
				key := `"` + clusterinfo.SignatureKey(r.Token.ID()) + `"`
				if body, err := c.JSON(t.Context()); err != nil || !bytes.Contains(body, []byte(key)) {
					t.Errorf("stored token is not in cluster-info: %v", err)
				}
				if err := store.Delete(t.Context(), r); err != nil {
					t.Error(err)
				}
				if body, err := c.JSON(t.Context()); err != nil || bytes.Contains(body, []byte(key)) {
					t.Errorf("deleted token is in cluster-info: %v", err)
				}
			}
		})
	}
	everybody.Wait()
}

// If tokens change faster than List returns, waiting requests must share one List. Without changes, they need none.
func TestComputedSharesListDuringChanges(t *testing.T) {
	for _, test := range []struct {
		name  string
		lists int
	}{
		{"no changes", 1},
		{"hints", 2},
		{"new tokens", 2}, // callers of WaitSigned create tokens all the time
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &changing{listed: &listed{}, began: make(chan struct{}), finish: make(chan struct{})}
				c := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig}
				switch test.name {
				case "hints":
					store.change = store.Send
				case "new tokens":
					store.change = func() {
						r := record(t, fmt.Sprintf("tok%03d.9876543210fedcba", len(store.records)))
						store.records = append(store.records, r)
						store.Send()
						if _, err := c.WaitSigned(t.Context(), r.Token); err != nil {
							t.Error(err)
						}
					}
				}
				const n = 50
				done := make(chan error, n)
				ask := func() { _, err := c.JSON(t.Context()); done <- err }
				go ask()
				<-store.began // the other requests start later and, with changes, must not use this result
				for range n - 1 {
					go ask()
				}
				synctest.Wait()
				lists := 0
				for finished := 0; finished < n; {
					select {
					case store.finish <- struct{}{}:
						lists++
					case <-store.began:
					case err := <-done:
						finished++
						if err != nil {
							t.Error(err)
						}
					}
				}
				if lists != test.lists {
					t.Errorf("got %d calls of List for %d concurrent requests, want %d", lists, n, test.lists)
				}
			})
		})
	}
}

// changing is a store that changes during every List.
type changing struct {
	*listed
	began, finish chan struct{}
	change        func()
}

func (c *changing) List(context.Context) ([]tokens.Record, error) {
	records := slices.Clone(c.records)
	if c.change != nil {
		c.change()
	}
	c.began <- struct{}{}
	<-c.finish
	return records, nil
}

// A request must return at the end of its context, even if another request waits for a slow store.
func TestComputedStopsWithContext(t *testing.T) {
	slow := &slowList{entered: make(chan struct{}), release: make(chan struct{})}
	c := &clusterinfo.Computed{Tokens: slow, Kubeconfig: kubeconfig}
	done := make(chan error)
	go func() { _, err := c.JSON(t.Context()); done <- err }()
	<-slow.entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.JSON(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(slow.release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type slowList struct {
	listed
	entered, release chan struct{}
}

func (s *slowList) List(context.Context) ([]tokens.Record, error) {
	close(s.entered)
	<-s.release
	return nil, nil
}
