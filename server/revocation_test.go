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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/issuance/boltrecord"
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
	s.Issued = boltrecord.New(s.store.Issued())
	s.Certificates.Authority.Record, s.Certificates.Authority.Revocations = boltrecord.New(s.store.Issued()), guard
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
	s.Authenticate = auth.HeaderOrCertificate(s.Authenticate, way.Authenticate)
	s.Revocations = &desk.Desk{
		Guard: guard, Tokens: s.store, Claims: s.Claims, ClusterInfo: s.ClusterInfo, Issued: s.Issued, Lifetime: s.Certificates.Authority.MaxRemainingLifetime,
	}
	reviewer, err := auth.ParseTokenFile([]byte(reviewerBearer + ",kube-apiserver,\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.Authorization = &server.Authorization{Authenticate: reviewer.Authenticate, Revoked: guard.Known}
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

// Catches a certificate that is revoked by its serial number or fingerprint and works, or one that is revoked with it.
func TestRevokeCertificate(t *testing.T) {
	s, _ := revoking(t)
	handler := s.Handler()
	token := s.token(t, nil)
	one, two := s.join(t, handler, token, "worker-1"), s.join(t, handler, token, "worker-1")
	serial := one.cert.SerialNumber.Text(16)
	list, _ := revoke(t, handler, 201, `{"serial":"`+strings.ToUpper(serial)+`"}`)
	if r := list.Items[0]; r.Fingerprint != revocation.FingerprintOf(one.cert).String() || !r.Until.Equal(one.cert.NotAfter) {
		t.Errorf("got %+v, want the certificate with serial %s", r, serial)
	}
	wantRevoked(t, handler, one, true)
	wantRevoked(t, handler, two, false)
	list, _ = revoke(t, handler, 201, `{"fingerprint":"`+revocation.FingerprintOf(two.cert).String()+`"}`)
	wantRevoked(t, handler, two, true)
	if status, body := served(handler, asAdmin(newRequest("DELETE", "/v1/revocation/"+list.Items[0].Fingerprint, ""))); status != 200 {
		t.Errorf("undo: %d %s", status, body)
	}
	wantRevoked(t, handler, two, false)
}

// Catches a node of a token that is not revoked with it, and a token that can still be used. A node that has moved to
// another token must not be revoked as a whole.
func TestRevokeToken(t *testing.T) {
	s, _ := revoking(t)
	handler := s.Handler()
	limited := func(r *tokens.Record) { r.Limits.MaxNodes = 5 }
	stolen, good := s.token(t, limited), s.token(t, limited)
	id, _, _ := strings.Cut(stolen, ".")
	one, two, other := s.join(t, handler, stolen, "worker-1"), s.join(t, handler, stolen, "worker-2"), s.join(t, handler, good, "worker-3")
	dry, _ := revoke(t, handler, 200, `{"tokenID":"`+id+`","dryRun":true}`)
	if len(dry.Items) != 2 {
		t.Errorf("dry run: got %+v, want two nodes", dry.Items)
	}
	if _, err := s.store.Get(t.Context(), id); err != nil {
		t.Errorf("after a dry run: %v", err)
	}
	// Another token takes the name worker-2.
	if status, body := served(handler, asAdmin(newRequest("DELETE", "/v1/claim/worker-2", ""))); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	moved := s.join(t, handler, good, "worker-2")
	list, _ := revoke(t, handler, 201, `{"tokenID":"`+id+`","reason":"leaked"}`)
	if len(list.Items) != 2 || list.Items[0].Fingerprint == "" || list.Items[1].Node != "worker-1" || list.Items[1].TokenID != id {
		t.Errorf("got %+v, want the certificate of worker-2, and node worker-1", list.Items)
	}
	wantRevoked(t, handler, one, true)
	wantRevoked(t, handler, two, true)
	wantRevoked(t, handler, other, false)
	wantRevoked(t, handler, moved, false)
	if _, err := s.store.Get(t.Context(), id); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("the token: got %v, want %v", err, tokens.ErrNotFound)
	}
	if w := send(handler, certificatePath, stolen, "", strings.NewReader(nodeCSR(t, "worker-4"))); w.Code != 401 {
		t.Errorf("a machine with the token: got %d %s, want 401", w.Code, w.Body)
	}

	// Without the permission to delete tokens, nothing happens.
	goodID, _, _ := strings.Cut(good, ".")
	s.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if a.Resource == "tokens" {
			return auth.ErrForbidden
		}
		return nil
	}
	handler = s.Handler()
	if _, body := revoke(t, handler, 403, `{"tokenID":"`+goodID+`"}`); !strings.Contains(body, "delete tokens") {
		t.Errorf("got %s", body)
	}
	wantRevoked(t, s.Handler(), other, false)
}

