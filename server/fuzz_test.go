package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// tidying returns a handler of s that deletes all tokens after every thousand requests. Otherwise a long run on a fast
// disk reaches the number of tokens that one user may create, and lists become slow.
func tidying(t testing.TB, s *site) http.Handler {
	handler, n := s.Handler(), 0
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n++; n%1000 == 0 {
			records, err := s.store.List(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup // concurrent deletions share a write to the disk
			for _, record := range records {
				all.Go(func() { _ = s.store.Delete(context.Background(), record) })
			}
			all.Wait()
		}
		handler.ServeHTTP(w, r)
	})
}

// fuzzKey is the certificate key of all uploads.
var fuzzKey = joinformat.GenerateCertificateKey()

// fuzzSite returns a handler that is called without a network, so that it also gets requests that no HTTP client can
// send. All inputs of one process share it.
func fuzzSite(f *testing.F) http.Handler {
	s := newSite(f)
	s.Limits.UserTokens = -1
	s.Limits.UserRate = server.Rate{QPS: -1} // and no rate of uploads
	s.Minting.UploadCertificates = func(context.Context) (joinformat.Upload, error) { return joinformat.Upload{Key: fuzzKey}, nil }
	s.Minting.Advertise = "127.0.0.1:9443"
	s.Logger = slog.New(slog.DiscardHandler)
	s.Status.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/plain") })
	return tidying(f, s)
}

// FuzzJoinCommand sends any query and body, and wants a join command or a 4xx response.
func FuzzJoinCommand(f *testing.F) {
	f.Add("ttl=1h", "application/json", []byte(`{"description": "x"}`))
	f.Add("ttl=%zz&ttl=", "", []byte(`{`))
	f.Add("ttl=9999999999h&description=%00", "text/plain; charset=\"", []byte(`{"ttl": "-0s", "TTL": 1, "ttl": null}`))
	f.Add(strings.Repeat("a&", 8<<10), "application/json;", []byte(strings.Repeat(`{"ttl":`, 9<<10)))
	f.Add(strings.Repeat("description=a&", 1<<10), "application/json", []byte("{"+strings.Repeat(`"ttl":"1h",`, 5<<10)+`"ttl":""}`))
	f.Add("description="+strings.Repeat("%F0", 2000), "application/x-www-form-urlencoded", bytes.Repeat([]byte("["), server.MaxBody))
	f.Add("maxNodes=1&nodeNames=a,b&nodeNames=*&certificateDuration=1h&role=control-plane&usages=signing", "application/json", []byte(`{"groups": [], "replaceNode": "a"}`))
	f.Add("controlPlane=true&format=yaml&ttl=30m", "", []byte(nil))
	f.Add("controlPlane&format=kubeconfig", "application/json", []byte(`{"controlPlane": false, "role": "worker"}`))
	f.Add("", "application/json", []byte(`{"controlPlane": true, "groups": ["system:bootstrappers:a"], "maxNodes": 3}`))
	f.Add("", "application/json", []byte(`{"controlPlane": "true"}`))
	handler := fuzzSite(f)
	f.Fuzz(func(t *testing.T, query, contentType string, body []byte) {
		fuzzing.RunWithinLimit(t, func() {
			r := httptest.NewRequest("POST", commandPath, bytes.NewReader(body))
			r.URL.RawQuery = query
			r.Header.Set("Authorization", "Bearer "+adminBearer)
			r.Header.Set("Content-Type", contentType)
			checkAnswer(t, handler, r)
		})
	})
}

