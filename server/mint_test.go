package server_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var errReset = errors.New("connection reset")

// failingStore is a store that fails before or after a call takes effect.
type failingStore struct {
	tokens.Store
	// before and after return the error of call n, or nil. All methods count together.
	before, after func(n int) error
	calls         int
}

func (s *failingStore) call(f func() error) error {
	n := s.calls
	s.calls++
	if s.before != nil {
		if err := s.before(n); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		return err
	}
	if s.after != nil {
		return s.after(n)
	}
	return nil
}

func (s *failingStore) Create(ctx context.Context, r tokens.Record) (stored tokens.Record, err error) {
	err = s.call(func() error { stored, err = s.Store.Create(ctx, r); return err })
	return stored, err
}

func (s *failingStore) Get(ctx context.Context, id string) (r tokens.Record, err error) {
	err = s.call(func() error { r, err = s.Store.Get(ctx, id); return err })
	return r, err
}

func (s *failingStore) Delete(ctx context.Context, r tokens.Record) error {
	return s.call(func() error { return s.Store.Delete(ctx, r) })
}

func always(int) error { return errReset }

func first(fail int) func(int) error { return firstWith(fail, errReset) }

func firstWith(fail int, err error) func(int) error {
	return func(n int) error {
		if n < fail {
			return err
		}
		return nil
	}
}

// Catches a failed request that leaves a token in the store without naming it.
func TestJoinCommandLeavesNoUnnamedToken(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "x", nil)
	for _, test := range []struct {
		name          string
		before, after func(int) error
		status, left  int
		says          string
		atMost        time.Duration
	}{
		{name: "nothing", status: 200, left: 1, atMost: time.Second},
		{name: "a short absence", before: first(5), status: 200, left: 1, atMost: 5 * time.Second},
		{name: "answers lost", after: first(3), status: 200, left: 1, atMost: 5 * time.Second},
		{name: "away for long", before: always, status: 503, left: 0, says: "was stored nevertheless, no client received it, and it expires at", atMost: 20 * time.Second},
		{name: "answers lost for long", after: first(27), status: 503, left: 0, atMost: 20 * time.Second}, // 25 calls to store it
		{
			name: "answer lost, then away", status: 503, left: 1, says: "was stored nevertheless, no client received it, and it expires at", atMost: 20 * time.Second,
			before: func(n int) error {
				if n > 0 {
					return errReset
				}
				return nil
			},
			after: always,
		},
		{name: "an API server that fails", before: firstWith(5, apierrors.NewServiceUnavailable("x")), status: 200, left: 1, atMost: 5 * time.Second},
		{name: "a redirect on the way", before: firstWith(5, &apierrors.StatusError{ErrStatus: metav1.Status{Code: 302}}), status: 200, left: 1, atMost: 5 * time.Second},
		{name: "a plain no", before: func(int) error { return forbidden }, status: 503, left: 0, atMost: 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.Advertise = "192.0.2.1:9443"
				s.Tokens = &failingStore{Store: s.store, before: test.before, after: test.after}
				began := time.Now()
				r := httptest.NewRequestWithContext(t.Context(), "POST", commandPath, nil)
				r.Header.Set("Authorization", "Bearer "+adminBearer)
				w := httptest.NewRecorder()
				s.Handler().ServeHTTP(w, r)
				took := time.Since(began)
				body := w.Body.String()
				if w.Code != test.status || took > test.atMost {
					t.Errorf("%d after %s, want %d within %s: %s", w.Code, took, test.status, test.atMost, body)
				}
				if w.Code == 503 && (w.Header().Get("Retry-After") == "" || !strings.Contains(body, "token-not-stored")) {
					t.Errorf("got %s, want Retry-After and problem token-not-stored", body)
				}
				ids := s.ids(t)
				if len(ids) != test.left {
					t.Errorf("got tokens %v in the store, want %d", ids, test.left)
				}
				for _, id := range ids {
					if !strings.Contains(body, id) {
						t.Errorf("the response does not name token %s, which is in the store", id)
					}
				}
				if !strings.Contains(body, test.says) || test.says == "" && strings.Contains(body, "nevertheless") {
					t.Errorf("got %s, want %q in it", body, test.says)
				}
			})
		})
	}
}

// occupied is a store that already has another token with the ID of the first one to be created.
type occupied struct {
	tokens.Store
	other tokens.Token
}

func (s *occupied) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	if s.other.IsZero() {
		var err error
		if s.other, err = tokens.New(r.Token.ID(), tokens.Generate().RevealSecret()); err != nil {
			return r, err
		}
		other := r
		other.Token = s.other
		if _, err := s.Store.Create(ctx, other); err != nil {
			return r, err
		}
	}
	return s.Store.Create(ctx, r)
}

// Catches a response with the secret of another token that happens to have the generated ID.
func TestGeneratesTokenOfFreeID(t *testing.T) {
	s := newSite(t)
	s.Advertise = "192.0.2.1:9443"
	store := &occupied{Store: s.store}
	s.Tokens = store
	_, token, _ := parseLine(t, serveOnce(t, s.Handler(), commandPath))
	if token.ID() == store.other.ID() || s.record(t, store.other.ID()).Token != store.other || s.record(t, token.ID()).Token != token {
		t.Errorf("got token %s, want one with another ID than %s", token, store.other)
	}
}
