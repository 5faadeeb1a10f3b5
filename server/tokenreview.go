package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	authenticationv1 "k8s.io/api/authentication/v1"
	authenticationv1beta1 "k8s.io/api/authentication/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// reviewTimeout is how long the store may take. kube-apiserver gives a review 30 s in all.
const reviewTimeout = 10 * time.Second

// A TokenReview lets kube-apiserver accept the tokens of a Server that has its own store: it is
// the webhook of --authentication-token-webhook-config-file. A token is the same user, in the
// same groups and under the same conditions, as for kube-apiserver's own bootstrap token
// authenticator, which need not be enabled beside it.
type TokenReview struct {
	// Authenticate knows kube-apiserver: whoever it knows may ask. An error that wraps
	// [auth.ErrForbidden] is about somebody whom it knows as another. nil refuses everybody. For a bearer
	// token or a client certificate it is [auth.HeaderOrCertificate].
	Authenticate auth.Authenticate
	// Audiences are the API server's --api-audiences, by default its service account issuer. A
	// review for others alone is answered no. Empty leaves that to the API server: an answer
	// without audiences is for its own, as the TokenReview API has it.
	Audiences []string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// reviewVersions are the versions of the API. Their objects are the same in JSON.
var reviewVersions = []string{"v1", "v1beta1"}

func reviewPath(version string) string {
	return "/apis/" + authenticationv1.GroupName + "/" + version + "/tokenreviews"
}

// tokenReview says whose token it is that kube-apiserver was shown, in the version that it was
// asked in.
func (h *handler) tokenReview(r *call) (response, error) {
	if err := h.checkReviewer(r); err != nil {
		return response{}, err
	}
	req, err := readTokenReview(r)
	if err != nil {
		return response{}, err
	}
	status, err := h.review(r, req.Spec.Token, req.Spec.Audiences)
	if err != nil {
		h.tokenReviews.WithLabelValues("failed").Inc()
		// Not a no, which kube-apiserver would remember.
		p := newProblem(http.StatusServiceUnavailable, "tokens-unavailable", "the tokens cannot be read now; try again")
		p.cause, p.retryAfter = err, retryAfter
		return response{}, p
	}
	result := map[bool]string{true: "authenticated", false: "refused"}[status.Authenticated]
	h.tokenReviews.WithLabelValues(result).Inc()
	r.log(slog.String("result", result))
	return object(http.StatusOK, authenticationv1.TokenReview{TypeMeta: req.TypeMeta, Status: status})
}

// checkReviewer lets nobody ask but kube-apiserver: an answer tells whether a guess was right.
func (h *handler) checkReviewer(r *call) error {
	if h.TokenReview.Authenticate == nil {
		return newProblem(http.StatusForbidden, "forbidden", "nobody may create tokenreviews here: no way to authenticate kube-apiserver is configured")
	}
	user, err := h.TokenReview.Authenticate(r.Request)
	switch {
	case err == nil:
		r.identify(user) // without the rate of a user: it asks for all its clients
		return nil
	case errors.Is(err, auth.ErrForbidden):
		p := newProblem(http.StatusForbidden, "forbidden", "only kube-apiserver may create tokenreviews")
		p.cause = err
		return p
	case errors.Is(err, auth.ErrNoCredentials):
		return newProblem(http.StatusUnauthorized, "unauthorized", "only kube-apiserver may create tokenreviews, with the credential that 'kubejoin webhook-config' gives it")
	case errors.Is(err, auth.ErrBadCredentials):
		p := newProblem(http.StatusUnauthorized, "unauthorized", "the credentials sent are not kube-apiserver's")
		p.cause = err
		return p
	}
	p := newProblem(http.StatusServiceUnavailable, "authentication-unavailable", "cannot tell now who is asking; try again")
	p.cause, p.retryAfter = err, retryAfter
	return p
}

// reviewRequest is what counts in a review that is asked for.
type reviewRequest struct {
	metav1.TypeMeta `json:",inline"`
	Spec            struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences"`
	} `json:"spec"`
}

