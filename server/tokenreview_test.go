package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	reviewPath     = "/apis/authentication.k8s.io/v1/tokenreviews"
	reviewerBearer = "reviewer-bearer-0123456789"
)

// reviewed returns a site that reviews tokens for kube-apiserver.
func reviewed(t testing.TB) *site {
	t.Helper()
	s := newSite(t)
	reviewer, err := auth.ParseTokenFile([]byte(reviewerBearer + ",kube-apiserver,\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.Webhooks.TokenReview = &server.TokenReview{Authenticate: reviewer.Authenticate}
	return s
}

// ask posts a review as kube-apiserver does.
func ask(t testing.TB, handler http.Handler, version, token string, audiences ...string) (authenticationv1.TokenReview, *httptest.ResponseRecorder) {
	t.Helper()
	body, err := json.Marshal(authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/" + version, Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := send(handler, reviewPath+"?timeout=30s", reviewerBearer, "application/json", bytes.NewReader(body))
	var answer authenticationv1.TokenReview
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
	}
	return answer, w
}

func send(handler http.Handler, path, bearer, contentType string, body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", path, body)
	r.Header.Set("Content-Type", contentType)
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func TestTokenReviewStatus(t *testing.T) {
	now := time.Now()
	accepted := func(id string, groups ...string) authenticationv1.TokenReviewStatus {
		return authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "system:bootstrap:" + id, Groups: groups}}
	}
	record := tokens.NewRecord(tokens.Generate(), time.Hour, now)
	id, secret := record.Token.ID(), record.Token.RevealSecret()
	var no authenticationv1.TokenReviewStatus
	yes := accepted(id, "system:bootstrappers", tokens.DefaultGroup)
	for _, test := range []struct {
		name      string
		shown     string
		change    func(*tokens.Record) // before it is stored
		broken    func(*tokens.Record) // after it is stored
		later     time.Duration
		asked     []string
		own       []string
		want      authenticationv1.TokenReviewStatus
		reason    string // in the log
		audiences []string
	}{
		{name: "good", want: yes},
		{name: "without groups", change: func(r *tokens.Record) { r.Groups = nil }, want: accepted(id, "system:bootstrappers")},
		{
			name: "groups are a sorted set", want: accepted(id, "system:bootstrappers", "system:bootstrappers:a", "system:bootstrappers:b"),
			change: func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:b", "system:bootstrappers:a"} },
		},
		{name: "for ever", change: func(r *tokens.Record) { r.Expires = time.Time{} }, later: 1e6 * time.Hour, want: yes},
		{name: "signing is nothing to it", change: func(r *tokens.Record) { r.Signing = false }, want: yes},
		{name: "a second before its end", later: time.Hour - 2*time.Second, want: yes},
		{name: "expired", later: time.Hour, reason: "expired"},
		{name: "not for authentication", change: func(r *tokens.Record) { r.Authentication, r.Groups = false, nil }, reason: "not for authentication"},
		{name: "malformed record", broken: func(r *tokens.Record) { r.Problem = errors.New("bad group") }, reason: "malformed record"},
		{name: "record without its secret", broken: func(r *tokens.Record) { r.Token, _ = tokens.OnlyID(id) }, reason: "unknown token ID or wrong secret"},
		{name: "unknown", shown: tokens.Generate().Reveal(), reason: "unknown token ID or wrong secret"},
		{name: "another secret", shown: id + "." + tokens.Generate().RevealSecret(), reason: "unknown token ID or wrong secret"},
		{name: "secret alone", shown: secret},
		{name: "ID alone", shown: id},
		{name: "something else", shown: "eyJhbGciOiJSUzI1NiJ9.e30.AAAA"},
		{name: "white space", shown: record.Token.Reveal() + "\n"},
		{name: "for an audience, own unknown", asked: []string{"vault"}, want: yes},
		{name: "for its audience", asked: []string{"vault", "api"}, own: []string{"api", "https://kubernetes.default.svc"}, want: yes, audiences: []string{"api"}},
		{name: "for another audience", asked: []string{"vault"}, own: []string{"api"}, reason: "for another audience"},
		{name: "for no audience", own: []string{"api"}, want: yes},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := reviewed(t)
			record := record
			if test.change != nil {
				test.change(&record)
			}
			if _, err := s.store.Create(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			if test.broken != nil {
				s.Tokens = storetest.Alter(test.broken).Store(s.store)
			}
			s.Webhooks.TokenReview.Audiences = test.own
			s.Webhooks.TokenReview.Now = func() time.Time { return now.Add(test.later) }
			shown := test.shown
			if shown == "" {
				shown = record.Token.Reveal()
			}
			want := test.want
			want.Audiences = test.audiences
			handler := s.Handler()
			for _, version := range []string{"v1", "v1beta1"} {
				got, w := ask(t, handler, version, shown, test.asked...)
				if w.Code != 200 || got.Kind != "TokenReview" || got.APIVersion != "authentication.k8s.io/"+version {
					t.Fatalf("%s: %d %s", version, w.Code, w.Body)
				}
				if !reflect.DeepEqual(got.Status, want) {
					t.Errorf("%s: %+v, want %+v", version, got.Status, want)
				}
				if strings.Contains(w.Body.String(), secret) {
					t.Errorf("the response shows the token secret: %s", w.Body)
				}
				if !want.Authenticated && !reflect.DeepEqual(got.Status, no) {
					t.Errorf("got %s, want a refusal without a reason", w.Body)
				}
			}
			if strings.Contains(s.logs.String(), secret) || strings.Contains(s.logs.String(), shown) && len(shown) > 6 {
				t.Errorf("the log shows the reviewed token:\n%s", s.logs)
			}
		})
	}
}

