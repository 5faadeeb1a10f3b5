package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mostBytes is the memory in bytes that one request may allocate, in addition to 16 times the size of its response.
const mostBytes = 8 << 20

// fuzzKey is the certificate key of all uploads.
var fuzzKey = joinformat.GenerateCertificateKey()

// wholeSite is a site with every route and data for each: a token with claims, and issued certificates.
type wholeSite struct {
	*site
	handler http.Handler
	routes  []server.Route
	token   tokens.Token
	serial  string
	next    string // continue token of the issuance record
	key     string // PEM of a key to bind, in JSON
	// valid and expired are client certificates of a node, and known is one of a machine with a key of its own.
	valid, expired, known *x509.Certificate
}

func newWholeSite(t testing.TB) *wholeSite {
	t.Helper()
	s, guard := revoking(t)
	s.Minting.Advertise, s.Logger, s.Status.Metrics = "127.0.0.1:9443", slog.New(slog.DiscardHandler), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/plain") })
	s.Webhooks.TokenReview = &server.TokenReview{Authenticate: reviewer()}
	s.Minting.UploadCertificates = func(context.Context) (joinformat.Upload, error) { return joinformat.Upload{Key: fuzzKey}, nil }
	s.Cluster.Turns, s.Console = &fakeTurns{}, true
	must.Get(guard.Revoke(t.Context(), revocation.Entry{Node: "worker-9"}))
	s.rotating()
	s.Cluster.Explain, s.Cluster.Joins = explained, listed
	s.Cluster.ExplainRequest = func(ctx context.Context, name string, object *certificates.CertificateSigningRequest) (api.RequestExplanation, error) {
		if object == nil {
			return api.RequestExplanation{}, tokens.ErrNotFound
		}
		return kube.Requests{Authority: func() (*signer.Authority, error) { return &signer.Authority{}, nil }}.Explain(ctx, name, object)
	}
	w := &wholeSite{site: s, handler: s.Handler(), routes: s.Routes()}
	w.token = must.Get(tokens.Parse(s.token(t, func(r *tokens.Record) { r.Limits.MaxNodes, r.Limits.Role = 5, tokens.RoleControlPlane })))
	for _, node := range []string{"worker-1", "worker-2"} {
		if got := send(w.handler, certificatePath, w.token.Reveal(), "", strings.NewReader(nodeCSR(t, node))); got.Code != 200 {
			t.Fatalf("%d %s", got.Code, got.Body)
		}
	}
	for _, path := range []string{"/", "/openapi.json"} { // rendered by the first request
		w.handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
	}
	page, err := s.IssuanceRecord.List(t.Context(), issuance.Query{Limit: 1})
	if err != nil || len(page.Entries) != 1 || page.Next == "" {
		t.Fatalf("%+v %v", page, err)
	}
	w.serial, w.next = page.Entries[0].Serial, page.Next
	off := machine{node: "worker-4", key: csrtest.NewKey()}
	got := send(w.handler, certificatePath, w.token.Reveal(), "", strings.NewReader(csr(t, ofNode(off.node), off.key)))
	if off.chain = got.Body.Bytes(); got.Code != 200 {
		t.Fatalf("%d %s", got.Code, got.Body)
	}
	kept := csrtest.NewKey()
	public, _ := publicPEM(t, kept)
	w.key, w.valid, w.expired = jsonOf(t, public), off.valid(t).Leaf, off.expired(t, s.ca, nil).Leaf
	_, id := publicPEM(t, kept)
	w.known = machine{node: "worker-8", key: kept}.selfSigned(t).Leaf
	must.Get(storetest.CreateClaim(t.Context(), s.Claims, tokens.Claim{Node: "worker-8", Machine: tokens.Machine{Key: id}}))
	return w
}

// shot is a request to a route: the value of its path parameter, header lines, body, and the index of its bearer token or client certificate.
// request replaces <token>, <id>, <serial>, <next> and <key> with the values of the site.
type shot struct {
	route   string // name of the route, set in seeds
	segment string
	query   string
	headers string
	body    string
	who     byte
}

