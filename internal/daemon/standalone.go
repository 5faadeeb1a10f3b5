package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
)

// usualServices are the default Service addresses of kubeadm and of kube-apiserver.
var usualServices = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.0.0.0/24")}

// A standalone is a service that keeps all data in DataDir, or in etcd but for keys and credentials.
type standalone struct {
	*service
	stores
	dir       datadir.Dir
	apiServer string // its URL in cluster-info
	authority *signer.Authority
	rotation  *ownRotation
	curlrc    string // empty if the operator gave a token file
}

// withoutCluster builds a standalone service.
func (s *service) withoutCluster(context.Context) error {
	alone := &standalone{service: s, dir: datadir.Dir(s.options.DataDir)}
	for _, build := range []func() error{
		alone.openStores,
		alone.buildAuthority,
		alone.openCallers,
	} {
		if err := build(); err != nil {
			return err
		}
	}
	alone.startControllers()
	s.warnOf(tokenwarning.Limits("for example with 'kubejoin sign'; the signer of a cluster, which 'kubeadm join' uses, ignores them"))
	s.warnOf(tokenwarning.CA(alone.authority, tokenwarning.None))
	s.warnOf(tokenwarning.Duration(alone.authority))
	s.banner = alone.readyBanner()
	return nil
}

// openStores opens the stores, the CA and cluster-info. The file store comes first because it locks the folder.
func (s *standalone) openStores() (err error) {
	if s.stores, err = s.openOwnStores(); err != nil {
		return err
	}
	s.openRevocations()
	if err := s.answerAccessReviews(); err != nil {
		return err
	}
	o := &s.options
	if o.CA.CertFile == "" {
		o.CA.CertFile = s.dir.Path(datadir.CA)
		o.CA.KeyFile = o.CA.CertFile
		made, err := s.dir.MakeCA(time.Now())
		if err != nil {
			return fmt.Errorf("cluster CA: %w", err)
		}
		if made {
			s.log.Info("created a cluster CA", "file", o.CA.CertFile)
		}
	}
	s.resumeRotation()
	if err := s.loadCA(o.CA, o.CA.Duration); err != nil {
		return err
	}
	if o.Advertise == "" {
		if o.Advertise, err = reachable(o.Listen); err != nil {
			return err
		}
	}
	host, _, err := net.SplitHostPort(o.Advertise)
	if err != nil {
		return fmt.Errorf("--advertise: %w", err)
	}
	s.hosts = []string{host}
	s.apiServer = cmp.Or(o.APIServer, "https://"+net.JoinHostPort(host, "6443"))
	s.api.Tokens, s.api.Claims, s.api.Minting.Advertise = s.tokens, s.claims, o.Advertise
	return s.openClusterInfo()
}

// buildAuthority creates the authority. Without a cluster there are no Node objects, so only claims show that a node
// name is in use.
func (s *standalone) buildAuthority() error {
	if err := s.loadSigners(); err != nil {
		return err
	}
	if err := s.knowOwnCertificates(); err != nil {
		return err
	}
	o := s.options
	services := o.Serving.ServiceCIDRs
	if len(services) == 0 {
		services = usualServices
	}
	facts := standaloneFacts{
		Standalone: signer.Standalone{
			Claims: s.claims, DNSSuffixes: o.Serving.Scope.DNSSuffixes,
			Keep: approval.ClusterAddresses{
				Prefixes: services, APIServer: []string{hostOf(s.apiServer)},
				Source: "--service-cluster-ip-range or its usual ranges, --api-server, --advertise, --tls-san and kubejoin's certificate",
			},
		},
		ownHosts: s.ownHosts,
	}
	var err error
	if s.authority, err = s.newAuthority(facts, &admission.Nodes{
		Tokens: s.tokens, Claims: s.claims, Reserved: o.NodeRules.Reserved, Retention: o.NodeRules.SpentRetention, RejoinWindow: o.NodeRules.RejoinWindow, RejoinBudget: o.NodeRules.RejoinBudget,
		Logger: s.log, Registerer: s.registry,
	}); err != nil {
		return err
	}
	s.giveCertificates(s.authority)
	s.api.MaxRemainingLifetime = s.authority.MaxRemainingLifetime
	s.api.Revocations = s.newDesk(s.authority)
	s.rotateCA()
	return nil
}

