package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// revoking returns a site that issues certificates, records them and stores revocations.
func revoking(t testing.TB) (*site, *revocation.Guard) {
	t.Helper()
	s, _ := certifying(t)
	guard := &revocation.Guard{Store: rowlist.New(s.store.Revocations())}
	s.IssuanceRecord = rowrecord.New(s.store.Issued())
	s.Certificates.Authority.Record, s.Certificates.Authority.Revocations = rowrecord.New(s.store.Issued()), guard
	way := auth.ClientCertificate{CAs: s.roots, Everybody: true, Revoked: func(ctx context.Context, leaf *x509.Certificate) error {
		e, err := guard.Known(ctx, revocation.SubjectOfCertificate(leaf))
		if err != nil || e == nil {
			return err
		}
		return &auth.Revoked{Message: e.Message()}
	}}
	s.Certificates.ClientCertificate = way.Authenticate
	s.Callers.Authenticate = auth.HeaderOrCertificate(s.Callers.Authenticate, way.Authenticate)
	s.Revocations = &desk.Revoker{
		Guard: guard, Tokens: s.store, ClusterInfo: s.ClusterInfo, Claims: s.store.Claims(), IssuanceRecord: s.IssuanceRecord, Lifetime: s.Certificates.Authority.MaxRemainingLifetime,
	}
	s.Webhooks.Authorization = &server.Authorization{Authenticate: reviewer(), Revoked: guard.Known}
	return s, guard
}

// joined is a node with its certificate.
type joined struct {
	node string
	csr  string
	cert *x509.Certificate
}

// join requests the certificate of a node on a token.
func (s *site) join(t *testing.T, handler http.Handler, token, node string) joined {
	t.Helper()
	j := joined{node: node, csr: nodeCSR(t, node)}
	w := send(handler, certificatePath, token, "", strings.NewReader(j.csr))
	if w.Code != 200 {
		t.Fatalf("%s: %d %s", node, w.Code, w.Body)
	}
	j.cert = machine{chain: w.Body.Bytes()}.valid(t).Leaf
	return j
}

// renew requests another certificate, authenticated with the certificate of the node.
func (j joined) renew(handler http.Handler) (int, string) {
	return j.send(handler, "POST", certificatePath, j.csr)
}

func (j joined) send(handler http.Handler, method, path, body string) (int, string) {
	r := newRequest(method, path, body)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{j.cert}}
	return served(handler, r)
}

// revoke sends a request to revoke, and fails the test unless it gets the status.
func revoke(t *testing.T, handler http.Handler, want int, body string) (api.RevocationList, string) {
	t.Helper()
	w := send(handler, "/v1/revocation", adminBearer, "application/json", strings.NewReader(body))
	var list api.RevocationList
	if w.Code != want {
		t.Fatalf("%s: got %d %s, want %d", body, w.Code, w.Body, want)
	}
	if w.Code < 300 {
		must.OK(t, json.Unmarshal(w.Body.Bytes(), &list))
	}
	return list, w.Body.String()
}

// wantRevoked fails the test unless a node is refused, or not.
func wantRevoked(t *testing.T, handler http.Handler, j joined, want bool) {
	t.Helper()
	status, body := j.renew(handler)
	if want && (status != 403 || !strings.Contains(body, `problems/revoked"`) || !strings.Contains(body, `"reason":"Revoked"`)) || !want && status != 200 {
		t.Errorf("%s renews: got %d %s, want revoked %t", j.node, status, body, want)
	}
	if status, body := j.send(handler, "GET", "/v1/token", ""); (status != 403) || strings.Contains(body, "problems/revoked") != want {
		t.Errorf("%s lists tokens: got %d %s, want problem revoked %t", j.node, status, body, want)
	}
}

// deniesTokens is an Authorize that denies everything about tokens.
func deniesTokens(_ *http.Request, _ auth.User, a auth.Access) error {
	if a.Resource == "tokens" {
		return auth.ErrForbidden
	}
	return nil
}