// seeds returns at least one successful request for each route that does not succeed with an empty request.
func seeds(t testing.TB) []shot {
	const object = `{"object": {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "csr-1"}, "spec": {"signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"], "request": "eA=="}}}`
	const review = `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"<token>","audiences":["a"]}}`
	const access = `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"user":"system:node:worker-9","groups":["system:nodes"],"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=83d205359b238bd47a71b1508a8f4bb80e05b96f0be039f749f4aed49f72515a"]}}}`
	const json, pem = "Content-Type: application/json\n", "Content-Type: application/pkcs10\n"
	const bootstrap, kubeAPIServer, validNode, expiredNode, knownKey = 2, 3, 5, 6, 7
	node := nodeCSR(t, "worker-3")
	return []shot{
		{"print-join-command", "", "ttl=1h&maxNodes=1&nodeNames=a,b&nodeNames=*&certificateDuration=1h&role=control-plane", json, `{"groups": [], "description": "x"}`, 0},
		{"print-join-command", "", "description=rack+7&usages=signing,authentication", json, `{"ttl": "2h"}`, 0},
		{"print-join-command", "", "controlPlane=true&format=ignition", json, `{"ttl": "1h", "maxNodes": 2}`, 0},
		{"create-token", "", "dryRun&wait=0", json, `{"token": "<token>", "expires": "2030-01-02T03:04:05Z"}`, 0},
		{"create-token", "", "", json, `{"maxNodes": 3, "replaceNode": "worker-1"}`, 0},
		{"create-token", "", "ttl=0", "", "", 0},
		{"get-token", "<id>", "", "", "", 0},
		{"delete-token", "<id>", "onlyExpired=false", json, `{"dryRun": true}`, 0},
		{"renew-token", "<id>", "dryRun", json, `{"ttl": "48h", "shorten": true}`, 0},
		{"release-claim", "worker-1", "dryRun", "", "", 0},
		{"add-machines", "", "dryRun", json, `{"items": [{"node": "worker-6", "key": "lusab-babad-gutih-tugad", "ttl": "1h"}]}`, 0},
		{"add-machines", "", "", json, `{"items": [{"node": "worker-1", "key": <key>, "replace": true}, {"node": "worker-2", "key": "lusab-babad-gutih-tugad"}]}`, 0},
		{"get-machine", "worker-8", "", "", "", 0},
		{"delete-machine", "worker-8", "dryRun", "", "", 0},
		{"join-machine", "worker-8", "", "", "", knownKey},
		{"print-machine-join-command", "", "node=worker-8&format=ignition&endpoint=a:1", "", "", 0},
		{"take-turn", "", "", json, `{"node": "control-2", "id": "0123456789abcdef0123456789abcdef"}`, bootstrap},
		{"give-back-turn", "", "node=control-2&id=0123456789abcdef0123456789abcdef", "", "", bootstrap},
		{"list-issued", "", "limit=1&continue=<next>", "", "", 0},
		{"list-issued", "", "node=worker-1&outcome=issued&endsWithin=30d&since=7d&signer=a/b&requester=x&tokenID=<id>", "", "", 0},
		{"list-issued", "", "ca=sha256:83d205359b238bd47a71b1508a8f4bb80e05b96f0be039f749f4aed49f72515a&notCA=x", "", "", 0},
		{"get-issued", "<serial>", "", "", "", 0},
		{"list-revocations", "", "limit=1", "", "", 0},
		{"revoke", "", "dryRun", json, `{"node": "worker-1", "reason": "stolen"}`, 0},
		{"revoke", "", "serial=<serial>", "", "", 0},
		{"revoke", "", "tokenID=<id>&dryRun", "", "", 0},
		{"revoke", "", "fingerprint=83d205359b238bd47a71b1508a8f4bb80e05b96f0be039f749f4aed49f72515a", "", "", 0},
		{"undo-revocation", "worker-9", "dryRun", "", "", 0},
		{"ca-rotation", "cluster", "", "", "", 0},
		{"prepare-ca", "cluster", "lifetime=3650d", json, `{"noCrossSign": false}`, 0},
		{"trust-ca", "cluster", "", "", "", 0},
		{"switch-ca", "cluster", "", json, `{"expireTokens": true}`, 0},
		{"finish-ca", "cluster", "dryRun", "", "", 0},
		{"abort-ca", "cluster", "", "", "", 0},
		{"explain-request", "", "", json, object, 0},
		{"explain-request", "", "csr=csr-1", "", "", 0},
		{"explain", "worker-7", "format=text", "", "", 0},
		{"list-joins", "", "node=worker-7&token=<id>&state=stuck&limit=1&after=AAAAAAAAAAA&wait=30s", "", "", 0},
		{"cluster-info", "", "", "Accept-Encoding: gzip;q=0.5, *\nIf-None-Match: W/\"a\", *\n", "", 4},
		{"ca", "", "", "Accept: application/json;q=0, application/x-pem-file, */*\n", "", 4},
		{"discovery", "", "", "Accept: application/json;as=Table\nIf-None-Match: \"\"\n", "", 4},
		{"readyz", "", "verbose", "", "", 4},
		{"console-file", "app.js", "", "", "", 4},
		{"certificate", "", "duration=1h&usages=client+auth,digital+signature", pem, node, bootstrap},
		{"certificate", "", "signer=example.com/etcd-peer", "", node, 0},
		{"tokenreview", "", "timeout=30s", json, review, kubeAPIServer},
		{"certificate", "", "", pem, nodeCSR(t, "worker-4"), expiredNode},
		{"bind-key", "", "", json, `{"key": <key>}`, validNode},
		{"subjectaccessreview", "", "timeout=1s", json, access, kubeAPIServer},

		{"print-join-command", "", "ttl=%zz&ttl=&" + strings.Repeat("a&", 8<<10), "", `{"ttl": "-0s", "TTL": 1, "ttl": null}`, 0},
		{"create-token", "", "maxNodes=1e9&usages=&groups=,&%", json, `[null, {"nodeNames": ["` + strings.Repeat("*", 300) + `"]}]`, 0},
		{"explain-request", "", "", json, `{"object": {"apiVersion": "certificates.k8s.io/v1", "spec": {"request": "eA==", "expirationSeconds": -1}, "status": {"conditions": [null]}}}`, 0},
		{"tokenreview", "", "", json, strings.Replace(review, `"audiences":["a"]}`, `"audiences":["a","a"]},"spec":{"token":""},"status":{"authenticated":true}`, 1), kubeAPIServer},
		{"certificate", "", "signer=example.com%2Fetcd-peer&usages=client+auth", "", subjectCSR(t, "root", "system:masters"), 0},
		{"certificate", "", "signer=kubernetes.io/kubelet-serving&duration=-9223372036854775808ns&usages=,", "", node + node, bootstrap},
	}
}

