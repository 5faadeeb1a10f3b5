// Package daemon is 'kubejoin serve': it opens the stores, builds the authority, starts the controllers and serves
// the HTTPS API, on a cluster or standalone. It does not parse flags.
package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

// Run serves until ctx ends or a part fails permanently. It prints a banner to stdout.
func Run(ctx context.Context, o Options, log *slog.Logger, stdout io.Writer) error {
	defer runtime.KeepAlive(gcBallast())
	s := newService(o, log, stdout)
	defer s.close()
	if err := s.openRecord(); err != nil {
		return err
	}
	build := s.onCluster
	if o.Cluster == nil {
		build = s.withoutCluster
	}
	if err := build(ctx); err != nil {
		return err
	}
	return s.serve(ctx)
}

// A service is the HTTPS API and its backends.
type service struct {
	options  Options
	log      *slog.Logger
	stdout   io.Writer
	registry *prometheus.Registry

	api server.Server
	// ca is nil without a CA key.
	ca *reload.Value[*signer.CA]
	// configured is nil without a signer configuration.
	configured *configured
	// caChanged are called in order when the CA is replaced. If one fails, all are called again later.
	caChanged []func(*signer.CA) error
	// rotating returns the CA rotation in progress, from a cache; liveNodes counts the Nodes.
	rotating  func() rotating
	liveNodes func() int
	// rotated hints that the rotation has changed; nil never does.
	rotated <-chan struct{}
	// operators authenticates the users in the token file.
	operators auth.Authenticate
	// byCertificate authenticates callers by client certificate; nil: no client certificates.
	byCertificate auth.Authenticate
	// reviewerBearer and reviewerCertificate authenticate kube-apiserver to webhooks; nil accepts nothing. See reviewer.
	reviewerBearer, reviewerCertificate auth.Authenticate
	// revocations are set before the first request and decision.
	revocations *revocation.Guard
	// event creates an Event; without a cluster it does nothing.
	event func(kind, reason, message string)
	// eventOn creates an Event on an object; without a cluster it does nothing.
	eventOn func(object *corev1.ObjectReference, kind, reason, message string)
	// background functions run until their context ends. An error of one of them ends the program.
	background []func(context.Context) error
	// hosts are extra names in an issued serving certificate.
	hosts []string
	// certificate returns the serving certificate. It is set before the first request and decision.
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// lines and kept are the issuance record: see record.
	lines, kept issuance.Log
	dropper     dropper          // of kept; nil without kept
	swept       *rowstore.Issued // the rows of kept in etcd; nil for others
	// warnings are the warnings for callers that create a token, in order.
	warnings []tokenwarning.Warning
	// banner is printed when the server answers.
	banner  string
	closers []func() error
	// listening is called when options.Listen has the port that is open; nil does nothing.
	listening func() error
	// stopping is set before the server stops listening.
	stopping atomic.Bool
}

func newService(o Options, log *slog.Logger, stdout io.Writer) *service {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s := &service{
		options: o, log: log, stdout: stdout, registry: registry,
		event: func(string, string, string) {}, eventOn: func(*corev1.ObjectReference, string, string, string) {},
		rotating: func() rotating { return rotating{} }, liveNodes: func() int { return 0 },
		operators: (&auth.TokenFile{}).Authenticate,
		api: server.Server{
			Minting:    server.Minting{Advertise: o.Advertise},
			Limits:     o.Limits,
			Status:     server.Status{Version: o.Version, Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry})},
			Logger:     log,
			Registerer: registry,
		},
	}
	s.check("shutdown", func(context.Context) error {
		if s.stopping.Load() {
			return errors.New("kubejoin is shutting down")
		}
		return nil
	})
	s.api.Minting.Warnings = func(ctx context.Context, made tokens.Record) []string {
		return tokenwarning.All(ctx, made, s.warnings...)
	}
	return s
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
	s.api.Status.Checks = append(s.api.Status.Checks, server.Check{Name: name, Ready: ready})
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

// gcBallast returns memory that is never touched, so it uses no physical memory. The garbage collector counts it
// as live and therefore lets that much more garbage accumulate. kubejoin has a small heap: otherwise the collector
// would run fifty times a second while many certificates are requested. GOGC and GOMEMLIMIT disable it.
func gcBallast() []byte {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if os.Getenv(name) != "" {
			return nil
		}
	}
	return make([]byte, garbageRoom)
}
