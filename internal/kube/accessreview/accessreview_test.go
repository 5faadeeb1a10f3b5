package accessreview_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/kube/accessreview"
	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	authorization "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

const review = `"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1"`

// A newer API server may limit a response by a new field, as KEP-5681 plans. Catches a kubejoin that treats such a
// response as unlimited.
func TestAllowed(t *testing.T) {
	for _, test := range []struct {
		name, body string
		allowed    bool
		reason     string // part of the reason
		err        string // part of the error
	}{
		{name: "allowed", body: `{` + review + `,"status":{"allowed":true}}`, allowed: true},
		{name: "not allowed", body: `{` + review + `,"status":{"allowed":false,"reason":"no"}}`, reason: "no"},
		{name: "allowed and denied", body: `{` + review + `,"status":{"allowed":true,"denied":true}}`},
		{name: "allowed, one authorizer fails", body: `{` + review + `,"status":{"allowed":true,"evaluationError":"down"}}`, allowed: true},
		{name: "an authorizer fails", body: `{` + review + `,"status":{"allowed":false,"evaluationError":"down"}}`, err: "down"},
		{name: "denied, one authorizer fails", body: `{` + review + `,"status":{"allowed":false,"denied":true,"evaluationError":"down"}}`},
		{name: "empty status", body: `{` + review + `,"status":{}}`},

		{name: "allowed on a condition", body: `{` + review + `,"status":{"allowed":true,"conditionSetChain":[{"conditions":[]}]}}`, reason: `unknown field "conditionSetChain"`},
		{name: "condition first", body: `{` + review + `,"status":{"conditionSetChain":[],"allowed":true}}`, reason: `unknown field "conditionSetChain"`},
		{name: "null condition", body: `{` + review + `,"status":{"allowed":true,"conditionSetChain":null}}`, reason: `unknown field "conditionSetChain"`},
		{name: "not allowed, with a condition", body: `{` + review + `,"status":{"allowed":false,"conditionSetChain":[]}}`, reason: `unknown field "conditionSetChain"`},
		{name: "an authorizer fails, with a condition", body: `{` + review + `,"status":{"allowed":false,"evaluationError":"down","conditionSetChain":[]}}`, err: "down"},
		{name: "field in upper case", body: `{` + review + `,"status":{"Allowed":true}}`, reason: `unknown field "Allowed"`},
		{name: "field repeated", body: `{` + review + `,"status":{"allowed":false,"allowed":true}}`, reason: `duplicate field "allowed"`},
		{name: "hostile field", body: `{` + review + `,"status":{"allowed":true,"` + strings.Repeat("x", 5000) + `":1}}`, reason: `unknown field "xxx`},

		{name: "unknown fields elsewhere", body: `{` + review + `,"new":1,"metadata":{"new":1},"spec":{"user":"ada","new":{"a":1}},"status":{"allowed":true}}`, allowed: true},
		{name: "status repeated", body: `{` + review + `,"status":{"allowed":false},"status":{"allowed":true}}`, err: `duplicate field "status"`},
		{name: "another kind", body: `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{"allowed":true}}`, err: `kind "TokenReview" and apiVersion "authentication.k8s.io/v1" given, want SubjectAccessReview`},
		{name: "another version", body: `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v2","status":{"allowed":true}}`, err: `"authorization.k8s.io/v2" given`},
		{name: "no status", body: `{` + review + `}`, err: "no status"},
		{name: "status of another type", body: `{` + review + `,"status":{"allowed":"true"}}`, err: "not a SubjectAccessReview"},
		{name: "empty object", body: `{}`, err: `kind "" and apiVersion "" given`},
		{name: "HTML", body: `<html>`, err: "not a SubjectAccessReview"},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := apitest.Client(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, test.body)
			})
			reason, allowed, err := accessreview.Allowed(t.Context(), client, authorization.SubjectAccessReviewSpec{User: "ada"})
			if allowed != test.allowed || !strings.Contains(reason, test.reason) || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %q, %t, %v, want %q, %t, %s", reason, allowed, err, test.reason, test.allowed, test.err)
			}
			if len(reason) > 400 {
				t.Errorf("got a reason of %d bytes", len(reason))
			}
		})
	}
}

// Catches a request for protobuf, whose decoder silently drops unknown fields.
func TestAllowedRequestsJSON(t *testing.T) {
	client := apitest.Client(t, func(w http.ResponseWriter, r *http.Request) {
		var got authorization.SubjectAccessReview
		err := json.NewDecoder(r.Body).Decode(&got)
		if accept := r.Header.Get("Accept"); err != nil || accept != "application/json" || r.Method != "POST" || r.URL.Path != "/apis/authorization.k8s.io/v1/subjectaccessreviews" || got.Kind != "SubjectAccessReview" || got.Spec.User != "ada" {
			t.Errorf("got %s %s for %q, %+v, %v", r.Method, r.URL.Path, accept, got, err)
		}
		got.Status.Allowed = true
		apitest.Write(w, http.StatusCreated, got)
	})
	if _, allowed, err := accessreview.Allowed(t.Context(), client, authorization.SubjectAccessReviewSpec{User: "ada"}); !allowed || err != nil {
		t.Errorf("got %t, %v, want allowed", allowed, err)
	}
}

// After an error, kubejoin must wait. Catches a throttled or failed request that kubejoin treats as a denial.
func TestFailedReviewIsAnError(t *testing.T) {
	for _, code := range []int{403, 404, 429, 500, 503} {
		client := apitest.Client(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		if reason, allowed, err := accessreview.Allowed(t.Context(), client, authorization.SubjectAccessReviewSpec{}); err == nil || allowed {
			t.Errorf("%d: got %q, %t, %v, want an error", code, reason, allowed, err)
		}
	}
}

// Importers test with client-go's fake clients, which have no REST client.
func TestAllowedAsksFakeClient(t *testing.T) {
	for _, want := range []bool{true, false} {
		client := fake.NewClientset()
		client.PrependReactor("create", "subjectaccessreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, &authorization.SubjectAccessReview{Status: authorization.SubjectAccessReviewStatus{Allowed: want}}, nil
		})
		if _, got, err := accessreview.Allowed(t.Context(), client, authorization.SubjectAccessReviewSpec{User: "ada"}); got != want || err != nil {
			t.Errorf("got %t, %v, want %t", got, err, want)
		}
	}
}
