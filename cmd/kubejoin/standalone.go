package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
)

// standalone keeps everything in one folder.
func standalone(ctx context.Context, s *service) error {
	o := &s.options
	if err := checkStandalone(o); err != nil {
		return err
	}
	dir := datadir.Dir(o.dataDir)
	// The store first: it is the lock on the folder.
	store, err := s.openFileStore()
	if err != nil {
		return err
	}

	if o.caCert == "" {
		o.caCert = dir.Path(datadir.CA)
		o.caKey = o.caCert
		made, err := dir.MakeCA(time.Now())
		if err != nil {
			return fmt.Errorf("cluster CA: %w", err)
		}
		if made {
			s.log.Info("made a cluster CA", "file", o.caCert)
		}
	}
	if err := s.loadCA(o.caCert, o.caKey, o.duration); err != nil {
		return err
	}

	if err := s.loadSigners(); err != nil {
		return err
	}

	if o.advertise == "" {
		if o.advertise, err = reachable(o.listen); err != nil {
			return err
		}
	}
	host, _, err := net.SplitHostPort(o.advertise)
	if err != nil {
		return fmt.Errorf("--advertise: %w", err)
	}
	apiServer := o.apiServer
	if apiServer == "" {
		apiServer = "https://" + net.JoinHostPort(host, "6443")
	}
	info := &followed{apiServer: apiServer, tokens: store}
	if err := info.follow(s.ca.Get()); err != nil {
		return err
	}
	s.caChanged = append(s.caChanged, info.follow)
	s.hosts = []string{host}
	s.api.Tokens, s.api.Claims, s.api.ClusterInfo, s.api.Advertise = store, store.Claims(), info, o.advertise
	s.warnOf(tokenwarning.Limits("as with 'kubejoin sign'; a cluster's own signer, which answers 'kubeadm join', knows nothing of them"))
	if err := s.knowOwnCertificates(); err != nil {
		return err
	}
	authority := s.standaloneAuthority(store, hostOf(apiServer))
	if err := authority.Check(); err != nil {
		return err
	}
	s.giveCertificates(authority)
	s.api.Longest = authority.Longest
	s.warnOf(tokenwarning.CA(authority, tokenwarning.None))
	s.warnOf(tokenwarning.Duration(authority))
	if err := s.keepBundle(dir.Path(datadir.Bundle)); err != nil {
		return err
	}

	curlrc := ""
	if o.tokenAuthFile == "" {
		o.tokenAuthFile = dir.Path(datadir.Operators)
		bearer, err := dir.AdminBearer(adminGroup)
		if err != nil {
			return err
		}
		curlrc = dir.Path(datadir.Curlrc)
		if err := dir.WriteCurlrc(bearer); err != nil {
			return err
		}
	}
	if err := s.loadOperators(o.tokenAuthFile); err != nil {
		return err
	}
	s.callersStandalone()
	enabled, err := enabledControllers(o.controllers)
	if err != nil {
		return err
	}
	if enabled[tokenCleaner] {
		loop := cleaner.Tokens{Store: store, Logger: s.log, Registerer: s.registry}
		s.goBackground(loop.Run)
	}
	if enabled[claimCleaner] {
		loop := cleaner.Claims{Store: store.Claims(), Tokens: store, Logger: s.log, Registerer: s.registry}
		s.goBackground(loop.Run)
	}
	s.banner = standaloneBanner(*o, curlrc)
	return nil
}

// followed is a computed cluster-info whose CAs follow the CA files.
type followed struct {
	apiServer string
	tokens    tokens.Store
	current   atomic.Pointer[clusterinfo.Computed]
}

func (f *followed) follow(ca *signer.CA) error {
	kubeconfig, err := clusterinfo.Kubeconfig(f.apiServer, ca.Bundle())
	if err != nil {
		return err
	}
	f.current.Store(&clusterinfo.Computed{Tokens: f.tokens, Kubeconfig: kubeconfig})
	return nil
}

func (f *followed) JSON(ctx context.Context) ([]byte, error) {
	return f.current.Load().JSON(ctx)
}

func (f *followed) Config(ctx context.Context) ([]byte, error) {
	return f.current.Load().Config(ctx)
}

func (f *followed) Data(ctx context.Context) (map[string]string, error) {
	return f.current.Load().Data(ctx)
}

func (f *followed) WaitSigned(ctx context.Context, t tokens.Token) ([]byte, error) {
	return f.current.Load().WaitSigned(ctx, t)
}

// checkStandalone refuses flags that say something of a cluster when there is none.
func checkStandalone(o *serveOptions) error {
	for _, flag := range []string{"shadow", "leader-elect", "leader-elect-resource-namespace", "leader-elect-resource-name", "kube-api-qps", "kube-api-burst", "api-audiences"} {
		if o.given(flag) {
			return &usageError{err: fmt.Errorf("--%s: is about a cluster, and none is given: say which with --kubeconfig", flag)}
		}
	}
	if o.tokenStore == storeKubernetes {
		return &usageError{err: errors.New("--token-store: kubernetes is a cluster's, and none is given: say which with --kubeconfig")}
	}
	for _, name := range o.controllers {
		if name == bootstrapSigner || strings.HasPrefix(name, "csr-") {
			return &usageError{err: fmt.Errorf("--controllers: %s works on a cluster, and none is given: say which with --kubeconfig", name)}
		}
	}
	return nil
}

func standaloneBanner(o serveOptions, curlrc string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kubejoin is ready on https://%s, standalone, with its data in %s\n\n", o.listen, o.dataDir)
	if curlrc != "" {
		fmt.Fprintf(&b, "A join command:\n  curl -K %s -X POST https://%s/v1/token/print-join-command\n\n", foreign.Quote(curlrc), dialable(o.listen))
	} else {
		fmt.Fprintf(&b, "A join command, for those in %s:\n  POST https://%s/v1/token/print-join-command\n\n", o.tokenAuthFile, dialable(o.listen))
	}
	if o.apiServer == "" {
		b.WriteString("No API server is configured: discovery works, and joins stop after it until\nkubejoin is started with --api-server https://HOST:PORT, or with --kubeconfig FILE.\n")
	} else {
		fmt.Fprintf(&b, "Joins go on to %s, which has to be told to ask kubejoin\nabout tokens: see 'kubejoin webhook-config --help'. With --kubeconfig FILE tokens are kept there.\n", o.apiServer)
	}
	return b.String()
}
