package server_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/tokens"
)

// limitedClusterInfo is a cluster-info with space for capacity signatures. It signs after delay.
type limitedClusterInfo struct {
	server.ClusterInfo
	capacity int
	delay    time.Duration

	mu     sync.Mutex
	signed map[string]bool
}

func (n *limitedClusterInfo) Capacity() (free, signatures int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return max(0, n.capacity-len(n.signed)), len(n.signed)
}

func (n *limitedClusterInfo) HasSignature(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.signed[id]
}

func (n *limitedClusterInfo) WaitSigned(ctx context.Context, t tokens.Token) ([]byte, error) {
	select {
	case <-time.After(n.delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	full := len(n.signed) >= n.capacity
	if !full {
		n.signed[t.ID()] = true
	}
	n.mu.Unlock()
	if full { // other tokens used the space
		<-ctx.Done()
		return nil, errors.Join(ctx.Err(), errors.New("not there"))
	}
	return n.ClusterInfo.WaitSigned(ctx, t)
}

// Catches a token that is created, or a request that waits, when cluster-info has no space for its signature.
func TestRefusesTokensWhenClusterInfoIsFull(t *testing.T) {
	for _, path := range []string{commandPath, "/v1/token"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			s.Advertise = "192.0.2.1:9443"
			info := &limitedClusterInfo{ClusterInfo: s.ClusterInfo, capacity: 20, delay: time.Second, signed: map[string]bool{}}
			s.ClusterInfo = info
			handler := s.Handler()
			ask := func(path string) (int, string) {
				r := httptest.NewRequestWithContext(t.Context(), "POST", path, nil)
				r.Header.Set("Authorization", "Bearer "+adminBearer)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				return w.Code, w.Body.String()
			}
			// All requests run concurrently: 30 must be refused before any token is signed.
			began := time.Now()
			var mu sync.Mutex
			statuses := map[int]int{}
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					status, body := ask(path)
					mu.Lock()
					defer mu.Unlock()
					statuses[status/100]++
					if status == http.StatusInsufficientStorage {
						if took := time.Since(began); took > 0 {
							t.Errorf("got a refusal after %s, want it at once", took)
						}
						if !strings.Contains(body, "cluster-info-full") {
							t.Errorf("got %s, want problem cluster-info-full", body)
						}
					} else if status/100 != 2 {
						t.Errorf("%d %s", status, body)
					}
				})
			}
			all.Wait()
			if statuses[2] != 20 || statuses[5] != 30 || len(s.ids(t)) != 20 {
				t.Errorf("got statuses %v and %d tokens, want 20 created and 30 refused", statuses, len(s.ids(t)))
			}
			// A dry run is refused as well, and reserves no space.
			if path == tokenPath {
				if status, body := ask(path + "?dryRun"); status != http.StatusInsufficientStorage {
					t.Errorf("dry run: got %d %s, want 507", status, body)
				}
				if status, body := ask(path + "?dryRun&usages=authentication"); status != http.StatusOK {
					t.Errorf("dry run without usage signing: got %d %s, want 200", status, body)
				}
			}
			for _, want := range []string{"signatures of 20 tokens", "Delete tokens, wait until some expire", "--advertise"} {
				if _, body := ask(path); !strings.Contains(body, want) {
					t.Errorf("the answer does not say %q: %s", want, body)
				}
			}
			// A token without usage signing needs no space.
			if status, body := ask("/v1/token?usages=authentication"); status != http.StatusCreated {
				t.Errorf("token without usage signing: got %d %s, want 201", status, body)
			}
			info.mu.Lock()
			info.capacity = 21
			info.mu.Unlock()
			if status, body := ask(path); status/100 != 2 {
				t.Errorf("with free space: got %d %s, want success", status, body)
			}
		})
	}
}

// Catches a timeout that does not report the full cluster-info as its cause, and reserved space that is not released
// after it.
func TestReportsFullClusterInfoAfterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Advertise = "192.0.2.1:9443"
		info := &limitedClusterInfo{ClusterInfo: s.ClusterInfo, capacity: 1, delay: time.Second, signed: map[string]bool{}}
		s.ClusterInfo = info
		handler := s.Handler()
		ask := func() (int, string) {
			r := httptest.NewRequestWithContext(t.Context(), "POST", commandPath, nil)
			r.Header.Set("Authorization", "Bearer "+adminBearer)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code, w.Body.String()
		}
		time.AfterFunc(500*time.Millisecond, func() {
			info.mu.Lock()
			defer info.mu.Unlock()
			info.signed["foreign"] = true
		})
		if status, body := ask(); status != http.StatusGatewayTimeout || !strings.Contains(body, "cluster-info is full") || len(s.ids(t)) != 0 {
			t.Errorf("%d %s, and %d tokens are left", status, body, len(s.ids(t)))
		}
		info.mu.Lock()
		delete(info.signed, "foreign")
		info.mu.Unlock()
		if status, body := ask(); status != http.StatusOK {
			t.Errorf("%d %s", status, body)
		}
	})
}
