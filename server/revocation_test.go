package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const accessPath = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

// revoking returns a site that issues certificates, records them and stores revocations.
func revoking(t testing.TB) (*site, *revocation.Guard) {
	t.Helper()
	s, _ := certifying(t)
	guard := &revocation.Guard{Store: rowlist.New(s.store.Revocations())}
	s.IssuanceRecord = rowrecord.New(s.store.Issued())
	s.Certificates.Authority.Record, s.Certificates.Authority.Revocations = rowrecord.New(s.store.Issued()), guard
	pool := x509.NewCertPool()
	pool.AddCert(s.ca.Certificate())
	way := auth.ClientCertificate{CAs: func() *x509.CertPool { return pool }, Everybody: true, Revoked: func(ctx context.Context, leaf *x509.Certificate) error {
		e, err := guard.Known(ctx, revocation.SubjectOfCertificate(leaf))
		if err != nil || e == nil {
			return err
		}
		return &auth.Revoked{Message: e.Message()}
	}}
	s.Certificates.ClientCertificate = way.Authenticate
	s.Callers.Authenticate = auth.HeaderOrCertificate(s.Callers.Authenticate, way.Authenticate)
	s.Revocations = &desk.Desk{Guard: guard, Lifetime: s.Certificates.Authority.MaxRemainingLifetime} // the server fills the rest
	reviewer, err := auth.ParseTokenFile([]byte(reviewerBearer + ",kube-apiserver,\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.Webhooks.Authorization = &server.Authorization{Authenticate: reviewer.Authenticate, Revoked: guard.Known}
	return s, guard
}

// joined is a node with its certificate.
type joined struct {
	node  string
	csr   string
	chain []byte
	cert  *x509.Certificate
}

// join requests the certificate of a node on a token.
func (s *site) join(t *testing.T, handler http.Handler, token, node string) joined {
	t.Helper()
	j := joined{node: node, csr: nodeCSR(t, node)}
	w := send(handler, certificatePath, token, "", strings.NewReader(j.csr))
	if w.Code != 200 {
		t.Fatalf("%s: %d %s", node, w.Code, w.Body)
	}
	j.chain = w.Body.Bytes()
	block, _ := pem.Decode(j.chain)
	var err error
	if j.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return j
}

// renew requests another certificate with the one of the node.
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
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
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

// Catches a revoked node that renews or uses the API, and another one that does not.
func TestRevokeNode(t *testing.T) {
	s, guard := revoking(t)
	handler := s.Handler()
	token := s.token(t, nil)
	first, other := s.join(t, handler, token, "worker-1"), s.join(t, handler, token, "worker-2")
	wantRevoked(t, handler, first, false)

	dry, _ := revoke(t, handler, 200, `{"node":"worker-1","dryRun":true}`)
	if len(dry.Items) != 1 || !dry.Items[0].DryRun {
		t.Errorf("dry run: got %+v", dry)
	}
	wantRevoked(t, handler, first, false)
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

	// The machine comes back with a new certificate, and is revoked again.
	back := s.join(t, handler, token, "worker-1")
	wantRevoked(t, handler, back, false)
	wantRevoked(t, handler, first, true)
	if e, err := guard.Store.Get(t.Context(), "worker-1"); err != nil || len(e.Allowed) != 2 { // wantRevoked renews
		t.Errorf("got %+v, %v, want two allowed certificates", e, err)
	}
	revoke(t, handler, 201, `{"node":"worker-1"}`)
	wantRevoked(t, handler, back, true)

	if status, body := served(handler, asAdmin(newRequest("GET", "/v1/revocation", ""))); status != 200 || !strings.Contains(body, `"node":"worker-1"`) {
		t.Errorf("list: %d %s", status, body)
	}
	for range 2 { // the second time it is not there
		status, body := served(handler, asAdmin(newRequest("DELETE", "/v1/revocation/worker-1", "")))
		if want := map[bool]string{true: `"node":"worker-1"`, false: "problems/not-revoked"}[status == 200]; !strings.Contains(body, want) {
			t.Errorf("undo: %d %s", status, body)
		}
	}
	wantRevoked(t, handler, first, false)
}

// Catches a token that can still be used, a node that is not revoked with it, and a caller who may not delete tokens.
func TestRevokeToken(t *testing.T) {
	s, _ := revoking(t)
	handler := s.Handler()
	stolen, good := s.token(t, nil), s.token(t, nil)
	one, other := s.join(t, handler, stolen, "worker-1"), s.join(t, handler, good, "worker-2")
	id, _, _ := strings.Cut(stolen, ".")
	list, _ := revoke(t, handler, 201, `{"tokenID":"`+id+`","reason":"leaked"}`)
	if len(list.Items) != 1 || list.Items[0].Node != "worker-1" || list.Items[0].TokenID != id {
		t.Errorf("got %+v, want node worker-1", list.Items)
	}
	wantRevoked(t, handler, one, true)
	if w := send(handler, certificatePath, stolen, "", strings.NewReader(nodeCSR(t, "worker-4"))); w.Code != 401 {
		t.Errorf("a machine with the token: got %d %s, want 401", w.Code, w.Body)
	}
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if a.Resource == "tokens" {
			return auth.ErrForbidden
		}
		return nil
	}
	goodID, _, _ := strings.Cut(good, ".")
	if _, body := revoke(t, s.Handler(), 403, `{"tokenID":"`+goodID+`"}`); !strings.Contains(body, "delete tokens") {
		t.Errorf("got %s", body)
	}
	wantRevoked(t, s.Handler(), other, false)
}

// Catches a Desk without stores that does not use those of the server.
func TestRevocationsUseStoresOfServer(t *testing.T) {
	s, guard := revoking(t)
	s.Revocations = &desk.Desk{Guard: guard}
	if list, body := revoke(t, s.Handler(), 201, `{"node":"worker-1"}`); !strings.Contains(strings.Join(list.Warnings, ""), "no claim and no certificate of node worker-1") {
		t.Errorf("got %s, want a warning: claims and the issuance record lack the node", body)
	}
	s.Cluster.Node = func(context.Context, string) (tokens.NodeRef, error) { return tokens.NodeRef{}, tokens.ErrNotFound }
	if list, body := revoke(t, s.Handler(), 201, `{"node":"worker-1"}`); !strings.Contains(strings.Join(list.Warnings, ""), "there is no Node worker-1") {
		t.Errorf("got %s, want a warning: there is no Node", body)
	}
	if _, body := revoke(t, s.Handler(), 404, `{"tokenID":"qwertz"}`); !strings.Contains(body, "no-token") {
		t.Error(body)
	}
	if s.Revocations.Tokens != nil {
		t.Error("Handler changed the Desk of the caller")
	}
}

// Catches an error of a Desk that becomes another problem.
func TestRevocationProblems(t *testing.T) {
	breaks := func(err error) func(*site) { return func(s *site) { s.Revocations.Guard.Store = noResponse{err} } }
	noRequests := func(s *site) { s.Revocations.Requested = failedRequested }
	for _, test := range []struct {
		set    func(*site)
		body   string
		status int
		want   string
	}{
		{nil, `{}`, 400, "exactly one"},
		{nil, `{"node":""}`, 400, "is empty"},
		{nil, `{"node":"Worker_1"}`, 400, `"field":"node"`},
		{nil, `{"tokenID":"x"}`, 400, `"field":"tokenID"`},
		{nil, `{"serial":"abcdef"}`, 404, "problems/not-issued"},
		{nil, `{"tokenID":"qwertz"}`, 404, "problems/no-token"},
		{breaks(errAway), `{"node":"worker-1"}`, 503, "problems/revocations-unavailable"},
		{breaks(tokens.ErrRefused), `{"node":"worker-1"}`, 503, "problems/store-refuses"},
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
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if a.Resource == "tokens" {
			return auth.ErrForbidden
		}
		return nil
	}
	for _, body := range []string{`{"tokenID":"x"}`, `{"tokenID":"qwertz","node":"worker-1"}`, `{"tokenID":"qwertz","reason":"` + strings.Repeat("x", 257) + `"}`} {
		revoke(t, s.Handler(), 400, body) // not 403
	}
	s, _ = revoking(t)
	if w := send(s.Handler(), "/v1/revocation", viewerBearer, "", strings.NewReader(`{"node":"a"}`)); w.Code != 403 {
		t.Errorf("without the permission: got %d, want 403", w.Code)
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

// Catches a certificate that leaves although its node's revocation could not be read.
func TestIssuesNothingWhileRevocationsAreUnavailable(t *testing.T) {
	s, guard := revoking(t)
	handler := s.Handler()
	token := s.token(t, nil)
	node := s.join(t, handler, token, "worker-1")
	guard.Store = noResponse{errAway}
	if status, body := node.renew(handler); status != 503 {
		t.Errorf("renewal: got %d %s, want 503", status, body)
	}
	if w := send(handler, certificatePath, token, "", strings.NewReader(nodeCSR(t, "worker-2"))); w.Code != 503 {
		t.Errorf("first certificate: got %d %s, want 503", w.Code, w.Body)
	}
	if _, body := revoke(t, handler, 503, `{"node":"worker-1"}`); !strings.Contains(body, "revocations-unavailable") {
		t.Error(body)
	}
	if status, body := served(handler, asAdmin(newRequest("GET", "/v1/revocation", ""))); status != 503 {
		t.Errorf("list: got %d %s, want 503", status, body)
	}
	guard.Store = noResponse{err: fmt.Errorf("%w: ConfigMap kubejoin-revocation-0", revocation.ErrFull)}
	if _, body := revoke(t, handler, 507, `{"node":"worker-1"}`); !strings.Contains(body, "too-many-revocations") {
		t.Error(body)
	}
	if status, _ := review(t, handler, reviewerBearer, subject("worker-1", node.cert)); status != 503 {
		t.Errorf("access review: got %d, want 503", status)
	}
}

// noResponse is a store that does not respond.
type noResponse struct{ err error }

var errAway = errors.New("away")

func (s noResponse) Get(context.Context, revocation.Key) (revocation.Entry, error) {
	return revocation.Entry{}, s.err
}

func (s noResponse) Find(context.Context, revocation.Key) (revocation.Entry, error) {
	return revocation.Entry{}, s.err
}

func (s noResponse) Update(context.Context, revocation.Key, func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	return nil, s.err
}

func (s noResponse) List(context.Context) ([]revocation.Entry, error) { return nil, s.err }

func (s noResponse) Cached(context.Context) ([]revocation.Entry, error) { return nil, s.err }

// subject returns the spec of a review of a node with a certificate.
func subject(node string, cert *x509.Certificate) authorizationv1.SubjectAccessReviewSpec {
	return authorizationv1.SubjectAccessReviewSpec{
		User: "system:node:" + node, Groups: []string{"system:nodes", "system:authenticated"},
		Extra:              map[string]authorizationv1.ExtraValue{revocation.CredentialIDKey: {revocation.FingerprintOf(cert).CredentialID()}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes"},
	}
}

// review posts an access review as kube-apiserver does.
func review(t *testing.T, handler http.Handler, bearer string, spec authorizationv1.SubjectAccessReviewSpec) (int, authorizationv1.SubjectAccessReviewStatus) {
	t.Helper()
	body, err := json.Marshal(authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}, Spec: spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	w := send(handler, accessPath+"?timeout=1s", bearer, "application/json", strings.NewReader(string(body)))
	var answer authorizationv1.SubjectAccessReview
	if err := json.Unmarshal(w.Body.Bytes(), &answer); w.Code == 200 && err != nil {
		t.Fatal(err)
	}
	return w.Code, answer.Status
}

// Catches a webhook that allows something, denies a certificate that is not revoked, or answers another caller.
func TestAccessReview(t *testing.T) {
	s, guard := revoking(t)
	handler := s.Handler()
	token := s.token(t, nil)
	one, two := s.join(t, handler, token, "worker-1"), s.join(t, handler, token, "worker-2")
	want := func(what string, spec authorizationv1.SubjectAccessReviewSpec, reason string) {
		t.Helper()
		status, got := review(t, handler, reviewerBearer, spec)
		if status != 200 || got.Allowed || got.Denied != (reason != "") || !strings.Contains(got.Reason, reason) {
			t.Errorf("%s: got %d %+v, want denied with %q", what, status, got, reason)
		}
	}
	want("not revoked", subject("worker-1", one.cert), "")
	if _, err := guard.Revoke(t.Context(), revocation.Entry{Node: "worker-1", Reason: "stolen"}); err != nil {
		t.Fatal(err)
	}
	want("revoked", subject("worker-1", one.cert), "stolen")
	want("another node", subject("worker-2", two.cert), "")
	back := s.join(t, handler, token, "worker-1")
	want("came back", subject("worker-1", back.cert), "")
	unknown := subject("worker-1", one.cert)
	unknown.Extra = nil
	want("the node without a known certificate", unknown, "stolen")
	stranger := subject("worker-1", one.cert)
	stranger.Groups = nil
	want("not in group system:nodes", stranger, "")
	if _, err := guard.Revoke(t.Context(), revocation.Entry{Fingerprint: revocationtest.Fingerprint(1)}); err != nil {
		t.Fatal(err)
	}
	want("a user with a revoked certificate", authorizationv1.SubjectAccessReviewSpec{
		User: "jane", Extra: map[string]authorizationv1.ExtraValue{revocation.CredentialIDKey: {revocationtest.Fingerprint(1).CredentialID()}},
	}, "revoked")

	for bearer, status := range map[string]int{"": 401, adminBearer: 401, "x": 401} {
		if got, _ := review(t, handler, bearer, subject("worker-1", one.cert)); got != status {
			t.Errorf("bearer %q: got %d, want %d", bearer, got, status)
		}
	}
	for body, status := range map[string]int{
		`{}`: 400, `{`: 400, ``: 400, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1"}`: 400,
		`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1beta1"}`:    400,
		`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","new":1}`: 200,
	} {
		if w := send(handler, accessPath, reviewerBearer, "application/json", strings.NewReader(body)); w.Code != status || w.Code != 200 && !strings.Contains(w.Body.String(), `"kind":"Status"`) {
			t.Errorf("%.100s: got %d %s, want %d", body, w.Code, w.Body, status)
		}
	}
	if w := send(handler, accessPath, reviewerBearer, "text/plain", strings.NewReader("x")); w.Code != 415 {
		t.Errorf("text: got %d, want 415", w.Code)
	}
}

// Catches a list of claims that does not show which nodes are revoked.
func TestClaimsShowRevokedNodes(t *testing.T) {
	s, _ := revoking(t)
	handler := s.Handler()
	token := s.token(t, func(r *tokens.Record) { r.Limits.MaxNodes = 2 })
	s.join(t, handler, token, "worker-1")
	s.join(t, handler, token, "worker-2")
	revoke(t, handler, 201, `{"node":"worker-1"}`)
	_, body := served(handler, asAdmin(newRequest("GET", "/v1/claim", "")))
	var list api.ClaimList
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != 2 || !list.Items[0].Revoked || list.Items[1].Revoked {
		t.Errorf("got %s, %v, want worker-1 revoked", body, err)
	}
}

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