// FuzzTokens sends any query and body to the routes of tokens and claims, and wants an object of the route's kind or
// a 4xx response. Only the response for a new token may have a secret.
func FuzzTokens(f *testing.F) {
	const secret = "qqqqqqqqqqqqqqqq"
	routes := []struct{ method, path, kind string }{
		{"POST", tokenPath, api.KindToken},
		{"GET", tokenPath, api.KindTokenList},
		{"GET", tokenPath + "/qwertz", api.KindToken},
		{"DELETE", tokenPath + "/qwertz", api.KindToken},
		{"POST", tokenPath + "/qwertz/renew", api.KindToken},
		{"GET", "/v1/claim", api.KindClaimList},
		{"DELETE", "/v1/claim/worker-1", api.KindClaim},
		{"GET", "/v1/issued", api.KindIssuanceEntryList},
		{"GET", "/v1/issued/1f", api.KindIssuanceEntry},
		{"POST", "/v1/explain", api.KindRequestExplanation},
	}
	for i := range routes {
		f.Add(byte(i), "", []byte(`{}`))
		f.Add(byte(i), "dryRun", []byte(`{"ttl": "48h", "shorten": true, "onlyExpired": false}`))
		f.Add(byte(i), "dryRun=true&wait=0&maxNodes=3", []byte(`{"token": "qwertz.`+secret+`", "expires": "2030-01-02T03:04:05Z"}`))
		f.Add(byte(i), "maxNodes=1e9&usages=&groups=,&%", []byte(`[null, {"nodeNames": ["`+strings.Repeat("*", 300)+`"]}]`))
	}
	f.Add(byte(len(routes)-1), "", []byte(`{"object": {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "spec": {"request": "eA==", "expirationSeconds": -1}}}`))
	f.Add(byte(len(routes)-1), "csr=x", []byte(`{"object": {"apiVersion": "certificates.k8s.io/v1", "status": {"conditions": [null]}}}`))
	s := newSite(f)
	s.Minting.Advertise, s.Claims, s.IssuanceRecord, s.Logger = "127.0.0.1:9443", s.store.Claims(), rowrecord.New(s.store.Issued()), slog.New(slog.DiscardHandler)
	s.Cluster.ExplainRequest = func(ctx context.Context, name string, object *certificates.CertificateSigningRequest) (api.RequestExplanation, error) {
		if object == nil {
			return api.RequestExplanation{}, tokens.ErrNotFound
		}
		return kube.Requests{Authority: func() (*signer.Authority, error) { return &signer.Authority{}, nil }}.Explain(ctx, name, object)
	}
	s.Limits.UserTokens = -1
	handler := tidying(f, s)
	f.Fuzz(func(t *testing.T, at byte, query string, body []byte) {
		fuzzing.RunWithinLimit(t, func() {
			route := routes[int(at)%len(routes)]
			r := httptest.NewRequest(route.method, route.path, bytes.NewReader(body))
			r.URL.RawQuery = query
			r.Header.Set("Authorization", "Bearer "+adminBearer)
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			var object struct{ Kind string }
			switch {
			case w.Code >= 200 && w.Code < 300:
				if err := json.Unmarshal(w.Body.Bytes(), &object); err != nil || object.Kind != route.kind {
					t.Errorf("%d %s: %v", w.Code, w.Body, err)
				}
			case w.Code < 400 || w.Code > 499:
				t.Errorf("status %d: %s", w.Code, w.Body)
			}
			// A response may repeat an unknown field that happens to look like the secret alone.
			if route.path != tokenPath && (strings.Contains(w.Body.String(), "qwertz."+secret) || !strings.Contains(query+string(body), secret) && strings.Contains(w.Body.String(), secret)) {
				t.Errorf("the response shows a token secret: %s", w.Body)
			}
		})
	})
}

// FuzzRequest sends anything that net/http parses as an HTTP/1.1 request.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{commandPath, tokenPath, tokenPath + "/qwertz", tokenPath + "/qwertz/renew?dryRun", infoPath, "/v1/cluster-info", "/v1/ca?format=json", "/healthz", "/readyz?verbose", "/version", "/metrics", "/", "*", "/api/v1/../v1", "//", "/%2e%2e/%00", "http://[::1]/healthz?%"} {
		for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "CONNECT", "X"} {
			f.Add(fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}", method, path, adminBearer))
		}
	}
	f.Add([]byte("POST " + commandPath + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + adminBearer + "\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n"))
	f.Add([]byte("POST " + commandPath + " HTTP/1.1\r\nHost: x\r\nAuthorization: basic " + strings.Repeat("A", 4<<10) + "\r\nContent-Length: 1\r\n\r\n"))
	f.Add([]byte("GET " + infoPath + " HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip;q=1, *;q=\r\nIf-None-Match: W/\"x\", *\r\n\r\n"))
	f.Add([]byte("GET /v1/ca HTTP/1.1\r\nHost: x\r\nAccept: application/json;q=0.1\r\nIf-None-Match: \"\r\n\r\n"))
	handler := fuzzSite(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		fuzzing.RunWithinLimit(t, func() {
			r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
			if err != nil {
				return // net/http responds without the handler
			}
			r.RemoteAddr = "192.0.2.1:1234"
			checkAnswer(t, handler, r)
		})
	})
}

