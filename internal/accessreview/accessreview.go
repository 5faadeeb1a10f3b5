// Package accessreview checks permissions of users by SubjectAccessReview.
package accessreview

import (
	"context"
	"errors"

	"github.com/kubejoin/kubejoin/internal/foreign"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Spec returns the review of a user and a resource.
func Spec(user, uid string, groups []string, extra map[string][]string, resource authorization.ResourceAttributes) authorization.SubjectAccessReviewSpec {
	spec := authorization.SubjectAccessReviewSpec{User: user, UID: uid, Groups: groups, ResourceAttributes: &resource}
	for k, values := range extra {
		if spec.Extra == nil {
			spec.Extra = make(map[string]authorization.ExtraValue, len(extra))
		}
		spec.Extra[k] = values
	}
	return spec
}

// Allowed reports whether an authorizer of the API server allows the request in spec and none denies it. reason is
// the authorizers' explanation. If none allows or denies it and one has failed, Allowed returns an error.
func Allowed(ctx context.Context, client kubernetes.Interface, spec authorization.SubjectAccessReviewSpec) (reason string, allowed bool, err error) {
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorization.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return "", false, err
	}
	s := review.Status
	if !s.Allowed && !s.Denied && s.EvaluationError != "" {
		return "", false, errors.New(foreign.Text(s.EvaluationError, foreign.MaxMessage))
	}
	return foreign.Text(s.Reason, foreign.MaxName), s.Allowed && !s.Denied, nil
}
