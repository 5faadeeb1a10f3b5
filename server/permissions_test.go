package server_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// Catches a route without a row in the table of docs/http-api.md, a row without a route, and a wrong permission.
// test/access tests the cells.
func TestEveryRouteIsInTheAccessTable(t *testing.T) {
	doc := must.Value(os.ReadFile("../docs/http-api.md"))(t)
	routes := map[string]auth.Access{}
	named := regexp.MustCompile(`\{([a-z]+)[^}]*\}`)
	for _, r := range server.AllRoutes() {
		path := named.ReplaceAllStringFunc(r.Path, func(p string) string { return strings.ToUpper(named.FindStringSubmatch(p)[1]) })
		routes[r.Method+" "+path] = r.Access
	}
	_, section, found := strings.Cut(string(doc), "## Permissions on a cluster\n")
	if !found {
		t.Fatal("docs/http-api.md has no section Permissions on a cluster")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z]+ /[^|]*)` \\| `?([^|`]*(?:`, `[^|`]*)?)`? ?\\|").FindAllStringSubmatch(section, -1) {
		paths, permissions := strings.Split(m[1], "`, `"), strings.Split(m[2], "`, `")
		for i, route := range paths {
			access, known := routes[route]
			switch {
			case !known:
				t.Errorf("docs/http-api.md: got a row for %s, which is no route", route)
			case seen[route]:
				t.Errorf("docs/http-api.md: got two rows for %s, want one", route)
			}
			seen[route] = true
			permission := ""
			if access != (auth.Access{}) {
				permission = access.Verb + " " + access.Resource
			}
			if got := permissions[min(i, len(permissions)-1)]; got != permission || access.Group != "" {
				t.Errorf("docs/http-api.md: got permission %q for %s, want %s", got, route, access)
			}
		}
	}
	for route := range routes {
		if !seen[route] {
			t.Errorf("docs/http-api.md: no row for %s: add one that says who may use it", route)
		}
	}
}

// Each privilege of a token needs a permission of its own. Catches a missing check, a refused request that stores a
// token, and a refusal that does not name the missing permission.
func TestEachTokenPrivilegeNeedsItsPermission(t *testing.T) {
	s := newSite(t)
	var may []string // permissions beside "create tokens" and "update tokens"
	var asked []string
	s.Callers.Authorize = func(_ *http.Request, u auth.User, a auth.Access) error {
		if a.String() == "create tokens.kubejoin.io" || a.String() == "update tokens.kubejoin.io" {
			return nil
		}
		asked = append(asked, a.String())
		if slices.Contains(may, a.String()) {
			return nil
		}
		if a.Name == "system:bootstrappers:away" {
			return errors.New("away")
		}
		return auth.ErrForbidden
	}
	inADecade := time.Now().AddDate(9, 0, 0).UTC().Format(time.RFC3339)
	looked := 0
	s.Cluster.Node = func(context.Context, string) (tokens.NodeRef, error) {
		looked++
		return tokens.NodeRef{Name: "worker-1", UID: "1"}, nil
	}
	s.Cluster.NodeProperties = func(context.Context, string) error { looked++; return nil }
	s.start(t)
	const (
		unlimited = "create tokens/unlimited.kubejoin.io"
		group     = "create tokens/groups.kubejoin.io system:bootstrappers:"
		role      = "create tokens/roles.kubejoin.io control-plane"
		replaces  = "create tokens/replacements.kubejoin.io worker-1"
		label     = "create tokens/labels.kubejoin.io "
		taint     = "create tokens/taints.kubejoin.io "
	)
	for _, test := range []struct {
		query  string
		needs  []string
		field  string // field in the refusal
		detail string
	}{
		{query: "maxNodes=100&ttl=168h&usages=signing,authentication&description=x&nodeNames=w-*,v&certificateDuration=10m"},
		{query: "maxNodes=1&groups=" + tokens.DefaultGroup},
		{query: "", needs: []string{unlimited}, field: "maxNodes", detail: "give the token a node limit"},
		{query: "nodeNames=w-1", needs: []string{unlimited}, field: "maxNodes"},
		{query: "maxNodes=1&ttl=0", needs: []string{unlimited}, field: "ttl", detail: "which an unlimited lifetime requires; give a lifetime"},
		{query: "maxNodes=101", needs: []string{unlimited}, field: "maxNodes", detail: "which a token for 101 nodes requires; give the token at most 100 nodes (--max-token-nodes)"},
		{query: "maxNodes=1&ttl=168h1s", needs: []string{unlimited}, field: "ttl", detail: "which a lifetime of 168h0m1s requires; give at most 168h (--max-token-ttl)"},
		{query: "maxNodes=1&expires=" + inADecade, needs: []string{unlimited}, field: "expires", detail: "give at most 168h (--max-token-ttl)"},
		{query: "maxNodes=1000&ttl=87600h", needs: []string{unlimited}, field: "maxNodes"},
		{query: "maxNodes=1&groups=system:bootstrappers:a," + tokens.DefaultGroup + ",system:bootstrappers:b", needs: []string{group + "a", group + "b"}, field: "groups"},
		{query: "maxNodes=1&role=control-plane", needs: []string{role}, field: "role"},
		{query: "replaceNode=worker-1", needs: []string{replaces}, field: "replaceNode"},
		{query: "maxNodes=1&nodeLabels=node-role.kubernetes.io/a=&nodeLabels=a.b/c=d&nodeTaints=e=f:NoExecute,g:NoSchedule", needs: []string{label + "a.b/c=d", label + "node-role.kubernetes.io/a=", taint + "e=f:NoExecute", taint + "g:NoSchedule"}, field: "nodeLabels"},
		{query: "maxNodes=1&nodeTaints=g:NoSchedule", needs: []string{taint + "g:NoSchedule"}, field: "nodeTaints"},
		{query: "ttl=0&groups=system:bootstrappers:a&role=control-plane", needs: []string{unlimited, group + "a", role}, field: "maxNodes"},
	} {
		for _, path := range []string{"/v1/token?", commandPath + "?"} {
			may, asked, looked = nil, nil, 0
			before := s.ids(t)
			r := s.do(t, "POST", path+test.query, viewerBearer, "", "")
			for i := range test.needs { // with one permission missing, the request fails
				if may = slices.Delete(slices.Clone(test.needs), i, i+1); len(may) > 0 {
					r = s.do(t, "POST", path+test.query, viewerBearer, "", "")
				}
				if r.status != 403 || !strings.Contains(r.body, `user \"vic\" may not `+test.needs[i]) || !strings.Contains(r.body, test.detail) || i == 0 && !strings.Contains(r.body, `"field":"`+test.field+`"`) || looked > 0 {
					t.Errorf("%s%s without %s: %d %s", path, test.query, test.needs[i], r.status, r.body)
				}
			}
			if len(test.needs) > 0 {
				if after := s.ids(t); len(after) != len(before) {
					t.Errorf("%s%s: got a new token after a refusal, want none", path, test.query)
				}
				may = test.needs
				r = s.do(t, "POST", path+test.query, viewerBearer, "", "")
			}
			if r.status/100 != 2 || len(asked) > 0 && len(test.needs) == 0 {
				t.Errorf("%s%s with %q: %d %s, asked %q", path, test.query, may, r.status, r.body, asked)
			}
		}
	}

	may = nil
	if r := s.do(t, "POST", "/v1/token?maxNodes=1&groups=system:bootstrappers:away", viewerBearer, "", ""); r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("authorizer unavailable: got %d %s, want 503 with Retry-After", r.status, r.body)
	}
	if r := s.do(t, "POST", "/v1/token?dryRun=true", viewerBearer, "", ""); r.status != 403 {
		t.Errorf("dry run: got %d %s, want 403", r.status, r.body)
	}
	asked = nil // the reviews of a request would have no limit
	for query, detail := range map[string]string{
		"nodeLabels=" + strings.Repeat("a=b,", 16) + "a=b":                  "17 given, 16 allowed",
		"nodeLabels=" + strings.Repeat("a=b,", 1000) + "a=b":                "1001 given, 16 allowed",
		"nodeTaints=" + strings.Repeat("a:NoSchedule,", 16) + "a:NoExecute": "17 given, 16 allowed",
		"nodeLabels=kubernetes.io/hostname=a&groups=system:bootstrappers:a": "want one that the kubelet does not set",
	} {
		for _, path := range []string{"/v1/token?", commandPath + "?"} {
			if r := s.do(t, "POST", path+"maxNodes=1&"+query, viewerBearer, "", ""); r.status != 400 || !strings.Contains(r.body, detail) || len(asked) > 0 {
				t.Errorf("%s%.40s: got %d %s after %q, want 400 with %s, without access reviews", path, query, r.status, r.body, asked, detail)
			}
		}
	}
	id := s.token(t, once)[:6]
	for _, test := range []struct{ query, field, detail string }{ // field of the refusal; empty: none
		{"ttl=2h", "", ""},
		{"ttl=168h", "", ""},
		{"ttl=168h1s", "ttl", "which a lifetime of 168h0m1s requires; give at most 168h (--max-token-ttl)"},
		{"ttl=168h1s&dryRun=true", "ttl", "168h0m1s"},
		{"expires=" + inADecade, "expires", "give at most 168h (--max-token-ttl)"},
		{"ttl=0", "ttl", "which an unlimited lifetime requires; give a lifetime"},
	} {
		may = nil
		r := s.do(t, "POST", "/v1/token/"+id+"/renew?"+test.query, viewerBearer, "", "")
		if test.field == "" {
			if r.status != 200 {
				t.Errorf("renew?%s: got %d %s, want 200", test.query, r.status, r.body)
			}
			continue
		}
		if r.status != 403 || !strings.Contains(r.body, "may not update tokens/unlimited.kubejoin.io, which") || !strings.Contains(r.body, test.detail) || !strings.Contains(r.body, `"field":"`+test.field+`"`) {
			t.Errorf("renew?%s: got %d %s, want 403", test.query, r.status, r.body)
		}
		may = []string{"update tokens/unlimited.kubejoin.io"}
		if r := s.do(t, "POST", "/v1/token/"+id+"/renew?"+test.query, viewerBearer, "", ""); r.status != 200 {
			t.Errorf("renew?%s with permission: got %d %s, want 200", test.query, r.status, r.body)
		}
	}
}

