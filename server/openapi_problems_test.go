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

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Causes each common problem on every operation. Catches a problem that an operation describes but never returns.
// TestMain catches a returned problem that is not described.
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
			s.Console, s.Webhooks.TokenReview = true, &server.TokenReview{}
			s.Status.Metrics = promhttp.HandlerFor(s.registry(), promhttp.HandlerOpts{})
			if s.Registerer = nil; test.change != nil {
				test.change(s)
			}
			turn := s.token(t, func(r *tokens.Record) {
				r.Limits.MaxNodes, r.Limits.Role = 1, map[bool]string{true: tokens.RoleControlPlane}[test.problem != "forbidden"]
			})
			for _, op := range document(t).Operations {
				if strings.HasPrefix(op.Path, "/api") { // these paths return a Status, which does not name the problem
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

// Catches a problem of package codes that openapi.yaml does not describe with the same status, and a described problem
// that no code returns. Also catches an operation without a response for the status of its problem.
func TestOpenAPIHasEveryProblem(t *testing.T) {
	d := document(t)
	there := maps.Clone(codes.Statuses)
	for _, name := range []string{"order-refused", "order-not-new", "unavailable"} { // of the signer process
		delete(there, name)
	}
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
	if !maps.Equal(described, there) {
		t.Errorf("described statuses %v, want %v", described, there)
	}
	used := map[string]bool{"not-found": true, "method-not-allowed": true} // not part of an operation
	for _, op := range d.Operations {
		want := map[string]bool{}
		for _, name := range op.Problems {
			used[name] = true
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
	inSource := reasonsInSource(t)
	for name := range codes.Statuses {
		if _, ofAPI := there[name]; ofAPI && !used[name] || !inSource[name] {
			t.Errorf("problem %s: no operation has it, or no code returns it", name)
		}
	}
	for name := range inSource {
		if codes.Statuses[name] == 0 {
			t.Errorf("problem %s is in the source, and has no status", name)
		}
	}
}

// reasonsInSource returns the names of problems in calls of web.NewProblem, and the reasons of refusals.
func reasonsInSource(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	text := func(e ast.Expr) string {
		literal, ok := e.(*ast.BasicLit)
		if !ok {
			return ""
		}
		value, _ := strconv.Unquote(literal.Value)
		return value
	}
	for _, folder := range []string{".", "api", "operations", "../internal/web", "../internal/signerd", "../clusterinfo/mint", "../signer/revocation/desk", "../signer/rotation"} {
		each(t, folder, func(n ast.Node) {
			switch n := n.(type) {
			case *ast.CallExpr:
				function := n.Fun
				if of, ok := function.(*ast.SelectorExpr); ok {
					function = of.Sel
				}
				if f, ok := function.(*ast.Ident); ok && f.Name == "NewProblem" && text(n.Args[0]) != "" {
					found[text(n.Args[0])] = true
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Reason" && text(n.Value) != "" {
					found[text(n.Value)] = true
				}
			case *ast.ValueSpec:
				for _, v := range n.Values {
					if codes.Statuses[text(v)] != 0 { // a constant reason
						found[text(v)] = true
					}
				}
			}
		})
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
