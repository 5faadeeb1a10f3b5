package kubeauth_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/auth/kubeauth"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) { cluster.Main(m) }

const bearer = "eyJhbGciOiJSUzI1NiJ9.not-a-real-one.but-of-the-form"

// patience is how long tests wait for a condition, which a slow machine reaches late.
const patience = 2 * time.Minute

func request(ctx context.Context, bearer string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/token", nil)
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	return r
}

// fakeReviews is an API server whose token and access reviews the test sets.
type fakeReviews struct {
	mu     sync.Mutex
	asked  []string // bodies of the requests
	token  func(*authenticationv1.TokenReview)
	access func(*authorization.SubjectAccessReview)
	answer http.HandlerFunc // if set, replaces token and access
}

func (l *fakeReviews) client(t *testing.T) kubernetes.Interface {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		l.mu.Lock()
		l.asked = append(l.asked, string(body))
		answer := l.answer
		l.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		var object any
		if strings.Contains(r.URL.Path, "tokenreviews") {
			review := &authenticationv1.TokenReview{}
			err = json.Unmarshal(body, review)
			l.token(review)
			object = review
		} else {
			review := &authorization.SubjectAccessReview{}
			err = json.Unmarshal(body, review)
			l.access(review)
			object = review
		}
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(object)
	}))
	t.Cleanup(s.Close)
	return must.Value(kubernetes.NewForConfig(&rest.Config{Host: s.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}))(t)
}

func (l *fakeReviews) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.asked)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	ada := authenticationv1.UserInfo{
		Username: "ada", UID: "1", Groups: []string{"dev", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"JTI=1"}},
	}
	yes := func(audiences ...string) authenticationv1.TokenReviewStatus {
		return authenticationv1.TokenReviewStatus{Authenticated: true, User: ada, Audiences: audiences}
	}
	for _, test := range []struct {
		name      string
		audiences []string
		status    authenticationv1.TokenReviewStatus
		err       error // want an error that wraps it; nil: want user ada
		other     bool  // want an error that wraps no auth error
	}{
		{name: "good", status: yes("kubejoin")},
		{name: "good for another audience, too", status: yes("other", "kubejoin")},
		{name: "one of two audiences", audiences: []string{"a", "b"}, status: yes("b")},
		{name: "API server without audiences", status: yes(), err: auth.ErrBadCredentials},
		{name: "other audiences", status: yes("https://kubernetes.default.svc"), err: auth.ErrBadCredentials},
		{name: "default audience where another is configured", audiences: []string{"a"}, status: yes("kubejoin"), err: auth.ErrBadCredentials},
		{name: "not authenticated", status: authenticationv1.TokenReviewStatus{Error: "bad " + bearer}, err: auth.ErrBadCredentials},
		{name: "not authenticated, with a user and audiences", status: authenticationv1.TokenReviewStatus{User: ada, Audiences: []string{"kubejoin"}}, err: auth.ErrBadCredentials},
		{name: "authenticated without a user", status: authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"kubejoin"}}, other: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := &fakeReviews{token: func(r *authenticationv1.TokenReview) { r.Status = test.status }}
			known := &kubeauth.Tokens{Client: l.client(t), Audiences: test.audiences, Timeout: patience}
			start := time.Now()
			user, err := known.Authenticate(request(t.Context(), bearer))
			switch {
			case test.other:
				if err == nil || errors.Is(err, auth.ErrBadCredentials) || errors.Is(err, auth.ErrNoCredentials) {
					t.Errorf("got %+v, %v, want an error that is no auth error", user, err)
				}
			case !errors.Is(err, test.err):
				t.Errorf("got %+v, %v, want error %v", user, err, test.err)
			case test.err == nil:
				want := auth.User{Name: "ada", UID: "1", Groups: ada.Groups, Extra: map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=1"}}}
				if !reflect.DeepEqual(user, want) {
					t.Errorf("got %+v, want %+v", user, want)
				}
			}
			if err != nil && (strings.Contains(err.Error(), bearer) || user.Name != "") {
				t.Errorf("got %+v, %v, want no user and no token in the error", user, err)
			}
			want := test.audiences
			if want == nil {
				want = []string{"kubejoin"}
			}
			var asked authenticationv1.TokenReview
			if l.count() != 1 || json.Unmarshal([]byte(l.asked[0]), &asked) != nil || asked.Spec.Token != bearer || !slices.Equal(asked.Spec.Audiences, want) {
				t.Errorf("got %d reviews, the last for audiences %q, want 1 for %q", l.count(), asked.Spec.Audiences, want)
			}
			for range 50 { // both results are cached for at least one second, which a busy machine may exceed
				_, _ = known.Authenticate(request(t.Context(), bearer))
			}
			if n := l.count(); !test.other && n != 1 && time.Since(start) < time.Second {
				t.Errorf("got %d reviews, want 1", n)
			}
		})
	}
}

