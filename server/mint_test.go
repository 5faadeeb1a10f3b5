package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var errReset = errors.New("connection reset")

// failingStore returns a store whose calls fail.
func failingStore(s tokens.Store, err error) tokens.Store {
	return storetest.Fail(err, "Store.Create", "Store.Get", "Store.Delete").Store(s)
}

// fullClusterInfo is a cluster-info without space for a signature.
type fullClusterInfo struct{ server.ClusterInfo }

func (fullClusterInfo) Capacity() (free, signatures int) { return 0, 20 }
func (fullClusterInfo) HasSignature(string) bool         { return false }

// Catches a reason of package mint that gets another problem, status or Retry-After, and a cause in a response.
func TestReasonsOfMintAreProblems(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "x", errReset)
	own := tokens.Generate()
	body := `{"token":"` + own.Reveal() + `","ttl":"1h"}`
	for name, test := range map[string]struct {
		change     func(*site)
		path, body string
		twice      bool // only the second request fails
		status     int
		problem    string
		detail     string
		retry      bool
		named      bool // TokenID is set
	}{
		"exists":     {nil, tokenPath, body, true, 409, api.ProblemExists, "it differs in ttl", false, false},
		"full":       {func(s *site) { s.ClusterInfo = fullClusterInfo{s.ClusterInfo} }, commandPath, "", false, 507, api.ProblemFull, "signatures of 20 tokens", false, false},
		"quota":      {func(s *site) { s.Limits.UserTokens = 1 }, commandPath, "", true, 507, api.ProblemTooManyTokens, "at most 1 are allowed", false, false},
		"not stored": {func(s *site) { s.Tokens = failingStore(s.store, errReset) }, tokenPath, body, false, 503, "token-not-stored", "was stored nevertheless, it expires at", true, true},
		"join not stored": {func(s *site) { s.Tokens = failingStore(s.store, errReset) }, commandPath, "", false, 503, "token-not-stored",
			"was stored nevertheless, no client received it, and it expires at", true, false},
		"forbidden":      {func(s *site) { s.Tokens = failingStore(s.store, forbidden) }, tokenPath, body, false, 503, "store-refuses", "the log of kubejoin has the reason", false, false},
		"join forbidden": {func(s *site) { s.Tokens = failingStore(s.store, forbidden) }, commandPath, "", false, 503, "token-not-stored", "could not be stored", true, false},
		"unavailable":    {func(s *site) { s.Tokens = failingStore(s.store, errReset) }, tokenPath + "?dryRun", body, false, 503, "store-unavailable", "retry", true, false},
		"unsigned":       {func(s *site) { s.ClusterInfo = neverSigned{s.ClusterInfo} }, tokenPath, body, false, 504, api.ProblemNotSigned, "the one who sleeps. Token " + own.ID() + " was created nevertheless", false, true},
		"join unsigned":  {func(s *site) { s.ClusterInfo = neverSigned{s.ClusterInfo} }, commandPath, "", false, 504, api.ProblemNotSigned, "was deleted, because no client received it", false, false},
		"join not deleted": {func(s *site) {
			s.ClusterInfo, s.Tokens = neverSigned{s.ClusterInfo}, storetest.Fail(errReset, "Store.Delete").Store(s.store)
		}, commandPath, "", false, 504, api.ProblemNotSigned, "could not be deleted; no client received it, and it expires at", false, false},
		"malformed":  {func(s *site) { s.ClusterInfo = &fixedClusterInfo{config: []byte("kind: Config")} }, commandPath, "", false, 500, "malformed-cluster-info", "kubectl -n kube-public edit configmap cluster-info", false, false},
		"unreadable": {func(s *site) { s.ClusterInfo = &fixedClusterInfo{err: errReset} }, commandPath, "", false, 500, "internal", "kubejoin could not create the join command; its log has the reason under this request ID. Token ", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.Minting.Advertise, s.Minting.SignedBy = "192.0.2.1:9443", "the one who sleeps"
				if test.change != nil {
					test.change(s)
				}
				h := s.Handler()
				post := func(body string) (p api.Problem, w *httptest.ResponseRecorder) {
					r := httptest.NewRequestWithContext(t.Context(), "POST", test.path, strings.NewReader(body))
					r.Header.Set("Authorization", "Bearer "+adminBearer)
					r.Header.Set("Content-Type", "application/json")
					w = httptest.NewRecorder()
					h.ServeHTTP(w, r)
					if w.Code >= 400 {
						if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
							t.Fatal(err)
						}
					}
					return p, w
				}
				if test.twice {
					if _, w := post(strings.Replace(test.body, `"1h"`, `"2h"`, 1)); w.Code/100 != 2 {
						t.Fatalf("%d %s", w.Code, w.Body)
					}
				}
				p, w := post(test.body)
				if w.Code != test.status || !p.Named(test.problem) || !strings.Contains(p.Detail, test.detail) {
					t.Errorf("got %d %s, want %d %s: %s", w.Code, w.Body, test.status, test.problem, test.detail)
				}
				if retry := w.Header().Get("Retry-After") != ""; retry != test.retry || (p.TokenID == own.ID()) != test.named {
					t.Errorf("got Retry-After %t and token %q, want %t and %t", retry, p.TokenID, test.retry, test.named)
				}
				if name == "join not deleted" && !strings.Contains(s.logs.String(), errReset.Error()) {
					t.Errorf("the log does not say why the token could not be deleted:\n%s", s.logs)
				}
				if strings.Contains(w.Body.String(), errReset.Error()) || strings.Contains(w.Body.String(), own.RevealSecret()) {
					t.Errorf("the response has the cause or the secret: %s", w.Body)
				}
			})
		})
	}
}

// Catches a repeated request that gets another response than the first, apart from its status.
func TestRepeatedCreateIsOK(t *testing.T) {
	s := newSite(t)
	s.start(t)
	body := `{"token":"` + tokens.Generate().Reveal() + `","expires":"2031-01-02T03:04:05Z"}`
	first, _, got := askFor[api.Token](t, s, "POST", tokenPath, body)
	if got.status != 201 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, query := range []string{"", "?dryRun"} {
		again, _, got := askFor[api.Token](t, s, "POST", tokenPath+query, strings.Replace(body, "03:04:05Z", "04:04:05+01:00", 1))
		if got.status != 200 || got.header.Get("Location") != "" || again.Token != first.Token || again.JoinCommand != first.JoinCommand || again.Status != api.StatusActive {
			t.Errorf("%s: %d %s, first %+v", query, got.status, got.body, first)
		}
	}
}

// A client that disconnects does not keep the token of its request.
func TestDeletesTokenOfCanceledRequest(t *testing.T) {
	s := newSite(t)
	s.ClusterInfo = neverSigned{s.ClusterInfo}
	handler := s.Handler()
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, "POST", commandPath, nil)
	r.Header.Set("Authorization", "Bearer "+adminBearer)
	done := make(chan struct{})
	go func() { defer close(done); handler.ServeHTTP(httptest.NewRecorder(), r) }()
	for range s.store.Watch(t.Context()) { // until the token is stored
		if len(s.ids(t)) == 1 {
			break
		}
	}
	cancel()
	<-done
	if ids := s.ids(t); len(ids) != 0 || !strings.Contains(s.logs.String(), "the client disconnected: ") {
		t.Errorf("tokens %v are left, log:\n%s", ids, s.logs)
	}
}
