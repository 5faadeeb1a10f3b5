package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/revocation"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// An Authorization configures a webhook authorizer for kube-apiserver's --authorization-config. It denies requests
// with revoked credentials, and has no opinion on other requests.
type Authorization struct {
	// Authenticate accepts only kube-apiserver, as in [TokenReview].
	Authenticate auth.Authenticate
	// Revoked returns the entry that bars a subject, or nil. It is called for each request that a node sends to
	// kube-apiserver, so it should read from a cache. It is usually the method Known of a [revocation.Guard].
	Revoked func(ctx context.Context, s revocation.Subject) (*revocation.Entry, error)
}

const accessReviewPath = "/apis/" + authorizationv1.GroupName + "/v1/subjectaccessreviews"

// accessReviewTimeout is shorter than the timeout in the AuthorizationConfiguration that kubejoin prints.
const accessReviewTimeout = 800 * time.Millisecond

// accessReviewRequest is a SubjectAccessReview with only the fields that kubejoin reads.
type accessReviewRequest struct {
	metav1.TypeMeta `json:",inline"`
	Spec            struct {
		User   string              `json:"user"`
		Groups []string            `json:"groups"`
		Extra  map[string][]string `json:"extra"`
	} `json:"spec"`
}

// An accessReview is the response to a SubjectAccessReview.
type accessReview struct {
	metav1.TypeMeta `json:",inline"`
	Status          authorizationv1.SubjectAccessReviewStatus `json:"status"`
}

// accessReview denies the request of a revoked credential. It never allows a request.
func (h *handler) accessReview(r *call) (web.Response, error) {
	if err := h.checkReviewer(r, h.Webhooks.Authorization.Authenticate, "subjectaccessreviews", "authorization-config"); err != nil {
		return web.Response{}, err
	}
	req, err := readAccessReview(r)
	if p := (*web.Problem)(nil); errors.As(err, &p) && p.Status == http.StatusRequestEntityTooLarge {
		// Deny a review that is too long: the sender of the reviewed request chooses the length of its path and
		// selectors. With an error, a revoked node would pass if failurePolicy is NoOpinion. No normal node sends such
		// a request.
		answer := accessReview{TypeMeta: metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: authorizationv1.SchemeGroupVersion.String()}}
		answer.Status.Denied, answer.Status.Reason = true, "kubejoin: the request is too large to review"
		h.results.accessReviews.WithLabelValues("denied").Inc()
		return web.Object(http.StatusOK, answer)
	}
	if err != nil {
		return web.Response{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), accessReviewTimeout)
	defer cancel()
	e, err := h.Webhooks.Authorization.Revoked(ctx, revocation.SubjectOf(req.Spec.User, req.Spec.Groups, req.Spec.Extra))
	if err != nil {
		h.results.accessReviews.WithLabelValues("failed").Inc()
		return web.Response{}, web.NewProblem("revocations-unavailable", "the revocations cannot be read now; retry").Unavailable(err)
	}
	answer, result := accessReview{TypeMeta: req.TypeMeta}, "no_opinion"
	if e != nil {
		result = "denied"
		answer.Status.Denied = true
		answer.Status.Reason = safetext.Text("kubejoin: "+e.Message(), safetext.MaxMessage)
	}
	h.results.accessReviews.WithLabelValues(result).Inc()
	return web.Object(http.StatusOK, answer)
}

func readAccessReview(r *call) (accessReviewRequest, error) {
	var req accessReviewRequest
	if !web.HasType(r.Request, "application/json") {
		return req, web.WrongType(r.Request, "want a SubjectAccessReview as application/json")
	}
	body, err := web.ReadAll(r.Request)
	if err != nil {
		return req, err
	}
	// Ignore unknown fields: a newer kube-apiserver may send them, for example to ask for conditions. The response has
	// none: it denies, or has no opinion. Refuse repeated fields, because decoders differ in which of them they use.
	repeated, err := kjson.UnmarshalStrict(body, &req, kjson.DisallowDuplicateFields)
	if err != nil || len(repeated) > 0 {
		return req, web.NewProblem("invalid-body", "the body is not a SubjectAccessReview in JSON, or it repeats a field")
	}
	if version := authorizationv1.SchemeGroupVersion.String(); req.Kind != "SubjectAccessReview" || req.APIVersion != version {
		return req, web.NewProblem("invalid-body", "want kind SubjectAccessReview and apiVersion %s", version)
	}
	return req, nil
}