// Catches a bootstrap token or a malformed credential being sent to the API server for review.
func TestReviewsOnlyPossibleServiceAccountTokens(t *testing.T) {
	t.Parallel()
	l := &fakeReviews{token: func(r *authenticationv1.TokenReview) {
		r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "ada"}, Audiences: []string{"kubejoin"}}
	}}
	known := &kubeauth.Tokens{Client: l.client(t), Timeout: patience}
	basic, two := request(t.Context(), ""), request(t.Context(), bearer)
	basic.SetBasicAuth("ada", bearer)
	two.Header.Add("Authorization", "Bearer "+bearer)
	for name, test := range map[string]struct {
		r    *http.Request
		want error
	}{
		"nothing":           {request(t.Context(), ""), auth.ErrNoCredentials},
		"empty":             {request(t.Context(), " "), auth.ErrBadCredentials},
		"another scheme":    {basic, auth.ErrBadCredentials},
		"two":               {two, auth.ErrBadCredentials},
		"too long":          {request(t.Context(), strings.Repeat("a", auth.MaxBearer+1)), auth.ErrBadCredentials},
		"a bootstrap token": {request(t.Context(), tokens.Generate().Reveal()), auth.ErrBadCredentials},
		"a published one":   {request(t.Context(), "abcdef.0123456789abcdef"), auth.ErrBadCredentials},
	} {
		if _, err := known.Authenticate(test.r); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
	if l.count() != 0 {
		t.Errorf("got %d reviews, want none", l.count())
	}
	if _, err := known.Authenticate(request(t.Context(), strings.Repeat("a", auth.MaxBearer))); err != nil || l.count() != 1 {
		t.Errorf("longest token: got %v after %d reviews, want success after 1", err, l.count())
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		status authorization.SubjectAccessReviewStatus
		want   string // yes, no or failed
	}{
		{"yes", authorization.SubjectAccessReviewStatus{Allowed: true}, "yes"},
		{"no", authorization.SubjectAccessReviewStatus{}, "no"},
		{"no with a reason", authorization.SubjectAccessReviewStatus{Reason: "because"}, "no"},
		{"denied", authorization.SubjectAccessReviewStatus{Denied: true, EvaluationError: "x"}, "no"},
		{"allowed and denied", authorization.SubjectAccessReviewStatus{Allowed: true, Denied: true}, "no"},
		{"authorizer unavailable", authorization.SubjectAccessReviewStatus{EvaluationError: "away"}, "failed"},
		{"allowed by another authorizer", authorization.SubjectAccessReviewStatus{Allowed: true, EvaluationError: "away"}, "yes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := &fakeReviews{access: func(r *authorization.SubjectAccessReview) { r.Status = test.status }}
			p := &kubeauth.Permissions{Client: l.client(t), Timeout: patience}
			user := auth.User{Name: "ada", UID: "1", Groups: []string{"dev"}, Extra: map[string][]string{"k": {"v"}}}
			ask := func(u auth.User, a auth.Access) string {
				switch err := p.Authorize(request(t.Context(), ""), u, a); {
				case err == nil:
					return "yes"
				case errors.Is(err, auth.ErrForbidden):
					if reason := test.status.Reason; reason != "" && !strings.HasSuffix(err.Error(), ": "+reason) {
						t.Errorf("got %v, want the reason %q", err, reason)
					}
					return "no"
				}
				return "failed"
			}
			access := auth.Access{Verb: "create", Resource: "tokens/groups", Name: "system:bootstrappers:foo"}
			start := time.Now()
			for range 10 {
				if got := ask(user, access); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
			}
			// A refusal is cached for one second, which a busy machine may exceed.
			if n := l.count(); (n == 1) != (test.want != "failed") && time.Since(start) < time.Second {
				t.Errorf("got %d reviews for result %s, want 1, or more if failed", n, test.want)
			}
			var asked authorization.SubjectAccessReview
			must.OK(t, json.Unmarshal([]byte(l.asked[0]), &asked))
			if want := (authorization.SubjectAccessReviewSpec{
				User: "ada", UID: "1", Groups: []string{"dev", "system:authenticated"}, Extra: map[string]authorization.ExtraValue{"k": {"v"}},
				ResourceAttributes: &authorization.ResourceAttributes{Group: "kubejoin.io", Version: "*", Verb: "create", Resource: "tokens", Subresource: "groups", Name: "system:bootstrappers:foo"},
			}); !reflect.DeepEqual(asked.Spec, want) {
				t.Errorf("got review of %+v, want %+v", asked.Spec, want)
			}
			// The cached result applies to no other user and no other access.
			before := l.count()
			others := []auth.User{{Name: "ada"}, {Name: "ada", UID: "2", Groups: user.Groups, Extra: user.Extra}, {Name: "ada", UID: "1", Groups: []string{"dev "}, Extra: user.Extra},
				{Name: "ada", UID: "1", Groups: user.Groups, Extra: map[string][]string{"k": {"v", ""}}}, {Name: "eve", UID: "1", Groups: user.Groups, Extra: user.Extra}}
			for _, u := range others {
				ask(u, access)
			}
			accesses := []auth.Access{{Verb: "create", Resource: "tokens"}, {Verb: "create", Resource: "tokens/groups"}, {Verb: "update", Resource: "tokens/groups", Name: access.Name}, {Verb: "create", Resource: "tokens/groups", Name: access.Name, Group: "x"}}
			for _, a := range accesses {
				ask(user, a)
			}
			if n := l.count() - before; n != len(others)+len(accesses) {
				t.Errorf("got %d reviews, want %d", n, len(others)+len(accesses))
			}
		})
	}
}

