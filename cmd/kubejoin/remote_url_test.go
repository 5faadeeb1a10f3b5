package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

// Another server may mount the API under a path prefix, like examples/mount-server. Commands must accept a URL with
// that path.
func TestURLWithPath(t *testing.T) {
	web := newWebServer(t, func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/join/", http.StripPrefix("/join", api))
		return mux
	})
	at := func(path string, args ...string) (string, error) { return web.run(t, path, args...) }
	made := must.Value(at("/join", "token", "create"))(t)
	token := must.Value(tokens.Parse(strings.TrimSpace(made)))(t)
	if text, err := at("/join/", "token", "list", "-o", "name"); err != nil || !strings.Contains(text, token.ID()) {
		t.Errorf("list: %q, %v", text, err)
	}
	if _, err := at("/join", "token", "delete", token.ID()); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, err := at("", "token", "list"); err == nil || !strings.Contains(err.Error(), "is not from a kubejoin server") {
		t.Errorf("beside the prefix: %v", err)
	}
	for _, path := range []string{"/join?", "/join?a=b", "/join#", "/join#v1"} {
		var usage *usageError
		if _, err := at(path, "token", "list"); !errors.As(err, &usage) {
			t.Errorf("%s: %v, want it refused", path, err)
		}
	}
}

// Catches a client that follows a redirect, and so sends the bearer token to another server.
func TestRedirectsAreNotFollowed(t *testing.T) {
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		elsewhere := make(chan string, 10)
		web := newWebServer(t, func(api http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/v1/", http.RedirectHandler("/elsewhere/", status))
			mux.HandleFunc("/elsewhere/", func(w http.ResponseWriter, r *http.Request) {
				elsewhere <- r.Method + " " + r.Header.Get("Authorization")
				r.URL.Path = "/v1/token"
				api.ServeHTTP(w, r)
			})
			return mux
		})
		for _, command := range []string{"create", "list"} {
			if text, err := web.run(t, "", "token", command); err == nil {
				t.Errorf("%d: %s: no error, and %q", status, command, text)
			}
		}
		select {
		case got := <-elsewhere:
			t.Errorf("%d: a redirect was followed: %s", status, got)
		default:
		}
	}
}