var parameter = regexp.MustCompile(`\{[^}]*\}`)

// request returns the HTTP request of a shot at a route.
func (w *wholeSite) request(t testing.TB, on server.Route, s shot) *http.Request {
	put := strings.NewReplacer("<token>", w.token.Reveal(), "<id>", w.token.ID(), "<serial>", w.serial, "<next>", url.QueryEscape(w.next), "<key>", w.key).Replace
	r := httptest.NewRequest(on.Method, "/", strings.NewReader(put(s.body)))
	r.URL.Path, r.URL.RawQuery = parameter.ReplaceAllLiteralString(on.Path, put(s.segment)), put(s.query)
	for line := range strings.Lines(s.headers) {
		if name, value, found := strings.Cut(line, ":"); found {
			r.Header.Add(name, strings.TrimSpace(value))
		}
	}
	if r.Header.Get("Authorization") != "" {
		return r
	}
	bearers, shown := []string{adminBearer, viewerBearer, w.token.Reveal(), reviewerBearer}, []*x509.Certificate{nil, w.valid, w.expired, w.known}
	if who := int(s.who) % (len(bearers) + len(shown)); who < len(bearers) {
		r.Header.Set("Authorization", "Bearer "+bearers[who])
	} else if cert := shown[who-len(bearers)]; cert != nil {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	}
	return r
}

// fire sends the request of a shot, see serve.
func (w *wholeSite) fire(t testing.TB, on server.Route, s shot) *httptest.ResponseRecorder {
	t.Helper()
	r := w.request(t, on, s)
	got := w.serve(t, r, on.Name, strings.Contains(s.body, "<token>"))
	if what, body := fmt.Sprintf("%s %s", r.Method, on.Path), got.Body.Bytes(); got.Code == http.StatusOK {
		switch on.Name {
		case "certificate":
			cert, err := x509.ParseCertificate(must.Get(pemfile.One(body, "CERTIFICATE")))
			if err != nil || cert.IsCA || slices.Contains(cert.Subject.Organization, "system:masters") {
				t.Errorf("%s: %v %q", what, err, body)
			}
		case "tokenreview":
			if bytes.Contains(body, []byte(`"authenticated":true`)) && !strings.Contains(s.body, "<token>") {
				t.Errorf("%s: authenticated without a token: %s", what, body)
			}
		case "print-join-command":
			if strings.HasPrefix(got.Header().Get("Content-Type"), "text/plain") {
				parseLine(t, got.Body.String())
			}
		}
	}
	return got
}

