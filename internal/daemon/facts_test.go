package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
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
	client := must.Value(rest.HTTPClientFor(config))(t)
	answer := must.Value(client.Get(server.URL))(t)
	_ = answer.Body.Close()
	cert := server.Certificate()
	for _, want := range append(slices.Clone(cert.DNSNames), cert.IPAddresses[0].String()) {
		if got := api.hosts(); !slices.Contains(got, want) {
			t.Errorf("hosts are %q, without %q of the certificate", got, want)
		}
	}
	o := Options{APIServer: "https://api.example.com:6443", Advertise: "join.example.com:9443", TLS: TLS{SANs: []string{"10.0.0.9"}}}
	if got := o.hosts(); !slices.Equal(got, []string{"api.example.com", "join.example.com", "10.0.0.9"}) {
		t.Errorf("hosts of flags are %q", got)
	}
}

// A kubelet whose certificate contains a name of kubejoin could impersonate kubejoin.
func TestReservesOwnHosts(t *testing.T) {
	var served atomic.Pointer[tls.Certificate]
	s := &service{options: Options{APIServer: "https://api.example.com:6443", Advertise: "join.example.com:9443"}}
	certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if c := served.Load(); c != nil {
			return c, nil
		}
		return nil, errors.New("none yet")
	}
	authority := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	kubeconfig := must.Value(clusterinfo.Kubeconfig("https://10.0.0.2:6443", authority.Bundle()))(t)
	store := must.Value(boltstore.Open(filepath.Join(t.TempDir(), "tokens.db")))(t)
	defer func() { _ = store.Close() }() // only this test uses the store
	info := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig}
	hosts := map[string]func() ([]string, error){
		"standalone": func() ([]string, error) {
			facts := standaloneFacts{Standalone: signer.Standalone{Keep: approval.ClusterAddresses{APIServer: []string{"10.0.0.1"}}}, ownHosts: func() ([]string, error) { return s.ownHosts(certificate) }}
			reserved, err := facts.ClusterAddresses(t.Context())
			return reserved.APIServer, err
		},
		"on a cluster": func() ([]string, error) {
			return s.facts(nil, newAPIServer(&rest.Config{Host: "https://10.0.0.1:6443"}), nil, info, certificate).APIServers(t.Context())
		},
	}
	for name, hosts := range hosts {
		served.Store(nil)
		if got, err := hosts(); err == nil {
			t.Errorf("%s: without a certificate %q are reserved, want an error", name, got)
		}
		for _, leaf := range []*x509.Certificate{
			{DNSNames: []string{"node-1", "*.example.org"}, IPAddresses: []net.IP{net.ParseIP("10.0.0.7"), net.ParseIP("2001:db8::7")}},
			{DNSNames: []string{"node-2"}},
		} {
			served.Store(&tls.Certificate{Leaf: leaf})
			got := must.Value(hosts())(t)
			for _, want := range append(hostsIn(leaf), "api.example.com", "join.example.com") {
				if !slices.Contains(got, want) {
					t.Errorf("%s: reserved are %q, without %q", name, got, want)
				}
			}
			if slices.Contains(got, "") || leaf.DNSNames[0] == "node-2" && slices.Contains(got, "node-1") {
				t.Errorf("%s: reserved are %q", name, got)
			}
		}
	}
}
