package kubeauth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/callcache"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Audience is the audience that tokens must have if Tokens.Audiences is empty. The default tokens of pods are for the
// API server only, and are refused.
const Audience = "kubejoin"

// How long TokenReview results are cached. kube-apiserver's own authenticator caches a valid token for another 10 s.
const (
	TokenAge    = 5 * time.Second // valid tokens
	BadTokenAge = time.Second     // refused tokens
)

// DefaultTimeout limits a review if Timeout is zero.
const DefaultTimeout = 5 * time.Second

// Tokens authenticates bearer tokens, mostly of service accounts, by TokenReview. It caches results for
// [TokenAge]. A revoked token is refused within TokenAge and the 10 s for which kube-apiserver caches it. Do not
// change the fields after the first use.
type Tokens struct {
	// Client calls the API server and needs create on tokenreviews.
	Client kubernetes.Interface
	// Audiences are the accepted audiences: a token must have at least one. Empty means [Audience]. The audience of
	// the API server itself would accept the default token of every pod.
	Audiences []string
	// Timeout limits one review; zero means DefaultTimeout.
	Timeout time.Duration
	// Registerer receives kubejoin_access_reviews_total; nil disables the metric.
	Registerer prometheus.Registerer

	once    sync.Once
	answers *callcache.Cache[verdict]
	reviews *prometheus.CounterVec
}

// A verdict is the user of a token, or why the token is refused.
type verdict struct {
	user auth.User
	why  string
}

// Authenticate is an [auth.Authenticate]. It refuses bootstrap tokens without sending them to the API server, because
// they belong to machines.
func (t *Tokens) Authenticate(r *http.Request) (auth.User, error) {
	bearer, err := auth.Bearer(r)
	if err != nil {
		return auth.User{}, err
	}
	if _, err := tokens.Parse(bearer); err == nil || errors.Is(err, tokens.ErrPublicExample) {
		return auth.User{}, fmt.Errorf("%w: bootstrap tokens are only for joining machines", auth.ErrBadCredentials)
	}
	t.once.Do(func() {
		t.answers = callcache.New[verdict](TokenAge, BadTokenAge, timeoutOr(t.Timeout))
		t.reviews = counter(t.Registerer)
	})
	v, yes, err := t.answers.Get(r.Context(), []byte(bearer), func(ctx context.Context) (verdict, bool, error) {
		v, yes, err := t.review(ctx, bearer)
		t.reviews.WithLabelValues("token", result(yes, err)).Inc()
		return v, yes, err
	})
	switch {
	case err != nil:
		return auth.User{}, fmt.Errorf("TokenReview: %w", err)
	case !yes:
		err := fmt.Errorf("%w: TokenReview: %s", auth.ErrBadCredentials, v.why)
		if t.forOthers(bearer) {
			err = auth.Hint(err, fmt.Sprintf("the token is for another audience, want %[1]s: kubectl create token NAME --audience %[1]s", t.audiences()[0]))
		}
		return auth.User{}, err
	}
	return v.user, nil
}

func (t *Tokens) audiences() []string {
	if len(t.Audiences) == 0 {
		return []string{Audience}
	}
	return t.Audiences
}

// forOthers reports whether a bearer token is a JWT without any of the wanted audiences. It does not verify the token,
// so use the result only for a hint.
func (t *Tokens) forOthers(bearer string) bool {
	_, rest, _ := strings.Cut(bearer, ".")
	payload, _, _ := strings.Cut(rest, ".")
	text, err := base64.RawURLEncoding.DecodeString(payload)
	var claims struct {
		Audiences json.RawMessage `json:"aud"` // a string, or a list of strings
	}
	return err == nil && json.Unmarshal(text, &claims) == nil && !slices.ContainsFunc(t.audiences(), func(a string) bool {
		return strings.Contains(string(claims.Audiences), strconv.Quote(a))
	})
}

// review sends a TokenReview. It accepts a token only if the API server confirms one of the wanted audiences.
func (t *Tokens) review(ctx context.Context, bearer string) (v verdict, yes bool, err error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: bearer, Audiences: t.audiences()}}
	answer, err := t.Client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return v, false, withoutToken(err, bearer)
	}
	status := answer.Status
	switch {
	case !status.Authenticated:
		// This error usually describes the token. kube-apiserver reports a failure of its own authenticator in the
		// same way.
		v.why = "not authenticated"
		if status.Error != "" {
			v.why = safetext.Text(strings.ReplaceAll(status.Error, bearer, "TOKEN"), safetext.MaxName)
		}
		return v, false, nil
	case !slices.ContainsFunc(status.Audiences, func(a string) bool { return slices.Contains(t.audiences(), a) }):
		// An authenticator that does not support audiences returns none, which means that it did not check the
		// audience.
		v.why = fmt.Sprintf("token has audiences %q, want one of %q", safetext.Text(strings.Join(status.Audiences, ","), safetext.MaxName), t.audiences())
		return v, false, nil
	case status.User.Username == "":
		return v, false, errors.New("the API server accepted the token but returned no username")
	}
	v.user = auth.User{Name: status.User.Username, UID: status.User.UID, Groups: status.User.Groups}
	if len(status.User.Extra) > 0 {
		v.user.Extra = make(map[string][]string, len(status.User.Extra))
		for k, values := range status.User.Extra {
			v.user.Extra[k] = values
		}
	}
	return v, true, nil
}

// withoutToken returns the error with the token removed from its text, in case the API server quoted it.
func withoutToken(err error, bearer string) error {
	if text := err.Error(); strings.Contains(text, bearer) {
		return errors.New(strings.ReplaceAll(text, bearer, "TOKEN"))
	}
	return err
}

func timeoutOr(d time.Duration) time.Duration {
	if d <= 0 {
		return DefaultTimeout
	}
	return d
}

func counter(reg prometheus.Registerer) *prometheus.CounterVec {
	return metrics.Counter(reg, "kubejoin_access_reviews_total", "TokenReviews and SubjectAccessReviews sent to the API server for callers of the HTTPS API, by review (token or access) and result: yes, no or failed.", "review", "result")
}

func result(yes bool, err error) string {
	switch {
	case err != nil:
		return "failed"
	case yes:
		return "yes"
	}
	return "no"
}
