package kubeauth_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/auth/kubeauth"
	"github.com/kubejoin/kubejoin/tokens"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// hintOf returns the part of an error that the caller may see.
func hintOf(err error) string {
	if refused, found := errors.AsType[*tokens.Refusal](err); found {
		return refused.Message
	}
	return ""
}

// Without options, 'kubectl create token NAME' makes a token for the API server. Catches a refusal that does not name
// the audience or that quotes the unverified token.
func TestTokenOfOtherAudienceGetsHint(t *testing.T) {
	api := &fakeReviews{token: func(r *authenticationv1.TokenReview) { r.Status.Error = "invalid" }}
	known := &kubeauth.Tokens{Client: api.client(t)}
	for payload, want := range map[string]bool{
		`{"aud":["https://kubernetes.default.svc"]}`: true,
		`{"aud":"sesame"}`:                           true,
		`{"aud":["kubejoin","sesame"]}`:              false, // for example expired
		`{"aud":"kubejoin","exp":1}`:                 false,
		`no JSON, as in an opaque token`:             false,
	} {
		_, err := known.Authenticate(request(t.Context(), "h."+base64.RawURLEncoding.EncodeToString([]byte(payload))+".s"))
		got := hintOf(err)
		if !errors.Is(err, auth.ErrBadCredentials) || strings.HasSuffix(got, "kubectl create token NAME --audience kubejoin") != want || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: got %v with hint %q, want a hint: %t", payload, err, got, want)
		}
	}
}
