package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/caexpiry"
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
)

// configured is the current signer configuration with its CAs.
type configured struct {
	files *reload.Value[signerFile]
	// again receives a hint when the signers have changed: then kubejoin may be able to decide pending requests.
	again chan struct{}
}

// A signerFile is the configuration in the file and its signers.
type signerFile struct {
	says    *config.Configuration
	signers map[string]signer.Signer
	// hosts are sample names of kubelets.
	hosts []string
	// nodeCAs is the separate CA for kubelets' client certificates; empty if their signer uses the cluster CA.
	nodeCAs []*x509.Certificate
}

// loadSigners loads and reloads the signer configuration. Without --signer-config, it returns nil.
func (s *service) loadSigners(ca *clusterCA, events events) (*configured, error) {
	file := s.options.SignerConfig
	if file == "" {
		return nil, nil
	}
	defaults := config.Defaults{Duration: s.options.CA.Duration, Scope: s.options.Serving.Scope}
	if ca != nil {
		defaults.CA = ca.inUse
	}
	again, watch := make(chan struct{}, 1), make(chan struct{}, 1)
	files, err := reload.Files[signerFile]{
		Name: "signer-config", Paths: []string{file},
		Named: func(content []byte) []string {
			if says, err := config.Parse(file, content); err == nil {
				return says.Files()
			}
			return nil // Load reports the error
		},
		Load: func() (signerFile, error) {
			says, signers, err := config.Open(file, defaults)
			if err != nil {
				return signerFile{}, err
			}
			f := signerFile{says: says, signers: signers, hosts: sampleHosts(s.options.Serving.Scope)}
			if ca := f.own()[certificates.KubeAPIServerClientKubeletSignerName]; ca != nil {
				f.nodeCAs = ca.Bundle()
			}
			return f, nil
		},
		Changed: func(f signerFile) error {
			events.own(codes.SignerConfigReplaced, "The signer configuration, or a CA that it names, has changed and is in use now: "+f.names())
			for _, hint := range []chan struct{}{again, watch} {
				select {
				case hint <- struct{}{}:
				default:
				}
			}
			return nil
		},
		Failed: func(err error) {
			events.own(codes.SignerConfigUnusable, "kubejoin cannot use the new signer configuration and keeps the last valid one: "+firstOf(err))
		},
		Logger: s.log, Registerer: s.registry,
	}.Open()
	if errors.As(err, new(config.Errors)) {
		return nil, err // the error names the file
	}
	if err != nil {
		return nil, fmt.Errorf("--signer-config: %w", err)
	}
	s.log.Info("signer configuration loaded", "file", file, "signers", files.Get().names())
	s.goBackground(files.Run)
	cas := &signerCAs{
		files: files, log: s.log, event: events.own, known: map[string]*caexpiry.Watch{},
		end:  metrics.Gauge(s.registry, "kubejoin_signer_ca_not_after_timestamp_seconds", "When the separate CA of a signer expires, in Unix seconds.", "signer"),
		many: metrics.Gauge(s.registry, "kubejoin_signer_ca_certificates", "Trusted CA certificates of a signer with a separate CA, including the one that signs.", "signer"),
	}
	s.goBackground(loop.Loop{Name: "signer-cas", Hint: watch, Step: cas.watch, Logger: s.log, Registerer: s.registry}.Run)
	s.check("signer-config", func(context.Context) error {
		if files.Err() != nil {
			return errors.New("the new signer configuration, or a CA in it, cannot be used, and kubejoin keeps the last valid one; see the log")
		}
		return files.Get().ready(time.Now())
	})
	return &configured{files: files, again: again}, nil
}

// signers returns the source of signers for an Authority: the file, or without a file the built-in signers.
func (s *service) signers(ca *clusterCA, c *configured) (func() map[string]signer.Signer, error) {
	if c != nil {
		return func() map[string]signer.Signer { return c.files.Get().signers }, nil
	}
	kubelets, err := approval.NewKubeletServing(s.options.Serving.Scope)
	if err != nil {
		return nil, err
	}
	builtIn, err := signer.KubernetesSigners(ca.inUse, s.options.CA.Duration)
	serving := builtIn[certificates.KubeletServingSignerName]
	serving.Rules = []approval.Rule{kubelets}
	builtIn[certificates.KubeletServingSignerName] = serving
	return signer.FixedSigners(builtIn), err
}

