package server_test

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Causes each common problem on every operation. Catches a problem that an operation describes and never returns;
// TestMain catches the opposite.
func TestEachOperationReturnsItsDescribedProblems(t *testing.T) {
	t.Parallel()
	fails := func(*http.Request) (auth.User, error) { return auth.User{}, errors.New("reviewer down") }
	for _, test := range []struct {
		problem string
		change  func(*site)
		ask     func(*http.Request)
		twice   bool // only the second request is refused
		body    string
		media   string
		query   string
	}{
		{problem: "invalid-query", query: "?a=%zz"},
		{problem: "query-too-long", query: "?" + strings.Repeat("&", 1000)},
		{problem: "invalid-field", query: "?unheardOf=1"},
		{problem: "invalid-body", body: "{", media: "application/json"},
		{problem: "body-too-large", body: `"` + strings.Repeat("x", server.MaxBody) + `"`, media: "application/json"},
		{problem: "unsupported-media-type", body: "a: b", media: "image/png"},
		{problem: "unauthorized", ask: func(r *http.Request) { r.Header.Del("Authorization") }},
		{problem: "forbidden", change: func(s *site) { s.Callers.Authorize = auth.AllowGroup("nobody") }},
		{problem: "authentication-unavailable", change: func(s *site) { s.Callers.Authenticate = fails; s.Webhooks.TokenReview.Authenticate = fails }},
		{problem: "authorization-unavailable", change: func(s *site) {
			s.Callers.Authorize = func(*http.Request, auth.User, auth.Access) error { return errors.New("reviewer down") }
		}},
		{problem: "too-many-requests", twice: true, change: func(s *site) { s.Limits.ClientRate = server.Rate{QPS: 1e-6, Burst: 1} }},
	} {
		t.Run(test.problem, func(t *testing.T) {
			s, _ := certifying(t)
			s.Webhooks.TokenReview = &server.TokenReview{}
			s.Status.Metrics = promhttp.HandlerFor(s.registry(), promhttp.HandlerOpts{})
			if s.Registerer = nil; test.change != nil {
				test.change(s)
			}
			turn := s.token(t, func(r *tokens.Record) {
				r.Limits.MaxNodes, r.Limits.Role = 1, map[bool]string{true: tokens.RoleControlPlane}[test.problem != "forbidden"]
			})
			for _, op := range document(t).Operations {
				if strings.HasPrefix(op.Path, "/api") { // returns a Status, which does not name the problem
					continue
				}
				body, media, query, bearer := test.body, test.media, test.query, adminBearer
				if op.ID == "certificate" {
					body = cmp.Or(body, nodeCSR(t, "worker-1"))
					media = strings.Replace(media, "application/json", "application/pkcs10", 1)
					query = cmp.Or(query, "?signer="+peerSigner)
				}
				if op.Path == turnPath {
					bearer = turn
				}
				h := s.Handler() // with limits of its own
				var w *httptest.ResponseRecorder
				for range map[bool]int{false: 1, true: 2}[test.twice] {
					r := httptest.NewRequestWithContext(t.Context(), op.Method, pathOf(op)+query, strings.NewReader(body))
					r.Header.Set("Authorization", "Bearer "+bearer)
					if media != "" {
						r.Header.Set("Content-Type", media)
					}
					if test.ask != nil {
						test.ask(r)
					}
					w = httptest.NewRecorder()
					h.ServeHTTP(w, r)
				}
				came := w.Code >= 400 && strings.Contains(w.Body.String(), "/problems/"+test.problem+`"`)
				if described := slices.Contains(op.Problems, test.problem); came != described {
					t.Errorf("%s: got the problem %t, described %t: %d %s", op.ID, came, described, w.Code, tokens.Redact(w.Body.String()))
				}
			}
		})
	}
}

