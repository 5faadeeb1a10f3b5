package server_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
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
	looked := 0
	s.Cluster.Node = func(context.Context, string) (tokens.NodeRef, error) {
		looked++
		return tokens.NodeRef{Name: "worker-1", UID: "1"}, nil
	}
	s.start(t)
	const (
		unlimited = "create tokens/unlimited.kubejoin.io"
		group     = "create tokens/groups.kubejoin.io system:bootstrappers:"
		role      = "create tokens/roles.kubejoin.io control-plane"
		replaces  = "create tokens/replacements.kubejoin.io worker-1"
	)
	for _, test := range []struct {
		query  string
		needs  []string
		field  string // of the refusal
		detail string
	}{
		{query: "maxNodes=1000&ttl=87600h&usages=signing,authentication&description=x&nodeNames=w-*,v&certificateDuration=10m"},
		{query: "maxNodes=1&groups=" + tokens.DefaultGroup},
		{query: "", needs: []string{unlimited}, field: "maxNodes", detail: "set maxNodes"},
		{query: "nodeNames=w-1", needs: []string{unlimited}, field: "maxNodes"},
		{query: "maxNodes=1&ttl=0", needs: []string{unlimited}, field: "ttl", detail: "set a ttl other than 0, or expires"},
		{query: "maxNodes=1&groups=system:bootstrappers:a," + tokens.DefaultGroup + ",system:bootstrappers:b", needs: []string{group + "a", group + "b"}, field: "groups"},
		{query: "maxNodes=1&role=control-plane", needs: []string{role}, field: "role"},
		{query: "replaceNode=worker-1", needs: []string{replaces}, field: "replaceNode"},
		{query: "ttl=0&groups=system:bootstrappers:a&role=control-plane", needs: []string{unlimited, group + "a", role}, field: "maxNodes"},
	} {
		for _, path := range []string{"/v1/token?", commandPath + "?"} {
			may, asked, looked = nil, nil, 0
			before := s.ids(t)
			r := s.do(t, "POST", path+test.query, viewerBearer, "", "")
			for i := range test.needs { // all but one are not enough
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
	id := s.token(t, once)[:6]
	renew := func(ttl string) reply {
		return s.do(t, "POST", "/v1/token/"+id+"/renew?ttl="+ttl, viewerBearer, "", "")
	}
	if r := renew("0"); r.status != 403 || !strings.Contains(r.body, "may not update tokens/unlimited.kubejoin.io") {
		t.Errorf("renewal without expiry: got %d %s, want 403", r.status, r.body)
	}
	if r := renew("2h"); r.status != 200 {
		t.Errorf("renewal: %d %s", r.status, r.body)
	}
	may = []string{"update tokens/unlimited.kubejoin.io"}
	if r := renew("0"); r.status != 200 {
		t.Errorf("renewal without expiry, with permission: got %d %s, want 200", r.status, r.body)
	}
}

// Catches a bootstrap user, or a user without a name, that an authenticator accepts and that gets operator access.
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
		if test.status == 403 && user.Name != "" { // it gets no certificate without the token either
			if _, err := s.by("x").Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))}); !strings.Contains(err.Error(), "did not authenticate with that token") {
				t.Errorf("certificate as %+v: %v", user, err)
			}
		}
	}
	certificate := s.userCertificate(t, "system:bootstrap:abcdef", "system:bootstrappers")
	_, err := s.as(t, certificate).Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))})
	wantProblem(t, err, 403, "forbidden", "")
}
