package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Intervals at which publicAccess reads cluster-info. After a refusal, it reads more often, because an operator may
// be fixing the access.
const (
	publicAccessInterval = time.Minute
	publicAccessRetry    = 10 * time.Second
	publicAccessTimeout  = 10 * time.Second
)

// A publicAccess checks that anonymous users can read cluster-info at the API server. 'kubeadm join' needs this
// access if join commands name the API server.
type publicAccess struct {
	anonymous rest.Interface
	log       *slog.Logger
	missing   atomic.Pointer[string]
}

// watchPublicAccess reports missing public access: in the log, in the readiness check cluster-info and as a warning
// about new tokens. With --advertise, it returns nil, because machines read cluster-info from kubejoin.
func (s *service) watchPublicAccess(config *rest.Config) (*publicAccess, error) {
	if s.options.Advertise != "" {
		return nil, nil
	}
	// Use HTTP/1.1: with it, kubejoin can stop while a connection is being set up.
	anonymous := rest.AnonymousClientConfig(config)
	anonymous.NextProtos = []string{"http/1.1"}
	web, err := rest.HTTPClientFor(anonymous)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	s.closers = append(s.closers, func() error { utilnet.CloseIdleConnectionsFor(web.Transport); return nil })
	client, err := kubernetes.NewForConfigAndClient(anonymous, web)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	p := &publicAccess{anonymous: client.CoreV1().RESTClient(), log: s.log}
	s.goBackground(loop.Loop{Name: "public-access", Sweep: publicAccessInterval, Step: p.read, Logger: s.log, Registerer: s.registry}.Run)
	s.warnOf(func(_ context.Context, made tokens.Record) string {
		if !made.Signing {
			return ""
		}
		return p.notice()
	})
	return p, nil
}

// read reads cluster-info anonymously.
func (p *publicAccess) read(ctx context.Context) (next time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, publicAccessTimeout)
	defer cancel()
	request := p.anonymous.Get().SetHeader("Connection", "close") // for one read a minute, an open connection is not needed
	body, err := request.Namespace(clusterinfo.Namespace).Resource("configmaps").Name(clusterinfo.Name).Stream(ctx)
	missing := ""
	switch {
	case err == nil:
		_ = body.Close() // only the status matters
	case apierrors.IsNotFound(err): // the readiness check cluster-info reports this error
	case apierrors.IsForbidden(err):
		missing = "anonymous users cannot read ConfigMap kube-public/cluster-info, so 'kubeadm join' cannot discover the cluster at the API server: " +
			"kubectl apply -f deploy/cluster-info-public.yaml, or start kubejoin with --advertise HOST:PORT"
	case apierrors.IsUnauthorized(err):
		missing = "the API server refuses anonymous requests, so 'kubeadm join' cannot discover the cluster there: start kubejoin with --advertise HOST:PORT"
	default:
		return time.Time{}, fmt.Errorf("reading cluster-info without a credential: %w", err)
	}
	if was := p.notice(); missing != was {
		p.missing.Store(&missing)
		if missing != "" {
			p.log.Warn("cluster-info is not public", "problem", missing)
		} else {
			p.log.Info("cluster-info is public")
		}
	}
	if missing != "" {
		return time.Now().Add(publicAccessRetry), nil
	}
	return time.Time{}, nil
}

// notice returns the problem, or the empty string.
func (p *publicAccess) notice() string {
	if p == nil {
		return ""
	}
	if missing := p.missing.Load(); missing != nil {
		return *missing
	}
	return ""
}
