package csr

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

// reservedAge is how old the API server's word about its own and Services' addresses can be. A
// rack of kubelets asks for serving certificates at once, and these hardly ever change.
const reservedAge = time.Minute

// Reserved returns what no node may have in a serving certificate: the addresses of Services, and the names
// and addresses of the API server. It is up to a minute old. It fails if one of the two is unknown.
func (f *Facts) Reserved(ctx context.Context) (approval.Reserved, error) {
	f.once.Do(f.start)
	r, _, err := f.reserved.Get(ctx, nil, func(ctx context.Context) (approval.Reserved, bool, error) {
		r, err := f.askReserved(ctx)
		return r, true, err
	})
	r.Prefixes, r.APIServer = slices.Clone(r.Prefixes), slices.Clone(r.APIServer)
	return r, err
}

func (f *Facts) askReserved(ctx context.Context) (approval.Reserved, error) {
	var r approval.Reserved
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
		return r, errors.New("the cluster does not tell which addresses Services have (ServiceCIDR, from Kubernetes 1.33 on): give kubejoin the --service-cluster-ip-range of kube-apiserver")
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
		// Whoever gave the range gave a wrong one: the others are not in it, either.
		if a, err := netip.ParseAddr(ip); err == nil && !slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return r, fmt.Errorf("the Service default/kubernetes has address %s, which is not in %s: give kubejoin the --service-cluster-ip-range of kube-apiserver", ip, r.Prefixes)
		}
	}
	if f.APIServers != nil {
		more, err := f.APIServers(ctx)
		if err != nil {
			return r, fmt.Errorf("where the API server is reached: %w", err)
		}
		if len(more) > 0 {
			r.APIServer = append(r.APIServer, more...)
			from = append(from, "configuration")
		}
	}
	if len(r.APIServer) == 0 {
		return r, errors.New("where the API server is reached is not known: the EndpointSlice default/kubernetes has no addresses")
	}
	r.APIServer = append(r.APIServer, own...)
	r.Source = strings.Join(from, ", ")
	return r, nil
}

// serviceCIDRs are none where the API server does not have that kind of object.
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

// createEndpoints are the addresses of API servers. Each of them keeps its own in the one EndpointSlice
// that has the name of the Service, unless it was told not to (--endpoint-reconciler-type=none).
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

// clusterIPs are the addresses at which Pods reach the API server.
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
