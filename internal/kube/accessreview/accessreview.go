// Package accessreview checks permissions of users by SubjectAccessReview.
package accessreview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/internal/kube/fakeclient"
	"github.com/kubejoin/kubejoin/internal/safetext"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	kjson "sigs.k8s.io/json"
)

// Spec returns the spec of an access review for a user and a resource.
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
// the authorizers' explanation. If no authorizer allows or denies the request, and one of them has failed, Allowed
// returns an error.
//
// A status with a field that kubejoin does not know is a denial, because the field may limit what is allowed. The
// conditions of KEP-5681 are an example. reason then names the field. The typed client would drop the field.
func Allowed(ctx context.Context, client kubernetes.Interface, spec authorization.SubjectAccessReviewSpec) (reason string, allowed bool, err error) {
	api := client.AuthorizationV1()
	if fakeclient.Is(api) {
		review, err := api.SubjectAccessReviews().Create(ctx, &authorization.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return "", false, err
		}
		return decide(review.Status, nil)
	}
	result := api.RESTClient().Post().Resource("subjectaccessreviews").
		SetHeader("Accept", runtime.ContentTypeJSON).Body(&authorization.SubjectAccessReview{Spec: spec}).Do(ctx)
	if err := result.Error(); err != nil { // check first: Raw would lose the reason in the response
		return "", false, err
	}
	body, err := result.Raw()
	if err != nil {
		return "", false, err
	}
	return read(body)
}

// Own reports whether kubejoin itself is allowed to access a resource.
func Own(ctx context.Context, client kubernetes.Interface, resource authorization.ResourceAttributes) (allowed bool, err error) {
	review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &resource}}
	if review, err = client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{}); err != nil {
		return false, err
	}
	_, allowed, err = decide(review.Status, nil)
	return allowed, err
}

// read returns the decision in a SubjectAccessReview in JSON. It uses only the status.
func read(body []byte) (reason string, allowed bool, err error) {
	var review struct {
		metav1.TypeMeta `json:",inline"`
		Status          json.RawMessage `json:"status"`
	}
	repeated, err := kjson.UnmarshalStrict(body, &review, kjson.DisallowDuplicateFields)
	if err = errors.Join(append(repeated, err)...); err != nil {
		return "", false, malformed(err)
	}
	if version := authorization.SchemeGroupVersion.String(); review.Kind != "SubjectAccessReview" || review.APIVersion != version {
		return "", false, malformed(fmt.Errorf("kind %q and apiVersion %q given, want SubjectAccessReview and %s", review.Kind, review.APIVersion, version))
	}
	if review.Status == nil {
		return "", false, malformed(errors.New("it has no status"))
	}
	var s authorization.SubjectAccessReviewStatus
	unknown, err := kjson.UnmarshalStrict(review.Status, &s)
	if err != nil {
		return "", false, malformed(err)
	}
	return decide(s, unknown)
}

// decide returns the decision in a status. unknown has an error for each field that kubejoin does not know.
func decide(s authorization.SubjectAccessReviewStatus, unknown []error) (reason string, allowed bool, err error) {
	switch {
	case !s.Allowed && !s.Denied && s.EvaluationError != "":
		return "", false, errors.New(safetext.Text(s.EvaluationError, safetext.MaxMessage))
	case len(unknown) > 0:
		return safetext.Text(fmt.Sprintf("the status of the response has an %v, so kubejoin takes it as a denial", unknown[0]), safetext.MaxName), false, nil
	}
	return safetext.Text(s.Reason, safetext.MaxName), s.Allowed && !s.Denied, nil
}

// malformed returns the error of a response that is not a SubjectAccessReview.
func malformed(err error) error {
	return errors.New(safetext.Text("the response is not a SubjectAccessReview: "+err.Error(), safetext.MaxMessage))
}