// Catches a stolen token that still works after its revocation has failed, and a retry that does not find its nodes.
func TestRevokeTokenMakesItUnusableFirst(t *testing.T) {
	full := noResponse{err: fmt.Errorf("%w: ConfigMap kubejoin-revocation-0", revocation.ErrFull)}
	for name, test := range map[string]struct {
		fail func(*site, *revocation.Guard)
		want int
	}{
		"the list is full":              {func(_ *site, g *revocation.Guard) { g.Store = full }, 507},
		"the list cannot be read":       {func(_ *site, g *revocation.Guard) { g.Store = noResponse{errAway} }, 503},
		"the requests cannot be read":   {func(s *site, _ *revocation.Guard) { s.Revocations.Requested = failedRequested }, 503},
		"a node of two cannot be saved": {func(_ *site, g *revocation.Guard) { g.Store = lackingSpace{g.Store, "worker-1"} }, 507},
	} {
		t.Run(name, func(t *testing.T) {
			s, guard := revoking(t)
			token := s.token(t, func(r *tokens.Record) { r.Limits.MaxNodes = 5 })
			id, _, _ := strings.Cut(token, ".")
			one, two := s.join(t, s.Handler(), token, "worker-1"), s.join(t, s.Handler(), token, "worker-2")
			works := guard.Store
			test.fail(s, guard)
			if _, body := revoke(t, s.Handler(), test.want, `{"tokenID":"`+id+`"}`); !strings.Contains(body, "token "+id+" can no longer be used") {
				t.Errorf("got %s, want what was done", body)
			}
			guard.Store, s.Revocations.Requested = works, nil
			handler := s.Handler()
			if w := send(handler, certificatePath, token, "", strings.NewReader(nodeCSR(t, "worker-3"))); w.Code != 401 {
				t.Errorf("a machine with the token: got %d %s, want 401", w.Code, w.Body)
			}
			if name == "a node of two cannot be saved" {
				wantRevoked(t, handler, two, true) // one node without space does not keep the other one
			}
			if held, err := s.Claims.HeldBy(t.Context(), id); err != nil || len(held) != 2 {
				t.Errorf("got %d claims, %v, want 2", len(held), err)
			}
			list, _ := revoke(t, handler, 201, `{"tokenID":"`+id+`"}`)
			if len(list.Items) != 2 {
				t.Errorf("retry: got %+v, want two nodes", list.Items)
			}
			wantRevoked(t, handler, one, true)
			wantRevoked(t, handler, two, true)
			if _, err := s.store.Get(t.Context(), id); !errors.Is(err, tokens.ErrNotFound) {
				t.Errorf("the token: got %v, want %v", err, tokens.ErrNotFound)
			}
		})
	}
}

// failedRequested is Requested without a response of the API server.
func failedRequested(context.Context) ([]revocation.Issued, error) { return nil, errAway }

// lackingSpace is a store without space for one entry.
type lackingSpace struct {
	revocation.Store
	key revocation.Key
}

func (s lackingSpace) Update(ctx context.Context, key revocation.Key, change func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	if key == s.key {
		return nil, revocation.ErrFull
	}
	return s.Store.Update(ctx, key, change)
}

// Catches a malformed token that Kubernetes accepts and that cannot be changed: a failed revocation must end it, too.
func TestRevokeMalformedTokenDeletesItFirst(t *testing.T) {
	for name, change := range map[string]func(*tokens.Record){
		"a published example":           func(r *tokens.Record) { r.Problem = tokens.ErrPublicExample },
		"a description of another tool": func(r *tokens.Record) { r.Description = "rack 7\n" },
		"limits that exclude each other": func(r *tokens.Record) {
			r.Limits = tokens.Limits{MaxNodes: 5, Replaces: tokens.NodeRef{Name: "worker-1", UID: "u"}}
		},
	} {
		s, guard := revoking(t)
		token := s.token(t, nil)
		id, _, _ := strings.Cut(token, ".")
		s.join(t, s.Handler(), token, "worker-1")
		s.Revocations.Tokens, guard.Store = storetest.Alter(change).Store(s.Tokens), noResponse{errAway}
		revoke(t, s.Handler(), 503, `{"tokenID":"`+id+`"}`)
		if _, err := s.store.Get(t.Context(), id); !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("%s: got %v, want %v", name, err, tokens.ErrNotFound)
		}
	}
}