// Catches a revoked node that can renew or use the API, and another node that cannot. Package desk tests which
// certificates are revoked.
func TestRevokeNode(t *testing.T) {
	s, _ := revoking(t)
	handler := s.Handler()
	token := s.token(t, nil)
	first, other := s.join(t, handler, token, "worker-1"), s.join(t, handler, token, "worker-2")
	dry, _ := revoke(t, handler, 200, `{"node":"worker-1","dryRun":true}`)
	if len(dry.Items) != 1 || !dry.Items[0].DryRun {
		t.Errorf("dry run: got %+v", dry)
	}
	wantRevoked(t, handler, first, false)
	if w := strings.Join(dry.Warnings, "; "); !strings.Contains(w, "token "+token[:6]+", which admitted the node, still works") {
		t.Errorf("dry run: got warnings %q, want the token that admitted the node", w)
	}
	list, _ := revoke(t, handler, 201, `{"node":"worker-1","reason":"stolen\nfrom the rack"}`)
	r := list.Items[0]
	if len(list.Items) != 1 || r.Node != "worker-1" || r.By != "ada" || r.Reason != "stolen from the rack" || !r.Until.Equal(s.ca.Certificate().NotAfter) {
		t.Errorf("got %+v, want node worker-1, by ada, until %s", list.Items, s.ca.Certificate().NotAfter)
	}
	if logs := s.logs.String(); !strings.Contains(logs, "node=worker-1 revoked=worker-1") {
		t.Errorf("the log does not name what was revoked:\n%s", logs)
	}
	wantRevoked(t, handler, first, true)
	wantRevoked(t, handler, other, false)
	if _, body := first.renew(handler); !strings.Contains(body, "stolen from the rack") {
		t.Errorf("the machine does not learn the reason: %s", body)
	}
	back := s.join(t, handler, token, "worker-1") // with a new certificate
	wantRevoked(t, handler, back, false)
	wantRevoked(t, handler, first, true)

	if status, body := served(handler, asAdmin(newRequest("GET", "/v1/revocation", ""))); status != 200 || !strings.Contains(body, `"node":"worker-1"`) {
		t.Errorf("list: %d %s", status, body)
	}
	for _, want := range []string{`"node":"worker-1"`, "problems/not-revoked"} { // the second request finds no revocation
		if _, body := served(handler, asAdmin(newRequest("DELETE", "/v1/revocation/worker-1", ""))); !strings.Contains(body, want) {
			t.Errorf("undo: %s, want %s", body, want)
		}
	}
	wantRevoked(t, handler, first, false)
}

// Catches a caller who can revoke a token without the permission to delete it.
func TestRevokeToken(t *testing.T) {
	s, _ := revoking(t)
	good := s.token(t, nil)
	s.Callers.Authorize = deniesTokens
	if _, body := revoke(t, s.Handler(), 403, `{"tokenID":"`+good[:6]+`"}`); !strings.Contains(body, "delete tokens") {
		t.Errorf("got %s", body)
	}
	for _, body := range []string{`{"tokenID":"x"}`, `{"tokenID":"qwertz","node":"worker-1"}`, `{"tokenID":"qwertz","reason":"` + strings.Repeat("x", 257) + `"}`} {
		revoke(t, s.Handler(), 400, body) // not 403
	}
	s.join(t, s.Handler(), good, "worker-4")
}