// readTokenReview reads a body of either version, whatever the path says: kube-apiserver sends
// v1beta1 unless it is told otherwise, and reads the answer in the version that it sent.
func readTokenReview(r *call) (reviewRequest, error) {
	var req reviewRequest
	if !hasType(r, "application/json") {
		return req, newProblem(http.StatusUnsupportedMediaType, "unsupported-media-type", "want a TokenReview as application/json")
	}
	body, err := readAll(r)
	if err != nil {
		return req, err
	}
	// Fields that are not known are a newer API server's.
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &req); err != nil {
		return req, newProblem(http.StatusBadRequest, "invalid-body", "the body is no TokenReview in JSON")
	}
	if req.Kind != "TokenReview" || req.APIVersion != authenticationv1.SchemeGroupVersion.String() && req.APIVersion != authenticationv1beta1.SchemeGroupVersion.String() {
		return req, newProblem(http.StatusBadRequest, "invalid-body", "want kind TokenReview and apiVersion %s or %s", authenticationv1.SchemeGroupVersion, authenticationv1beta1.SchemeGroupVersion)
	}
	return req, nil
}

// review judges a token. Whose it is not is a no without a reason, be it malformed, unknown,
// wrong or expired; an error means that nobody can tell.
func (h *handler) review(r *call, shown string, audiences []string) (no authenticationv1.TokenReviewStatus, err error) {
	token, err := tokens.Parse(shown)
	if err != nil {
		return no, nil // every bearer that no other authenticator knows comes here
	}
	user, why, err := h.bootstrapUser(r, token, h.TokenReview.Now)
	if err != nil {
		return no, err
	}
	accepted, meant := accepted(audiences, h.TokenReview.Audiences)
	if why == "" && !meant {
		why = "for another audience"
	}
	if why != "" {
		r.log(slog.String("reason", why)) // for the operator alone
		return no, nil
	}
	return authenticationv1.TokenReviewStatus{
		Authenticated: true,
		User:          authenticationv1.UserInfo{Username: user.Name, Groups: user.Groups},
		Audiences:     accepted,
	}, nil
}

// bootstrapUser is whose token it is that was shown, under the conditions of kube-apiserver's
// bootstrap token authenticator, or why nobody's. An error means that nobody can tell. A now of
// nil is time.Now.
func (h *handler) bootstrapUser(r *call, shown tokens.Token, now func() time.Time) (user auth.User, why string, err error) {
	r.log(slog.String("token", shown.ID()))
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	record, err := h.Tokens.Get(ctx, shown.ID())
	if errors.Is(err, tokens.ErrNotFound) {
		record, err = h.absentToken, nil // as much work as with one that is there
	}
	if err != nil {
		return auth.User{}, "", err
	}
	if now == nil {
		now = time.Now
	}
	if why := refusal(record, shown, now()); why != "" {
		return auth.User{}, why, nil
	}
	return auth.User{Name: tokens.BootstrapUserPrefix + shown.ID(), Groups: bootstrapGroups(record)}, "", nil
}

// isToken is whether a request shows a bootstrap token that there is, as far as kubejoin remembers: no
// store is asked.
func (h *handler) isToken(r *http.Request) bool {
	bearer, _ := auth.Bearer(r) // empty beside an error, which is no token
	shown, err := tokens.Parse(bearer)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	record, err := h.Tokens.Find(ctx, shown.ID())
	return err == nil && record.Token.Equal(shown)
}

// unknownToken is why a token is nobody's that is not in the store.
const unknownToken = "unknown or another secret"

// refusal is why kube-apiserver's bootstrap token authenticator would not accept the token that
// was shown, or nothing.
func refusal(record tokens.Record, shown tokens.Token, now time.Time) string {
	same := record.Token.Equal(shown) // in constant time, and always
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

// accepted are those of the audiences asked for that are the API server's, and whether the token
// is meant for any. Where nothing is known of either they are not named: that stands for the API
// server's own.
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
