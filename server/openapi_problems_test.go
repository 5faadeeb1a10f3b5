package server_test

import (
	"cmp"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// What can go wrong on every path goes wrong on each, and is described where it does: an answer that
// is not described fails TestMain, and a problem that is described has to come about here.
func TestOpenAPIProblemsComeAbout(t *testing.T) {
	fails := func(*http.Request) (server.User, error) { return server.User{}, errors.New("reviewer down") }
	for _, test := range []struct {
		problem string
		change  func(*site)
		ask     func(*http.Request)
		twice   bool // it is the second request that is refused
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
		{problem: "forbidden", change: func(s *site) { s.Authorize = server.AllowGroup("nobody") }},
		{problem: "authentication-unavailable", change: func(s *site) { s.Authenticate = fails; s.Server.TokenReview.Authenticate = fails }},
		{problem: "authorization-unavailable", change: func(s *site) {
			s.Authorize = func(*http.Request, server.User, server.Access) error { return errors.New("reviewer down") }
		}},
		{problem: "too-many-requests", twice: true, change: func(s *site) { s.ClientRate = server.Rate{QPS: 1e-6, Burst: 1} }},
	} {
		t.Run(test.problem, func(t *testing.T) {
			for _, op := range document(t).Operations {
				if strings.HasPrefix(op.Path, "/api") { // whose errors do not name the problem
					continue
				}
				s, _ := certifying(t)
				s.TokenReview = &server.TokenReview{}
				s.Metrics = promhttp.HandlerFor(s.registry(), promhttp.HandlerOpts{})
				if test.change != nil {
					test.change(s)
				}
				body, media, query := test.body, test.media, test.query
				if op.ID == "certificate" {
					body = cmp.Or(body, nodeCSR(t, "worker-1"))
					media = strings.Replace(media, "application/json", "application/pkcs10", 1)
					query = cmp.Or(query, "?signer="+peerSigner)
				}
				path := strings.NewReplacer("{id}", "qwertz", "{node}", "worker-3", "{serial}", "1f").Replace(op.Path)
				h := s.Handler()
				var w *httptest.ResponseRecorder
				for range map[bool]int{false: 1, true: 2}[test.twice] {
					r := httptest.NewRequestWithContext(t.Context(), op.Method, path+query, strings.NewReader(body))
					r.Header.Set("Authorization", "Bearer "+adminBearer)
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
					t.Errorf("%s: comes about: %t, described: %t: %d %s", op.ID, came, described, w.Code, tokens.Redact(w.Body.String()))
				}
			}
		})
	}
}
