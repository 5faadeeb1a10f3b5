package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/deploy"
	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/auth/kubeauth"
	"github.com/kubejoin/kubejoin/tokens"
	authorization "k8s.io/api/authorization/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// Catches a refusal that names neither the given value nor the expected one, although the server knows both.
func TestRefusalsSayWhatWasGivenAndWhatIsWanted(t *testing.T) {
	s := newSite(t)
	s.Callers.Authenticate = auth.HeaderOrCertificate(s.Callers.Authenticate, nil)
	s.start(t)
	long := `{"description":"` + strings.Repeat("x", server.MaxBody) + `"}`
	for _, test := range []struct {
		method, path, authorization, media, body string
		status                                   int
		want                                     string
	}{
		{"GET", tokenPath, "", "", "", 401, "authentication required: send the header"},
		{"GET", tokenPath, "", "", "", 401, "this server accepts no client certificates: it runs without --client-ca-file"},
		{"GET", tokenPath, "Bearer ", "", "", 401, "this server does not accept these credentials; the bearer token is empty"},
		{"GET", tokenPath, "Basic YTpi", "", "", 401, "these credentials; the Authorization header has the scheme Basic, want 'Bearer TOKEN'"},
		{"GET", tokenPath, viewerBearer, "", "", 401, "has an unknown scheme, want 'Bearer TOKEN'"},
		{"GET", "/v1/tokens", "", "", "", 404, "there is nothing at the path /v1/tokens; the nearest is POST /v1/token"},
		{"GET", "/v1/tokn/qwertz", "", "", "", 404, "the nearest is GET /v1/token/{id}"},
		{"GET", "/healthy", "", "", "", 404, "the nearest is GET /healthz"},
		{"GET", "/quite/another", "", "", "", 404, "there is nothing at the path /quite/another"},
		{"PUT", tokenPath, "", "", "", 405, `does not support the method "PUT", want GET or HEAD or POST`},
		{"POST", tokenPath, "Bearer " + adminBearer, "application/json", long, 413, "the body has 65554 bytes, want at most 65536"},
		{"POST", tokenPath, "Bearer " + adminBearer, "text/yaml", "ttl: 1h", 415, `content type "text/yaml" given; want a JSON body`},
		{"POST", tokenPath, "Bearer " + adminBearer, "", "ttl: 1h", 415, "no content type given; want a JSON body"},
	} {
		s.logs.Reset()
		r := must.Get(http.NewRequestWithContext(t.Context(), test.method, s.url+test.path, strings.NewReader(test.body)))
		if test.authorization != "" {
			r.Header.Set("Authorization", test.authorization)
		}
		if test.media != "" {
			r.Header.Set("Content-Type", test.media)
		}
		response := must.Value(s.http.Do(r))(t)
		var body bytes.Buffer
		_ = must.Value(body.ReadFrom(response.Body))(t)
		_ = response.Body.Close()
		var p api.Problem
		if err := json.Unmarshal(body.Bytes(), &p); err != nil || response.StatusCode != test.status || !strings.Contains(p.Detail, test.want) {
			t.Errorf("%s %s %q: got %d %s, want %d %q", test.method, test.path, test.authorization, response.StatusCode, body.String(), test.status, test.want)
		}
		if logs := s.logs.String(); strings.Contains(body.String(), viewerBearer) || strings.Contains(logs, viewerBearer) || test.status == 404 && strings.Contains(logs, test.path) {
			t.Errorf("%s %s: the response or the log shows the credential or the path: %s", test.method, test.path, logs)
		}
	}
}

// Catches a hint with a ClusterRole that does not have the permission, and a permission of a route without a hint.
func TestForbiddenNamesClusterRoleThatAllows(t *testing.T) {
	client := apitest.Reviews(t, func() any { return authorization.SubjectAccessReviewStatus{} })
	permissions := &kubeauth.Permissions{Client: client}
	r := httptest.NewRequest("GET", "/", nil)
	hintOf := func(err error) string {
		if refused, found := errors.AsType[*tokens.Refusal](err); found {
			return refused.Message
		}
		return ""
	}
	roles := map[string]rbac.ClusterRole{}
	for text := range strings.SplitSeq(string(must.Value(fs.ReadFile(deploy.Manifests, "manifests/roles.yaml"))(t)), "\n---\n") {
		var role rbac.ClusterRole
		must.OK(t, yaml.UnmarshalStrict([]byte(text), &role))
		roles[role.Name] = role
	}
	all := []auth.Access{{Verb: "create", Resource: "tokens/unlimited"}, {Verb: "create", Resource: "tokens/groups", Name: "x"}}
	for _, route := range server.AllRoutes() {
		if route.Access != (auth.Access{}) {
			all = append(all, route.Access)
		}
	}
	for _, access := range all {
		err := permissions.Authorize(r, auth.User{Name: "ada"}, access)
		name := strings.TrimSuffix(strings.TrimPrefix(hintOf(err), "ClusterRole "), " allows it")
		if !errors.Is(err, auth.ErrForbidden) || !slices.ContainsFunc(roles[name].Rules, func(r rbac.PolicyRule) bool {
			return slices.Contains(r.APIGroups, kubeauth.Group) && slices.Contains(r.Resources, access.Resource) && slices.Contains(r.Verbs, access.Verb)
		}) {
			t.Errorf("%s: got %v, want a ClusterRole that allows it", access, err)
		}
	}
	if err := permissions.Authorize(r, auth.User{Name: "ada"}, auth.Access{Verb: "sign", Resource: "signers", Group: "certificates.k8s.io"}); hintOf(err) != "" {
		t.Errorf("got %v, want no ClusterRole", err)
	}
}
