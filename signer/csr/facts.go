package csr

import (
	"context"
	"errors"

	"github.com/kubejoin/kubejoin/signer/approval"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Facts is approval.Facts as an API server has them, asked live.
type Facts struct {
	Client kubernetes.Interface
}

// Allowed asks what kube-controller-manager asks: a SubjectAccessReview for the requester.
func (f Facts) Allowed(ctx context.Context, r approval.Request, subresource string) (bool, error) {
	review := &authorization.SubjectAccessReview{Spec: authorization.SubjectAccessReviewSpec{
		User:   r.User,
		UID:    r.UserUID,
		Groups: r.Groups,
		Extra:  make(map[string]authorization.ExtraValue, len(r.Extra)),
		ResourceAttributes: &authorization.ResourceAttributes{
			Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Version: "*",
			Verb: "create", Subresource: subresource,
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
