package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/internal/caexpiry"
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/remote"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// A clusterCA is the CA of the cluster, reloaded from its files.
type clusterCA struct {
	*reload.Value[*signer.CA]
	file     string // the certificate file
	rotation *rotationState
	// When the CA is replaced, clusterCA calls the followers in order. If one fails, it later calls all again.
	followers []func(*signer.CA) error
}

// follow calls f with the CA, now and whenever it is replaced. Call follow before c runs.
func (c *clusterCA) follow(f func(*signer.CA) error) error {
	c.followers = append(c.followers, f)
	return f(c.Get())
}

// loadCA loads the CA from files and reloads them. lifetime is the normal lifetime of its certificates.
func (s *service) loadCA(o CA, lifetime time.Duration, rotating *rotationState, events events) (*clusterCA, error) {
	c := &clusterCA{file: o.CertFile, rotation: rotating}
	hint := make(chan struct{}, 1)
	paths := []string{o.CertFile, o.KeyFile}
	if o.PassphraseFile != "" {
		paths = append(paths, o.PassphraseFile)
	}
	load := func() (*signer.CA, error) { return signer.LoadEncryptedCA(o.CertFile, o.KeyFile, o.PassphraseFile) }
	if o.Remote.URL != "" {
		client, err := s.signerProcess(o.Remote, c)
		if err != nil {
			return nil, fmt.Errorf("--cluster-signing-key-url: %w", err)
		}
		paths = paths[:1]
		load = func() (*signer.CA, error) { return signer.LoadRemoteCA(o.CertFile, client) }
	}
	var err error
	c.Value, err = reload.Files[*signer.CA]{
		Name: "ca", Paths: paths,
		Load: load,
		Changed: func(ca *signer.CA) error {
			select {
			case hint <- struct{}{}:
			default:
			}
			var errs []error
			for _, follow := range c.followers {
				errs = append(errs, follow(ca))
			}
			return errors.Join(errs...)
		},
		Failed: func(err error) {
			events.own(codes.CAFilesUnusable, fmt.Sprintf("kubejoin cannot use the new CA files and keeps the last valid ones: %v", err))
		},
		Logger: s.log, Registerer: s.registry,
	}.Open()
	if err != nil {
		return nil, fmt.Errorf("cluster CA: %w", err)
	}
	s.goBackground(c.Run)
	todo := caexpiry.Prepare(rotation.Cluster)
	watch := &caexpiry.Watch{
		CA: c.Get, Lifetime: lifetime, Trust: s.checkTrust, Logger: s.log, Event: events.own, Todo: todo,
		NotAfter:     metrics.Gauge(s.registry, "kubejoin_ca_not_after_timestamp_seconds", "When the CA that signs expires, in Unix seconds.").WithLabelValues(),
		Certificates: metrics.Gauge(s.registry, "kubejoin_ca_certificates", "Trusted CA certificates, including the one that signs.").WithLabelValues(),
	}
	s.goBackground(loop.Loop{Name: "ca", Hint: hint, Step: watch.Step, Logger: s.log, Registerer: s.registry}.Run)
	s.check("cluster-ca", func(context.Context) error {
		if _, err := c.inUse(); err != nil {
			return err
		}
		if c.Err() != nil {
			return errors.New("the new CA files cannot be used, and kubejoin keeps the last valid ones; see the log")
		}
		end := c.Get().Certificate().NotAfter
		if caexpiry.Expired(end, lifetime, time.Now()) {
			return fmt.Errorf("the CA expired at %s, and kubejoin cannot sign with it", end.UTC().Format(time.RFC3339))
		}
		if err := s.checkTrust(c.Get()); err != nil {
			return api.Notice(err.Error())
		}
		if notice := caexpiry.Notice(end, lifetime, time.Now(), todo); notice != "" {
			return api.Notice(notice)
		}
		return nil
	})
	return c, nil
}

