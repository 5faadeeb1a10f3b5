package configmap

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

const (
	// signatureSize is the size of a signature in bytes. Only values count towards the limit, not keys.
	signatureSize = 85
	// warnFrom is the ratio at which an operator should still have time to act.
	warnFrom = 0.8
	// resetBelow is the ratio below which a FillMonitor may warn again. It avoids a warning each time the ratio
	// rises above warnFrom.
	resetBelow = 0.75
)

// Fill is the size of a ConfigMap compared to its limit.
type Fill struct {
	// Signatures is the number of signatures in the ConfigMap.
	Signatures int
	// Bytes is the sum of its values in bytes, and Limit is the maximum of Bytes.
	Bytes, Limit int
}

// Free returns how many more signatures fit.
func (f Fill) Free() int { return max(0, f.Limit-f.Bytes) / signatureSize }

// Ratio returns Bytes divided by Limit, from 0 to 1.
func (f Fill) Ratio() float64 { return float64(f.Bytes) / float64(f.Limit) }

// High reports whether to warn an operator.
func (f Fill) High() bool { return f.Ratio() >= warnFrom }

// String returns a sentence for operators.
func (f Fill) String() string {
	if f.Free() == 0 {
		return fmt.Sprintf("cluster-info is full: it holds the signatures of %d tokens and has no space for more", f.Signatures)
	}
	return fmt.Sprintf("cluster-info is %.0f %% full: it holds the signatures of %d tokens and has space for %d more", 100*f.Ratio(), f.Signatures, f.Free())
}

func measure(object *corev1.ConfigMap) (f Fill) {
	for key, value := range object.Data {
		if f.Bytes += len(value); strings.HasPrefix(key, clusterinfo.SignaturePrefix) {
			f.Signatures++
		}
	}
	for _, value := range object.BinaryData {
		f.Bytes += len(value)
	}
	return f
}

// Fill returns the size of the cached cluster-info; empty if there is none or it has not been read yet. It
// does not wait.
func (c *ConfigMap) Fill() Fill {
	f := c.peek().fill
	if f.Limit = int(c.limit.Load()); f.Limit == 0 {
		f.Limit = clusterinfo.MaxData
	}
	return f
}

// Capacity returns how many more signatures fit into the cached cluster-info, and how many it has.
func (c *ConfigMap) Capacity() (free, signatures int) {
	f := c.Fill()
	return f.Free(), f.Signatures
}

// HasSignature reports whether the cached cluster-info has a signature by the token with that ID.
func (c *ConfigMap) HasSignature(id string) bool {
	object := c.peek().object
	return object != nil && object.Data[clusterinfo.SignatureKey(id)] != ""
}

// setLimit sets the maximum sum of values in bytes.
func (c *ConfigMap) setLimit(limit int) {
	if c.limit.Swap(int64(limit)) != int64(limit) {
		c.limits.Send()
	}
}

// A FillMonitor warns before cluster-info is full.
type FillMonitor struct {
	ConfigMap *ConfigMap
	// Advice tells the operator what to do, for example "delete tokens".
	Advice string
	// Event records an Event with each warning; nil disables Events.
	Event func(reason, message string)
	// Logger logs each warning; nil disables logging.
	Logger *slog.Logger
	// Registerer registers kubejoin_clusterinfo_used_ratio and the loop's metrics with
	// loop="cluster-info-size"; nil disables them.
	Registerer prometheus.Registerer
}

// Run checks cluster-info after each change until ctx ends, and then returns nil.
func (g FillMonitor) Run(ctx context.Context) error {
	if g.Logger == nil {
		g.Logger = slog.New(slog.DiscardHandler)
	}
	if g.Event == nil {
		g.Event = func(string, string) {}
	}
	ratio := metrics.Gauge(g.Registerer, "kubejoin_clusterinfo_used_ratio", "Used part of the maximum size of cluster-info, from 0 to 1.").WithLabelValues()
	warned := 0 // 1: ratio at least warnFrom; 2: full
	return loop.Loop{
		Name: "cluster-info-size",
		Step: func(context.Context) (time.Time, error) {
			f := g.ConfigMap.Fill()
			ratio.Set(f.Ratio())
			switch {
			case f.Free() == 0 && warned < 2:
				warned = 2
				g.report(codes.ClusterInfoFull, "cluster-info is full", f)
			case f.High() && warned < 1:
				warned = 1
				g.report(codes.ClusterInfoFillsUp, "cluster-info is nearly full", f)
			case f.Ratio() < resetBelow && warned > 0:
				warned = 0
				g.Logger.Info("cluster-info has space again", "signatures", f.Signatures, "bytes", f.Bytes, "limit", f.Limit)
			}
			return time.Time{}, nil
		},
		Hint:       loop.Either(ctx, g.ConfigMap.Watch(ctx), g.ConfigMap.limits.Watch(ctx)),
		Gap:        time.Second, // nothing waits for this loop
		Logger:     g.Logger,
		Registerer: g.Registerer,
	}.Run(ctx)
}

func (g FillMonitor) report(e codes.Event, log string, f Fill) {
	g.Logger.Warn(log, "signatures", f.Signatures, "free", f.Free(), "bytes", f.Bytes, "limit", f.Limit, "advice", g.Advice)
	g.Event(e.Reason(), f.String()+"; "+g.Advice)
}