// Limits of a server replace the defaults for lifetime and nodes, and a negative limit removes them. A token without a
// limit still needs its permission.
func TestLimitsOfTokensWithoutPermission(t *testing.T) {
	for name, test := range map[string]struct {
		limits           server.Limits
		allowed, refused []string
	}{
		"default":   {server.Limits{}, []string{"maxNodes=100&ttl=168h"}, []string{"maxNodes=101", "maxNodes=1&ttl=169h"}},
		"own":       {server.Limits{MaxTokenTTL: time.Hour, MaxTokenNodes: 2}, []string{"maxNodes=2&ttl=1h"}, []string{"maxNodes=3&ttl=1h", "maxNodes=2&ttl=61m", "maxNodes=2"}},
		"unlimited": {server.Limits{MaxTokenTTL: -1, MaxTokenNodes: -1}, []string{"maxNodes=1000&ttl=87600h"}, []string{"ttl=1h", "maxNodes=1&ttl=0"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.Limits.MaxTokenTTL, s.Limits.MaxTokenNodes = test.limits.MaxTokenTTL, test.limits.MaxTokenNodes
			s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
				if a.Resource != "tokens" {
					return auth.ErrForbidden
				}
				return nil
			}
			s.start(t)
			for _, path := range []string{"/v1/token?", commandPath + "?"} {
				for _, query := range test.allowed {
					if r := s.do(t, "POST", path+query, viewerBearer, "", ""); r.status/100 != 2 {
						t.Errorf("%s%s: got %d %s, want a token", path, query, r.status, r.body)
					}
				}
				for _, query := range test.refused {
					if r := s.do(t, "POST", path+query, viewerBearer, "", ""); r.status != 403 {
						t.Errorf("%s%s: got %d %s, want 403", path, query, r.status, r.body)
					}
				}
			}
		})
	}
}

