package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/client-go/rest"
)

func TestHostOf(t *testing.T) {
	for server, want := range map[string]string{
		"https://api.example.com:6443":  "api.example.com",
		"https://api.example.com/k8s/1": "api.example.com",
		"https://[2001:db8::1]:6443":    "2001:db8::1",
		"10.0.0.1:6443":                 "10.0.0.1",
		"join.example.com:9443":         "join.example.com",
		"[2001:db8::1]:6443":            "2001:db8::1",
		"api.example.com":               "api.example.com",
		":9443":                         "",
		"":                              "",
	} {
		if got := hostOf(server); got != want {
			t.Errorf("host of %q is %q, want %q", server, got, want)
		}
	}
}

func TestAPIServerHosts(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true, ServerName: "api.example.com"}}
	api := newAPIServer(config)
	if got := api.hosts(); !slices.Equal(got, []string{"127.0.0.1", "api.example.com"}) {
		t.Errorf("before it was asked: %q", got)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	cert := server.Certificate()
	for _, want := range append(slices.Clone(cert.DNSNames), cert.IPAddresses[0].String()) {
		if got := api.hosts(); !slices.Contains(got, want) {
			t.Errorf("hosts are %q, without %q of the certificate", got, want)
		}
	}
	o := serveOptions{apiServer: "https://api.example.com:6443", advertise: "join.example.com:9443", tlsSANs: []string{"10.0.0.9"}}
	if got := o.hosts(); !slices.Equal(got, []string{"api.example.com", "join.example.com", "10.0.0.9"}) {
		t.Errorf("hosts of flags are %q", got)
	}
}
