package server_test

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
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

// reviewer authenticates kube-apiserver.
func reviewer() auth.Authenticate {
	return must.Get(auth.ParseTokenFile([]byte(reviewerBearer + ",kube-apiserver,\n"))).Authenticate
}

// reviewed returns a site that reviews tokens for kube-apiserver.
func reviewed(t testing.TB) *site {
	t.Helper()
	s := newSite(t)
	s.Webhooks.TokenReview = &server.TokenReview{Authenticate: reviewer()}
	return s
}

// ask posts a review as kube-apiserver does.
func ask(t testing.TB, handler http.Handler, version, token string, audiences ...string) (authenticationv1.TokenReview, *httptest.ResponseRecorder) {
	t.Helper()
	body := jsonOf(t, authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/" + version, Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	})
	w := send(handler, reviewPath+"?timeout=30s", reviewerBearer, "application/json", strings.NewReader(body))
	var answer authenticationv1.TokenReview
	if w.Code == http.StatusOK {
		must.OK(t, json.Unmarshal(w.Body.Bytes(), &answer))
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
	yes := accepted(id, "system:bootstrappers", tokens.DefaultGroup)
	for _, test := range []struct {
		name       string
		shown      string
		change     func(*tokens.Record) // changes the token before it is stored
		broken     func(*tokens.Record) // damages the token after it is stored
		later      time.Duration
		asked, own []string // audiences
		want       authenticationv1.TokenReviewStatus
		audiences  []string
	}{
		{name: "good", want: yes},
		{name: "without groups", change: func(r *tokens.Record) { r.Groups = nil }, want: accepted(id, "system:bootstrappers")},
		{
			name: "groups are a sorted set", want: accepted(id, "system:bootstrappers", "system:bootstrappers:a", "system:bootstrappers:b"),
			change: func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:b", "system:bootstrappers:a"} },
		},
		{name: "signing is nothing to it", change: func(r *tokens.Record) { r.Signing = false }, want: yes},
		{name: "a second before its end", later: time.Hour - 2*time.Second, want: yes},
		{name: "expired", later: time.Hour},
		{name: "not for authentication", change: func(r *tokens.Record) { r.Authentication, r.Groups = false, nil }},
		{name: "malformed record", broken: func(r *tokens.Record) { r.Problem = errors.New("bad group") }},
		{name: "record without its secret", broken: func(r *tokens.Record) { r.Token, _ = tokens.OnlyID(id) }},
		{name: "unknown", shown: tokens.Generate().Reveal()},
		{name: "another secret", shown: id + "." + tokens.Generate().RevealSecret()},
		{name: "something else", shown: "eyJhbGciOiJSUzI1NiJ9.e30.AAAA"},
		{name: "for an audience, own unknown", asked: []string{"vault"}, want: yes},
		{name: "for its audience", asked: []string{"vault", "api"}, own: []string{"api", "https://kubernetes.default.svc"}, want: yes, audiences: []string{"api"}},
		{name: "for another audience", asked: []string{"vault"}, own: []string{"api"}},
		{name: "for no audience", own: []string{"api"}, want: yes},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := reviewed(t)
			record := record
			if test.change != nil {
				test.change(&record)
			}
			must.Get(s.store.Create(t.Context(), record))
			if test.broken != nil {
				s.Tokens = storetest.Alter(test.broken).Store(s.store)
			}
			s.Webhooks.TokenReview.Audiences = test.own
			s.Webhooks.TokenReview.Now = func() time.Time { return now.Add(test.later) }
			shown, want := cmp.Or(test.shown, record.Token.Reveal()), test.want // a refusal has no reason
			want.Audiences = test.audiences
			handler := s.Handler()
			for _, version := range []string{"v1", "v1beta1"} {
				got, w := ask(t, handler, version, shown, test.asked...)
				if w.Code != 200 || got.Kind != "TokenReview" || got.APIVersion != "authentication.k8s.io/"+version || !reflect.DeepEqual(got.Status, want) || strings.Contains(w.Body.String(), secret) {
					t.Errorf("%s: %d %s, want %+v", version, w.Code, w.Body, want)
				}
			}
			if logs := s.logs.String(); strings.Contains(logs, secret) || strings.Contains(logs, shown) {
				t.Errorf("the log shows the reviewed token:\n%s", logs)
			}
		})
	}
}

