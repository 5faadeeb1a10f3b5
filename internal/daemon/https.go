package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/internal/web/servingcert"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/remote"
	"golang.org/x/sync/errgroup"
)

// shutdownTimeout is how long requests in flight may take during shutdown.
const shutdownTimeout = 15 * time.Second

// servingCertificate loads the serving certificate from files, or issues it.
func (s *service) servingCertificate() error {
	o := s.options.TLS
	if o.CertFile == "" {
		issued := &servingcert.Source{CA: s.ca.Get, Names: s.ownNames(), Cross: s.cross}
		// Without its signer process, kubejoin has no certificate yet. The loop retries, as the requests of machines wait.
		if _, err := issued.Step(context.Background()); errors.Is(err, remote.ErrRefused) {
			return fmt.Errorf("%w; allow signer %s in the policy of the signer process, or give --tls-cert-file", err, servingcert.SignerName)
		} else if err != nil && !errors.Is(err, remote.ErrUnavailable) {
			return err
		}
		// A joining node gets both the certificate and cluster-info, so both follow the CA at once.
		s.caChanged = append(s.caChanged, func(*signer.CA) error {
			_, err := issued.Step(context.Background())
			return err
		})
		renewal := loop.Loop{Name: "serving-certificate", Hint: s.rotated, Step: issued.Step, Logger: s.log, Registerer: s.registry}
		s.goBackground(renewal.Run)
		s.certificate = issued.GetCertificate
		return nil
	}
	files, err := reload.Files[*tls.Certificate]{
		Name: "serving-certificate", Paths: []string{o.CertFile, o.KeyFile},
		Load: func() (*tls.Certificate, error) {
			c, err := pemfile.LoadKeyPair(o.CertFile, o.KeyFile)
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
			return errors.New("the new files of the serving certificate cannot be used, and kubejoin keeps the last valid ones; see the log")
		}
		return nil
	})
	s.certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return files.Get(), nil }
	return nil
}

// ownNames returns the names in an issued serving certificate.
func (s *service) ownNames() []string {
	return servingNames(s.options.Listen, slices.Concat(s.hosts, s.options.TLS.SANs)...)
}

// serve serves requests until ctx ends or a part fails permanently. On shutdown it first reports that it is not ready,
// and serves on for the shutdown delay, until load balancers have noticed. Then it finishes the requests in flight before
// it stops the background functions that they may need.
func (s *service) serve(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.options.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer func() { _ = listener.Close() }() // usually closed by the server already
	// With port 0, the system has chosen a free port.
	if host, port, err := net.SplitHostPort(s.options.Listen); err == nil && port == "0" {
		s.options.Listen = net.JoinHostPort(host, strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
	}
	if s.listening != nil {
		if err := s.listening(); err != nil {
			return err
		}
	}
	if err := s.servingCertificate(); err != nil {
		return err
	}
	config := &tls.Config{GetCertificate: s.certificate, MinVersion: s.options.TLS.MinVersion}
	if s.options.Webhook.ClientCAFile != "" || s.byCertificate != nil || s.options.NodeRules.RejoinWindow > 0 {
		config.ClientAuth = tls.RequestClientCert // each handler verifies the certificate that it needs
	}
	web, err := s.api.HTTPServer(config)
	if err != nil {
		return err
	}
	if s.options.Around != nil {
		web.Handler = s.options.Around(web.Handler)
	}

	// The background functions end after the last request.
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
	s.log.Info("serving", "address", listener.Addr().String(), "version", s.api.Status.Version.Version)
	if s.options.IssuanceRecord != StandardOutput { // otherwise standard output holds only the record
		if _, err := io.WriteString(s.stdout, s.banner); err != nil {
			s.log.Warn("cannot print startup message", "error", err)
		}
	}

	select {
	case <-ctx.Done():
		s.stopping.Store(true)
		s.log.Info("stopping", "delay", s.options.ShutdownDelay, "grace_period", shutdownTimeout)
		select {
		case <-time.After(s.options.ShutdownDelay):
		case <-back.Done():
		}
	case <-back.Done(): // a part failed
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := web.Shutdown(shutdown); err != nil {
		s.log.Warn("requests still in flight after grace period, aborting them", "error", err)
		_ = web.Close() // the log has the reason
	}
	endBack()
	return group.Wait()
}