// Catches an error of a Desk that becomes another problem.
func TestRevocationProblems(t *testing.T) {
	breaks := func(err error) func(*site) { return func(s *site) { s.Revocations.Guard.Store = noResponse(err) } }
	noRequests := func(s *site) { s.Revocations.Requested = failedRequested }
	for _, test := range []struct {
		set    func(*site)
		body   string
		status int
		want   string
	}{
		{nil, `{}`, 400, "exactly one"},
		{nil, `{"node":"Worker_1"}`, 400, `"field":"node"`},
		{nil, `{"tokenID":"x"}`, 400, `"field":"tokenID"`},
		{nil, `{"serial":"abcdef"}`, 404, "problems/not-issued"},
		{nil, `{"tokenID":"qwertz"}`, 404, "problems/no-token"},
		{breaks(errAway), `{"node":"worker-1"}`, 503, "problems/revocations-unavailable"},
		{breaks(tokens.ErrRefused), `{"node":"worker-1"}`, 503, "refused this request; the log of kubejoin has the reason"},
		{breaks(fmt.Errorf("%w: ConfigMap kubejoin-revocation-0", revocation.ErrFull)), `{"node":"worker-1"}`, 507, "problems/too-many-revocations"},
		{noRequests, `{"serial":"abcdef"}`, 503, "problems/cluster-unavailable"},
		{noRequests, `{"tokenID":"ID"}`, 503, "token ID can no longer be used, but its revocation is incomplete: the certificate requests of the cluster cannot be read now; retry; then revoke the token again"},
		{func(s *site) { s.Revocations.Tokens = storetest.Fail(errAway).Store(s.store) }, `{"tokenID":"ID"}`, 503, "problems/store-unavailable"},
		{func(s *site) {
			s.Revocations.Tokens = storetest.Fail(fmt.Errorf("stored: %w", &tokens.FieldError{Field: "description", Err: errAway}), "Store.Update").Store(s.store)
		}, `{"tokenID":"ID"}`, 503, "problems/store-unavailable"},
		{func(s *site) { s.Revocations = nil }, `{"node":"worker-1"}`, 404, "problems/no-revocations"},
	} {
		s, _ := revoking(t)
		id, _, _ := strings.Cut(s.token(t, nil), ".")
		if test.set != nil {
			test.set(s)
		}
		w := send(s.Handler(), "/v1/revocation", adminBearer, "application/json", strings.NewReader(strings.ReplaceAll(test.body, ":\"ID\"", ":\""+id+"\"")))
		if want := strings.ReplaceAll(test.want, "token ID ", "token "+id+" "); w.Code != test.status || !strings.Contains(w.Body.String(), want) || (w.Code == 503) != (w.Header().Get("Retry-After") != "") && !strings.Contains(w.Body.String(), "problems/store-refuses") {
			t.Errorf("%s: got %d %s, want %d %s", test.body, w.Code, w.Body, test.status, want)
		}
	}
	s, _ := revoking(t)
	for _, on := range [][3]string{{"GET", "?continue=x", "continue"}, {"DELETE", "/Worker_1", "revoked"}} {
		if status, body := served(s.Handler(), asAdmin(newRequest(on[0], "/v1/revocation"+on[1], ""))); status != 400 || !strings.Contains(body, `"field":"`+on[2]+`"`) {
			t.Errorf("%s %s: %d %s, want 400 for field %s", on[0], on[1], status, body, on[2])
		}
	}
	s.Revocations = nil
	for _, on := range [][2]string{{"GET", ""}, {"DELETE", "/worker-1"}} {
		if status, body := served(s.Handler(), asAdmin(newRequest(on[0], "/v1/revocation"+on[1], ""))); status != 404 || !strings.Contains(body, "no-revocations") {
			t.Errorf("%s without a store: %d %s", on[0], status, body)
		}
	}
}

// failedRequested is Requested without a response of the API server.
func failedRequested(context.Context) ([]revocation.Certificate, error) { return nil, errAway }

// Catches a certificate that is delivered although its node's revocation could not be read.
func TestIssuesNothingWhileRevocationsAreUnavailable(t *testing.T) {
	s, guard := revoking(t)
	handler := s.Handler()
	token := s.token(t, nil)
	node := s.join(t, handler, token, "worker-1")
	guard.Store = noResponse(errAway)
	if status, body := node.renew(handler); status != 503 {
		t.Errorf("renewal: got %d %s, want 503", status, body)
	}
	if w := send(handler, certificatePath, token, "", strings.NewReader(nodeCSR(t, "worker-2"))); w.Code != 503 {
		t.Errorf("first certificate: got %d %s, want 503", w.Code, w.Body)
	}
	if status, body := served(handler, asAdmin(newRequest("GET", "/v1/revocation", ""))); status != 503 {
		t.Errorf("list: got %d %s, want 503", status, body)
	}
	if status, _ := review(t, handler, reviewerBearer, subject("worker-1", node.cert)); status != 503 {
		t.Errorf("access review: got %d, want 503", status)
	}
}

// noResponse returns a store of revocations whose calls fail.
func noResponse(err error) revocation.Store {
	return revocationtest.Before(nil, func(string, revocation.Key) error { return err })
}

var errAway = errors.New("away")

func newRequest(method, path, body string) *http.Request {
	return httptest.NewRequest(method, path, strings.NewReader(body))
}

func asAdmin(r *http.Request) *http.Request {
	r.Header.Set("Authorization", "Bearer "+adminBearer)
	return r
}

func served(handler http.Handler, r *http.Request) (int, string) {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// A node must be locked out although the issued certificates cannot be read. Catches a log without the reason.
func TestRevokesWithoutIssuanceRecord(t *testing.T) {
	s, _ := revoking(t)
	s.Revocations.Requested = failedRequested
	list, body := revoke(t, s.Handler(), 201, `{"node":"worker-1"}`)
	if len(list.Items) != 1 || len(list.Warnings) == 0 || !strings.HasSuffix(list.Warnings[0], "; the log says why") || !strings.Contains(s.logs.String(), `msg="cannot tell when revocations end" error="the certificate requests`) {
		t.Errorf("got %s, want node worker-1, a warning and a log with the reason:\n%s", body, s.logs)
	}
}
