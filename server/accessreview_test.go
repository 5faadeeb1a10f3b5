package server_test

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const accessPath = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

// subject returns the spec of a review of a node with a certificate.
func subject(node string, cert *x509.Certificate) authorizationv1.SubjectAccessReviewSpec {
	return authorizationv1.SubjectAccessReviewSpec{
		User: "system:node:" + node, Groups: []string{"system:nodes", "system:authenticated"},
		Extra:              map[string]authorizationv1.ExtraValue{revocation.CredentialIDKey: {revocation.FingerprintOf(cert).CredentialID()}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes"},
	}
}

// review posts an access review as kube-apiserver does.
func review(t *testing.T, handler http.Handler, bearer string, spec authorizationv1.SubjectAccessReviewSpec) (int, authorizationv1.SubjectAccessReviewStatus) {
	t.Helper()
	body := jsonOf(t, authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}, Spec: spec,
	})
	w := send(handler, accessPath+"?timeout=1s", bearer, "application/json", strings.NewReader(body))
	var answer authorizationv1.SubjectAccessReview
	if err := json.Unmarshal(w.Body.Bytes(), &answer); w.Code == 200 && err != nil {
		t.Fatal(err)
	}
	return w.Code, answer.Status
}

// Package revocation tests which subjects are barred. Catches a webhook that allows a request, or responds to another
// caller than kube-apiserver.
func TestAccessReview(t *testing.T) {
	s, guard := revoking(t)
	handler := s.Handler()
	must.Get(guard.Revoke(t.Context(), revocation.Entry{Node: "worker-1", Reason: "stolen"}))
	must.Get(guard.Revoke(t.Context(), revocation.Entry{Fingerprint: revocation.FingerprintOf(s.ca.Certificate())}))
	node, other := subject("worker-1", s.ca.Certificate()), subject("worker-2", newSite(t).ca.Certificate())
	node.Extra = nil
	long := node // the sender of the reviewed request chooses the length of its path, which must cause no error
	long.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: "/" + strings.Repeat("x", 1<<17), Verb: "get"}
	user := authorizationv1.SubjectAccessReviewSpec{User: "jane", Extra: subject("", s.ca.Certificate()).Extra}
	for reason, spec := range map[string]authorizationv1.SubjectAccessReviewSpec{"": other, "stolen": node, "too large": long, "revoked": user} {
		status, got := review(t, handler, reviewerBearer, spec)
		if status != 200 || got.Allowed || got.Denied != (reason != "") || !strings.Contains(got.Reason, reason) {
			t.Errorf("%s: got %d %+v, want denied with %q", spec.User, status, got, reason)
		}
		for _, bearer := range []string{"", adminBearer, "x"} {
			if got, _ := review(t, handler, bearer, spec); got != 401 {
				t.Errorf("bearer %q: got %d, want 401", bearer, got)
			}
		}
	}
	const kind = `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1"`
	for body, status := range map[string]int{
		`{}`: 400, `{`: 400, ``: 400, `{"kind":"TokenReview","apiVersion":"authorization.k8s.io/v1"}`: 400, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1beta1"}`: 400,
		kind + `,"new":1}`: 200,
	} {
		if w := send(handler, accessPath, reviewerBearer, "application/json", strings.NewReader(body)); w.Code != status || w.Code != 200 && !strings.Contains(w.Body.String(), `"kind":"Status"`) {
			t.Errorf("%.100s: got %d %s, want %d", body, w.Code, w.Body, status)
		}
	}
	if w := send(handler, accessPath, reviewerBearer, "text/plain", strings.NewReader("x")); w.Code != 415 {
		t.Errorf("text: got %d, want 415", w.Code)
	}
	// From 1.38 on, kube-apiserver may ask for conditions (KEP-5681). The response has no conditions.
	const asks = `"authorizationOptions":{"handledDecisionTypes":["Allow","Deny","NoOpinion","ConditionsMap","Union"]}`
	for node, want := range map[string]string{"worker-1": `{"allowed":false,"denied":true,"reason":`, "worker-2": `{"allowed":false}}`} {
		body := kind + `,"spec":{` + asks + `,"user":"system:node:` + node + `","groups":["system:nodes"]},"status":{"allowed":true,"conditionalDecision":{"type":"ConditionsMap","conditionsMap":{"allowConditions":[{"id":"x"}]}}}}`
		if w := send(handler, accessPath, reviewerBearer, "application/json", strings.NewReader(body)); w.Code != 200 || !strings.HasPrefix(w.Body.String(), kind+`,"status":`+want) || strings.Contains(w.Body.String(), "condition") {
			t.Errorf("%s: got %d %s, want %s", node, w.Code, w.Body, want)
		}
	}
}

