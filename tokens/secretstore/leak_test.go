package secretstore_test

import (
	"context"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"go.uber.org/goleak"
)

// After their context has ended, a Store and Claims must leave no goroutine behind.
func TestLeavesNoGoroutine(t *testing.T) {
	client := cluster.Shared(t).Client()
	start := func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := secretstore.Open(ctx, client, nil)
		if err != nil {
			t.Error(err)
			return
		}
		s.Watch(ctx)
		if _, err := s.List(ctx); err != nil {
			t.Error(err)
		}
		claims, err := secretstore.OpenClaims(ctx, client, s, "default", nil)
		if err != nil {
			t.Error(err)
			return
		}
		claims.Watch(ctx)
		if _, err := claims.List(ctx); err != nil {
			t.Error(err)
		}
	}
	start() // opens connections, which stay open
	before := goleak.IgnoreCurrent()
	var lanes sync.WaitGroup
	for range 20 { // a start mostly waits, about 0.1 s
		lanes.Go(func() {
			for range 50 {
				start()
			}
		})
	}
	lanes.Wait()
	// Find waits half a second, which is too short for the last connections on a busy machine.
	err := goleak.Find(before)
	for try := 0; err != nil && try < 60; try++ {
		err = goleak.Find(before)
	}
	if err != nil {
		t.Error(err)
	}
}