// inUse returns the CA without the certificates that a rotation took out of use, because somebody else may have their
// keys. It fails if a rotation has replaced the CA itself. That happens, for example, on a host that missed the rotation.
func (c *clusterCA) inUse() (*signer.CA, error) {
	if c == nil {
		return nil, errors.New("no CA configured, want --cluster-signing-cert-file and --cluster-signing-key-file")
	}
	ca, err := c.Get().Without(c.rotation.now().replaced)
	if err != nil {
		return nil, fmt.Errorf("a CA rotation has replaced the CA in %s, so kubejoin neither signs with it nor trusts it; next, on this host: kubejoin ca status", c.file)
	}
	return ca, nil
}

// signerProcess returns the client of a signer process. Readiness and the log report if the process does not respond, or
// signs with a CA that is not in the file of this host.
func (s *service) signerProcess(o remote.Config, c *clusterCA) (*remote.Client, error) {
	o.Logger, o.Registerer = s.log, s.registry
	client, err := remote.New(o)
	if err != nil {
		return nil, err
	}
	ping := loop.Loop{Name: "signer-process", Sweep: pingEvery, Logger: s.log, Registerer: s.registry, Step: func(ctx context.Context) (time.Time, error) {
		ca := c.Get()
		signs, err := client.Ping(ctx, ca.Bundle())
		if err == nil {
			ca.SignsWith(signs)
		}
		return time.Time{}, err
	}}
	s.goBackground(ping.Run)
	s.check("signer-process", func(ctx context.Context) error {
		if _, err := client.Ping(ctx, c.Get().Bundle()); err != nil {
			return api.Notice("the signer process of --cluster-signing-key-url cannot sign now, and requests wait; see the log")
		}
		return nil
	})
	return client, nil
}

// pingEvery is how often kubejoin checks that the signer process responds.
const pingEvery = 15 * time.Second

// checkTrust returns why clients would refuse serving certificates of the cluster CA, for kubejoin or for kubelets.
// NewSigner checks the usages of client certificates.
func (s *service) checkTrust(ca *signer.CA) error {
	hosts := sampleHosts(s.options.Serving.Scope)
	if s.options.TLS.CertFile == "" {
		hosts = append(hosts, s.ownNames()...)
	}
	return signer.CheckTrust(ca.Certificate(), ca.Bundle(), []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, hosts)
}

// sampleHosts returns an address in each range of the scope, and a name below each DNS suffix.
func sampleHosts(scope approval.ServingScope) []string {
	var hosts []string
	for _, p := range scope.CIDRs {
		hosts = append(hosts, p.Addr().String())
	}
	for _, suffix := range scope.DNSSuffixes {
		hosts = append(hosts, "node."+suffix)
	}
	return hosts
}

// keepBundle keeps the CA certificates in DataDir up to date, for clients of kubejoin.
func (s *service) keepBundle(ca *clusterCA) error {
	file := datadir.Dir(s.options.DataDir).Path(datadir.Bundle)
	err := ca.follow(func(ca *signer.CA) error {
		r, err := atomicfile.Prepare(file)
		if err != nil {
			return err
		}
		return r.Write(ca.BundlePEM(), 0o644) // public, and often copied with its mode
	})
	if err != nil {
		return fmt.Errorf("CA for clients: %w", err)
	}
	return nil
}

// trusting returns a function that returns a pool of the certificates of get. The pool lacks certificates that a
// rotation took out of use.
func (r *rotationState) trusting(get func() []*x509.Certificate) func() *x509.CertPool {
	type made struct {
		of   []*x509.Certificate
		pool *x509.CertPool
	}
	var last atomic.Pointer[made]
	return func() *x509.CertPool {
		of := slices.DeleteFunc(slices.Clone(get()), r.now().replaced)
		if m := last.Load(); m != nil && slices.Equal(m.of, of) {
			return m.pool // return the same pool: callers cache verification results by pool
		}
		m := &made{of, pemfile.PoolOf(of)}
		last.Store(m)
		return m.pool
	}
}
