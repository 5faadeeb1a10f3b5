package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	authenticationv1 "k8s.io/api/authentication/v1"
	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// reviewTimeout limits reading the store. kube-apiserver allows 30 s for a whole review.
const reviewTimeout = 10 * time.Second

// A TokenReview configures the webhook by which kube-apiserver accepts the tokens of a Server with its own
// store (--authentication-token-webhook-config-file). A token authenticates the same user, with the same
// groups and under the same conditions, as in kube-apiserver's own bootstrap token authenticator. That
// authenticator need not be enabled.
type TokenReview struct {
	// Authenticate accepts only kube-apiserver: every caller that it accepts may create token reviews.
	// An error that wraps [auth.ErrForbidden] means that the caller is a known user but not
	// kube-apiserver. Nil refuses every caller. For a bearer token or a client certificate use
	// [auth.HeaderOrCertificate].
	Authenticate auth.Authenticate
	// Audiences are the --api-audiences of kube-apiserver, by default its service account issuer. A review that
	// requests only other audiences gets authenticated: false. If Audiences is empty, the response names no
	// audiences, which in the TokenReview API means kube-apiserver's audiences.
	Audiences []string
	// Now is the clock for the expiry of tokens; nil is time.Now.
	Now func() time.Time
}

// reviewVersions are the versions of the TokenReview API. Their objects are the same in JSON.
var reviewVersions = []string{"v1", "v1beta1"}

func reviewPath(version string) string {
	return "/apis/" + authenticationv1.GroupName + "/" + version + "/tokenreviews"
}

// tokenReview returns the user of a token to kube-apiserver, in the API version of the request.
func (h *handler) tokenReview(r *call) (web.Response, error) {
	if err := h.checkReviewer(r, h.Webhooks.TokenReview.Authenticate, "tokenreviews", "webhook-config"); err != nil {
		return web.Response{}, err
	}
	req, err := readTokenReview(r)
	if err != nil {
		return web.Response{}, err
	}
	status, err := h.review(r, req.Spec.Token, req.Spec.Audiences)
	if err != nil {
		h.results.tokenReviews.WithLabelValues("failed").Inc()
		// Do not return authenticated: false, because kube-apiserver would cache it.
		return web.Response{}, web.NewProblem("tokens-unavailable", "the tokens cannot be read now; retry").Unavailable(err)
	}
	result := map[bool]string{true: "authenticated", false: "refused"}[status.Authenticated]
	h.results.tokenReviews.WithLabelValues(result).Inc()
	r.log(slog.String("result", result))
	return web.Object(http.StatusOK, authenticationv1.TokenReview{TypeMeta: req.TypeMeta, Status: status})
}

// checkReviewer refuses every caller except kube-apiserver: a response reveals whether a guessed token is right, or
// whether a certificate is revoked. what is the resource that the caller creates. command is the command that
// configures kube-apiserver.
func (h *handler) checkReviewer(r *call, authenticate auth.Authenticate, what, command string) error {
	if authenticate == nil {
		return web.NewProblem("forbidden", "no user may create %s, because this server has no authentication of kube-apiserver configured", what)
	}
	user, err := authenticate(r.Request)
	switch {
	case err == nil:
		r.identify(user) // no rate limit per user: kube-apiserver sends reviews for all its clients
		return nil
	case errors.Is(err, auth.ErrForbidden):
		return web.NewProblem("forbidden", "only kube-apiserver may create %s", what).CausedBy(err)
	case errors.Is(err, auth.ErrNoCredentials):
		return web.NewProblem("unauthorized", "only kube-apiserver may create %s, with the credential from 'kubejoin %s'", what, command)
	case errors.Is(err, auth.ErrBadCredentials):
		return web.NewProblem("unauthorized", "these credentials are not those of kube-apiserver").CausedBy(err)
	}
	return web.NewProblem("authentication-unavailable", "the caller cannot be authenticated now; retry").Unavailable(err)
}

// reviewRequest is a TokenReview with only the fields that kubejoin reads.
type reviewRequest struct {
	metav1.TypeMeta `json:",inline"`
	Spec            struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences"`
	} `json:"spec"`
}

// readTokenReview reads a body of either version, regardless of the version in the path. kube-apiserver sends
// v1beta1 by default, and expects the response in the same version.
func readTokenReview(r *call) (reviewRequest, error) {
	var req reviewRequest
	if !web.HasType(r.Request, "application/json") {
		return req, web.WrongType(r.Request, "want a TokenReview as application/json")
	}
	body, err := web.ReadAll(r.Request)
	if err != nil {
		return req, err
	}
	// Ignore unknown fields: a newer kube-apiserver may send them.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &req); err != nil {
		return req, web.NewProblem("invalid-body", "the body is not a TokenReview in JSON")
	}
	if req.Kind != "TokenReview" || req.APIVersion != authenticationv1.SchemeGroupVersion.String() && req.APIVersion != authenticationv1beta1.SchemeGroupVersion.String() {
		return req, web.NewProblem("invalid-body", "want kind TokenReview and apiVersion %s or %s", authenticationv1.SchemeGroupVersion, authenticationv1beta1.SchemeGroupVersion)
	}
	return req, nil
}

