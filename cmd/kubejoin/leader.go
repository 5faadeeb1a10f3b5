package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Times of the Lease. Another replica sees a renewal up to 2.2 retry periods late, and as late that
// there was none for leaseDuration: a leader that is gone is replaced within 15 s, with takeover.
const (
	leaseDuration = 10 * time.Second
	renewDeadline = 7 * time.Second
	retryPeriod   = time.Second
)

// An election runs something on one replica at a time.
type election struct {
	client          kubernetes.Interface
	namespace, name string
	log             *slog.Logger
	registerer      prometheus.Registerer

	led     leadership
	renewed atomic.Pointer[time.Time] // when the Lease held was asked for; nil: none is held
}

// run leads whenever it can until ctx ends, and runs lead while it does. lead is given up, and
// waited for, before the Lease is. An error of lead ends it all.
func (e *election) run(ctx context.Context, lead func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	identity := host + "_" + rand.Text()[:8]
	leading := metrics.Gauge(e.registerer, "kubejoin_leader", "Whether this replica runs the controllers: 1 or 0.").WithLabelValues()
	leading.Set(0)

	// The Lease is held until lead has ended, so it does not hang on ctx itself.
	hold, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	var failure error
	for ctx.Err() == nil && failure == nil {
		term, endTerm := context.WithCancel(hold)
		lost, lose := context.WithCancel(hold)
		e.renewed.Store(nil)
		started := make(chan struct{})
		ended := make(chan error, 1)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &lease{client: e.client, led: &e.led, renewed: &e.renewed, lost: lose, LeaseLock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: e.namespace, Name: e.name},
				Client:     e.client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			}},
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			ReleaseOnCancel: true,
			Name:            "kubejoin",
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(elected context.Context) {
					close(started)
					leading.Set(1)
					e.log.Info("leading: controllers start", "lease", e.namespace+"/"+e.name, "identity", identity)
					work, stop := context.WithCancel(elected)
					defer stop()
					defer context.AfterFunc(ctx, stop)()
					defer context.AfterFunc(lost, stop)()
					err := lead(work)
					leading.Set(0)
					ended <- err
					endTerm() // lead has ended by itself or because ctx has: give up the Lease
				},
				OnStoppedLeading: func() {},
				OnNewLeader: func(leader string) {
					if leader != "" && leader != identity {
						e.log.Info("standing by", "leader", leader)
					}
				},
			},
		})
		if err != nil {
			endTerm()
			lose()
			return fmt.Errorf("leader election: %w", err)
		}
		// Before it leads there is nothing to wait for.
		stop := context.AfterFunc(ctx, func() {
			select {
			case <-started:
			default:
				endTerm()
			}
		})
		elector.Run(term)
		stop()
		endTerm()
		lose()
		select {
		case <-started:
			failure = <-ended
			e.log.Info("no longer leading: controllers have stopped", "lease", e.namespace+"/"+e.name)
		default:
		}
	}
	return failure
}

// ready is whether somebody leads as far as this replica knows.
func (e *election) ready(context.Context) error {
	if !e.led.known(time.Now()) {
		return fmt.Errorf("no kubejoin is known to lead: none was seen to renew the Lease %s/%s within %s; if this lasts, see the log for it", e.namespace, e.name, leaseDuration+takeover)
	}
	return nil
}
