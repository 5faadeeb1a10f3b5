package csr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// permissionAge is how old the API server's word that somebody may do something can be. When a
// rack of machines comes up on one token, there is one answer for all of them instead of one for
// each, which is a third of what a request costs the API server.
const permissionAge = time.Second

// Facts is approval.Facts as an API server has them. A permission that was there within the last
// second is not asked for again; that there is none is asked each time.
type Facts struct {
	// Client talks to the API server.
	Client kubernetes.Interface
	// Nodes are those of the cluster. Nil fails what is asked about them.
	Nodes *Nodes
	// APIServers gives hosts, which are names or addresses, that no node may serve as beside
	// those in the Service default/kubernetes. Nil is none.
	APIServers func(context.Context) ([]string, error)
	// ServiceCIDRs are addresses of Services beside those that the cluster tells, which it does
	// from Kubernetes 1.33 on.
	ServiceCIDRs []netip.Prefix

	once reserve

	mu      sync.Mutex
	allowed map[string]time.Time // when it was asked
	swept   time.Time            // when what is too old was last removed
}

// Allowed asks what kube-controller-manager asks: a SubjectAccessReview for the requester.
func (f *Facts) Allowed(ctx context.Context, r approval.Request, p approval.Permission) (bool, error) {
	// Quoted, so that no two requesters look the same; fmt sorts maps by key.
	requester := fmt.Sprintf("%q %q %q %q %q", r.User, r.UserUID, r.Groups, r.Extra, p)
	asked := time.Now()
	if f.allowedAt(requester, asked) {
		return true, nil
	}
	allowed, err := f.ask(ctx, r, p)
	if allowed {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.allowed[requester] = asked
	}
	return allowed, err
}

func (f *Facts) allowedAt(requester string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := func(asked time.Time) bool { return now.Sub(asked) >= permissionAge }
	if f.allowed == nil {
		f.allowed = map[string]time.Time{}
	}
	if old(f.swept) {
		maps.DeleteFunc(f.allowed, func(_ string, asked time.Time) bool { return old(asked) })
		f.swept = now
	}
	return !old(f.allowed[requester]) // which the zero time is
}

func (f *Facts) ask(ctx context.Context, r approval.Request, p approval.Permission) (bool, error) {
	review := &authorization.SubjectAccessReview{Spec: authorization.SubjectAccessReviewSpec{
		User:   r.User,
		UID:    r.UserUID,
		Groups: r.Groups,
		Extra:  make(map[string]authorization.ExtraValue, len(r.Extra)),
		ResourceAttributes: &authorization.ResourceAttributes{
			Group: certificates.GroupName, Version: "*",
			Verb: p.Verb, Resource: p.Resource, Subresource: p.Subresource, Name: p.Name,
		},
	}}
	for k, v := range r.Extra {
		review.Spec.Extra[k] = v
	}
	answer, err := f.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	if s := answer.Status; !s.Allowed && !s.Denied && s.EvaluationError != "" {
		return false, errors.New(s.EvaluationError) // an authorizer did not answer: not a no
	}
	return answer.Status.Allowed, nil
}