// review checks a token. A malformed, unknown, wrong or expired token gets authenticated: false without a
// reason. An error means that the store could not be read.
func (h *handler) review(r *call, shown string, audiences []string) (no authenticationv1.TokenReviewStatus, err error) {
	token, err := tokens.Parse(shown)
	if err != nil {
		return no, nil // kube-apiserver sends every bearer token that no other authenticator accepts
	}
	user, why, err := h.bootstrapUser(r, token, h.Webhooks.TokenReview.Now)
	if err != nil {
		return no, err
	}
	accepted, meant := accepted(audiences, h.Webhooks.TokenReview.Audiences)
	if why == "" && !meant {
		why = "for another audience"
	}
	if why != "" {
		r.log(slog.String("reason", why)) // only for the operator
		return no, nil
	}
	return authenticationv1.TokenReviewStatus{
		Authenticated: true,
		User:          authenticationv1.UserInfo{Username: user.Name, Groups: user.Groups},
		Audiences:     accepted,
	}, nil
}

// bootstrapUser returns the user of a token, under the conditions of kube-apiserver's bootstrap token
// authenticator. If these conditions refuse the token, it returns why. An error means that the store could not
// be read. A nil now is time.Now.
func (h *handler) bootstrapUser(r *call, shown tokens.Token, now func() time.Time) (user auth.User, why string, err error) {
	record, why, err := h.bootstrapRecord(r, shown, now)
	if err != nil || why != "" {
		return auth.User{}, why, err
	}
	return bootstrapUserOf(record), "", nil
}

// bootstrapUserOf returns the user of a token.
func bootstrapUserOf(record tokens.Record) auth.User {
	return auth.User{Name: tokens.BootstrapUserPrefix + record.Token.ID(), Groups: bootstrapGroups(record)}
}

// bootstrapRecord is bootstrapUser, but returns the record of the token.
func (h *handler) bootstrapRecord(r *call, shown tokens.Token, now func() time.Time) (record tokens.Record, why string, err error) {
	r.log(slog.String("token", shown.ID()))
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	record, err = h.Tokens.Get(ctx, shown.ID(), tokens.Live)
	if errors.Is(err, tokens.ErrNotFound) {
		record, err = h.absentToken, nil // an unknown token takes as long as a wrong secret
	}
	if err != nil {
		return tokens.Record{}, "", err
	}
	if now == nil {
		now = time.Now
	}
	if why := refusal(record, shown, now()); why != "" {
		return tokens.Record{}, why, nil
	}
	return record, "", nil
}

// isToken reports whether a request has an existing bootstrap token. It reads the cache, which is fast but may
// lag behind writes.
func (h *handler) isToken(r *http.Request) bool {
	bearer, _ := auth.Bearer(r) // after an error, bearer is empty and Parse fails
	shown, err := tokens.Parse(bearer)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	record, err := h.Tokens.Get(ctx, shown.ID(), tokens.Cached)
	return err == nil && record.Token.Equal(shown)
}

// unknownToken is the reason for refusing a token that is not in the store or has another secret.
const unknownToken = "unknown token ID or wrong secret"

// refusal returns why kube-apiserver's bootstrap token authenticator would refuse the token, or nothing.
func refusal(record tokens.Record, shown tokens.Token, now time.Time) string {
	same := record.Token.Equal(shown) // always compare, in constant time
	switch {
	case !same:
		return unknownToken
	case record.Problem != nil:
		return "malformed record"
	case record.Expired(now):
		return "expired"
	case !record.Authentication:
		return "not for authentication"
	}
	return ""
}

// bootstrapGroups returns the groups of a token's user as a sorted set, as kube-apiserver does.
func bootstrapGroups(r tokens.Record) []string {
	groups := append([]string{tokens.BootstrappersGroup}, r.Groups...)
	slices.Sort(groups)
	return slices.Compact(groups)
}

// accepted returns the requested audiences that are also kube-apiserver's own, and whether there is at least
// one. If either list is empty, it returns true and no audiences, which means kube-apiserver's own.
func accepted(req, own []string) (both []string, meant bool) {
	if len(req) == 0 || len(own) == 0 {
		return nil, true
	}
	for _, a := range req {
		if slices.Contains(own, a) {
			both = append(both, a)
		}
	}
	return both, len(both) > 0
}
