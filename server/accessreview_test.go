package server_test

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/signer/revocation"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// Catches a revoked node that gets past the webhook with a path so long that kubejoin returns an error.
func TestDeniesAccessReviewThatIsTooLarge(t *testing.T) {
	s, guard := revoking(t)
	handler := s.Handler()
	one := s.join(t, handler, s.token(t, nil), "worker-1")
	if _, err := guard.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}); err != nil {
		t.Fatal(err)
	}
	spec := subject("worker-1", one.cert)
	spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: "/" + strings.Repeat("x", 1<<17), Verb: "get"}
	if status, got := review(t, handler, reviewerBearer, spec); status != 200 || !got.Denied || got.Allowed {
		t.Errorf("got %d %+v, want denied", status, got)
	}
	if status, _ := review(t, handler, adminBearer, spec); status != 401 {
		t.Errorf("another caller: got %d, want 401", status)
	}
}