// Catches operator access for a bootstrap user, or for a user without a name, that an authenticator accepts.
func TestBootstrapUsersGetNoOperatorAccess(t *testing.T) {
	s, _ := certifying(t)
	s.Callers.Authorize = func(*http.Request, auth.User, auth.Access) error { return nil }
	var user auth.User
	s.Callers.Authenticate = func(*http.Request) (auth.User, error) { return user, nil }
	s.start(t)
	for _, test := range []struct {
		user   auth.User
		status int
	}{
		{auth.User{Name: "ada"}, 200},
		{auth.User{Name: "ada", Groups: []string{"system:bootstrappersx"}}, 200},
		{auth.User{Name: "system:bootstrap:abcdef"}, 403},
		{auth.User{Name: "ada", Groups: []string{"x", "system:bootstrappers"}}, 403},
		{auth.User{Name: "ada", Groups: []string{"system:bootstrappers:a"}}, 403},
		{auth.User{}, 403},
	} {
		user = test.user
		for _, path := range []string{"/v1/token", "/v1/claim"} {
			if r := s.do(t, "GET", path, "", "", ""); r.status != test.status {
				t.Errorf("%s as %+v: %d %s", path, user, r.status, r.body)
			}
		}
		if test.status == 403 && user.Name != "" { // without the token, the user gets no certificate either
			if _, err := s.by("x").Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))}); !strings.Contains(err.Error(), "did not authenticate with that token") {
				t.Errorf("certificate as %+v: %v", user, err)
			}
		}
	}
	certificate := s.userCertificate(t, "system:bootstrap:abcdef", "system:bootstrappers")
	_, err := s.as(t, certificate).Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))})
	wantProblem(t, err, 403, "forbidden", "")
}