// Catches a problem in the source that openapi.yaml does not describe with the same status. Also
// catches a described problem that the source does not have, and an operation without a response for the status of its problem.
func TestOpenAPIHasEveryProblem(t *testing.T) {
	d := document(t)
	there := problemsInSource(t)
	_, types := d.Resolve("#/components/schemas/ProblemType")
	described := map[string]int{}
	for _, one := range listOf(types["oneOf"]) {
		one := one.(map[string]any)
		name, found := strings.CutPrefix(fmt.Sprint(one["const"]), api.ProblemType)
		status, err := strconv.Atoi(fmt.Sprint(one["x-status"]))
		if text, _ := one["description"].(string); !found || err != nil || text == "" {
			t.Errorf("problem type %v: want a URI, x-status and description", one)
		}
		described[name] = status
	}
	for name, status := range there {
		if described[name] != status {
			t.Errorf("problem %s: got described status %d, want %d", name, described[name], status)
		}
	}
	used := map[string]bool{"not-found": true, "method-not-allowed": true} // not part of an operation
	for _, op := range d.Operations {
		want := map[string]bool{}
		for _, name := range op.Problems {
			used[name] = true
			if there[name] == 0 {
				t.Errorf("%s describes problem %s, which the source does not have", op.ID, name)
			}
			want[strconv.Itoa(there[name])] = true
		}
		_, responses := d.Resolve(op.Pointer + "/responses")
		for status := range responses {
			if status >= "4" && !want[status] {
				t.Errorf("%s describes status %s, which none of its problems has", op.ID, status)
			}
			delete(want, status)
		}
		if len(want) > 0 {
			t.Errorf("%s does not describe statuses %q of its problems", op.ID, slices.Sorted(maps.Keys(want)))
		}
	}
	for name := range described {
		if there[name] == 0 || !used[name] {
			t.Errorf("problem %s is described, and no operation returns it", name)
		}
	}
}

// problemsInSource returns the status of each problem in the calls of web.NewProblem.
func problemsInSource(t *testing.T) map[string]int {
	t.Helper()
	statuses := map[string]int{}
	for code := 400; code < 600; code++ {
		if text := http.StatusText(code); text != "" {
			statuses["Status"+strings.NewReplacer(" ", "", "-", "").Replace(text)] = code
		}
	}
	statuses["StatusInternalServerError"], statuses["StatusRequestURITooLong"] = 500, 414
	names := map[string]string{} // problem types by constant of package api
	each(t, "api", func(n ast.Node) {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 && strings.HasPrefix(spec.Names[0].Name, "Problem") {
			if literal, ok := spec.Values[0].(*ast.BasicLit); ok {
				names[spec.Names[0].Name], _ = strconv.Unquote(literal.Value)
			}
		}
	})
	found := map[string]int{}
	calls := func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		function := call.Fun
		if of, ok := function.(*ast.SelectorExpr); ok {
			function = of.Sel
		}
		if f, ok := function.(*ast.Ident); !ok || f.Name != "NewProblem" {
			return
		}
		var name string
		switch arg := call.Args[1].(type) {
		case *ast.BasicLit:
			name, _ = strconv.Unquote(arg.Value)
		case *ast.SelectorExpr:
			name = names[arg.Sel.Name]
		}
		var status int
		if selector, ok := call.Args[0].(*ast.SelectorExpr); ok {
			status = statuses[selector.Sel.Name]
		}
		if name == "" || status == 0 {
			t.Errorf("NewProblem is called with %v, want a constant status and name", call.Args[:2])
		}
		if was := found[name]; was != 0 && was != status {
			t.Errorf("problem %s has two statuses, %d and %d", name, was, status)
		}
		found[name] = status
	}
	each(t, ".", calls)
	each(t, "../internal/web", calls)
	if len(found) < 10 {
		t.Fatalf("got only problems %v in the source, want at least 10", found)
	}
	return found
}

func each(t *testing.T, folder string, f func(ast.Node)) {
	t.Helper()
	files := must.Value(filepath.Glob(filepath.Join(folder, "*.go")))(t)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := must.Value(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		ast.Inspect(file, func(n ast.Node) bool { f(n); return true })
	}
}
