package main

import "testing"

// Catches a bearer token that goes to a server which a file in the working directory names.
func TestTrustsOnlyLoopbackServerOfForeignCurlrc(t *testing.T) {
	for server, want := range map[string]string{
		"https://127.0.0.1:9443":     "https://127.0.0.1:9443",
		"https://[::1]:9443":         "https://[::1]:9443",
		"https://192.0.2.1:9443":     "",
		"https://evil.example:9443":  "",
		"https://127.0.0.1.evil:443": "",
		"https://%zz":                "",
		"":                           "",
	} {
		if got := onThisMachine(server); got != want {
			t.Errorf("%q: got %q, want %q", server, got, want)
		}
	}
}