// changed returns a channel that receives a hint when kubejoin may be able to decide pending requests; nil without a
// configuration.
func (c *configured) changed() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.again
}

func (f signerFile) names() string { return strings.Join(slices.Sorted(maps.Keys(f.signers)), ", ") }

// todo returns the command with which an operator replaces the separate CA of a signer before it expires.
func (f signerFile) todo(name string) string {
	i := slices.IndexFunc(f.says.Signers, func(s config.Signer) bool { return s.Name == name })
	files := f.says.Signers[i].CA
	return caexpiry.Replace(files.CertFile, files.KeyFile)
}

// own maps the names of signers to their separate CAs.
func (f signerFile) own() map[string]*signer.CA {
	cas := map[string]*signer.CA{}
	for _, s := range f.says.Signers {
		if s.CA == (config.CAFiles{}) {
			continue
		}
		if ca, err := f.signers[s.Name].CA(); err == nil { // never fails for a separate CA
			cas[s.Name] = ca
		}
	}
	return cas
}

// ready returns an error or a notice about the separate CAs of signers.
func (f signerFile) ready(now time.Time) error {
	var expired, notices []string
	own := f.own()
	for _, name := range slices.Sorted(maps.Keys(own)) {
		end, lifetime := own[name].Certificate().NotAfter, f.signers[name].Profile().Default
		if caexpiry.Expired(end, lifetime, now) {
			expired = append(expired, fmt.Sprintf("the CA of signer %s expired at %s, and kubejoin cannot sign with it", name, end.UTC().Format(time.RFC3339)))
		} else if err := f.checkTrust(name, own[name]); err != nil {
			notices = append(notices, fmt.Sprintf("signer %s: %v", name, err))
		} else if notice := caexpiry.Notice(end, lifetime, now, f.todo(name)); notice != "" {
			notices = append(notices, fmt.Sprintf("signer %s: %s", name, notice))
		}
	}
	if len(expired) > 0 {
		return errors.New(strings.Join(expired, "; "))
	}
	if len(notices) > 0 {
		return api.Notice(strings.Join(notices, "; "))
	}
	return nil
}

// checkTrust returns why clients would refuse certificates of the separate CA of a signer.
func (f signerFile) checkTrust(name string, ca *signer.CA) error {
	_, usages, err := approval.X509Usages(f.signers[name].Profile().Usages)
	if err != nil {
		return err
	}
	var hosts []string
	if name == certificates.KubeletServingSignerName {
		hosts = f.hosts
	}
	return signer.CheckTrust(ca.Certificate(), ca.Bundle(), usages, hosts)
}

// firstOf shortens an error to one line that fits into an Event.
func firstOf(err error) string {
	var all config.Errors
	if errors.As(err, &all) && len(all) > 1 {
		return fmt.Sprintf("%.700s (and %d more, see the log)", all[0], len(all)-1)
	}
	return fmt.Sprintf("%.700s", err)
}

// signerCAs watches the separate CAs of signers.
type signerCAs struct {
	files     *reload.Value[signerFile]
	log       *slog.Logger
	event     func(e codes.Event, message string)
	end, many *prometheus.GaugeVec
	known     map[string]*caexpiry.Watch
}

// watch watches the CAs of the current configuration.
func (w *signerCAs) watch(ctx context.Context) (next time.Time, err error) {
	now := w.files.Get()
	own := now.own()
	for name := range w.known {
		if own[name] == nil {
			delete(w.known, name)
			w.end.DeleteLabelValues(name)
			w.many.DeleteLabelValues(name)
		}
	}
	for name, ca := range own {
		one := w.known[name]
		if one == nil {
			one = &caexpiry.Watch{Logger: w.log.With("signer", name), NotAfter: w.end.WithLabelValues(name), Certificates: w.many.WithLabelValues(name)}
			one.Event = func(e codes.Event, message string) { w.event(e, "Signer "+name+": "+message) }
			w.known[name] = one
		}
		one.CA, one.Lifetime, one.Todo = func() *signer.CA { return ca }, now.signers[name].Profile().Default, now.todo(name)
		one.Trust = func(ca *signer.CA) error { return now.checkTrust(name, ca) }
		due, err := one.Step(ctx)
		if err != nil {
			return time.Time{}, err
		}
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	return next, nil
}