// openClusterInfo sets up a cluster-info that is computed from the tokens and the current CA.
func (s *standalone) openClusterInfo() error {
	var current atomic.Pointer[[]byte]
	follow := func(ca *signer.CA) error {
		kubeconfig, err := clusterinfo.Kubeconfig(s.apiServer, ca.Bundle())
		if err != nil {
			return err
		}
		current.Store(&kubeconfig)
		return nil
	}
	if err := follow(s.ca.Get()); err != nil {
		return err
	}
	s.caChanged = append(s.caChanged, follow)
	s.api.ClusterInfo = &clusterinfo.Computed{Tokens: s.tokens, Follow: func(context.Context) ([]byte, error) { return *current.Load(), nil }}
	return nil
}

// openCallers loads the operators. Without --token-auth-file it creates an admin and a curlrc.
func (s *standalone) openCallers() error {
	if err := s.keepBundle(); err != nil {
		return err
	}
	if s.options.Callers.TokenFile != "" {
		if err := s.loadOperators(nil); err != nil {
			return err
		}
	} else {
		s.options.Callers.TokenFile, s.curlrc = s.dir.Path(datadir.Operators), s.dir.Path(datadir.Curlrc)
		if _, err := s.dir.AdminBearer(AdminGroup); err != nil {
			return err
		}
		s.listening = s.writeCurlrc
		if err := s.loadOperators(s.writeCurlrc); err != nil {
			return err
		}
	}
	s.knowCallers()
	return nil
}

// writeCurlrc writes a curlrc with the address of this server and the bearer token of the first operator.
func (s *standalone) writeCurlrc() error {
	bearer, err := s.dir.AdminBearer(AdminGroup)
	if err != nil {
		return err
	}
	return s.dir.WriteCurlrc("https://"+dialable(s.options.Listen), bearer)
}

// startControllers starts the controllers that need no cluster. Several replicas elect one that runs them.
func (s *standalone) startControllers() {
	var controllers []func(context.Context) error
	if s.options.Controllers[TokenCleaner] {
		loop := cleaner.Tokens{Store: s.tokens, Logger: s.log, Registerer: s.registry}
		controllers = append(controllers, loop.Run)
	}
	if s.options.Controllers[ClaimCleaner] {
		loop := cleaner.Claims{Store: s.claims, Tokens: s.tokens, RejoinWindow: s.options.NodeRules.RejoinWindow, Logger: s.log, Registerer: s.registry}
		controllers = append(controllers, loop.Run)
	}
	if s.etcd == nil {
		s.goBackground(together(controllers))
		return
	}
	if sweep := s.sweepRecord(); sweep != nil {
		controllers = append(controllers, sweep)
	}
	leading := metrics.Gauge(s.registry, leader.Metric, leader.MetricHelp).WithLabelValues()
	leading.Set(0)
	s.goBackground(func(ctx context.Context) error {
		return s.etcd.Lead(ctx, func(ctx context.Context) error {
			leading.Set(1)
			defer leading.Set(0)
			return together(controllers)(ctx)
		})
	})
	s.check("leader", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, etcdReadyTimeout)
		defer cancel()
		if _, err := s.etcd.Leader(ctx); errors.Is(err, etcdstore.ErrNoLeader) {
			return errors.New("no kubejoin replica leads, so nothing deletes expired tokens; see the log if this lasts")
		}
		return nil // check "tokens" reports that etcd is not available
	})
}

func (s *standalone) readyBanner() string {
	o := s.options
	var b strings.Builder
	data := o.DataDir
	if o.Etcd != nil {
		data = "etcd at " + strings.Join(o.Etcd.Endpoints, ",")
	}
	fmt.Fprintf(&b, "kubejoin is ready on https://%s, standalone, with its data in %s\n\n", o.Listen, data)
	if s.curlrc != "" {
		fmt.Fprintf(&b, "Get a join command:\n  curl -K %s -X POST https://%s/v1/token/print-join-command\n\n", safetext.Quote(s.curlrc), dialable(o.Listen))
	} else {
		fmt.Fprintf(&b, "Get a join command, as a user in %s:\n  POST https://%s/v1/token/print-join-command\n\n", o.Callers.TokenFile, dialable(o.Listen))
	}
	if o.APIServer == "" {
		b.WriteString("No API server is configured: machines can discover the cluster, but not join. Start\nkubejoin with --api-server https://HOST:PORT, or with --kubeconfig FILE.\n")
	} else {
		fmt.Fprintf(&b, "Machines join at %s. Configure it to check tokens at kubejoin:\nsee 'kubejoin webhook-config --help'. To keep tokens in the cluster, start with --kubeconfig FILE.\n", o.APIServer)
	}
	return b.String()
}