// Catches a permission that the server checks and the list lacks: a page would not offer what is allowed.
func TestListsEveryPermissionThatRoutesAndRolesName(t *testing.T) {
	s, _ := certifying(t)
	s.Status.Metrics = http.NotFoundHandler()
	s.start(t)
	list := must.Get(s.by(adminBearer).ListPermissions(t.Context()))
	var got []string
	for _, p := range list.Items {
		got = append(got, p.Resource+" "+p.Verb)
	}
	if len(got) == 0 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) || list.APIVersion != api.GroupVersion || list.Kind != api.KindPermissionList {
		t.Errorf("got %+v, want a sorted list", list)
	}
	want := map[string]bool{}
	for _, r := range server.AllRoutes() {
		if r.Access != (auth.Access{}) {
			want[r.Access.Resource+" "+r.Access.Verb] = true
		}
	}
	for _, document := range strings.Split(string(must.Value(os.ReadFile("../deploy/manifests/roles.yaml"))(t)), "\n---\n") {
		var role rbac.ClusterRole
		must.OK(t, yaml.Unmarshal([]byte(document), &role))
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					want[resource+" "+verb] = true
				}
			}
		}
	}
	inSource := regexp.MustCompile(`auth\.Access\{Verb: "(\w+)", Resource: "([^"]+)"|add\("\w+", "(\w+)"`)
	for _, file := range must.Value(filepath.Glob("*.go"))(t) {
		for _, m := range inSource.FindAllStringSubmatch(string(must.Value(os.ReadFile(file))(t)), -1) {
			if !strings.HasSuffix(file, "_test.go") {
				want[cmp.Or(m[2], "tokens/"+m[3])+" "+cmp.Or(m[1], "create")] = true
			}
		}
	}
	for one := range want {
		if !slices.Contains(got, one) {
			t.Errorf("the list of an admin lacks: %s", one)
		}
	}
	if list := must.Get(s.by(viewerBearer).ListPermissions(t.Context())); list.Items == nil || len(list.Items) > 0 {
		t.Errorf("user without permissions: got %v, want an empty list", list.Items)
	}
}

