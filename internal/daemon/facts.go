package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// An apiServer is the API server that kubejoin uses, with its last serving certificate.
type apiServer struct {
	config      *rest.Config
	certificate atomic.Pointer[x509.Certificate] // the last certificate that the API server presented
}

// newAPIServer returns an apiServer. It wraps config to record the serving certificate.
func newAPIServer(config *rest.Config) *apiServer {
	a := &apiServer{config: config}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return noticing{next, a} })
	return a
}

type noticing struct {
	http.RoundTripper
	server *apiServer
}

func (n noticing) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := n.RoundTripper.RoundTrip(r)
	if err == nil && answer.TLS != nil && len(answer.TLS.PeerCertificates) > 0 {
		n.server.certificate.Store(answer.TLS.PeerCertificates[0])
	}
	return answer, err
}

// hosts returns the hosts at which kubejoin reaches the API server, and the names in its certificate.
func (a *apiServer) hosts() []string {
	hosts := []string{hostOf(a.config.Host), a.config.ServerName}
	if cert := a.certificate.Load(); cert != nil {
		hosts = append(hosts, hostsIn(cert)...)
	}
	return hosts
}

// hostsIn returns the names and addresses in a certificate. It does not expand wildcards, so wildcards reserve no
// names. An expanded wildcard would reserve the whole domain, including nodes.
func hostsIn(cert *x509.Certificate) []string {
	hosts := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

var _ mint.Bounded = (*configmap.ConfigMap)(nil)

// A clusterInfo reads cluster-info.
type clusterInfo interface {
	Data(ctx context.Context) (map[string]string, error)
}

// facts returns the facts about the cluster that rules need.
func (s *service) facts(client kubernetes.Interface, api *apiServer, nodes *kubefacts.NodeCache, info clusterInfo, certificate servingCertificate) *kubefacts.Facts {
	return &kubefacts.Facts{
		Client: client, Nodes: nodes, ServiceCIDRs: s.options.Serving.ServiceCIDRs,
		APIServers: func(ctx context.Context) ([]string, error) {
			own, err := s.ownHosts(certificate)
			if err != nil {
				return nil, err
			}
			hosts := append(api.hosts(), own...)
			data, err := info.Data(ctx)
			switch {
			case errors.Is(err, clusterinfo.ErrNotFound):
			case err != nil:
				return nil, err
			default:
				server, _, err := clusterinfo.ParseKubeconfig([]byte(data[clusterinfo.KubeconfigKey]))
				if err != nil {
					return nil, err
				}
				hosts = append(hosts, hostOf(server))
			}
			return slices.DeleteFunc(hosts, func(host string) bool { return host == "" }), nil
		},
	}
}

// hosts returns the hosts of the API server and of kubejoin in the options. The cluster CA must not issue a serving
// certificate for one of these hosts to a node. Clients would then trust the node as that host.
func (o *Options) hosts() []string {
	return append([]string{hostOf(o.APIServer), hostOf(o.Advertise)}, o.TLS.SANs...)
}

// ownHosts returns the hosts in the options and the names in the current serving certificate. Callers send bearer
// tokens to all of them.
func (s *service) ownHosts(certificate servingCertificate) ([]string, error) {
	served, err := certificate(nil)
	if err != nil {
		return nil, fmt.Errorf("kubejoin's certificate: %w", err)
	}
	hosts := append(s.options.hosts(), hostsIn(served.Leaf)...)
	return slices.DeleteFunc(hosts, func(host string) bool { return host == "" }), nil
}

// standaloneFacts are the signer.Standalone facts, and also reserve kubejoin's own hosts.
type standaloneFacts struct {
	signer.Standalone
	ownHosts func() ([]string, error)
}

func (f standaloneFacts) ClusterAddresses(context.Context) (approval.ClusterAddresses, error) {
	own, err := f.ownHosts()
	if err != nil {
		return approval.ClusterAddresses{}, err
	}
	reserved := f.Keep
	reserved.APIServer = slices.Concat(reserved.APIServer, own)
	return reserved, nil
}

// hostOf returns the host of a URL or HOST:PORT. client-go accepts both in kubeconfigs.
func hostOf(server string) string {
	if u, err := url.Parse(server); err == nil && u.Hostname() != "" {
		return u.Hostname()
	}
	if host, _, err := net.SplitHostPort(server); err == nil {
		return host
	}
	return server
}
