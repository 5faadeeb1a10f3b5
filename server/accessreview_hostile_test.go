package server_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// Catches a review that names a revoked node or certificate anywhere and gets a response without a denial. Decoders
// differ in which of two equal fields they use, so kubejoin refuses a review that repeats one.
func TestHostileAccessReviews(t *testing.T) {
	s, guard := revoking(t)
	handler := s.Handler()
	stolen := revocationtest.Fingerprint(1)
	for _, e := range []revocation.Entry{{Node: "worker-9"}, {Fingerprint: stolen}} {
		if _, err := guard.Revoke(t.Context(), e); err != nil {
			t.Fatal(err)
		}
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

// Catches a response with a condition, or an allowing one, to a kube-apiserver that asks for conditions (KEP-5681).
func TestAccessReviewHasNoConditions(t *testing.T) {
	s, guard := revoking(t)
	handler := s.Handler()
	if _, err := guard.Revoke(t.Context(), revocation.Entry{Node: "worker-9"}); err != nil {
		t.Fatal(err)
	}
	reason := regexp.MustCompile(`"reason":"kubejoin: [^"]*"`)
	const asks = `"conditionalAuthorization":{"mode":"HumanReadable"}`
	for node, want := range map[string]map[string]any{
		"worker-9": {"allowed": false, "denied": true, "reason": "kubejoin"},
		"worker-1": {"allowed": false},
	} {
		for _, body := range []string{
			`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{` + asks + `,"user":"system:node:` + node + `","groups":["system:nodes"]}}`,
			`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1",` + asks + `,"spec":{"user":"system:node:` + node + `","groups":["system:nodes"],"resourceAttributes":{"verb":"create",` + asks + `}},"status":{"allowed":true,"conditionSetChain":[{}]}}`,
		} {
			w := send(handler, accessPath, reviewerBearer, "application/json", strings.NewReader(body))
			var answer map[string]any
			body := reason.ReplaceAllString(w.Body.String(), `"reason":"kubejoin"`)
			if err := json.Unmarshal([]byte(body), &answer); err != nil {
				t.Fatal(err)
			}
			if all := (map[string]any{"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": want}); w.Code != 200 || !reflect.DeepEqual(answer, all) {
				t.Errorf("%s: got %d %s, want %v", node, w.Code, w.Body, all)
			}
		}
	}
}
