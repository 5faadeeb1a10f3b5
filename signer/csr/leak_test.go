package csr_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"go.uber.org/goleak"
)

// Controllers must leave no goroutines when Run returns although a shared informer continues to run. A Controller may
// also run its own informer.
func TestRunLeavesNoGoroutines(t *testing.T) {
	w := newWorld(t)
	w.startController()
	w.awaitIssued(w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil).Name) // opens connections that stay open
	shared := csr.NewInformer(w.restrict)
	w.run(func(ctx context.Context) error { shared.RunWithContext(ctx); return nil })
	wait.Until(w, "the shared informer", shared.HasSynced)
	before := goleak.IgnoreCurrent()
	start := func(i int) {
		controller := csr.Controller{Client: w.restrict, Authority: w.authority(signer.Fixed(w.ca)), Approve: true, Sign: true}
		cleaner := csr.Cleaner{Client: w.restrict, Informer: shared}
		if i%2 == 0 {
			controller.Informer = shared
		}
		// Stop at various points of the start, or when everything runs.
		stop := time.Duration(i%10) * time.Millisecond
		if i%5 == 0 {
			stop = 300 * time.Millisecond
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(stop, cancel)
		var running sync.WaitGroup
		for _, run := range []func(context.Context) error{controller.Run, cleaner.Run} {
			running.Go(func() {
				if err := run(ctx); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		}
		running.Wait()
	}
	var lanes sync.WaitGroup
	for lane := range 10 {
		lanes.Go(func() {
			for i := range 100 {
				start(lane + i)
			}
		})
	}
	lanes.Wait()
	wait.OK(t, "all goroutines end", func() error { return goleak.Find(before) }) // Find alone waits for less than a second
}