// Catches a user without permissions whose cheap requests cost many reviews: each credential has a list of its own.
func TestReviewsOfPermissionsUseUpRateOfUser(t *testing.T) {
	s := newSite(t)
	s.Limits.UserRate = atFirst(100)
	credentials, reviews := 0, 0
	s.Callers.Authenticate = func(*http.Request) (auth.User, error) {
		credentials++
		return auth.User{Name: "vic", Extra: map[string][]string{"credential-id": {fmt.Sprint(credentials)}}}, nil
	}
	s.Callers.Authorize = func(*http.Request, auth.User, auth.Access) error { reviews++; return auth.ErrForbidden }
	s.start(t)
	status := map[int]int{}
	for range 10 {
		status[s.do(t, "GET", "/v1/permissions", viewerBearer, "", "").status]++
	}
	if status[200] == 0 || status[429] == 0 || reviews > 100 {
		t.Errorf("got %d reviews and statuses %v, want at most 100 reviews", reviews, status)
	}
}

// Catches a list that is partial because a check failed, and one that serves another user. Also catches one that is cached
// for longer than 10 s, and a request that is allowed because the list has its permission.
func TestCachedPermissionsGrantNothing(t *testing.T) {
	s := newSite(t)
	synctest.Test(t, func(t *testing.T) {
		may, down, user := true, "list tokens.kubejoin.io", auth.User{Name: "ada"}
		s.Callers.Authenticate = func(*http.Request) (auth.User, error) { return user, nil }
		s.Callers.Authorize = func(_ *http.Request, u auth.User, a auth.Access) error {
			switch {
			case a.String() == down:
				return errors.New("reviewer down")
			case may && u.Name != "vic" && a.Resource == "tokens":
				return nil
			}
			return auth.ErrForbidden
		}
		h := s.Handler()
		const full = `[{"verb":"create","resource":"tokens"},{"verb":"delete","resource":"tokens"},{"verb":"get","resource":"tokens"},{"verb":"list","resource":"tokens"},{"verb":"update","resource":"tokens"}]`
		want := func(when, path string, status int, body string) {
			t.Helper()
			if w := get(t, h, path); w.Code != status || !strings.Contains(w.Body.String(), body) || (status == 503) != (w.Header().Get("Retry-After") != "") {
				t.Errorf("%s: GET %s: got %d %s, want %d %s", when, path, w.Code, w.Body, status, body)
			}
		}
		const path = "/v1/permissions"
		want("a check fails", path, 503, "authorization-unavailable")
		down = ""
		want("after recovery", path, 200, full)
		may = false
		want("cached", path, 200, full)
		want("cached", "/v1/token", 403, "may not list tokens")
		for _, other := range []auth.User{{Name: "vic"}, {Name: "ada", Groups: []string{"system:bootstrappers:a"}}, {Name: "ada", UID: "2"}, {}} {
			user = other
			want(fmt.Sprintf("%+v", other), path, 200, `"items":[]`)
		}
		user = auth.User{Name: "ada"}
		time.Sleep(10*time.Second - time.Nanosecond)
		want("within 10 s", path, 200, full)
		time.Sleep(time.Millisecond)
		want("after 10 s", path, 200, `"items":[]`)
		s.Callers = server.Callers{}
		h = s.Handler()
		want("without authentication", path, 200, `"items":[]`)
	})
}
