package main

import "testing"

// A file in the working directory may name any server. Catches a command that sends a bearer token to such a server.
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
