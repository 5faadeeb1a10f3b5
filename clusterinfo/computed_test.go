package clusterinfo_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// listed is a token store that lists what it holds, or fails, and counts.
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

func (l *listed) Get(_ context.Context, id string) (tokens.Record, error) {
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
		t.Errorf("another secret: %v", err)
	}
	now = expires.Expires
	if _, err := c.WaitSigned(t.Context(), expires.Token); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: %v", err)
	}
	if data, err := c.Data(t.Context()); err != nil || len(data) != 1 || data["kubeconfig"] != string(kubeconfig) {
		t.Errorf("%v, %v, want the kubeconfig alone", data, err)
	}
	store.err = errors.New("disk on fire")
	if _, err := c.Data(t.Context()); err != nil {
		t.Errorf("nothing has changed, and yet %v", err)
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

// What was computed is kept until a hint, the next expiry or a clock that was set back.
func TestComputedKeepsWhatHolds(t *testing.T) {
	a, b := record(t, "aaaaaa.9876543210fedcba"), record(t, "bbbbbb.9876543210fedcba")
	a.Expires = start.Add(time.Minute)
	store := &listed{records: []tokens.Record{a}}
	now := start
	c := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig, Now: func() time.Time { return now }}
	signed := func(want int, ids ...string) {
		t.Helper()
		for range 3 {
			data, err := c.Data(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			body, err := c.JSON(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				if data[clusterinfo.SignatureKey(id)] == "" || !strings.Contains(string(body), clusterinfo.SignatureKey(id)) {
					t.Errorf("no signature of %s", id)
				}
			}
			if len(data) != len(ids)+1 {
				t.Errorf("%d keys, want %d signatures and the kubeconfig", len(data), len(ids))
			}
		}
		if store.lists != want {
			t.Errorf("%d times listed, want %d", store.lists, want)
		}
	}
	signed(1, "aaaaaa")
	now = now.Add(time.Minute - time.Nanosecond)
	signed(1, "aaaaaa")
	now = now.Add(time.Nanosecond)
	signed(2)
	now = now.Add(-time.Second) // set back: it is alive again
	signed(3, "aaaaaa")
	store.records = append(store.records, b)
	store.Send()
	signed(4, "aaaaaa", "bbbbbb")
	// A token whose hint is late is there as soon as WaitSigned has said so.
	late := record(t, "cccccc.9876543210fedcba")
	store.records = append(store.records, late)
	if _, err := c.WaitSigned(t.Context(), late.Token); err != nil {
		t.Error(err)
	}
	signed(5, "aaaaaa", "bbbbbb", "cccccc")
}

// Everybody at once, while tokens come and go: an answer is never older than its question.
func TestComputedSideBySide(t *testing.T) {
	store, err := boltstore.Open(filepath.Join(t.TempDir(), "tokens.db"))
	if err != nil {
		t.Fatal(err)
	}
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
					t.Errorf("a token that was stored is not in cluster-info: %v", err)
				}
				if err := store.Delete(t.Context(), r); err != nil {
					t.Error(err)
				}
				if body, err := c.JSON(t.Context()); err != nil || bytes.Contains(body, []byte(key)) {
					t.Errorf("a token that was deleted is in cluster-info: %v", err)
				}
			}
		})
	}
	everybody.Wait()
}

// Where tokens change faster than they can be listed, those who wait do not each list them.
func TestComputedIsSharedWhileAllChanges(t *testing.T) {
	store := &changing{listed: &listed{}, began: make(chan struct{}), finish: make(chan struct{})}
	c := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig}
	const n = 50
	done := make(chan error, n)
	ask := func() { _, err := c.JSON(t.Context()); done <- err }
	go ask()
	<-store.began // the others ask later, and may not take what this finds
	for range n - 1 {
		go ask()
	}
	time.Sleep(100 * time.Millisecond) // until they wait; those that do not yet cost a list more
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
	if lists > n/5 {
		t.Errorf("%d times listed for %d who asked at once, want about two", lists, n)
	}
}

// changing is a store that changes whenever it is listed.
type changing struct {
	*listed
	began, finish chan struct{}
}

func (c *changing) List(context.Context) ([]tokens.Record, error) {
	c.began <- struct{}{}
	c.Send()
	<-c.finish
	return nil, nil
}

// One who cannot wait does not: the store may be slow for another.
func TestComputedWaitsForNobody(t *testing.T) {
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