// Catches a refused review whose reason is not in the debug log. The response must not contain the reason.
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
	const v1beta1 = "/apis/authentication.k8s.io/v1beta1/tokenreviews"
	working, open, away := reviewed(t), reviewed(t), reviewed(t)
	open.Webhooks.TokenReview = &server.TokenReview{}
	away.Webhooks.TokenReview.Authenticate = func(*http.Request) (auth.User, error) { return auth.User{}, errors.New("away") }
	h := working.Handler()
	for name, test := range map[string]struct {
		handler            http.Handler
		path, bearer, body string
		status             int
		want               string
	}{
		"good":                            {h, reviewPath, reviewerBearer, good, 200, `"status":{"user":{}}`},
		"the other path":                  {h, v1beta1, reviewerBearer, good, 200, `authentication.k8s.io/v1"`},
		"null metadata and what may come": {h, reviewPath, reviewerBearer, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{"creationTimestamp":null},"spec":{"token":"x","more":1},"status":{"user":{}}}`, 200, `v1beta1"`},
		"no credential":                   {h, reviewPath, "", good, 401, "kubejoin webhook-config"},
		"an operator":                     {h, reviewPath, adminBearer, good, 401, "are not those of kube-apiserver"},
		"another version":                 {h, reviewPath, reviewerBearer, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v2"}`, 400, "want kind TokenReview"},
		"another kind":                    {h, reviewPath, reviewerBearer, `{"kind":"SubjectAccessReview","apiVersion":"authentication.k8s.io/v1"}`, 400, "want kind TokenReview"},
		"no JSON":                         {h, reviewPath, reviewerBearer, `{"kind"`, 400, "not a TokenReview in JSON"},
		"a number":                        {h, reviewPath, reviewerBearer, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":1}}`, 400, "not a TokenReview in JSON"},
		"empty":                           {h, reviewPath, reviewerBearer, "", 400, "not a TokenReview in JSON"},
		"too large":                       {h, reviewPath, reviewerBearer, `{"spec":{"token":"` + strings.Repeat("x", server.MaxBody) + `"}}`, 413, "want at most 65536"},
		"off":                             {newSite(t).Handler(), reviewPath, reviewerBearer, good, 404, ""},
		"nobody may":                      {open.Handler(), reviewPath, reviewerBearer, good, 403, ""},
		"authenticator away":              {away.Handler(), reviewPath, reviewerBearer, good, 503, `"retryAfterSeconds"`},
	} {
		w := send(test.handler, test.path, test.bearer, "application/json", strings.NewReader(test.body))
		var status metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &status); w.Code != test.status || !strings.Contains(w.Body.String(), test.want) || w.Code != 200 && (err != nil || status.Kind != "Status" || int(status.Code) != test.status) {
			t.Errorf("%s: %d %s, want %d %s", name, w.Code, w.Body, test.status, test.want)
		}
	}
	if w := send(h, reviewPath, reviewerBearer, "application/vnd.kubernetes.protobuf", strings.NewReader(good)); w.Code != 415 {
		t.Errorf("another type: %d %s", w.Code, w.Body)
	}
}

// Package auth tests certificates. Catches a certificate that the server does not request, or that authenticates a
// request with a bearer token.
func TestTokenReviewByClientCertificate(t *testing.T) {
	s := reviewed(t)
	way := auth.ClientCertificate{CAs: s.roots, Name: "kube-apiserver-kubelet-client"}
	s.Webhooks.TokenReview.Authenticate = auth.HeaderOrCertificate(s.Webhooks.TokenReview.Authenticate, way.Authenticate)
	s.start(t)
	own, eve, other := s.userCertificate(t, way.Name), s.userCertificate(t, "eve"), newSite(t).userCertificate(t, way.Name)
	for _, test := range []struct {
		shown  *tls.Certificate
		bearer string
		status int
	}{{own, "", 200}, {own, adminBearer, 401}, {eve, reviewerBearer, 200}, {eve, "", 403}, {other, "", 401}, {&tls.Certificate{}, "", 401}} {
		if got, _ := s.post(t, s.showing(t, *test.shown), reviewPath, test.bearer, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"x"}}`); got.status != test.status {
			t.Errorf("%+v: got %d %s, want %d", test.shown.Leaf, got.status, got.body, test.status)
		}
	}
}
