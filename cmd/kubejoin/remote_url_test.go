package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/tokens"
)

// The API may be under a prefix of another server, as examples/mount-server has it: commands reach it
// by a URL with that path.
func TestURLWithPath(t *testing.T) {
	web := newWebServer(t, func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/join/", http.StripPrefix("/join", api))
		return mux
	})
	at := func(path string, args ...string) (string, error) { return web.run(t, path, args...) }
	made, err := at("/join", "token", "create")
	if err != nil {
		t.Fatal(err)
	}
	token, err := tokens.Parse(strings.TrimSpace(made))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := at("/join/", "token", "list", "-o", "name"); err != nil || !strings.Contains(text, token.ID()) {
		t.Errorf("list: %q, %v", text, err)
	}
	if _, err := at("/join", "token", "delete", token.ID()); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, err := at("", "token", "list"); err == nil || !strings.Contains(err.Error(), "not as a kubejoin server does") {
		t.Errorf("beside the prefix: %v", err)
	}
	for _, path := range []string{"/join?", "/join?a=b", "/join#", "/join#v1"} {
		var usage *usageError
		if _, err := at(path, "token", "list"); !errors.As(err, &usage) {
			t.Errorf("%s: %v, want it refused", path, err)
		}
	}
}
