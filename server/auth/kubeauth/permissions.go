package kubeauth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/prometheus/client_golang/prometheus"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// How old an answer of the API server about a permission can be that still counts.
const (
	PermissionAge   = 5 * time.Second // that somebody may
	NoPermissionAge = time.Second     // that they may not
)

// Group is that of the resources of the API; no API server needs to serve them.
const Group = "kubejoin.io"

// Permissions are those that an API server's authorizers give, which is RBAC as a rule. A permission
// that was taken away ends within [PermissionAge]. Its fields are not changed after the first use.
type Permissions struct {
	// Client talks to the API server, where it may create subjectaccessreviews.
	Client kubernetes.Interface
	// Timeout is how long a review may take; zero is DefaultTimeout.
	Timeout time.Duration
	// Registerer has kubejoin_access_reviews_total; nil counts nothing.
	Registerer prometheus.Registerer

	once    sync.Once
	answers *answers[string] // why not
	reviews *prometheus.CounterVec
}

// authenticated is the group in which an API server has all users.
const authenticated = "system:authenticated"

// Authorize is an [auth.Authorize].
func (p *Permissions) Authorize(r *http.Request, u auth.User, a auth.Access) error {
	p.once.Do(func() {
		p.answers = newAnswers[string](PermissionAge, NoPermissionAge, timeoutOr(p.Timeout))
		p.reviews = counter(p.Registerer)
	})
	spec := accessSpec(u, a)
	text, err := json.Marshal(spec) // maps in order, so that the same is the same
	if err != nil {
		return fmt.Errorf("SubjectAccessReview: %w", err)
	}
	reason, allowed, err := p.answers.of(r.Context(), text, func(ctx context.Context) (string, bool, error) {
		reason, allowed, err := p.review(ctx, spec)
		p.reviews.WithLabelValues("access", result(allowed, err)).Inc()
		return reason, allowed, err
	})
	switch {
	case err != nil:
		return fmt.Errorf("SubjectAccessReview: %w", err)
	case !allowed:
		return fmt.Errorf("%w: SubjectAccessReview: user %q may not %s%s", auth.ErrForbidden, u.Name, a, reason)
	}
	return nil
}

// accessSpec is what is asked about a user.
func accessSpec(u auth.User, a auth.Access) authorization.SubjectAccessReviewSpec {
	resource, subresource, _ := strings.Cut(a.Resource, "/")
	spec := authorization.SubjectAccessReviewSpec{
		User: u.Name, UID: u.UID, Groups: slices.Clone(u.Groups),
		ResourceAttributes: &authorization.ResourceAttributes{
			Group: cmp.Or(a.Group, Group), Version: "*",
			Verb: a.Verb, Resource: resource, Subresource: subresource, Name: a.Name,
		},
	}
	if !slices.Contains(spec.Groups, authenticated) {
		spec.Groups = append(spec.Groups, authenticated)
	}
	for k, values := range u.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorization.ExtraValue{}
		}
		spec.Extra[k] = values
	}
	return spec
}

func (p *Permissions) review(ctx context.Context, spec authorization.SubjectAccessReviewSpec) (why string, yes bool, err error) {
	answer, err := p.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorization.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return "", false, err
	}
	s := answer.Status
	switch {
	case s.Allowed && !s.Denied:
		return "", true, nil
	case !s.Denied && s.EvaluationError != "":
		return "", false, errors.New(foreign.Text(s.EvaluationError, foreign.MaxMessage)) // an authorizer did not answer: not a no
	case s.Reason != "":
		why = ": " + foreign.Text(s.Reason, foreign.MaxName)
	}
	return why, false, nil
}
