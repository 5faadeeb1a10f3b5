// Package metrics registers Prometheus metrics that several parts of one program share.
package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Counter registers a counter vector. If a vector is already registered under the name, Counter returns that vector.
// With a nil Registerer, it registers nothing.
func Counter(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

// Gauge is like [Counter], but for a gauge vector.
func Gauge(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.GaugeVec {
	return register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

// Histogram is like [Counter], but for a histogram vector.
func Histogram(reg prometheus.Registerer, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels))
}

func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	var before prometheus.AlreadyRegisteredError
	if err := reg.Register(c); errors.As(err, &before) {
		return before.ExistingCollector.(C)
	} else if err != nil {
		// An invalid name or label, or two different metrics with one name: a bug that every test of the caller
		// triggers.
		panic(err)
	}
	return c
}