// serve sends a request to the route of that name. It fails the test unless the response is a success or a problem of the
// client, without a secret and without much memory.
func (w *wholeSite) serve(t testing.TB, r *http.Request, name string, withToken bool) *httptest.ResponseRecorder {
	t.Helper()
	got := httptest.NewRecorder()
	before := allocatedBytes()
	w.handler.ServeHTTP(got, r)
	what := fmt.Sprintf("%.20s %s: %d", r.Method, name, got.Code)
	if took := allocatedBytes() - before; took > mostBytes+16*uint64(got.Body.Len()) {
		t.Errorf("%s: got %d bytes of memory, want at most %d", what, took, mostBytes+16*got.Body.Len())
	}
	body := got.Body.Bytes()
	if !withToken && strings.Contains(string(body), w.token.RevealSecret()) {
		t.Errorf("%s: the response shows a token secret: %s", what, body)
	}
	if got.Code >= 400 && bytes.Contains(body, []byte(fuzzKey.Reveal())) {
		t.Errorf("%s: the response shows the certificate key", what)
	}
	for _, bearer := range []string{adminBearer, viewerBearer, reviewerBearer} {
		if bytes.Contains(body, []byte(bearer)) {
			t.Errorf("%s: the response shows a bearer token: %s", what, body)
		}
	}
	caching := "no-store"
	if got.Header().Get("ETag") != "" { // public, and revalidated
		caching = "no-cache"
	}
	if len(got.Header().Get("X-Request-Id")) != 16 || got.Header().Get("Cache-Control") != caching {
		t.Errorf("%s has headers %v", what, got.Header())
	}
	switch {
	case r.Method == http.MethodHead:
		if len(body) > 0 {
			t.Errorf("%s: got %d bytes for HEAD", what, len(body))
		}
	case got.Code < 400:
		if kind := got.Header().Get("Content-Type"); kind == "application/json" && got.Header().Get("Content-Encoding") == "" && !json.Valid(body) {
			t.Errorf("%s %.300q", what, body)
		}
	case strings.HasPrefix(r.URL.Path, "/api/") || strings.HasPrefix(r.URL.Path, "/apis/"):
		var status metav1.Status
		if err := json.Unmarshal(body, &status); err != nil || status.Kind != "Status" || int(status.Code) != got.Code || status.Message == "" || got.Code >= 500 {
			t.Errorf("%s %s", what, body)
		}
	default:
		var p api.Problem
		if err := json.Unmarshal(body, &p); err != nil || got.Header().Get("Content-Type") != "application/problem+json" ||
			!strings.HasPrefix(p.Type, api.ProblemType) || p.Status != got.Code || p.Title == "" || p.Detail == "" || p.RequestID == "" {
			t.Errorf("%s %s", what, body)
		} else if got.Code >= 500 && !p.Named(api.ProblemCertificateWaits) {
			t.Errorf("%s: got a server error, want a problem of the client: %s", what, body)
		}
	}
	return got
}

// tidy deletes all tokens except w.token, and creates w.token again if it was deleted.
func (w *wholeSite) tidy(t testing.TB) {
	known := tokens.NewRecord(w.token, time.Hour, time.Now())
	known.Limits.Role = tokens.RoleControlPlane
	if _, err := w.store.Create(t.Context(), known); err != nil && !errors.Is(err, tokens.ErrExists) {
		t.Fatal(err)
	}
	for _, r := range must.Get(w.store.List(t.Context())) {
		if r.Token.ID() != w.token.ID() {
			must.OK(t, w.store.Delete(t.Context(), r))
		}
	}
}

func allocatedBytes() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// Catches a new route without a successful request in seeds, which FuzzRoutes would not reach.
func TestEveryRouteIsFuzzed(t *testing.T) {
	w := newWholeSite(t)
	all := seeds(t)
	names := map[string]bool{}
	for _, on := range w.routes {
		names[on.Name] = true
		shots := append([]shot{{route: on.Name}}, all...)
		if !slices.ContainsFunc(shots, func(s shot) bool {
			return s.route == on.Name && (w.fire(t, on, s).Code < 300 || on.Name == "metrics")
		}) {
			t.Errorf("no seed of %s %s (%s) succeeds: add one to seeds", on.Method, on.Path, on.Name)
		}
	}
	for _, s := range all {
		if !names[s.route] {
			t.Errorf("got a seed for %q, which is no route", s.route)
		}
	}
}

