// Package kubefacts reads the facts about a cluster that approval rules need. [Facts] implements [approval.Facts], and
// [NodeCache] caches Node objects.
package kubefacts

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/accessreview"
	"github.com/kubejoin/kubejoin/internal/kube/callcache"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
)

// permissionAge is how long a granted permission is cached. When a rack of machines joins, they share one review. A
// review is a third of the API server's work for a request.
const permissionAge = time.Second

// Facts implements approval.Facts with an API server. It caches a granted permission for a second, and does
// not cache a missing one.
type Facts struct {
	// Client talks to the API server.
	Client kubernetes.Interface
	// Nodes are the Nodes of the cluster. If it is nil, questions about Nodes fail.
	Nodes *NodeCache
	// APIServers returns names and addresses that no node may have in a serving certificate, in addition to the
	// Service default/kubernetes. Nil adds none.
	APIServers func(context.Context) ([]string, error)
	// ServiceCIDRs are address ranges of Services in addition to the cluster's ServiceCIDR objects, which
	// exist from Kubernetes 1.33 on.
	ServiceCIDRs []netip.Prefix

	once        sync.Once
	permissions *callcache.Cache[string]
	reserved    *callcache.Cache[approval.ClusterAddresses]
}

// Allowed creates a SubjectAccessReview for the requester, as kube-controller-manager does. For a bootstrap token, it
// first asks for the groups without the user name. So all tokens with these groups share one review. RBAC allows a
// user everything that it allows the user's group. But such a review misses an authorization webhook that denies a
// token by its user name.
func (f *Facts) Allowed(ctx context.Context, r approval.Request, p approval.Permission) (bool, error) {
	if strings.HasPrefix(r.User, tokens.BootstrapUserPrefix) && len(r.Groups) > 0 {
		if allowed, err := f.review(ctx, approval.Request{Groups: r.Groups}, p); allowed || err != nil {
			return allowed, err
		}
	}
	return f.review(ctx, r, p)
}

func (f *Facts) review(ctx context.Context, r approval.Request, p approval.Permission) (bool, error) {
	f.once.Do(f.start)
	spec := accessreview.Spec(r.User, r.UserUID, r.Groups, r.Extra, authorization.ResourceAttributes{
		Group: certificates.GroupName, Version: "*",
		Verb: p.Verb, Resource: p.Resource, Subresource: p.Subresource, Name: p.Name,
	})
	text, err := spec.Marshal() // unlike JSON, it keeps invalid UTF-8 distinct; it sorts the keys of maps
	if err != nil {
		return false, err
	}
	_, allowed, err := f.permissions.Get(ctx, text, func(ctx context.Context) (string, bool, error) {
		return accessreview.Allowed(ctx, f.Client, spec)
	})
	return allowed, err
}

func (f *Facts) start() {
	f.permissions = callcache.New[string](permissionAge, 0, 0)
	f.reserved = callcache.New[approval.ClusterAddresses](reservedAge, 0, 0)
}
