package kubeauth

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/accessreview"
	"github.com/kubejoin/kubejoin/internal/kube/callcache"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	authorization "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
)

// How long SubjectAccessReview results are cached.
const (
	PermissionAge   = 5 * time.Second // allowed
	NoPermissionAge = time.Second     // denied
)

// Group is the API group of the resources in access reviews. No API server needs to serve them.
const Group = "kubejoin.io"

// Permissions authorizes requests by SubjectAccessReview, which usually means RBAC. A revoked permission stops
// working within [PermissionAge]. Do not change the fields after the first use.
type Permissions struct {
	// Client calls the API server and needs create on subjectaccessreviews.
	Client kubernetes.Interface
	// Timeout limits one review; zero means DefaultTimeout.
	Timeout time.Duration
	// Registerer receives kubejoin_access_reviews_total; nil disables the metric.
	Registerer prometheus.Registerer

	once    sync.Once
	answers *callcache.Cache[string] // reasons
	reviews *prometheus.CounterVec
}

// Authorize is an [auth.Authorize].
func (p *Permissions) Authorize(r *http.Request, u auth.User, a auth.Access) error {
	p.once.Do(func() {
		p.answers = callcache.New[string](PermissionAge, NoPermissionAge, timeoutOr(p.Timeout))
		p.reviews = counter(p.Registerer)
	})
	spec := accessSpec(u, a)
	text, err := spec.Marshal() // unlike JSON, it keeps invalid UTF-8 distinct; it sorts the keys of maps
	if err != nil {
		return fmt.Errorf("SubjectAccessReview: %w", err)
	}
	reason, allowed, err := p.answers.Get(r.Context(), text, func(ctx context.Context) (string, bool, error) {
		reason, allowed, err := accessreview.Allowed(ctx, p.Client, spec)
		p.reviews.WithLabelValues("access", result(allowed, err)).Inc()
		return reason, allowed, err
	})
	if err != nil || allowed {
		if err != nil {
			err = fmt.Errorf("SubjectAccessReview: %w", err)
		}
		return err
	}
	err = fmt.Errorf("%w: SubjectAccessReview: user %q may not %s", auth.ErrForbidden, u.Name, a)
	if reason != "" {
		err = fmt.Errorf("%w: %s", err, reason)
	}
	if role := clusterRole(a); role != "" {
		err = auth.Hint(err, "ClusterRole "+role+" allows it")
	}
	return err
}

// clusterRole returns the narrowest ClusterRole of the manifests that has a permission; empty if none has it.
func clusterRole(a auth.Access) string {
	read := a.Verb == "get" || a.Verb == "list"
	switch {
	case a.Group != "" && a.Group != Group:
		return ""
	case a.Resource == "tokens" && a.Verb == "create":
		return "kubejoin:join-issuer"
	case read:
		return "kubejoin:viewer"
	case a.Resource == "revocations":
		return "kubejoin:revoker"
	case a.Resource == "ca-rotations":
		return "kubejoin:ca-rotator"
	}
	return "kubejoin:token-admin"
}

// accessSpec returns the review of one access of a user.
func accessSpec(u auth.User, a auth.Access) authorization.SubjectAccessReviewSpec {
	groups := u.Groups
	if !slices.Contains(groups, tokens.AuthenticatedGroup) {
		groups = append(slices.Clone(groups), tokens.AuthenticatedGroup)
	}
	resource, subresource, _ := strings.Cut(a.Resource, "/")
	return accessreview.Spec(u.Name, u.UID, groups, u.Extra, authorization.ResourceAttributes{
		Group: cmp.Or(a.Group, Group), Version: "*",
		Verb: a.Verb, Resource: resource, Subresource: subresource, Name: a.Name,
	})
}