// FuzzRoutes sends any request to any route.
func FuzzRoutes(f *testing.F) {
	w := newWholeSite(f)
	if fuzz := flag.Lookup("test.fuzz"); fuzz != nil && fuzz.Value.String() != "" {
		w.handler = must.Get(w.Server.Handler()) // without the check against openapi.yaml, which takes ten times as long
	}
	all := seeds(f)
	for i, on := range w.routes {
		f.Add(byte(i), "x", "", "", []byte(nil), byte(i))
		for _, s := range all {
			if s.route == on.Name {
				f.Add(byte(i), s.segment, s.query, s.headers, []byte(s.body), s.who)
			}
		}
	}
	n := 0
	f.Fuzz(func(t *testing.T, at byte, segment, query, headers string, body []byte, who byte) {
		if n++; n%200 == 0 {
			w.tidy(t)
		}
		fuzzing.RunWithinLimit(t, func() {
			w.fire(t, w.routes[int(at)%len(w.routes)], shot{segment: segment, query: query, headers: headers, body: string(body), who: who})
		})
	})
}

// FuzzRequest sends anything that net/http parses as an HTTP/1.1 request.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{commandPath, tokenPath + "/qwertz/renew?dryRun", infoPath, "/v1/ca?format=json", "/readyz?verbose", "/metrics", "/", "*", "/api/v1/../v1", "//", "/%2e%2e/%00", "http://[::1]/healthz?%"} {
		for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "CONNECT", "X"} {
			f.Add(fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}", method, path, adminBearer))
		}
	}
	f.Add([]byte("POST " + commandPath + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + adminBearer + "\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n"))
	f.Add([]byte("POST " + commandPath + " HTTP/1.1\r\nHost: x\r\nAuthorization: basic " + strings.Repeat("A", 4<<10) + "\r\nContent-Length: 1\r\n\r\n"))
	f.Add([]byte("GET " + infoPath + " HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip;q=1, *;q=\r\nIf-None-Match: W/\"x\", *\r\n\r\n"))
	w, n := newWholeSite(f), 0
	f.Fuzz(func(t *testing.T, raw []byte) {
		if n++; n%200 == 0 {
			w.tidy(t)
		}
		fuzzing.RunWithinLimit(t, func() {
			r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
			if err != nil {
				return // net/http responds without the handler
			}
			r.RemoteAddr = "192.0.2.1:1234"
			w.serve(t, r, r.URL.Path, false)
		})
	})
}

// Sends deep, long, repetitive and out-of-range JSON to every route that reads a body. Catches a route that accepts
// it or that needs much time or memory.
func TestRefusesHostileJSON(t *testing.T) {
	w := newWholeSite(t)
	w.handler = must.Get(w.Server.Handler()) // without the check against openapi.yaml, which keeps responses in memory
	const most = server.MaxBody
	nested := func(open, end string) string {
		n := (most - 2) / (len(open) + len(end))
		return strings.Repeat(open, n) + "1" + strings.Repeat(end, n)
	}
	bodies := map[string]string{
		"deep arrays":         nested("[", "]"),
		"deep objects":        nested(`{"a":`, "}"),
		"deep in a field":     `{"object":` + nested("[", "]")[:most-12] + "}",
		"many digits":         `{"maxNodes":` + strings.Repeat("9", most-20) + `}`,
		"great exponent":      `{"maxNodes":1e999999999,"wait":1e-999999999}`,
		"escapes":             `{"description":"` + strings.Repeat(`\u0000`, most/6-10) + `"}`,
		"long list":           `{"groups":[` + strings.Repeat(`"",`, most/3-10) + `""]}`,
		"long list of lists":  `{"spec":{"audiences":[` + strings.Repeat(`[],`, most/3-20) + `[]]}}`,
		"same field":          `{` + strings.Repeat(`"ttl":"1h",`, most/11-3) + `"ttl":"1h"}`,
		"many fields":         `{` + strings.Repeat(`"":1,`, most/5-3) + `"":1}`,
		"a byte too many":     `{"ttl":"1h"}` + strings.Repeat(" ", most),
		"two documents":       `{}{}`,
		"byte order mark":     "\ufeff{}",
		"another kind of all": `{"ttl":[],"groups":{},"maxNodes":"1","dryRun":"true","token":1,"object":1,"kind":{},"spec":[]}`,
	}
	for name, body := range bodies {
		for _, on := range w.routes {
			if on.Method == http.MethodGet {
				continue
			}
			t.Run(name+" "+on.Name, func(t *testing.T) {
				who := byte(0)
				if on.Name == "tokenreview" || on.Name == "subjectaccessreview" {
					who = 3
				}
				fuzzing.RunWithinLimit(t, func() {
					got := w.fire(t, on, shot{segment: "<id>", headers: "Content-Type: application/json", body: body, who: who})
					denied := on.Name == "subjectaccessreview" && strings.Contains(got.Body.String(), `"denied":true`)
					if (got.Code < 400 || got.Code >= 500) && !denied {
						t.Errorf("%d %s", got.Code, got.Body)
					}
				})
			})
		}
	}
}