// Catches a review that names a revoked node or certificate anywhere and gets a response without a denial. Decoders
// differ in which of two equal fields they use, so kubejoin refuses a review that repeats a field.
func TestHostileAccessReviews(t *testing.T) {
	s, guard := revoking(t)
	handler := s.Handler()
	stolen := revocationtest.Fingerprint(1)
	for _, e := range []revocation.Entry{{Node: "worker-9"}, {Fingerprint: stolen}} {
		must.Value(guard.Revoke(t.Context(), e))(t)
	}
	const (
		kind   = `"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1"`
		user   = `"user":"system:node:worker-9"`
		groups = `"groups":["system:nodes"]`
		other  = `"user":"system:node:worker-1"`
	)
	credential := func(f revocation.Fingerprint) string {
		return fmt.Sprintf("%q:[%q]", revocation.CredentialIDKey, f.CredentialID())
	}
	barred, valid := credential(stolen), credential(revocationtest.Fingerprint(2))
	spec := func(fields ...string) string { return `{` + kind + `,"spec":{` + strings.Join(fields, ",") + `}}` }
	twice := func(a, b string) []string {
		return []string{spec(groups, a, b), spec(a, b, groups), spec(b, groups, a)}
	}
	deep := strings.Repeat(`{"a":`, 5000) + `1` + strings.Repeat(`}`, 5000)

	for what, bodies := range map[string][]string{
		"user repeated":           twice(user, other),
		"groups repeated":         {spec(user, groups, `"groups":[]`), spec(user, `"groups":[]`, groups), spec(user, groups, `"groups":null`)},
		"extra repeated":          twice(other+`,"extra":{`+barred+`}`, `"extra":{`+valid+`}`),
		"credential ID repeated":  {spec(other, groups, `"extra":{`+barred+`,`+valid+`}`), spec(other, groups, `"extra":{`+valid+`,`+barred+`}`)},
		"credential ID emptied":   {spec(other, groups, `"extra":{`+barred+`,"`+revocation.CredentialIDKey+`":[]}`)},
		"escaped name repeated":   twice(user, `"\u0075ser":"system:node:worker-1"`),
		"spec repeated":           {`{` + kind + `,"spec":{` + user + `,` + groups + `},"spec":{` + other + `}}`, `{` + kind + `,"spec":{` + other + `},"spec":{` + user + `,` + groups + `}}`},
		"spec emptied":            {`{` + kind + `,"spec":{` + user + `,` + groups + `},"spec":null}`},
		"kind repeated":           {`{` + kind + `,"kind":"x","spec":{` + user + `,` + groups + `}}`, `{"kind":"x",` + kind + `,"spec":{` + user + `,` + groups + `}}`},
		"another value after it":  {spec(user, groups) + spec(other, groups), spec(other, groups) + spec(user, groups)},
		"wrong type of user":      {spec(groups, `"user":["system:node:worker-9"]`), spec(groups, `"user":{"system:node:worker-9":1}`)},
		"wrong type of groups":    {spec(user, `"groups":"system:nodes"`), spec(user, `"groups":{"system:nodes":1}`), spec(user, `"groups":[["system:nodes"]]`)},
		"wrong type of extra":     {spec(other, groups, `"extra":[{`+barred+`}]`), spec(other, groups, `"extra":{"`+revocation.CredentialIDKey+`":"`+stolen.CredentialID()+`"}`)},
		"wrong type of spec":      {`{` + kind + `,"spec":[{` + user + `,` + groups + `}]}`, `[` + spec(user, groups) + `]`},
		"unknown fields":          {spec(user, groups, `"User":"system:node:worker-1"`, `"USER":"","new":{"user":"x"}`), spec(`"userName":"x"`, user, groups, `"Groups":[]`), `{` + kind + `,"Spec":{` + other + `},"spec":{` + user + `,` + groups + `}}`},
		"status given":            {`{` + kind + `,"spec":{` + user + `,` + groups + `},"status":{"allowed":true,"denied":false}}`},
		"deep":                    {spec(user, groups, `"new":`+deep), spec(`"new":`+deep, user, groups), spec(user, groups, `"extra":`+deep)},
		"huge":                    {spec(user, groups, `"new":"`+strings.Repeat("x", 1<<20)+`"`), spec(`"new":"`+strings.Repeat("x", 1<<20)+`"`, user, groups)},
		"many groups":             {spec(user, `"groups":[`+strings.Repeat(`"a",`, 8000)+`"system:nodes"]`)},
		"other credentials first": {spec(other, groups, `"extra":{"`+revocation.CredentialIDKey+`":["JTI=x","X509SHA256=`+string(revocationtest.Fingerprint(2))+`","`+stolen.CredentialID()+`"]}`)},
		"upper case":              {spec(other, groups, `"extra":{"`+revocation.CredentialIDKey+`":["X509SHA256=`+strings.ToUpper(string(stolen))+`"]}`)},
		"escaped values":          {spec(groups, `"user":"\u0073ystem:node:worker\u002d9"`), spec(other, groups, `"extra":{"\u0061`+barred[2:]+`}`)},
		"invalid UTF-8":           {spec(user, groups, "\"new\":\"\xff\"")},
	} {
		for i, body := range bodies {
			w := send(handler, accessPath, reviewerBearer, "application/json", strings.NewReader(body))
			if w.Code >= 400 && w.Code < 500 {
				continue
			}
			var answer authorizationv1.SubjectAccessReview
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 200 || !answer.Status.Denied || answer.Status.Allowed {
				t.Errorf("%s, %d: got %d %.300s %v, want a denial or an error", what, i, w.Code, w.Body, err)
			}
		}
	}
	// A review of another subject works, so that the checks above can fail.
	if w := send(handler, accessPath, reviewerBearer, "application/json", strings.NewReader(spec(other, groups, `"extra":{`+valid+`}`, `"new":1`))); w.Code != 200 || strings.Contains(w.Body.String(), "denied") {
		t.Errorf("another subject: got %d %s", w.Code, w.Body)
	}
}
