package server_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// Catches a fallback to another authentication after a client certificate was refused or could not be checked.
func TestRefusedClientCertificateEndsAuthentication(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{auth.ErrForbidden, 403},
		{auth.ErrBadCredentials, 401},
		{errors.New("the CA cannot be read"), 503},
		{auth.ErrNoCredentials, 200},
	} {
		s, _ := certifying(t)
		s.Certificates.ClientCertificate = func(*http.Request) (auth.User, error) { return auth.User{}, fmt.Errorf("x: %w", test.err) }
		s.Callers.Authenticate = func(*http.Request) (auth.User, error) {
			return auth.User{Name: "ada", Groups: []string{"kubejoin:admins"}}, nil
		}
		if w := from(t, s.Handler(), "192.0.2.1:1", "POST", certificatePath+"?signer=kubernetes.io/kube-apiserver-client-kubelet", "", strings.NewReader(nodeCSR(t, "worker-1"))); w.Code != test.want {
			t.Errorf("%v: %d %s, want %d", test.err, w.Code, w.Body, test.want)
		}
	}
}

func TestSignsNothingWithoutAuthorize(t *testing.T) {
	s, _ := certifying(t)
	s.Callers.Authorize = nil
	if w := from(t, s.Handler(), "192.0.2.1:1", "POST", certificatePath+"?signer=kubernetes.io/kube-apiserver-client-kubelet", adminBearer, strings.NewReader(nodeCSR(t, "worker-1"))); w.Code != 403 {
		t.Errorf("%d %s, want 403", w.Code, w.Body)
	}
}

// failing makes the call number at of stores fail. The first call is number 1.
type failing struct {
	at    int
	calls int
	err   error // nil: errStore
}

var errStore = errors.New("the store does not answer")

func (f *failing) faults(c *storetest.Call, do func() error) error {
	switch c.Method {
	case "Store.Find", "Store.Delete", "Store.Update.change", "Claims.Find", "Claims.HeldBy.cached", "Claims.Create", "Claims.Update.change":
		return do()
	}
	if f.calls++; f.calls == f.at {
		return cmp.Or(f.err, errStore)
	}
	return do()
}

// Catches a success response although a call of the store failed before the write.
func TestStoreFailureIsUnavailable(t *testing.T) {
	const chosen = "q2w3e4.qwertzuiopasdfgh"
	for name, test := range map[string]struct {
		method, path, body string
		write              int // the number of the last call that must succeed; 0: the last call
	}{
		"claims":             {"GET", "/v1/claim", "", 0},
		"release":            {"DELETE", "/v1/claim/worker-1", "", 0},
		"dry run of release": {"DELETE", "/v1/claim/worker-1?dryRun=true", "", 0},
		"token":              {"GET", "/v1/token/ID", "", 1},
		"dry run":            {"POST", "/v1/token", `{"token": "` + chosen + `", "dryRun": true}`, 0},
		"renew":              {"POST", "/v1/token/ID/renew", `{"ttl": "3h"}`, 1},
		"create":             {"POST", "/v1/token", `{"token": "` + chosen + `", "wait": "0s"}`, 2},
	} {
		for at, done := 1, false; !done; at++ {
			s, _ := certifying(t)
			held := s.token(t, once)
			id, _, _ := strings.Cut(s.token(t, nil), ".")
			handler := s.Handler()
			if w := from(t, handler, "192.0.2.1:1", "POST", certificatePath, held, strings.NewReader(nodeCSR(t, "worker-1"))); w.Code != 200 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			store := &failing{at: at}
			s.Claims, s.Tokens = storetest.Faulty(store.faults).Claims(s.Claims), storetest.Faulty(store.faults).Store(s.Tokens)
			r := httptest.NewRequestWithContext(t.Context(), test.method, strings.ReplaceAll(test.path, "ID", id), strings.NewReader(test.body))
			r.Header.Set("Authorization", "Bearer "+adminBearer)
			if test.body != "" {
				r.Header.Set("Content-Type", "application/json")
			}
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			if done = store.calls < at; done {
				if w.Code >= 300 || at == 1 {
					t.Errorf("%s: %d %s after %d calls", name, w.Code, w.Body, store.calls)
				}
			} else if w.Code != 503 && (test.write == 0 || at <= test.write) {
				t.Errorf("%s, call %d of the store fails: %d %s, want 503", name, at, w.Code, w.Body)
			}
		}
	}
}
