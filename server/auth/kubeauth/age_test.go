package kubeauth_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/auth/kubeauth"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// roundTrips is a fake API server that is called without a network. It returns the status of a TokenReview, and whether
// an access is allowed.
type roundTrips func(*http.Request) map[string]any

func (f roundTrips) RoundTrip(r *http.Request) (*http.Response, error) {
	status := f(r)
	object := map[string]any{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": status}
	if strings.Contains(r.URL.Path, "subjectaccessreviews") {
		object = map[string]any{"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": map[string]any{"allowed": status["allowed"]}}
	}
	body, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

// Catches a cache that keeps reviews longer than documented: a revoked token or permission would stay valid.
func TestCachesReviewsBriefly(t *testing.T) {
	for _, test := range []struct {
		name string
		yes  bool
		age  time.Duration
	}{
		{"good", true, 5 * time.Second},
		{"bad", false, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				yes, asked := test.yes, 0
				client := must.Value(kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: roundTrips(func(*http.Request) map[string]any {
					asked++
					return map[string]any{"authenticated": yes, "audiences": []string{"kubejoin"}, "user": map[string]any{"username": "ada"}, "allowed": yes}
				}), ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}))(t)
				known := &kubeauth.Tokens{Client: client}
				permissions := &kubeauth.Permissions{Client: client}
				for what, ask := range map[string]func() error{
					"a token": func() error { _, err := known.Authenticate(request(t.Context(), bearer)); return err },
					"a permission": func() error {
						return permissions.Authorize(request(t.Context(), bearer), auth.User{Name: "ada"}, auth.Access{Verb: "get", Resource: "tokens"})
					},
				} {
					yes, asked = test.yes, 0
					if err := ask(); (err == nil) != test.yes || asked != 1 {
						t.Fatalf("%s: got %v after %d calls, want allowed %t after 1", what, err, asked, test.yes)
					}
					yes = !yes
					time.Sleep(test.age - time.Nanosecond)
					if err := ask(); (err == nil) != test.yes || asked != 1 {
						t.Errorf("%s, just before %s: got %v after %d calls, want the cached result", what, test.age, err, asked)
					}
					time.Sleep(2 * time.Nanosecond)
					if err := ask(); (err == nil) == test.yes || asked != 2 {
						t.Errorf("%s, after %s: got %v after %d calls, want a new review", what, test.age, err, asked)
					}
				}
			})
		})
	}
}

// slowly is a fake API server that does not respond until it works.
type slowly struct {
	roundTrips
	works atomic.Bool
}

func (s *slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	if !s.works.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return s.roundTrips.RoundTrip(r)
}

// Catches a review without a timeout, and a timed-out review that allows access or that is cached.
func TestSlowReviewTimesOutAndIsNotCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowly{roundTrips: func(*http.Request) map[string]any {
			return map[string]any{"authenticated": true, "audiences": []string{"kubejoin"}, "user": map[string]any{"username": "ada"}, "allowed": true}
		}}
		client := must.Value(kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: api, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}))(t)
		const timeout = 200 * time.Millisecond
		known := &kubeauth.Tokens{Client: client, Timeout: timeout}
		permissions := &kubeauth.Permissions{Client: client, Timeout: timeout}
		authenticate := func() error { _, err := known.Authenticate(request(t.Context(), bearer)); return err }
		authorize := func() error {
			return permissions.Authorize(request(t.Context(), bearer), auth.User{Name: "ada"}, auth.Access{Verb: "get", Resource: "tokens"})
		}
		for what, ask := range map[string]func() error{"token": authenticate, "permission": authorize} {
			start := time.Now()
			err := ask()
			if took := time.Since(start); err == nil || errors.Is(err, auth.ErrBadCredentials) || errors.Is(err, auth.ErrForbidden) || strings.Contains(err.Error(), bearer) || took != timeout {
				t.Errorf("%s: got %v after %s, want a timeout after %s", what, err, took, timeout)
			}
		}
		api.works.Store(true)
		if err := authenticate(); err != nil {
			t.Errorf("token after recovery: %v", err)
		}
		if err := authorize(); err != nil {
			t.Errorf("permission after recovery: %v", err)
		}
	})
}
