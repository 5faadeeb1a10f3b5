package convert_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/server/convert"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// observer counts observations, which wait until release is closed.
type observer struct {
	began   int
	release chan struct{}
}

func (o *observer) Observe(context.Context, rotation.Rotation) ([]rotation.Observation, error) {
	o.began++
	<-o.release
	return []rotation.Observation{{Kind: rotation.KindKubelet, Name: "worker-1"}}, nil
}

// Each observation connects to all hosts, so a client with many requests must not cause one for each.
func TestConcurrentRequestsShareObservation(t *testing.T) {
	r := rotationtest.New(t, rotation.Cluster)
	synctest.Test(t, func(t *testing.T) {
		store, seen := &rotationtest.Memory{}, &observer{release: make(chan struct{})}
		must.OK(t, store.Put(t.Context(), r, ""))
		rotations := &convert.Rotations{Desk: &rotation.Desk{Store: store, Keys: store, Observer: seen}}
		ended := make(chan int)
		for range 20 {
			go func() {
				got, err := rotations.Get(t.Context(), "cluster")
				if err != nil {
					t.Error(err)
				}
				ended <- len(got.Observations)
			}()
		}
		synctest.Wait()
		close(seen.release)
		for range 20 {
			if n := <-ended; n != 1 {
				t.Errorf("%d observations in a response, want 1", n)
			}
		}
		if seen.began > 2 {
			t.Errorf("looked %d times for 20 requests, want at most twice", seen.began)
		}
	})
}