// Catches a failed review that allows access, or that is cached after the API server works again.
func TestUnavailableAPIServerAllowsNothingAndIsNotCached(t *testing.T) {
	t.Parallel()
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, answer := range map[string]http.HandlerFunc{
		"forbidden to kubejoin": status(403), "not found": status(404), "error": status(500), "overloaded": status(429),
		"cut off": func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		},
		"an error with the token in it": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(500)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500,"message":"cannot review `+bearer+`"}`)
		},
		"not an API server": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>yes</html>") },
		"an empty object": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{}")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &fakeReviews{answer: answer}
			client := l.client(t)
			known := &kubeauth.Tokens{Client: client, Timeout: patience}
			permissions := &kubeauth.Permissions{Client: client, Timeout: patience}
			s := server.Server{Tokens: struct{ tokens.Store }{}, ClusterInfo: struct{ server.ClusterInfo }{}, Callers: server.Callers{Authenticate: known.Authenticate, Authorize: permissions.Authorize}}
			h := must.Value(s.Handler())(t)
			ask := func() *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, request(t.Context(), bearer))
				return w
			}
			wantToken := 503
			if name == "an empty object" { // means not authenticated
				wantToken = 401
			}
			if w := ask(); w.Code != wantToken || (w.Code == 503) != (w.Header().Get("Retry-After") != "") || strings.Contains(w.Body.String(), bearer) {
				t.Errorf("token: got %d %v %s, want %d", w.Code, w.Header(), w.Body, wantToken)
			}
			if _, err := known.Authenticate(request(t.Context(), bearer)); err == nil || strings.Contains(err.Error(), bearer) {
				t.Errorf("got error %v, want one without the token", err)
			}
			s.Callers.Authenticate = func(*http.Request) (auth.User, error) { return auth.User{Name: "ada"}, nil }
			h = must.Value(s.Handler())(t)
			if w := ask(); w.Code != 503 {
				t.Errorf("permission: got %d %s, want 503", w.Code, w.Body)
			}
			if name == "an empty object" {
				return
			}
			// The API server works again.
			l.mu.Lock()
			l.answer = nil
			l.access = func(r *authorization.SubjectAccessReview) { r.Status.Allowed = true }
			l.token = func(r *authenticationv1.TokenReview) {
				r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "ada"}, Audiences: []string{"kubejoin"}}
			}
			l.mu.Unlock()
			if _, err := known.Authenticate(request(t.Context(), bearer)); err != nil {
				t.Errorf("token after recovery: %v", err)
			}
			if err := permissions.Authorize(request(t.Context(), ""), auth.User{Name: "ada"}, auth.Access{Verb: "get", Resource: "tokens"}); err != nil {
				t.Errorf("permission after recovery: %v", err)
			}
		})
	}
}

// Checks authentication of service account tokens and authorization by RBAC on a real API server.
func TestReviewsOnRealAPIServer(t *testing.T) {
	t.Parallel()
	client := cluster.Shared(t).Client()
	ctx := t.Context()
	accounts := client.CoreV1().ServiceAccounts("default")
	must.Value(accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "kubeauth"}}, metav1.CreateOptions{}))(t)
	token := func(audiences ...string) string {
		granted := must.Value(accounts.CreateToken(ctx, "kubeauth", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{}))(t)
		return granted.Status.Token
	}
	known := &kubeauth.Tokens{Client: client, Timeout: patience}
	user, err := known.Authenticate(request(ctx, token("kubejoin")))
	if err != nil || user.Name != "system:serviceaccount:default:kubeauth" || user.UID == "" || !slices.Contains(user.Groups, "system:serviceaccounts:default") ||
		len(user.Extra["authentication.kubernetes.io/credential-id"]) != 1 {
		t.Errorf("%+v %v", user, err)
	}
	for name, bearer := range map[string]string{"the API server's own audience": token(), "another audience": token("other"), "garbage": bearer} {
		if user, err := known.Authenticate(request(ctx, bearer)); !errors.Is(err, auth.ErrBadCredentials) {
			t.Errorf("%s: %+v %v", name, user, err)
		}
	}
	permissions := &kubeauth.Permissions{Client: client, Timeout: patience}
	may := func(resource, name string) error {
		return permissions.Authorize(request(ctx, ""), user, auth.Access{Verb: "create", Resource: resource, Name: name})
	}
	if err := may("tokens", ""); !errors.Is(err, auth.ErrForbidden) {
		t.Errorf("without rights: %v", err)
	}
	must.Value(client.RbacV1().ClusterRoles().Create(ctx, &rbac.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "kubeauth"}, Rules: []rbac.PolicyRule{
		{APIGroups: []string{"kubejoin.io"}, Resources: []string{"tokens"}, Verbs: []string{"create"}},
		{APIGroups: []string{"kubejoin.io"}, Resources: []string{"tokens/groups"}, ResourceNames: []string{"system:bootstrappers:a"}, Verbs: []string{"create"}},
	}}, metav1.CreateOptions{}))(t)
	must.Value(client.RbacV1().ClusterRoleBindings().Create(ctx, &rbac.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeauth"}, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "kubeauth"},
		Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: "default", Name: "kubeauth"}},
	}, metav1.CreateOptions{}))(t)
	// RBAC uses the binding only later, and the cached refusal must expire first.
	wait.OK(t, "permission tokens", func() error { return may("tokens", "") })
	if err := may("tokens/groups", "system:bootstrappers:a"); err != nil {
		t.Error(err)
	}
	for resource, name := range map[string]string{"tokens/groups": "system:bootstrappers:b", "tokens/unlimited": "", "tokens/roles": "control-plane"} {
		if err := may(resource, name); !errors.Is(err, auth.ErrForbidden) {
			t.Errorf("%s %s: %v", resource, name, err)
		}
	}
}
