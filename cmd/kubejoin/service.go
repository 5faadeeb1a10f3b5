package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/internal/servingcert"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// shutdownTimeout is how long requests in flight may take to end.
const shutdownTimeout = 15 * time.Second

// A service is the HTTPS API and what runs behind it. standalone and onCluster fill it in.
type service struct {
	options  serveOptions
	log      *slog.Logger
	stdout   io.Writer
	registry *prometheus.Registry

	api server.Server
	// ca is nil if no CA key was given.
	ca *reload.Value[*signer.CA]
	// configured is nil without --signer-config.
	configured *configured
	// caChanged are called one after the other when the CA is another one. What fails is
	// called again.
	caChanged []func(*signer.CA) error
	// operators are the token file's.
	operators *server.TokenFile
	// byCertificate knows callers by client certificates, for which askForCertificate has them asked;
	// nil is nobody.
	byCertificate     server.Authenticate
	askForCertificate bool
	// event tells those who look at Events of the cluster, if there is one.
	event func(kind, reason, message string)
	// background is what runs until its context ends, each with an error only if the whole
	// program is to end.
	background []func(context.Context) error
	// hosts are the names that the serving certificate is to have, if it is issued here.
	hosts []string
	// certificate gives the one that is served. It is there before anything is answered or decided.
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// lines and kept are the issuance record: see record.
	lines, kept issuance.Log
	// warnings are for callers that create a token, in this order.
	warnings []tokenwarning.Warning
	// banner is printed once the server answers.
	banner  string
	closers []func() error
}

func newService(o serveOptions, log *slog.Logger, stdout io.Writer) *service {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s := &service{
		options: o, log: log, stdout: stdout, registry: registry,
		event: func(string, string, string) {}, operators: &server.TokenFile{},
		api: server.Server{
			Advertise:  o.advertise,
			Version:    buildVersion(),
			Metrics:    promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}),
			ClientRate: limit(o.clients),
			UserRate:   limit(o.users),
			UserTokens: userTokens(o.userTokens),
			Logger:     log,
			Registerer: registry,
		},
	}
	s.api.Warnings = func(ctx context.Context, made tokens.Record) []string {
		return tokenwarning.All(ctx, made, s.warnings...)
	}
	return s
}

func (s *service) goBackground(f func(context.Context) error) {
	s.background = append(s.background, f)
}

func (s *service) warnOf(warning tokenwarning.Warning) { s.warnings = append(s.warnings, warning) }

func (s *service) check(name string, ready func(context.Context) error) {
	s.api.Checks = append(s.api.Checks, server.Check{Name: name, Ready: ready})
}

// servingCertificate takes the certificate that is served from files, or issues it.
func (s *service) servingCertificate() error {
	o := s.options
	if o.tlsCert == "" {
		issued := &servingcert.Issued{CA: s.ca.Get, Names: servingNames(o.listen, append(s.hosts, o.tlsSANs...)...)}
		if _, err := issued.Step(context.Background()); err != nil {
			return err
		}
		// A joining node sees the certificate and cluster-info: both follow the CA at once.
		s.caChanged = append(s.caChanged, func(*signer.CA) error {
			_, err := issued.Step(context.Background())
			return err
		})
		renewal := loop.Loop{Name: "serving-certificate", Step: issued.Step, Logger: s.log, Registerer: s.registry}
		s.goBackground(renewal.Run)
		s.certificate = issued.GetCertificate
		return nil
	}
	files, err := reload.Files[*tls.Certificate]{
		Name: "serving-certificate", Paths: []string{o.tlsCert, o.tlsKey},
		Load: func() (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
			return &c, err
		},
		Logger: s.log, Registerer: s.registry,
	}.Open()
	if err != nil {
		return fmt.Errorf("--tls-cert-file: %w", err)
	}
	s.goBackground(files.Run)
	s.check("serving-certificate", func(context.Context) error {
		if files.Err() != nil {
			return errors.New("the files of the serving certificate have changed and cannot be used; the last good ones are in use, see the log")
		}
		return nil
	})
	s.certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return files.Get(), nil }
	return nil
}

// run serves until ctx ends or a part fails for good, then lets requests in flight end while
// what they wait for still runs.
func (s *service) run(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.options.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer func() { _ = listener.Close() }() // closed twice on the usual way, to no harm
	if err := s.servingCertificate(); err != nil {
		return err
	}
	config := &tls.Config{GetCertificate: s.certificate, MinVersion: tls.VersionTLS13}
	if s.options.tlsMinVersion == tls12 {
		config.MinVersion = tls.VersionTLS12
	}
	if s.options.webhookClientCA != "" || s.askForCertificate {
		config.ClientAuth = tls.RequestClientCert // judged where it counts: elsewhere it is nobody's concern
	}
	web := s.api.HTTPServer(config)
	web.Handler = answered(web.Handler)

	// What ends the parts in the back: only after the last request.
	back, endBack := context.WithCancel(context.WithoutCancel(ctx))
	defer endBack()
	group, back := errgroup.WithContext(back)
	for _, f := range s.background {
		group.Go(func() error { return f(back) })
	}
	group.Go(func() error {
		if err := web.ServeTLS(server.LimitHandshakes(listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("HTTPS server: %w", err)
		}
		return nil
	})
	s.log.Info("serving", "address", listener.Addr().String(), "version", s.api.Version.Version)
	if s.options.issuanceRecord == standardOutput { // which is for the record alone
		s.banner = ""
	}
	if _, err := io.WriteString(s.stdout, s.banner); err != nil {
		s.log.Warn("the banner could not be printed", "error", err)
	}

	select {
	case <-ctx.Done():
		s.log.Info("stopping", "requests_may_take", shutdownTimeout)
	case <-back.Done(): // a part failed
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := web.Shutdown(shutdown); err != nil {
		s.log.Warn("requests were still in flight and are cut off", "error", err)
		_ = web.Close() // of connections that have not ended: all there is to say was said
	}
	endBack()
	return group.Wait()
}

func (s *service) close() {
	for _, c := range s.closers {
		if err := c(); err != nil {
			s.log.Error("closing failed", "error", err)
		}
	}
}
