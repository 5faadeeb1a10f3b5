package configmap

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

const (
	// signatureSize is what a signature counts against the limit: the length of its value.
	signatureSize = 85
	// warnFrom is how full it is when there should still be time to do something.
	warnFrom = 0.8
	// resetBelow keeps one that goes up and down around warnFrom from being told of each time.
	resetBelow = 0.75
)

// Fill is how full a ConfigMap is.
type Fill struct {
	// Signatures are how many it holds.
	Signatures int
	// Bytes is the sum of its values, of which Limit is allowed.
	Bytes, Limit int
}

// Free is for how many more signatures there is room.
func (f Fill) Free() int { return max(0, f.Limit-f.Bytes) / signatureSize }

// Ratio is how full it is, from 0 to 1.
func (f Fill) Ratio() float64 { return float64(f.Bytes) / float64(f.Limit) }

// High reports whether it is time to warn.
func (f Fill) High() bool { return f.Ratio() >= warnFrom }

// String says it to a person.
func (f Fill) String() string {
	if f.Free() == 0 {
		return fmt.Sprintf("cluster-info is full: it holds the signatures of %d tokens, and a ConfigMap takes no more", f.Signatures)
	}
	return fmt.Sprintf("cluster-info is %.0f %% full: it holds the signatures of %d tokens, and a ConfigMap takes %d more", 100*f.Ratio(), f.Signatures, f.Free())
}

func measure(object *corev1.ConfigMap) (f Fill) {
	if object == nil {
		return f
	}
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

// Fill is how full cluster-info is, as the watch has seen it last; empty where there is none or
// it has not been read yet. It does not wait.
func (c *ConfigMap) Fill() Fill {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.fill
	if f.Limit = c.limit; f.Limit == 0 {
		f.Limit = clusterinfo.MaxData
	}
	return f
}

// Capacity is for how many more signatures cluster-info has room, and how many it holds, as Fill has
// it.
func (c *ConfigMap) Capacity() (free, signatures int) {
	f := c.Fill()
	return f.Free(), f.Signatures
}

// HasSignature reports whether cluster-info holds a signature by the token of that ID, as the
// watch has seen it last.
func (c *ConfigMap) HasSignature(id string) bool {
	_, object, _, _ := c.state()
	return object != nil && object.Data[clusterinfo.SignatureKey(id)] != ""
}

// setLimit takes note of how many bytes of values are tried.
func (c *ConfigMap) setLimit(limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit != limit {
		c.limit = limit
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// A Gauge tells of a cluster-info that fills up, in time to do something.
type FillMonitor struct {
	ConfigMap *ConfigMap
	// Advice is what an operator is told to do, as in "delete tokens".
	Advice string
	// Event tells those who look at Events; nil is nobody.
	Event func(reason, message string)
	// Logger is told as well; nil is nobody.
	Logger *slog.Logger
	// Registerer has kubejoin_clusterinfo_used_ratio and the loop's metrics as
	// loop="cluster-info-size"; nil counts nothing.
	Registerer prometheus.Registerer
}

// Run looks at each change of cluster-info until ctx ends, and returns nil then.
func (g FillMonitor) Run(ctx context.Context) error {
	if g.Logger == nil {
		g.Logger = slog.New(slog.DiscardHandler)
	}
	if g.Event == nil {
		g.Event = func(string, string) {}
	}
	ratio := metrics.Gauge(g.Registerer, "kubejoin_clusterinfo_used_ratio", "How full cluster-info is, from 0 to 1.").WithLabelValues()
	warned := 0 // 1 from warnFrom on, 2 when full
	return loop.Loop{
		Name: "cluster-info-size",
		Step: func(context.Context) (time.Time, error) {
			f := g.ConfigMap.Fill()
			ratio.Set(f.Ratio())
			switch {
			case f.Free() == 0 && warned < 2:
				warned = 2
				g.report("ClusterInfoFull", f)
			case f.High() && warned < 1:
				warned = 1
				g.report("ClusterInfoFillsUp", f)
			case f.Ratio() < resetBelow && warned > 0:
				warned = 0
				g.Logger.Info("cluster-info has room again", "signatures", f.Signatures, "bytes", f.Bytes, "limit", f.Limit)
			}
			return time.Time{}, nil
		},
		Hint:       g.ConfigMap.Watch(ctx),
		Gap:        time.Second, // nobody waits for it
		Logger:     g.Logger,
		Registerer: g.Registerer,
	}.Run(ctx)
}

func (g FillMonitor) report(reason string, f Fill) {
	g.Logger.Warn(f.String(), "signatures", f.Signatures, "bytes", f.Bytes, "limit", f.Limit, "do", g.Advice)
	g.Event(reason, f.String()+"; "+g.Advice)
}
