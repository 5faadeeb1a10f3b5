package kubefacts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reservedAge is how long the addresses of Services and the API server are cached. They hardly ever change,
// and a rack of kubelets requests serving certificates at the same time.
const reservedAge = time.Minute

// ClusterAddresses returns the addresses and names that no node may have in a serving certificate: the addresses of
// Services, and the names and addresses of the API server. It is up to a minute old. It fails if one of the two is
// unknown.
func (f *Facts) ClusterAddresses(ctx context.Context) (approval.ClusterAddresses, error) {
	f.once.Do(f.start)
	r, _, err := f.reserved.Get(ctx, nil, func(ctx context.Context) (approval.ClusterAddresses, bool, error) {
		r, err := f.askReserved(ctx)
		return r, true, err
	})
	r.Prefixes, r.APIServer = slices.Clone(r.Prefixes), slices.Clone(r.APIServer)
	return r, err
}

func (f *Facts) askReserved(ctx context.Context) (approval.ClusterAddresses, error) {
	var r approval.ClusterAddresses
	from := make([]string, 0, 4)
	services, err := f.serviceCIDRs(ctx)
	if err != nil {
		return r, err
	}
	if len(services) > 0 {
		from = append(from, "the cluster's ServiceCIDRs")
	}
	if r.Prefixes = services; len(f.ServiceCIDRs) > 0 {
		r.Prefixes = append(r.Prefixes, f.ServiceCIDRs...)
		from = append(from, "configured ranges")
	}
	if len(r.Prefixes) == 0 {
		return r, errors.New("the address ranges of Services are unknown, because the cluster has no ServiceCIDR objects (Kubernetes 1.33 or later): set --service-cluster-ip-range as for kube-apiserver")
	}
	if r.APIServer, err = f.endpoints(ctx); err != nil {
		return r, err
	}
	from = append(from, "Service and EndpointSlice default/kubernetes")
	own, err := f.clusterIPs(ctx)
	if err != nil {
		return r, err
	}
	for _, ip := range own {
		// The configured ranges are wrong: they do not contain this Service, and so miss other Services, too.
		if a, err := netip.ParseAddr(ip); err == nil && !slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return r, fmt.Errorf("the Service default/kubernetes has address %s, which is not in %s: set --service-cluster-ip-range as for kube-apiserver", ip, r.Prefixes)
		}
	}
	if f.APIServers != nil {
		more, err := f.APIServers(ctx)
		if err != nil {
			return r, fmt.Errorf("read addresses of the API server: %w", err)
		}
		if len(more) > 0 {
			r.APIServer = append(r.APIServer, more...)
			from = append(from, "configuration")
		}
	}
	if len(r.APIServer) == 0 {
		return r, errors.New("the addresses of the API server are unknown: EndpointSlice default/kubernetes has no addresses")
	}
	r.APIServer = append(r.APIServer, own...)
	r.Source = strings.Join(from, ", ")
	return r, nil
}

// serviceCIDRs returns the ranges of ServiceCIDR objects; nothing if the API server does not have this API.
func (f *Facts) serviceCIDRs(ctx context.Context) ([]netip.Prefix, error) {
	list, err := f.Client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ServiceCIDRs: %w", err)
	}
	var prefixes []netip.Prefix
	for _, c := range list.Items {
		for _, text := range c.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("ServiceCIDR %s: %w", c.Name, err)
			}
			prefixes = append(prefixes, p.Masked())
		}
	}
	return prefixes, nil
}

// endpoints returns the addresses of API servers. Each of them keeps its own address in the EndpointSlice
// that has the name of the Service, unless it runs with --endpoint-reconciler-type=none.
func (f *Facts) endpoints(ctx context.Context) ([]string, error) {
	slice, err := f.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("EndpointSlice default/kubernetes: %w", err)
	}
	var hosts []string
	for _, e := range slice.Endpoints {
		hosts = append(hosts, e.Addresses...)
	}
	return hosts, nil
}

// clusterIPs returns the addresses at which Pods reach the API server.
func (f *Facts) clusterIPs(ctx context.Context) ([]string, error) {
	service, err := f.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("service default/kubernetes: %w", err)
	}
	return service.Spec.ClusterIPs, nil
}
