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
	"github.com/kubejoin/kubejoin/internal/kube/tokenwarning"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
)

// usualServices are the default Service addresses of kubeadm and of kube-apiserver.
var usualServices = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.0.0.0/24")}

// A standalone has the parts of a service that keeps all data in DataDir. With etcd, it keeps only keys and
// credentials in DataDir.
type standalone struct {
	*service
	stores
	dir       datadir.Dir
	apiServer string // URL of the API server in cluster-info
	follower  *caFollower
	trust     trust
	ca        *clusterCA
	info      *clusterinfo.Computed
}

// withoutCluster builds the site of a standalone kubejoin.
func (s *service) withoutCluster(_ context.Context, lines issuance.Log) (*site, error) {
	alone, err := s.openStandalone()
	if err != nil {
		return nil, err
	}
	signers, err := s.loadSigners(alone.ca, noEvents)
	if err != nil {
		return nil, err
	}
	certificate, err := s.openServingCertificate(alone.ca)
	if err != nil {
		return nil, err
	}
	authority, err := alone.newAuthority(signers, certificate, lines)
	if err != nil {
		return nil, err
	}
	rotations := alone.rotations(certificate)
	operators, listening, err := alone.openOperators()
	if err != nil {
		return nil, err
	}
	webhooks, err := s.webhooks(alone.stores, alone.trust)
	if err != nil {
		return nil, err
	}
	alone.startControllers()
	s.warnOf(tokenwarning.Limits("for example with 'kubejoin sign'; the signer of a cluster, which 'kubeadm join' uses, ignores them"))
	s.warnOf(tokenwarning.CA(authority, tokenwarning.None))
	s.warnOf(tokenwarning.Duration(authority))
	byCertificate := byOwnCAs(alone.trust, alone.ca, signers)
	return &site{
		api: server.Server{
			Tokens: alone.tokens, Claims: alone.claims, ClusterInfo: alone.info, IssuanceRecord: alone.record,
			Callers:      ownCallers(operators, byCertificate),
			Minting:      server.Minting{Advertise: s.options.Advertise, Warnings: s.warningsOf},
			Certificates: &server.Certificates{Authority: authority, ClientCertificate: byCertificate}, Webhooks: webhooks,
			Revocations: &desk.Revoker{
				Guard: alone.trust.revocations, Tokens: alone.tokens, Claims: alone.claims, ClusterInfo: alone.info, IssuanceRecord: alone.record,
				Lifetime: authority.MaxRemainingLifetime, RejoinWindow: s.options.NodeRules.RejoinWindow,
			},
			Rotations: rotations, MaxRemainingLifetime: authority.MaxRemainingLifetime,
			Limits: s.options.Limits, Console: s.options.Console, Status: s.status(), Logger: s.log, Registerer: s.registry,
		},
		certificate: certificate, listening: listening, banner: alone.readyBanner,
	}, nil
}

// openStandalone opens the stores, the CA and cluster-info. The file store comes first because it locks the folder.
func (s *service) openStandalone() (*standalone, error) {
	own, err := s.openOwnStores()
	if err != nil {
		return nil, err
	}
	dir := datadir.Dir(s.options.DataDir)
	files, err := s.ownCA(dir)
	if err != nil {
		return nil, err
	}
	follower := s.resumeRotation(own, files)
	state := &rotationState{
		now: func() rotating { return *follower.state.Load() }, renewals: files.RotationQPS,
	}
	ca, err := s.loadCA(files, files.Duration, state, noEvents)
	if err != nil {
		return nil, err
	}
	if s.options.Advertise == "" {
		if s.options.Advertise, err = reachable(s.options.Listen); err != nil {
			return nil, err
		}
	}
	host, _, err := net.SplitHostPort(s.options.Advertise)
	if err != nil {
		return nil, fmt.Errorf("--advertise: %w", err)
	}
	apiServer := cmp.Or(s.options.APIServer, "https://"+net.JoinHostPort(host, "6443"))
	info, err := computedClusterInfo(own, apiServer, ca)
	if err != nil {
		return nil, err
	}
	return &standalone{
		service: s, stores: own, dir: dir, apiServer: apiServer, follower: follower, ca: ca, info: info,
		trust: trust{state, &revocation.Guard{Store: rowlist.New(own.revocationRows)}},
	}, nil
}