// Catches a revocation that ends while a CA of kube-apiserver still accepts the node, and one that ends although kubejoin
// could not read when the last certificate ends.
func TestRevocationEndsAfterTheLastCertificate(t *testing.T) {
	own, late := time.Time{}, time.Now().Add(48*time.Hour).UTC().Truncate(time.Second)
	cas := func(end time.Time) func(context.Context) ([]*x509.Certificate, error) {
		return func(context.Context) ([]*x509.Certificate, error) { return []*x509.Certificate{{NotAfter: end}}, nil }
	}
	seen := func(context.Context) ([]revocation.Issued, error) {
		return []revocation.Issued{{Node: "worker-1", Fingerprint: revocationtest.Fingerprint(1), NotAfter: late}, {Node: "worker-2", Fingerprint: revocationtest.Fingerprint(2), NotAfter: late.Add(time.Hour)}}, nil
	}
	for name, test := range map[string]struct {
		set  func(*site)
		want func(*site) time.Time
	}{
		"cluster-info":                    {func(*site) {}, func(s *site) time.Time { return s.ca.Certificate().NotAfter }},
		"an API server's CA ends earlier": {func(s *site) { s.Revocations.ClientCAs = cas(time.Now()) }, func(s *site) time.Time { return s.ca.Certificate().NotAfter }},
		"an API server's CA ends later":   {func(s *site) { s.Revocations.ClientCAs = cas(late) }, func(*site) time.Time { return late }},
		"nodes may rejoin":                {func(s *site) { s.Revocations.ClientCAs, s.Revocations.RejoinWindow = cas(late), time.Hour }, func(*site) time.Time { return late.Add(time.Hour) }},
		"a certificate ends later":        {func(s *site) { s.Revocations.Requested = seen }, func(*site) time.Time { return late }},
		"the CAs cannot be read": {func(s *site) {
			s.Revocations.ClientCAs = func(context.Context) ([]*x509.Certificate, error) { return nil, errAway }
		}, func(*site) time.Time { return own }},
		"the certificates cannot be read": {func(s *site) { s.Revocations.Requested = failedRequested }, func(*site) time.Time { return own }},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := revoking(t)
			test.set(s)
			list, _ := revoke(t, s.Handler(), 201, `{"node":"worker-1"}`)
			want := test.want(s)
			unknown := slices.ContainsFunc(list.Warnings, func(w string) bool { return strings.Contains(w, "when the last certificate ends") })
			if !list.Items[0].Until.Equal(want) || unknown != want.IsZero() {
				t.Errorf("got until %s, warnings %q, want %s, and a warning only if it is unknown", list.Items[0].Until, list.Warnings, want)
			}
		})
	}
}

// Catches a revocation that stands for anything but what the caller asked.
func TestRevokeRefuses(t *testing.T) {
	s, _ := revoking(t)
	handler := s.Handler()
	for body, want := range map[string]string{
		`{}`:                                "exactly one",
		`{"node":"worker-1","serial":"ab"}`: "exactly one",
		`{"node":"Worker_1"}`:               `"field":"node"`,
		`{"node":""}`:                       "is empty",
		`{"fingerprint":"ab"}`:              `"field":"fingerprint"`,
		`{"serial":"xyz"}`:                  `"field":"serial"`,
		`{"tokenID":"x"}`:                   `"field":"tokenID"`,
		`{"node":"a","reason":"` + strings.Repeat("x", 257) + `"}`: `"field":"reason"`,
	} {
		if _, got := revoke(t, handler, 400, body); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
	}
	revoke(t, handler, 404, `{"serial":"abcdef"}`)
	revoke(t, handler, 404, `{"tokenID":"qwertz"}`)
	if w := send(handler, "/v1/revocation", viewerBearer, "", strings.NewReader(`{"node":"a"}`)); w.Code != 403 {
		t.Errorf("without the permission: got %d, want 403", w.Code)
	}
	s.Revocations = nil
	for _, on := range [][2]string{{"GET", ""}, {"POST", ""}, {"DELETE", "/worker-1"}} {
		if status, body := served(s.Handler(), asAdmin(newRequest(on[0], "/v1/revocation"+on[1], ""))); status != 404 || !strings.Contains(body, "no-revocations") {
			t.Errorf("%s without a store: %d %s", on[0], status, body)
		}
	}
}

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

// A node must be locked out although the issued certificates cannot be read.
func TestRevokesWithoutIssuanceRecord(t *testing.T) {
	s, guard := revoking(t)
	s.Revocations.Requested = failedRequested
	handler := s.Handler()
	node := s.join(t, handler, s.token(t, nil), "worker-1")
	list, body := revoke(t, handler, 201, `{"node":"worker-1"}`)
	if len(list.Items) != 1 {
		t.Errorf("got %s, want node worker-1", body)
	}
	if e, err := guard.RevokedCertificate(t.Context(), node.cert); e == nil || err != nil {
		t.Errorf("got %v, %v, want the node revoked", e, err)
	}
}
