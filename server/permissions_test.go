package server_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
)

// Catches a route without a row in the tables of docs/http-api.md, a row without a route, and a wrong permission.
// test/access tests the cells.
func TestEveryRouteIsInTheAccessTables(t *testing.T) {
	doc, err := os.ReadFile("../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	routes := map[string]auth.Access{}
	named := regexp.MustCompile(`\{([a-z]+)[^}]*\}`)
	for _, r := range (server.Server{
		Certificates: &server.Certificates{},
		Webhooks:     server.Webhooks{TokenReview: &server.TokenReview{}, Authorization: &server.Authorization{}},
		Status:       server.Status{Metrics: http.NotFoundHandler()},
	}).Routes() {
		path := named.ReplaceAllStringFunc(r.Path, func(p string) string { return strings.ToUpper(named.FindStringSubmatch(p)[1]) })
		routes[r.Method+" "+path] = r.Access
	}
	row := regexp.MustCompile("(?m)^\\| `([A-Z]+ /[^` ]*)` \\|(?: (`[a-z ]*`)? ?\\|)?")
	for _, heading := range []string{"## Permissions on a cluster", "## Permissions standalone"} {
		_, section, found := strings.Cut(string(doc), heading+"\n")
		if !found {
			t.Fatalf("no section %s", heading)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		seen := map[string]bool{}
		for _, m := range row.FindAllStringSubmatch(section, -1) {
			access, known := routes[m[1]]
			switch {
			case !known:
				t.Errorf("docs/http-api.md, %s: got a row for %s, which is no route", heading, m[1])
			case seen[m[1]]:
				t.Errorf("docs/http-api.md, %s: got two rows for %s, want one", heading, m[1])
			}
			if seen[m[1]] = true; heading == "## Permissions standalone" {
				continue
			}
			permission := ""
			if access != (auth.Access{}) {
				permission = "`" + access.Verb + " " + access.Resource + "`"
			}
			if m[2] != permission || access.Group != "" {
				t.Errorf("docs/http-api.md: got permission %q for %s, want %s", m[2], m[1], access)
			}
		}
		for route := range routes {
			if !seen[route] {
				t.Errorf("docs/http-api.md, %s: no row for %s: add one that says who may use it", heading, route)
			}
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
		{query: "maxNodes=1"},
		{query: "maxNodes=1000&ttl=87600h&usages=signing,authentication&description=x"},
		{query: "maxNodes=2&nodeNames=w-*,v&certificateDuration=10m"},
		{query: "maxNodes=1&groups=" + tokens.DefaultGroup},
		{query: "", needs: []string{unlimited}, field: "maxNodes", detail: "set maxNodes"},
		{query: "nodeNames=w-1", needs: []string{unlimited}, field: "maxNodes"},
		{query: "maxNodes=1&ttl=0", needs: []string{unlimited}, field: "ttl", detail: "set a ttl other than 0, or expires"},
		{query: "maxNodes=1&groups=system:bootstrappers:a", needs: []string{group + "a"}, field: "groups"},
		{query: "maxNodes=1&groups=system:bootstrappers:a," + tokens.DefaultGroup + ",system:bootstrappers:b", needs: []string{group + "a", group + "b"}, field: "groups"},
		{query: "maxNodes=1&role=control-plane", needs: []string{role}, field: "role"},
		{query: "replaceNode=worker-1", needs: []string{replaces}, field: "replaceNode"},
		{query: "ttl=0&groups=system:bootstrappers:a&role=control-plane", needs: []string{unlimited, group + "a", role}, field: "maxNodes"},
	} {
		for _, path := range []string{"/v1/token", commandPath} {
			may, asked, looked = nil, nil, 0
			before := s.ids(t)
			r := s.do(t, "POST", path+"?"+test.query, viewerBearer, "", "")
			if len(test.needs) == 0 {
				if r.status/100 != 2 || len(asked) > 0 {
					t.Errorf("%s?%s: %d %s, asked %q", path, test.query, r.status, r.body, asked)
				}
				continue
			}
			want := `user \"vic\" may not ` + test.needs[0]
			if r.status != 403 || !strings.Contains(r.body, want) || !strings.Contains(r.body, `"field":"`+test.field+`"`) || !strings.Contains(r.body, test.detail) || looked > 0 {
				t.Errorf("%s?%s: %d %s, want %s", path, test.query, r.status, r.body, want)
			}
			for i := range test.needs { // all but one are not enough
				may = slices.Delete(slices.Clone(test.needs), i, i+1)
				if r := s.do(t, "POST", path+"?"+test.query, viewerBearer, "", ""); r.status != 403 || !strings.Contains(r.body, test.needs[i]) {
					t.Errorf("%s?%s without %s: %d %s", path, test.query, test.needs[i], r.status, r.body)
				}
			}
			if after := s.ids(t); len(after) != len(before) {
				t.Errorf("%s?%s: got a new token after a refusal, want none", path, test.query)
			}
			may = test.needs
			if r := s.do(t, "POST", path+"?"+test.query, viewerBearer, "", ""); r.status/100 != 2 {
				t.Errorf("%s?%s with %q: %d %s", path, test.query, may, r.status, r.body)
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
	record := s.token(t, once)
	id := record[:6]
	renew := func() reply { return s.do(t, "POST", "/v1/token/"+id+"/renew?ttl=0", viewerBearer, "", "") }
	if r := renew(); r.status != 403 || !strings.Contains(r.body, "may not update tokens/unlimited.kubejoin.io") {
		t.Errorf("renewal without expiry: got %d %s, want 403", r.status, r.body)
	}
	if r := s.do(t, "POST", "/v1/token/"+id+"/renew?ttl=2h", viewerBearer, "", ""); r.status != 200 {
		t.Errorf("renewal: %d %s", r.status, r.body)
	}
	may = []string{"update tokens/unlimited.kubejoin.io"}
	if r := renew(); r.status != 200 {
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

func TestHeaderOrCertificate(t *testing.T) {
	failed := errors.New("away")
	says := func(name string, err error) auth.Authenticate {
		return func(*http.Request) (auth.User, error) { return auth.User{Name: name}, err }
	}
	ada, jane := says("ada", nil), says("jane", nil)
	bad, away, none := says("", auth.ErrBadCredentials), says("", failed), says("", auth.ErrNoCredentials)
	for _, test := range []struct {
		name                string
		header, certificate auth.Authenticate
		given               []string // Authorization
		user                string
		err                 error
	}{
		{"header", ada, jane, []string{"Bearer x"}, "ada", nil},
		{"certificate", ada, jane, nil, "jane", nil},
		{"bad header beside a good certificate", bad, jane, []string{"Bearer x"}, "", auth.ErrBadCredentials},
		{"unknown header beside a good certificate", none, jane, []string{"Basic x"}, "", auth.ErrBadCredentials},
		{"empty header beside a good certificate", none, jane, []string{""}, "", auth.ErrBadCredentials},
		{"unjudged header beside a good certificate", away, jane, []string{"Bearer x"}, "", failed},
		{"no headers are known", nil, jane, []string{"Bearer x"}, "", auth.ErrBadCredentials},
		{"no certificates are known", ada, nil, nil, "", auth.ErrNoCredentials},
		{"bad certificate", ada, bad, nil, "", auth.ErrBadCredentials},
		{"nothing", ada, none, nil, "", auth.ErrNoCredentials},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		if test.given != nil {
			r.Header["Authorization"] = test.given
		}
		user, err := auth.HeaderOrCertificate(test.header, test.certificate)(r)
		if user.Name != test.user || !errors.Is(err, test.err) {
			t.Errorf("%s: %q %v, want %q %v", test.name, user.Name, err, test.user, test.err)
		}
	}
	for _, test := range []struct {
		name string
		ways []auth.Authenticate
		user string
		err  error
		not  error
	}{
		{name: "the first", ways: []auth.Authenticate{ada, jane}, user: "ada"},
		{name: "the second", ways: []auth.Authenticate{bad, none, jane}, user: "jane"},
		{name: "one that knows, after one that cannot tell", ways: []auth.Authenticate{away, jane}, user: "jane"},
		{name: "one that cannot tell outweighs one that says no", ways: []auth.Authenticate{bad, away}, err: failed, not: auth.ErrBadCredentials},
		{name: "in any order", ways: []auth.Authenticate{away, bad}, err: failed, not: auth.ErrBadCredentials},
		{name: "no", ways: []auth.Authenticate{none, bad}, err: auth.ErrBadCredentials},
		{name: "nothing", ways: []auth.Authenticate{none, none}, err: auth.ErrNoCredentials},
		{name: "nobody", err: auth.ErrNoCredentials},
	} {
		user, err := auth.AnyOf(test.ways...)(httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
		if user.Name != test.user || !errors.Is(err, test.err) || test.not != nil && errors.Is(err, test.not) {
			t.Errorf("%s: %q %v, want %q %v", test.name, user.Name, err, test.user, test.err)
		}
	}
}

func TestBearer(t *testing.T) {
	long := strings.Repeat("a", auth.MaxBearer)
	for _, test := range []struct {
		name  string
		given []string
		want  string
		err   error
	}{
		{"none", nil, "", auth.ErrNoCredentials},
		{"one", []string{"Bearer abc"}, "abc", nil},
		{"in another case, with spaces", []string{"bEARER   abc "}, "abc", nil},
		{"longest", []string{"Bearer " + long}, long, nil},
		{"too long", []string{"Bearer a" + long}, "", auth.ErrBadCredentials},
		{"empty", []string{""}, "", auth.ErrBadCredentials},
		{"scheme alone", []string{"Bearer"}, "", auth.ErrBadCredentials},
		{"another scheme", []string{"Basic abc"}, "", auth.ErrBadCredentials},
		{"two", []string{"Bearer abc", "Bearer abc"}, "", auth.ErrBadCredentials},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		if test.given != nil {
			r.Header["Authorization"] = test.given
		}
		if got, err := auth.Bearer(r); got != test.want || !errors.Is(err, test.err) || err != nil && strings.Contains(err.Error(), "abc") {
			t.Errorf("%s: %.20q %v, want %.20q %v", test.name, got, err, test.want, test.err)
		}
	}
}
