package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/spf13/pflag"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// servingOptions are the flags about kubelets' serving certificates.
type servingOptions struct {
	cidrs, suffixes, services []string

	// What check has read of them.
	scope         approval.ServingScope
	servicePrefix []netip.Prefix
}

func (o *servingOptions) register(f *pflag.FlagSet) {
	f.StringSliceVar(&o.cidrs, "serving-allowed-cidr", nil, "addresses, such as 10.0.0.0/16, that kubelets' serving certificates may have: the machines', not those of Pods or Services. Each must be in the Node's status, too, and in no other's (repeatable; default: with this and --serving-allowed-dns-suffix empty, none is approved)")
	f.StringSliceVar(&o.suffixes, "serving-allowed-dns-suffix", nil, "domain, such as node.example.com, below which kubelets' serving certificates may have names, as above; a Node's own name they may have anyway (repeatable)")
	f.StringSliceVar(&o.services, "service-cluster-ip-range", nil, "kube-apiserver's flag of that name, one range or two: no serving certificate has an address in it. Needed where the cluster does not tell, before Kubernetes 1.33")
}

// check reads the flags.
func (o *servingOptions) check(reserved []string, fail func(flag, format string, args ...any)) {
	o.scope = approval.ServingScope{ControlPlane: reserved}
	for _, text := range o.cidrs {
		p, err := approval.ParseServingCIDR(text)
		if err != nil {
			fail("serving-allowed-cidr", "%v", err)
		}
		o.scope.CIDRs = append(o.scope.CIDRs, p)
	}
	for _, text := range o.suffixes {
		suffix, err := approval.ParseServingSuffix(text)
		if err != nil {
			fail("serving-allowed-dns-suffix", "%v", err)
		}
		o.scope.DNSSuffixes = append(o.scope.DNSSuffixes, suffix)
	}
	o.servicePrefix = nil
	for _, text := range o.services {
		// Bits after the length are kube-apiserver's to refuse.
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			fail("service-cluster-ip-range", "%.300q given, want a range of addresses such as 10.96.0.0/12", text)
		}
		o.servicePrefix = append(o.servicePrefix, p.Masked())
	}
	if len(o.services) > 2 || len(o.services) == 2 && o.servicePrefix[0].Addr().Is4() == o.servicePrefix[1].Addr().Is4() {
		fail("service-cluster-ip-range", "%q given, want one range, or one of IPv4 and one of IPv6", o.services)
	}
}

// scope is what kubelets may serve as.
func (s *service) scope() approval.ServingScope { return s.options.serving.scope }

// approveServing has kubelets' serving certificates approved in the scope.
func (s *service) approveServing(signers map[string]signer.Signer) map[string]signer.Signer {
	serving := signers[certificates.KubeletServingSignerName]
	serving.Rules = []approval.Rule{approval.KubeletServing{ServingScope: s.scope()}}
	signers[certificates.KubeletServingSignerName] = serving
	return signers
}

// An apiServer is the one that kubejoin talks to, as far as its TLS says who it is.
type apiServer struct {
	config      *rest.Config
	certificate atomic.Pointer[x509.Certificate] // the last one it has shown
}

// newAPIServer has the clients that are made of config notice the certificate.
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

// hosts are where the API server is reached by kubejoin, and by whatever else its certificate is
// good for.
func (a *apiServer) hosts() []string {
	hosts := []string{hostOf(a.config.Host), a.config.ServerName}
	if cert := a.certificate.Load(); cert != nil {
		hosts = append(hosts, hostsIn(cert)...)
	}
	return hosts
}

// hostsIn are the names and addresses that a certificate is good for. A wildcard among them stays
// one, and reserves nothing: it would be everything of its domain, nodes too.
func hostsIn(cert *x509.Certificate) []string {
	hosts := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// A clusterInfo is what machines that join are told.
type clusterInfo interface {
	Data(ctx context.Context) (map[string]string, error)
}

// facts are what rules may ask about the cluster.
func (s *service) facts(client kubernetes.Interface, api *apiServer, nodes *csr.Nodes, info clusterInfo) *csr.Facts {
	return &csr.Facts{
		Client: client, Nodes: nodes, ServiceCIDRs: s.options.serving.servicePrefix,
		APIServers: func(ctx context.Context) ([]string, error) {
			own, err := s.ownHosts()
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

// hosts are those at which the flags say that machines reach the API server and kubejoin: whoever
// serves as one of them with a certificate of the cluster CA is believed to be it.
func (o *serveOptions) hosts() []string {
	return append([]string{hostOf(o.apiServer), hostOf(o.advertise)}, o.tlsSANs...)
}

// ownHosts are those of the flags, and what kubejoin's certificate is good for, as it is now: where
// kubejoin is reached by another name of it, bearer tokens are sent there all the same.
func (s *service) ownHosts() ([]string, error) {
	if s.certificate == nil {
		return nil, errors.New("kubejoin does not serve yet")
	}
	served, err := s.certificate(nil)
	if err != nil {
		return nil, fmt.Errorf("kubejoin's certificate: %w", err)
	}
	hosts := append(s.options.hosts(), hostsIn(served.Leaf)...)
	return slices.DeleteFunc(hosts, func(host string) bool { return host == "" }), nil
}

// standaloneFacts are those of signer.Standalone, which reserve kubejoin's own hosts as well.
type standaloneFacts struct {
	signer.Standalone
	ownHosts func() ([]string, error)
}

func (f standaloneFacts) Reserved(context.Context) (approval.Reserved, error) {
	own, err := f.ownHosts()
	if err != nil {
		return approval.Reserved{}, err
	}
	reserved := f.Keep
	reserved.APIServer = slices.Concat(reserved.APIServer, own)
	return reserved, nil
}

// hostOf takes the host out of a URL or HOST:PORT, as client-go lets kubeconfigs have both.
func hostOf(server string) string {
	if u, err := url.Parse(server); err == nil && u.Hostname() != "" {
		return u.Hostname()
	}
	if host, _, err := net.SplitHostPort(server); err == nil {
		return host
	}
	return server
}