// ownCA returns the files of the cluster CA. If the options name no files, it creates a CA in the data folder.
func (s *service) ownCA(dir datadir.Dir) (CA, error) {
	files := s.options.CA
	if files.CertFile != "" {
		return files, nil
	}
	files.CertFile, files.KeyFile = dir.Path(datadir.CA), dir.Path(datadir.CA)
	made, err := dir.MakeCA(time.Now())
	if err != nil {
		return files, fmt.Errorf("cluster CA: %w", err)
	}
	if made {
		s.log.Info("created a cluster CA", "file", files.CertFile)
	}
	return files, nil
}

// newAuthority creates the authority. Without a cluster, there are no Node objects. So only claims show that a node
// name is in use.
func (s *standalone) newAuthority(c *configured, certificate servingCertificate, lines issuance.Log) (*signer.Authority, error) {
	signers, err := s.signers(s.ca, c)
	if err != nil {
		return nil, err
	}
	o := s.options
	services := o.Serving.ServiceCIDRs
	if len(services) == 0 {
		services = usualServices
	}
	return &signer.Authority{
		Signers: signers,
		Facts: standaloneFacts{
			Standalone: signer.Standalone{
				Claims: s.claims, DNSSuffixes: o.Serving.Scope.DNSSuffixes,
				Keep: approval.ClusterAddresses{
					Prefixes: services, APIServer: []string{hostOf(s.apiServer)},
					Source: "--service-cluster-ip-range or its usual ranges, --api-server, --advertise, --tls-san and kubejoin's certificate",
				},
			},
			ownHosts: func() ([]string, error) { return s.ownHosts(certificate) },
		},
		Nodes:       s.admission(s.stores, nil, nil),
		Revocations: s.trust.revocations, Record: s.watchRecord(s.stores, lines), MaxLifetime: s.trust.rotation.maxLifetime,
		Unthrottled: o.Limits.UserRate.QPS < 0,
	}, nil
}

// computedClusterInfo returns a cluster-info that is computed from the tokens and the current CA.
func computedClusterInfo(own stores, apiServer string, ca *clusterCA) (*clusterinfo.Computed, error) {
	var current atomic.Pointer[[]byte]
	err := ca.follow(func(ca *signer.CA) error {
		kubeconfig, err := clusterinfo.Kubeconfig(apiServer, ca.Bundle())
		if err == nil {
			current.Store(&kubeconfig)
		}
		return err
	})
	return &clusterinfo.Computed{
		Tokens: own.tokens, Spent: &clusterinfo.Spent{Claims: own.claims},
		Follow: func(context.Context) ([]byte, error) { return *current.Load(), nil },
	}, err
}

// openOperators loads the operators. Without --token-auth-file, it creates an admin, and the function listening
// writes a curlrc.
func (s *standalone) openOperators() (operators auth.Authenticate, listening func() error, err error) {
	if err := s.keepBundle(s.ca); err != nil {
		return nil, nil, err
	}
	if file := s.options.Callers.TokenFile; file != "" {
		operators, err = s.loadOperators(file, nil)
		return operators, nil, err
	}
	if _, err := s.dir.AdminBearer(AdminGroup); err != nil {
		return nil, nil, err
	}
	operators, err = s.loadOperators(s.dir.Path(datadir.Operators), s.writeCurlrc)
	return operators, s.writeCurlrc, err
}

// writeCurlrc writes a curlrc with the address of this server and the bearer token of the first operator.
func (s *standalone) writeCurlrc() error {
	bearer, err := s.dir.AdminBearer(AdminGroup)
	if err != nil {
		return err
	}
	return s.dir.WriteCurlrc("https://"+dialable(s.options.Listen), bearer)
}

// startControllers starts the controllers that need no cluster. If there are several replicas, they elect the replica
// that runs the controllers.
func (s *standalone) startControllers() {
	controllers := s.cleaners(s.stores, cleaner.Claims{})
	if s.etcd == nil {
		s.goBackground(together(controllers))
		return
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
		return nil // the readiness check "tokens" reports that etcd is not available
	})
}

func (s *standalone) readyBanner() string {
	o := s.options
	var b strings.Builder
	data := o.DataDir
	if o.Etcd != nil {
		data = "etcd at " + strings.Join(o.Etcd.Endpoints, ",")
	}
	fmt.Fprintf(&b, "kubejoin is ready on https://%s, standalone, with its data in %s\n\n", o.shownAddress(), data)
	if o.Callers.TokenFile == "" {
		fmt.Fprintf(&b, "Get a join command:\n  curl -K %s -X POST https://%s/v1/token/print-join-command\n\n", safetext.Quote(s.dir.Path(datadir.Curlrc)), dialable(o.Listen))
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
