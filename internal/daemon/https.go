package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/pki"
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

// A servingCertificate returns the current serving certificate.
type servingCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// openServingCertificate loads the serving certificate from files, or issues it from the cluster CA.
func (s *service) openServingCertificate(ca *clusterCA) (servingCertificate, error) {
	o := s.options.TLS
	if o.CertFile == "" {
		issued := &servingcert.Source{CA: ca.Get, Names: s.ownNames(), Cross: ca.rotation.cross}
		// A joining node sees both the certificate and cluster-info, so both must change at once when the CA changes.
		err := ca.follow(func(*signer.CA) error {
			_, err := issued.Step(context.Background())
			return err
		})
		// While the signer process is unavailable, kubejoin has no certificate. The loop retries, and requests of machines
		// wait.
		if errors.Is(err, remote.ErrRefused) {
			return nil, fmt.Errorf("%w; allow signer %s in the policy of the signer process, or give --tls-cert-file", err, servingcert.SignerName)
		} else if err != nil && !errors.Is(err, remote.ErrUnavailable) {
			return nil, err
		}
		renewal := loop.Loop{Name: "serving-certificate", Hint: ca.rotation.changed, Step: issued.Step, Logger: s.log, Registerer: s.registry}
		s.goBackground(renewal.Run)
		return issued.GetCertificate, nil
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
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	s.goBackground(files.Run)
	s.check("serving-certificate", func(context.Context) error {
		if files.Err() != nil {
			return errors.New("the new files of the serving certificate cannot be used, and kubejoin keeps the last valid ones; see the log")
		}
		return nil
	})
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return files.Get(), nil }, nil
}

// ownNames returns the names in an issued serving certificate.
func (s *service) ownNames() []string {
	var advertised []string
	if host, _, err := net.SplitHostPort(s.options.Advertise); err == nil {
		advertised = []string{host}
	}
	return servingNames(s.options.Listen, slices.Concat(advertised, s.options.TLS.SANs)...)
}

// announce prints the banner as soon as kubejoin is ready. Until then, it logs what kubejoin waits for.
func (s *service) announce(ctx context.Context, banner func() string) {
	last := ""
	for pause := firstReadiness; ; pause = min(2*pause, lastReadiness) {
		waits := strings.Join(s.status().Failing(ctx), "; ")
		if ctx.Err() != nil {
			return
		}
		if waits == "" {
			break
		}
		if waits != last && pause > firstReadiness*8 {
			s.log.Warn("not ready yet", "waits_for", waits)
			last = waits
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
	if s.options.IssuanceRecord != StandardOutput { // with StandardOutput, print nothing except the record
		if _, err := io.WriteString(s.stdout, banner()); err != nil {
			s.log.Warn("cannot print startup message", "error", err)
		}
	}
	s.log.Info("ready")
}

// Pauses between checks of readiness, first short: caches fill within the first second.
const firstReadiness, lastReadiness = 100 * time.Millisecond, 5 * time.Second

// checkPort returns an error if another process has the port, before kubejoin creates files. It ignores all other errors,
// because serve reports them.
func (s *service) checkPort() error {
	listener, err := net.Listen("tcp", s.options.Listen)
	if err == nil {
		return listener.Close()
	}
	_, port, splitErr := net.SplitHostPort(s.options.Listen)
	number, portErr := strconv.Atoi(port)
	if !errors.Is(err, syscall.EADDRINUSE) || splitErr != nil || portErr != nil {
		return nil
	}
	return fmt.Errorf("--listen: %w: %s has the port; kubejoin has created nothing", err, cmp.Or(pki.ListenerOf(number), "a process that this user may not see"))
}

// serve serves requests until ctx ends or a background function fails permanently. On shutdown, serve first reports
// that it is not ready. It continues to serve for the shutdown delay, until load balancers have noticed. Then it
// finishes the requests in flight, and only then stops the background functions, which requests may need.
func (s *service) serve(ctx context.Context, served *site) error {
	listener, err := net.Listen("tcp", s.options.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer func() { _ = listener.Close() }() // usually the server has already closed it
	// With port 0, the system has chosen a free port.
	if host, port, err := net.SplitHostPort(s.options.Listen); err == nil && port == "0" {
		s.options.Listen = net.JoinHostPort(host, strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
	}
	if served.listening != nil {
		if err := served.listening(); err != nil {
			return err
		}
	}
	// Machines prove their keys with certificates. Each handler verifies the certificate that it needs.
	config := &tls.Config{GetCertificate: served.certificate, MinVersion: s.options.TLS.MinVersion, ClientAuth: tls.RequestClientCert}
	web, err := served.api.HTTPServer(config)
	if err != nil {
		return err
	}
	if s.options.Around != nil {
		web.Handler = s.options.Around(web.Handler)
	}

	// The background functions stop only after the last request.
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
	s.log.Info("serving", "address", listener.Addr().String(), "version", s.options.Version.Version)
	announcing, endAnnouncing := context.WithCancel(ctx)
	var announced sync.WaitGroup
	announced.Go(func() { s.announce(announcing, served.banner) })
	defer announced.Wait()
	defer endAnnouncing()

	select {
	case <-ctx.Done():
		s.stopping.Store(true)
		s.log.Info("stopping", "delay", s.options.ShutdownDelay, "grace_period", shutdownTimeout)
		select {
		case <-time.After(s.options.ShutdownDelay):
		case <-back.Done():
		}
	case <-back.Done(): // a background function failed
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := web.Shutdown(shutdown); err != nil {
		s.log.Warn("requests still in flight after grace period, aborting them", "error", err)
		_ = web.Close() // the reason is already logged
	}
	endBack()
	return group.Wait()
}
