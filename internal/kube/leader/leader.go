// Package leader runs work on one of several replicas at a time: on the replica that holds a Lease. Each replica also
// learns whether any replica leads. A former leader can no longer write.
package leader

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

// Times of the Lease. Another replica may notice a renewal, or the expiry of the Lease, up to 2.2 retry periods late.
// With takeover, it replaces a lost leader within 15 s.
const (
	leaseDuration = 10 * time.Second
	renewDeadline = 7 * time.Second
	retryPeriod   = time.Second
)

// Metric and MetricHelp are the name and the help of the gauge that each election sets.
const (
	Metric     = "kubejoin_leader"
	MetricHelp = "1 if this replica runs the controllers, else 0."
)

// NodePropertiesAnnotation is "true" on the Lease if its holder may patch Nodes, and so sets [tokens.NodeProperties] on them.
const NodePropertiesAnnotation = "kubejoin.io/node-properties"

// An Election runs work on one replica at a time.
type Election struct {
	Client          kubernetes.Interface
	Namespace, Name string // of the Lease
	// Annotations are annotations that each renewal of the Lease sets, or removes if a value is empty. Nil sets none.
	Annotations func() map[string]string
	Logger      *slog.Logger
	Registerer  prometheus.Registerer

	led     leadership
	renewed atomic.Pointer[time.Time] // when this replica sent its last renewal; nil if it does not hold the Lease
}

// Run competes for the Lease until ctx ends, and calls lead while this replica holds the Lease. It gives up the Lease
// only after lead has returned. If lead returns an error, Run ends.
func (e *Election) Run(ctx context.Context, lead func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	identity := host + "_" + rand.Text()[:8]
	leading := metrics.Gauge(e.Registerer, Metric, MetricHelp).WithLabelValues()
	leading.Set(0)

	// This replica holds the Lease until lead has ended, so hold outlives ctx.
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
			Lock: &lease{client: e.Client, led: &e.led, renewed: &e.renewed, lost: lose, LeaseLock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
				Client:     annotating{e.Client.CoordinationV1(), e.Annotations},
				LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			}},
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			ReleaseOnCancel: true,
			Name:            "kubejoin",
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(elected context.Context) {
					close(started)
					leading.Set(1)
					e.Logger.Info("became leader, starting controllers", "lease", e.Namespace+"/"+e.Name, "identity", identity)
					work, stop := context.WithCancel(elected)
					defer stop()
					defer context.AfterFunc(ctx, stop)()
					defer context.AfterFunc(lost, stop)()
					err := lead(work)
					leading.Set(0)
					ended <- err
					endTerm() // lead has returned, maybe because ctx ended: give up the Lease
				},
				OnStoppedLeading: func() {},
				OnNewLeader: func(leader string) {
					if leader != "" && leader != identity {
						e.Logger.Info("standing by for another leader", "leader", leader)
					}
				},
			},
		})
		if err != nil {
			endTerm()
			lose()
			return fmt.Errorf("leader election: %w", err)
		}
		// If ctx ends before lead has started, end the term at once.
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
			e.Logger.Info("no longer leader, controllers stopped", "lease", e.Namespace+"/"+e.Name)
		default:
		}
	}
	return failure
}

// Ready returns an error unless this replica knows that some replica leads.
func (e *Election) Ready(context.Context) error {
	if !e.led.known(time.Now()) {
		return fmt.Errorf("no kubejoin replica leads: the Lease %s/%s was not renewed within %s; see the log if this lasts", e.Namespace, e.Name, leaseDuration+takeover)
	}
	return nil
}
