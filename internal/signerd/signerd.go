// Package signerd implements 'kubejoin signer': a process that holds the key of a CA and signs what its policy allows.
// It checks each request itself, so that an attacker who controls 'kubejoin serve' gets no more than the policy allows.
// Package signer/remote has the client.
package signerd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

const (
	// maxConnections is the maximum number of open connections. kubejoin needs far fewer.
	maxConnections = 256
	// Rate limit for new connections from one address, or from one user of a Unix socket.
	connectionQPS, connectionBurst = 20, 100

	// warnEvery is the minimum time between two log lines about unknown requesters.
	warnEvery = 10 * time.Second

	answerTimeout   = orderTimeout + 15*time.Second
	shutdownTimeout = 15 * time.Second
)

// Run serves until ctx ends or a background function fails permanently.
func Run(ctx context.Context, o Options, log *slog.Logger) error {
	s := &service{Options: o, log: log, registry: prometheus.NewRegistry()}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	record, err := issuance.OpenFile(o.Record)
	if err != nil {
		return fmt.Errorf("--issuance-record: %w", err)
	}
	defer func() { _ = record.Close() }() // nothing is lost: each line was written or its error reported
	h, err := s.handler(record)
	if err != nil {
		return err
	}
	server, listener, err := s.listen(ctx, h)
	if err != nil {
		return err
	}
	return s.serve(ctx, server, listener)
}

// A service is the signer process.
type service struct {
	Options
	log        *slog.Logger
	registry   *prometheus.Registry
	background []func(context.Context) error
}

// open loads files, and reloads them while the service runs.
func open[T any](s *service, name string, load func() (T, error), paths ...string) (*reload.Value[T], error) {
	value, err := reload.Files[T]{Name: name, Paths: paths, Load: load, Logger: s.log, Registerer: s.registry}.Open()
	if err == nil {
		s.background = append(s.background, value.Run)
	}
	return value, err
}

// openCA loads the CA. It opens a key on a token only once; after a failure, the key opens the token again by itself.
func (s *service) openCA() (*reload.Value[*signer.CA], error) {
	if s.onToken() {
		key, err := s.OpenKey(s.KeyFile)
		if err != nil {
			return nil, err
		}
		return open(s, "ca", func() (*signer.CA, error) { return signer.LoadCAWithKey(s.CertFile, key) }, s.CertFile)
	}
	paths := []string{s.CertFile, s.KeyFile}
	if s.PassphraseFile != "" {
		paths = append(paths, s.PassphraseFile)
	}
	return open(s, "ca", func() (*signer.CA, error) { return signer.LoadEncryptedCA(s.CertFile, s.KeyFile, s.PassphraseFile) }, paths...)
}

// handler loads the CA and the policy.
func (s *service) handler(record issuance.Log) (*handler, error) {
	ca, err := s.openCA()
	if err != nil {
		return nil, fmt.Errorf("cluster CA: %w", err)
	}
	current := func() (*signer.CA, error) { return ca.Get(), nil }
	policy, err := open(s, "signer-policy", func() (*config.Policy, error) { return config.LoadPolicy(s.Policy, current) }, s.Policy)
	if errors.As(err, new(config.Errors)) {
		return nil, err // the error names the file
	}
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	h := newHandler(policy.Get, ca.Get, record, time.Now)
	h.log, h.metrics = s.log, promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{Registry: s.registry})
	h.orders = metrics.Counter(s.registry, "kubejoin_signer_orders_total", "Orders of requesters, by result: signed, refused by the policy, over_rate, overloaded, not_new (replayed, or the clocks differ), invalid, unknown_requester or failed.", "result")
	return h, nil
}

func newHandler(policy func() *config.Policy, ca func() *signer.CA, record issuance.Log, now func() time.Time) *handler {
	return &handler{
		policy: policy, ca: ca, log: slog.New(slog.DiscardHandler), metrics: http.NotFoundHandler(), orders: metrics.Counter(nil, "orders", "", "result"), now: now,
		// Unthrottled, because the rate of the requester already limits orders and refusals.
		authority: &signer.Authority{Record: record, Unthrottled: true, Now: now},
		slots:     httplimit.NewShares(maxInFlight), seen: &replays{started: now()}, warn: rate.Sometimes{Interval: warnEvery},
	}
}

// listen opens the socket or the port.
func (s *service) listen(ctx context.Context, h *handler) (*http.Server, net.Listener, error) {
	if path := s.Socket(); path != "" {
		listener, err := listenUnix(ctx, path, h)
		if err != nil {
			return nil, nil, fmt.Errorf("--listen: %w", err)
		}
		h.requester = ofPeer
		server := s.newServer(h, nil)
		server.ConnContext = withPeer
		return server, listener, nil
	}
	pair, err := open(s, "serving-certificate", func() (*tls.Certificate, error) {
		c, err := pemfile.LoadKeyPair(s.TLSCertFile, s.TLSKeyFile)
		return &c, err
	}, s.TLSCertFile, s.TLSKeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	clients, err := open(s, "client-ca", func() (*x509.CertPool, error) {
		content, err := os.ReadFile(s.ClientCAFile)
		if err != nil {
			return nil, err
		}
		return pemfile.Pool(content)
	}, s.ClientCAFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--client-ca-file: %w", err)
	}
	h.requester = ofCertificate(clients.Get)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("--listen: %w", err)
	}
	// The handler verifies the certificate, after the limits of package httplimit.
	server := s.newServer(h, &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get(), nil },
		ClientAuth:     tls.RequireAnyClientCert,
	})
	return server, httplimit.LimitHandshakes(listener), nil
}

func (s *service) newServer(h *handler, config *tls.Config) *http.Server {
	server := web.NewServer(config)
	if config == nil {
		server.TLSConfig = nil
	}
	server.Handler, server.WriteTimeout = h, answerTimeout
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true) // so that each connection has one request in flight: see overRate
	server.ConnState = httplimit.Connections(maxConnections, httplimit.Rate{QPS: connectionQPS, Burst: connectionBurst}, s.registry)
	server.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug) // TLS errors that any client can cause
	return server
}

// ofCertificate returns a function that returns the requester of a client certificate.
func ofCertificate(cas func() *x509.CertPool) func(*http.Request, *config.Policy) (config.Requester, error) {
	authenticate := auth.ClientCertificate{CAs: cas, Everybody: true}.Cached()
	return func(r *http.Request, p *config.Policy) (config.Requester, error) {
		user, err := authenticate(r)
		q, found := p.Named(user.Name) // after an error, the name is empty, and no requester has an empty name
		if !found {
			return q, cmp.Or(err, fmt.Errorf("the policy has no requester %.100q", user.Name))
		}
		return q, err
	}
}

// serve serves until ctx ends, and then finishes the requests in flight.
func (s *service) serve(ctx context.Context, server *http.Server, listener net.Listener) error {
	back, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, back := errgroup.WithContext(back)
	for _, run := range s.background {
		group.Go(func() error { return run(back) })
	}
	group.Go(func() error {
		serve := func() error { return server.Serve(listener) }
		if server.TLSConfig != nil {
			serve = func() error { return server.ServeTLS(listener, "", "") }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	s.log.Info("serving", "address", listener.Addr().String())
	select {
	case <-ctx.Done():
	case <-back.Done(): // a background function failed
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(shutdown); err != nil {
		_ = server.Close() // abort the requests in flight
	}
	end()
	return group.Wait()
}
