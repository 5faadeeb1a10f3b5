package caobserver

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/prometheus/client_golang/prometheus"
)

// A Watch reports rotations in progress in metrics and Events, and copies the stored state to the object that hosts read.
type Watch struct {
	// Publish copies the stored state to the object that hosts read. Nil publishes nothing.
	Publish func(ctx context.Context) error
	// Get returns the last rotation of a CA. Status returns the rotation with observations.
	Get    func(ctx context.Context, ca rotation.CA) (rotation.Rotation, error)
	Status func(ctx context.Context, ca rotation.CA) (rotation.Status, error)
	// Event reports that a stage began or that the rotation ended. Another Watch may have reported the same event
	// before. Nil reports nothing.
	Event func(ctx context.Context, r rotation.Rotation) error
	// Changed receives a hint when a rotation may have changed; nil gives no hints.
	Changed <-chan struct{}

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// observeEvery is the interval between observations of a rotation in progress. A Watch observes a new stage at once.
const observeEvery = 5 * time.Minute

// reportedFor is how long after a change a Watch still reports it. The API server also deletes Events after an hour.
const reportedFor = time.Hour

// Run watches until ctx ends. It always returns nil. Only the leader runs it.
func (w Watch) Run(ctx context.Context) error {
	return loop.Loop{Name: "ca-rotation", Step: w.observing(), Hint: w.Changed, Logger: w.Logger, Registerer: w.Registerer}.Run(ctx)
}

// observing returns the step of the loop. The step stores when each rotation was last observed.
func (w Watch) observing() func(context.Context) (time.Time, error) {
	stage := metrics.Gauge(w.Registerer, "kubejoin_ca_rotation_stage", "1 for the stage of a rotation of a CA in progress, else 0.", "ca", "stage")
	began := metrics.Gauge(w.Registerer, "kubejoin_ca_rotation_stage_timestamp_seconds", "When the stage of a rotation of a CA in progress began, in Unix seconds.", "ca")
	behind := metrics.Gauge(w.Registerer, "kubejoin_ca_rotation_behind", "Things that keep the next step of a rotation of a CA from success, by kind.", "ca", "kind")
	certificates := metrics.Gauge(w.Registerer, "kubejoin_ca_rotation_certificates", "Certificates seen in a rotation of a CA in progress, by the kind of thing that has them and the CA that they are from.", "ca", "kind", "from")
	type seen struct {
		since time.Time // when the stage began
		at    time.Time
	}
	last := map[rotation.CA]seen{}
	reported := map[rotation.CA]time.Time{}
	return func(ctx context.Context) (time.Time, error) {
		var errs []error
		if w.Publish != nil {
			errs = append(errs, w.Publish(ctx))
		}
		for _, ca := range rotation.CAs {
			r, err := w.Get(ctx, ca)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			for _, s := range []rotation.Stage{rotation.Prepare, rotation.Trust, rotation.Switch, rotation.Finish} {
				value := 0.0
				if r.InProgress() && r.Stage == s {
					value = 1
				}
				stage.WithLabelValues(string(ca), string(s)).Set(value)
			}
			if changed := r.Changed(); w.Event != nil && time.Since(changed) < reportedFor && !changed.Equal(reported[ca]) {
				if err := w.Event(ctx, r); err != nil {
					errs = append(errs, err)
				} else {
					reported[ca] = changed
				}
			}
			of := prometheus.Labels{"ca": string(ca)}
			if !r.InProgress() {
				behind.DeletePartialMatch(of)
				certificates.DeletePartialMatch(of)
				began.DeleteLabelValues(string(ca))
				delete(last, ca)
				continue
			}
			began.WithLabelValues(string(ca)).Set(float64(r.Since.Unix()))
			if l := last[ca]; l.since.Equal(r.Since) && time.Since(l.at) < observeEvery {
				continue
			}
			status, err := w.Status(ctx, ca)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			last[ca] = seen{r.Since, time.Now()}
			behind.DeletePartialMatch(of)
			for _, b := range status.Behind {
				behind.WithLabelValues(string(ca), string(b.Kind)).Inc()
			}
			certificates.DeletePartialMatch(of)
			for _, o := range status.Seen {
				if o.From != "" {
					certificates.WithLabelValues(string(ca), string(o.Kind), string(o.From)).Inc()
				}
			}
			w.Logger.Info("CA rotation in progress", "ca", ca, "stage", r.Stage, "next", status.Next, "behind", len(status.Behind), "observations", len(status.Seen))
		}
		return time.Time{}, errors.Join(errs...)
	}
}