// Catches a refused review whose reason is not in the debug log. The response must not have it.
func TestTokenReviewLogsTheReason(t *testing.T) {
	s := reviewed(t)
	token := tokens.Generate()
	ask(t, s.Handler(), "v1", token.Reveal())
	for _, want := range []string{"user=kube-apiserver", "token=" + token.ID(), "result=refused", `reason="unknown token ID or wrong secret"`} {
		if !strings.Contains(s.logs.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, s.logs)
		}
	}
}

// kube-apiserver caches a refusal, but not an error. Catches a refusal when the store is unavailable.
func TestTokenReviewFailsWithoutStore(t *testing.T) {
	s := reviewed(t)
	s.Tokens = failingStore(s.store, errReset)
	_, w := ask(t, s.Handler(), "v1", tokens.Generate().Reveal())
	if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), `"kind":"Status"`) || strings.Contains(w.Body.String(), errReset.Error()) {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

func TestTokenReviewRequests(t *testing.T) {
	const good = `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"x"}}`
	for _, test := range []struct {
		name, path, bearer, contentType, body string
		status                                int
		want                                  string
	}{
		{name: "good", body: good, status: 200, want: `"status":{"user":{}}`},
		{name: "the other path", path: "/apis/authentication.k8s.io/v1beta1/tokenreviews", body: good, status: 200, want: `authentication.k8s.io/v1"`},
		{name: "null metadata and what may come", body: `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{"creationTimestamp":null},"spec":{"token":"x","more":1},"status":{"user":{}}}`, status: 200, want: `v1beta1"`},
		{name: "no credential", bearer: "-", body: good, status: 401, want: "kubejoin webhook-config"},
		{name: "an operator", bearer: adminBearer, body: good, status: 401, want: "are not those of kube-apiserver"},
		{name: "another version", body: `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v2"}`, status: 400, want: "want kind TokenReview"},
		{name: "another kind", body: `{"kind":"SubjectAccessReview","apiVersion":"authentication.k8s.io/v1"}`, status: 400, want: "want kind TokenReview"},
		{name: "no JSON", body: `{"kind"`, status: 400, want: "not a TokenReview in JSON"},
		{name: "a number", body: `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":1}}`, status: 400, want: "not a TokenReview in JSON"},
		{name: "empty", status: 400, want: "not a TokenReview in JSON"},
		{name: "another type", contentType: "application/vnd.kubernetes.protobuf", body: good, status: 415, want: "application/json"},
		{name: "too large", body: `{"spec":{"token":"` + strings.Repeat("x", server.MaxBody) + `"}}`, status: 413, want: "more than 65536 bytes"},
		{name: "another version's path", path: "/apis/authentication.k8s.io/v2/tokenreviews", body: good, status: 404, want: "nothing at this path"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := reviewed(t)
			path, bearer, contentType := reviewPath, reviewerBearer, "application/json"
			if test.path != "" {
				path = test.path
			}
			switch test.bearer {
			case "":
			case "-":
				bearer = ""
			default:
				bearer = test.bearer
			}
			if test.contentType != "" {
				contentType = test.contentType
			}
			w := send(s.Handler(), path, bearer, contentType, strings.NewReader(test.body))
			if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, test.status, test.want)
			}
			var status metav1.Status
			if test.status != 200 && (json.Unmarshal(w.Body.Bytes(), &status) != nil || status.Kind != "Status" || int(status.Code) != test.status) {
				t.Errorf("got %s, want a Status with code %d", w.Body, test.status)
			}
		})
	}
	t.Run("off", func(t *testing.T) {
		if w := send(newSite(t).Handler(), reviewPath, reviewerBearer, "application/json", strings.NewReader(good)); w.Code != 404 {
			t.Errorf("%d without a TokenReview, want 404", w.Code)
		}
	})
	t.Run("nobody may", func(t *testing.T) {
		s := reviewed(t)
		s.Webhooks.TokenReview = &server.TokenReview{}
		if w := send(s.Handler(), reviewPath, reviewerBearer, "application/json", strings.NewReader(good)); w.Code != 403 {
			t.Errorf("%d without a way to authenticate, want 403", w.Code)
		}
	})
	t.Run("authenticator away", func(t *testing.T) {
		s := reviewed(t)
		s.Webhooks.TokenReview.Authenticate = func(*http.Request) (auth.User, error) { return auth.User{}, errors.New("away") }
		if w := send(s.Handler(), reviewPath, reviewerBearer, "application/json", strings.NewReader(good)); w.Code != 503 || w.Header().Get("Retry-After") == "" {
			t.Errorf("got %d %v, want 503 with Retry-After", w.Code, w.Header())
		}
	})
}

