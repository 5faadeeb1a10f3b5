// Package daemon implements 'kubejoin serve': it opens the stores, builds the authority, starts the controllers and
// serves the HTTPS API, on a cluster or standalone. It does not parse flags.
package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/kubejoin/kubejoin/internal/kube/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// Run serves until ctx ends or a background function fails permanently. It prints a banner to stdout.
func Run(ctx context.Context, o Options, log *slog.Logger, stdout io.Writer) error {
	defer runtime.KeepAlive(gcBallast())
	s := newService(o, log, stdout)
	defer s.close()
	s.warnOfLoopback()
	if err := s.checkPort(); err != nil {
		return err
	}
	lines, err := s.openLines()
	if err != nil {
		return err
	}
	build := s.onCluster
	if o.Cluster == nil {
		build = s.withoutCluster
	}
	served, err := build(ctx, lines)
	if err != nil {
		return err
	}
	return s.serve(ctx, served)
}

// A service has the options of kubejoin, and collects the checks, background functions and warnings that its parts add.
type service struct {
	options  Options // once the port is open, Listen contains the actual port
	log      *slog.Logger
	stdout   io.Writer
	registry *prometheus.Registry

	checks []server.Check
	// background functions run until their context ends. An error of one of them ends the program.
	background []func(context.Context) error
	// warnings are the warnings for callers that create a token, in order.
	warnings []tokenwarning.Warning
	closers  []func() error
	// stopping is set before the server stops listening.
	stopping atomic.Bool
}

// A site is the HTTPS API of a service, with its serving certificate and its banner.
type site struct {
	api         server.Server
	certificate servingCertificate
	// serve calls listening when the port is open; nil does nothing. Afterwards, banner returns the text to print.
	listening func() error
	banner    func() string
}

func newService(o Options, log *slog.Logger, stdout io.Writer) *service {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s := &service{options: o, log: log, stdout: stdout, registry: registry}
	s.check("shutdown", func(context.Context) error {
		if s.stopping.Load() {
			return errors.New("kubejoin is shutting down")
		}
		return nil
	})
	return s
}

// status returns what the API reports about kubejoin, with the checks that were added so far.
func (s *service) status() server.Status {
	return server.Status{Checks: s.checks, Version: s.options.Version, Metrics: promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{Registry: s.registry})}
}

// warningsOf returns the warnings for the caller who creates a token.
func (s *service) warningsOf(ctx context.Context, made tokens.Record) []string {
	return tokenwarning.All(ctx, made, s.warnings...)
}

func (s *service) goBackground(f func(context.Context) error) {
	s.background = append(s.background, f)
}

// together returns a function that runs all controllers until one of them fails.
func together(controllers []func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, run := range controllers {
			group.Go(func() error { return run(ctx) })
		}
		return group.Wait()
	}
}

func (s *service) warnOf(warning tokenwarning.Warning) { s.warnings = append(s.warnings, warning) }

func (s *service) check(name string, ready func(context.Context) error) {
	s.checks = append(s.checks, server.Check{Name: name, Ready: ready})
}

func (s *service) close() {
	for _, c := range s.closers {
		if err := c(); err != nil {
			s.log.Error("closing failed", "error", err)
		}
	}
}

// garbageRoom is how much more garbage may accumulate before a collection, in bytes.
const garbageRoom = 16 << 20

// gcBallast returns memory that is never touched, so it uses no physical memory. The garbage collector counts it as live, and
// therefore lets that much more garbage accumulate. kubejoin has a small heap: without ballast, the collector would run fifty
// times a second while many certificates are requested. Setting GOGC or GOMEMLIMIT disables the ballast.
func gcBallast() []byte {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if os.Getenv(name) != "" {
			return nil
		}
	}
	return make([]byte, garbageRoom)
}