// kept returns the Cache-Control that a response must have: responses with an ETag are public and revalidated.
func kept(w *httptest.ResponseRecorder) string {
	if w.Header().Get("ETag") != "" {
		return "no-cache"
	}
	return "no-store"
}

// checkAnswer sends a request to a working server. It fails the test unless the response is a success of the right form
// or a 4xx problem.
func checkAnswer(t *testing.T, handler http.Handler, r *http.Request) {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	body, kind := w.Body.Bytes(), w.Header().Get("Content-Type")
	switch {
	case w.Header().Get("X-Request-Id") == "" || w.Header().Get("Cache-Control") != kept(w):
		t.Errorf("%d with headers %v", w.Code, w.Header())
	case r.Method == http.MethodHead && len(body) > 0 && kind != "text/plain; charset=utf-8": // the mock of /metrics
		t.Errorf("%d bytes for HEAD", len(body))
	case w.Code != http.StatusOK && strings.Contains(w.Body.String(), fuzzKey.Reveal()):
		t.Errorf("status %d: the response shows the certificate key", w.Code)
	case w.Code == http.StatusOK && strings.HasPrefix(r.URL.Path, commandPath) && strings.HasPrefix(kind, "text/plain"):
		parseLine(t, w.Body.String())
	case w.Code == http.StatusOK, w.Code == http.StatusCreated && r.URL.Path == tokenPath:
	case w.Code == http.StatusNotModified && w.Header().Get("ETag") != "" && len(body) == 0:
	case w.Code < 400 || w.Code > 499:
		t.Errorf("status %d: %s", w.Code, body)
	case kind == "application/problem+json" || kind == "application/json":
		if r.Method != http.MethodHead && !json.Valid(body) {
			t.Errorf("status %d: %q", w.Code, body)
		}
		if strings.Contains(string(body), adminBearer) {
			t.Errorf("the response shows the bearer token: %s", body)
		}
	}
}

// FuzzCertificate sends any query and body as an admin and with a bootstrap token. It wants a 4xx response or a
// certificate without the group system:masters.
func FuzzCertificate(f *testing.F) {
	request := nodeCSR(f, "worker-1")
	f.Add("", "application/pkcs10", []byte(request))
	f.Add("signer=kubernetes.io/kubelet-serving&duration=1h&usages=server+auth,digital+signature", "", []byte(servingCSR(f, "worker-1", "worker-1", "192.0.2.7")))
	f.Add("signer=example.com%2Fetcd-peer&usages=client+auth", "text/plain", []byte(csr(f, x509.CertificateRequest{Subject: pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}}, nil)))
	f.Add("signer=example.com/etcd-peer&duration=-9223372036854775808ns&usages=,", "application/octet-stream", []byte(request+request))
	f.Add("duration=99999999999999h&usages="+strings.Repeat("client+auth,", 5000), "text/plain;", []byte(strings.Repeat("-----BEGIN CERTIFICATE REQUEST-----\n", 1800)))
	f.Add("signer="+strings.Repeat("%F0/", 9000), "application/x-pem-file", bytes.Repeat([]byte("A"), server.MaxBody+1))
	s, _ := certifying(f)
	s.Logger = slog.New(slog.DiscardHandler)
	token := s.token(f, nil)
	handler := s.Handler()
	f.Fuzz(func(t *testing.T, query, contentType string, body []byte) {
		fuzzing.RunWithinLimit(t, func() {
			for _, bearer := range []string{adminBearer, token} {
				r := httptest.NewRequest("POST", certificatePath, bytes.NewReader(body))
				r.URL.RawQuery = query
				r.Header.Set("Authorization", "Bearer "+bearer)
				if contentType != "" {
					r.Header.Set("Content-Type", contentType)
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				checkCertificateResponse(t, w)
			}
		})
	})
}