// certificate returns a client certificate. Without an issuer it is a self-signed CA.
func certificate(t *testing.T, name string, issuer *tls.Certificate, usage x509.ExtKeyUsage) *tls.Certificate {
	t.Helper()
	return certtest.Issue(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: []string{"kubeadm:cluster-admins"}},
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true, IsCA: issuer == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}, issuer)
}

func TestTokenReviewByClientCertificate(t *testing.T) {
	s := reviewed(t)
	ca := certificate(t, "client-ca", nil, x509.ExtKeyUsageAny)
	other := certificate(t, "client-ca", nil, x509.ExtKeyUsageAny)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	way := auth.ClientCertificate{CAs: func() *x509.CertPool { return pool }, Name: "kube-apiserver-kubelet-client"}
	s.Webhooks.TokenReview.Authenticate = auth.HeaderOrCertificate(s.Webhooks.TokenReview.Authenticate, way.Authenticate)
	own := certificate(t, "server", nil, x509.ExtKeyUsageServerAuth)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := s.HTTPServer(&tls.Config{Certificates: []tls.Certificate{*own}, ClientAuth: tls.RequestClientCert})
	go func() { _ = web.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = web.Close() })
	for _, test := range []struct {
		name        string
		certificate *tls.Certificate
		bearer      string
		status      int
	}{
		{"kube-apiserver", certificate(t, way.Name, ca, x509.ExtKeyUsageClientAuth), "", 200},
		{"kube-apiserver with another bearer", certificate(t, way.Name, ca, x509.ExtKeyUsageClientAuth), adminBearer, 401},
		{"bearer and another's certificate", certificate(t, "eve", ca, x509.ExtKeyUsageClientAuth), reviewerBearer, 200},
		{"another name", certificate(t, "eve", ca, x509.ExtKeyUsageClientAuth), "", 403},
		{"another CA", certificate(t, way.Name, other, x509.ExtKeyUsageClientAuth), "", 401},
		{"a server's", certificate(t, way.Name, ca, x509.ExtKeyUsageServerAuth), "", 401},
		{"none", nil, "", 401},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := &tls.Config{InsecureSkipVerify: true}
			if test.certificate != nil {
				config.Certificates = []tls.Certificate{*test.certificate}
			}
			transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+listener.Addr().String()+reviewPath, strings.NewReader(`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"x"}}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			if test.bearer != "" {
				r.Header.Set("Authorization", "Bearer "+test.bearer)
			}
			answer, err := (&http.Client{Transport: transport}).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			if answer.StatusCode != test.status {
				t.Errorf("%s, want %d", answer.Status, test.status)
			}
		})
	}
	if _, err := (auth.ClientCertificate{CAs: way.CAs}).Authenticate(&http.Request{TLS: &tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{certificate(t, "", ca, x509.ExtKeyUsageClientAuth).Leaf},
	}}); !errors.Is(err, auth.ErrForbidden) {
		t.Errorf("neither a configured name nor one in the certificate: got %v, want %v", err, auth.ErrForbidden)
	}
	const token = "8w4usg.qwertzuiopasdfgh" // part of a name that the error shortens
	for n := range 100 {
		if _, err := way.Authenticate(&http.Request{TLS: &tls.ConnectionState{
			PeerCertificates: []*x509.Certificate{certificate(t, strings.Repeat("-", n)+token, ca, x509.ExtKeyUsageClientAuth).Leaf},
		}}); !errors.Is(err, auth.ErrForbidden) || strings.Contains(err.Error(), "8w4usg.q") {
			t.Errorf("after %d: %v", n, err)
		}
	}
}

// Token reviews have slots of their own. Catches a flood of discovery that blocks them.
func TestDiscoveryFloodLeavesTokenReviewsFree(t *testing.T) {
	s := reviewed(t)
	s.Logger = nil
	h := &heldClusterInfo{ClusterInfo: s.ClusterInfo, entered: make(chan struct{}), free: make(chan struct{}), holdJSON: make(chan struct{})}
	s.ClusterInfo = h
	away := make(chan struct{})
	asking := make(chan struct{})
	s.Tokens = waiting(s.store, asking, away)
	handler := s.Handler()
	var flood sync.WaitGroup
	for range httplimit.MaxDiscovery {
		flood.Go(func() {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", infoPath, nil))
		})
	}
	for range httplimit.MaxDiscovery {
		<-h.entered
	}
	var reviews sync.WaitGroup
	for range httplimit.MaxTokenReviews {
		reviews.Go(func() {
			if _, w := ask(t, handler, "v1", tokens.Generate().Reveal()); w.Code != 200 {
				t.Errorf("within the limit: got %d %s, want 200", w.Code, w.Body)
			}
		})
	}
	for range httplimit.MaxTokenReviews {
		<-asking
	}
	w := send(handler, reviewPath, reviewerBearer, "application/json", unread{t})
	if w.Code != 503 || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"kind":"Status"`) {
		t.Errorf("above the limit: got %d %v %s, want 503 and Retry-After 1", w.Code, w.Header(), w.Body)
	}
	close(away)
	reviews.Wait()
	close(h.free)
	flood.Wait()
	if n := s.inFlight(t, "token-review"); n != 0 {
		t.Errorf("got %v reviews in flight at the end, want 0", n)
	}
}

