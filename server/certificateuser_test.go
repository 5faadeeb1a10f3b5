package server_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
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
		s.Authenticate = func(*http.Request) (auth.User, error) {
			return auth.User{Name: "ada", Groups: []string{"kubejoin:admins"}}, nil
		}
		if w := from(t, s.Handler(), "192.0.2.1:1", "POST", certificatePath+"?signer=kubernetes.io/kube-apiserver-client-kubelet", "", strings.NewReader(nodeCSR(t, "worker-1"))); w.Code != test.want {
			t.Errorf("%v: %d %s, want %d", test.err, w.Code, w.Body, test.want)
		}
	}
}

func TestSignsNothingWithoutAuthorize(t *testing.T) {
	s, _ := certifying(t)
	s.Authorize = nil
	if w := from(t, s.Handler(), "192.0.2.1:1", "POST", certificatePath+"?signer=kubernetes.io/kube-apiserver-client-kubelet", adminBearer, strings.NewReader(nodeCSR(t, "worker-1"))); w.Code != 403 {
		t.Errorf("%d %s, want 403", w.Code, w.Body)
	}
}

// failing is a store with claims where the call number at fails. The first call is number 1.
type failing struct {
	tokens.Store
	at    int
	calls int
	err   error // nil: errStore
}

var errStore = errors.New("the store does not answer")

func (f *failing) fails() error {
	if f.calls++; f.calls == f.at {
		return cmp.Or(f.err, errStore)
	}
	return nil
}

func (f *failing) Get(ctx context.Context, id string) (tokens.Record, error) {
	if err := f.fails(); err != nil {
		return tokens.Record{}, err
	}
	return f.Store.Get(ctx, id)
}

func (f *failing) List(ctx context.Context) ([]tokens.Record, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	return f.Store.List(ctx)
}

func (f *failing) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	if err := f.fails(); err != nil {
		return tokens.Record{}, err
	}
	return f.Store.Create(ctx, r)
}

func (f *failing) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	if err := f.fails(); err != nil {
		return tokens.Record{}, err
	}
	return f.Store.Update(ctx, id, change)
}

// failingClaims is the claims store of a failing store.
type failingClaims struct {
	tokens.Counter
	*failing
}

func (f failingClaims) Get(ctx context.Context, node string) (tokens.Claim, error) {
	if err := f.fails(); err != nil {
		return tokens.Claim{}, err
	}
	return f.Counter.Get(ctx, node)
}

func (f failingClaims) List(ctx context.Context) ([]tokens.Claim, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	return f.Counter.List(ctx)
}

func (f failingClaims) HeldBy(ctx context.Context, id string) ([]tokens.Claim, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	return f.Counter.HeldBy(ctx, id)
}

func (f failingClaims) Update(ctx context.Context, node string, change func(*tokens.Claim) error) (tokens.Claim, error) {
	if err := f.fails(); err != nil {
		return tokens.Claim{}, err
	}
	return f.Counter.Update(ctx, node, change)
}

func (f failingClaims) Delete(ctx context.Context, c tokens.Claim) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Counter.Delete(ctx, c)
}

func (f failingClaims) Commit(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) ([]tokens.Claim, error) {
	if err := f.fails(); err != nil {
		return nil, err
	}
	return f.Counter.Commit(ctx, before, after, changes)
}

func (f failingClaims) Create(ctx context.Context, c tokens.Claim) (tokens.Claim, error) {
	return f.Counter.Create(ctx, c)
}

func (f failingClaims) Watch(ctx context.Context) <-chan struct{} { return f.Counter.Watch(ctx) }

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
		"renew":              {"POST", "/v1/token/ID/renew", `{"ttl": "3h"}`, 2},
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
			store := &failing{Store: s.Tokens, at: at}
			s.Claims, s.Tokens = failingClaims{s.Claims.(tokens.Counter), store}, store
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