// waiting returns a store whose Get sends on entered and then blocks until free is closed.
func waiting(s tokens.Store, entered chan<- struct{}, free <-chan struct{}) tokens.Store {
	return storetest.Before(func() error { entered <- struct{}{}; <-free; return nil }, "Store.Get").Store(s)
}

// FuzzTokenReview sends any body. Only a body with the token may be authenticated.
func FuzzTokenReview(f *testing.F) {
	s := reviewed(f)
	s.Logger = slog.New(slog.DiscardHandler)
	record, err := s.store.Create(context.Background(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now()))
	if err != nil {
		f.Fatal(err)
	}
	token := record.Token.Reveal()
	for _, body := range []string{
		`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"TOKEN"}}`,
		`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{"creationTimestamp":null},"spec":{"token":"TOKEN","audiences":["a","a"]},"status":{"authenticated":true}}`,
		`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","Spec":{"Token":"TOKEN"}}`,
		`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"TOKEN"},"spec":{"token":""}}`,
		`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":["TOKEN"]}}`,
		strings.Repeat(`{"spec":`, 8<<10),
		`{"spec":{"audiences":[` + strings.Repeat(`"",`, 20<<10) + `""]}}`,
	} {
		f.Add("application/json", []byte(body))
	}
	f.Add("text/plain; charset=\"", []byte("{}"))
	handler := s.Handler()
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		body = bytes.ReplaceAll(body, []byte("TOKEN"), []byte(token))
		fuzzing.RunWithinLimit(t, func() {
			w := send(handler, reviewPath, reviewerBearer, contentType, bytes.NewReader(body))
			var answer authenticationv1.TokenReview
			err := json.Unmarshal(w.Body.Bytes(), &answer)
			switch {
			case w.Code == 200 && err == nil && answer.Kind == "TokenReview":
				if answer.Status.Authenticated && (!bytes.Contains(body, []byte(token)) || answer.Status.User.Username != "system:bootstrap:"+record.Token.ID()) {
					t.Errorf("%s: got %s, want it unauthenticated", body, w.Body)
				}
			case w.Code < 400 || w.Code > 499 || !strings.HasPrefix(w.Body.String(), `{"kind":"Status"`):
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if strings.Contains(w.Body.String(), record.Token.RevealSecret()) {
				t.Errorf("the response shows the token secret: %s", w.Body)
			}
		})
	})
}
