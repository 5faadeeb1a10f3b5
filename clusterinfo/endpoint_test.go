package clusterinfo_test

import (
	"crypto/x509"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

func TestCheckEndpoint(t *testing.T) {
	for _, s := range []string{
		"10.0.0.1:6443", "127.0.0.1.example:1", "xn--ncode-1sa6b.example:6443", "api.example.com:443", "API:1", "localhost:65535", "[::1]:6443", "[fd00::1]:6443", "x-1.y-2:8",
	} {
		if err := clusterinfo.CheckEndpoint(s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	refused := []string{
		"", ":6443", "host", "host:", "host:0", "host:65536", "host:+1", "host:01", "host:http", "a:1:2", "::1:6443", "[::1]", "[10.0.0.1]:1",
		"[host]:1", "10.0.0.300:1", "010.0.0.9:1", "1.2.3:1", "12345:1", "a.0x7f:1", "0.0.0.0:1", "[::]:1", "api.example.com.:1", "*.example.com:1", "a_b:1", "host:99999",
		"[fe80::1%eth0]:1", "-x:1", "x-:1", "x..y:1", "https://a:1", "a:1/", "a b:1", strings.Repeat("a", 64) + ":1",
		strings.Repeat("a.", 127) + "a:1", "ünïcode:1", "a:1\n", "\na:1",
	}
	// Input that a shell may read as more than a word.
	for _, c := range "$`\\\"';&|<>(){}*?[]~#!%^=, \t\n\r\x00" {
		refused = append(refused, "a"+string(c)+":1", string(c)+"a:1", "a:1"+string(c), "a:"+string(c)+"1", "["+string(c)+"::1]:1", "[::1"+string(c)+"]:1")
	}
	for _, s := range refused {
		if err := clusterinfo.CheckEndpoint(s); err == nil {
			t.Errorf("%q: got nil, want an error", s)
		}
	}
}

func TestEndpoint(t *testing.T) {
	for server, want := range map[string]string{
		"https://a:6443": "a:6443", "https://a": "a:443", "https://[fd00::1]": "[fd00::1]:443", "https://10.0.0.1:1/path": "10.0.0.1:1",
		"http://a:1": "", "https://a:0": "", "https://a_b:1": "", "": "",
	} {
		if got, err := clusterinfo.Endpoint(server); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %q, %v, want %q", server, got, err, want)
		}
	}
}

// kubeadm discovers the cluster at HOST:PORT. Catches a join command that names another server, without the path.
func TestJoinEndpointRefusesPath(t *testing.T) {
	for server, want := range map[string]string{"https://lb": "lb:443", "https://lb/": "lb:443", "https://lb/k8s/cluster": "", "http://lb": ""} {
		if got, err := clusterinfo.JoinEndpoint(server); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", server, got, err, want)
		}
	}
}

// A server that no join command can name must not get into cluster-info, for example by --api-server. If
// cluster-info already has such a server, and kubeadm and kubectl can use it, it must stay readable.
func TestWritesNoServerThatNoJoinCommandCanName(t *testing.T) {
	cas := []*x509.Certificate{certtest.CA(t, "a").Leaf}
	const good = "https://api.example.com:6443"
	kubeconfig := must.Value(clusterinfo.Kubeconfig(good, cas))(t)
	for server, test := range map[string]struct {
		usable bool // kubeadm and kubectl can use it in an existing cluster-info
		want   string
	}{
		"https://[fe80::1%25eth0]:6443":   {true, "zone"},
		"https://a_b.example.com:6443":    {true, `host "a_b.example.com"`},
		"https://api.example.com.:6443":   {true, "without a final dot"},
		"https://*.example.com:6443":      {true, "letters, digits and hyphens"},
		"https://\u00fc.example.com:6443": {true, "letters, digits and hyphens"},
		"https://010.0.0.9:6443":          {true, "an IP address"},
		"https://10.0.0.300:6443":         {true, "an IP address"},
		"https://0.0.0.0:6443":            {true, "one machine"},
		"https://[::]:6443":               {true, "one machine"},
		"https://fd00::1:6443":            {false, "IPv6 address in brackets"},
		"https://fd00::1":                 {false, "IPv6 address in brackets"},
		"https://a:0":                     {false, "1 to 65535"},
		"https://a:99999":                 {false, "1 to 65535"},
		"https://a:x":                     {false, "https://HOST:PORT"},
		"https://[fe80::1%eth0]:6443":     {false, "https://HOST:PORT"},
		"https://user:hunter2@a:6443":     {false, "no user"},
		"http://a:6443":                   {false, "https://HOST:PORT"},
		"a:6443":                          {false, "https://HOST:PORT"},
		"https://a:6443?x":                {false, "query"},
		"https://a:6443#":                 {false, "fragment"},
		"https://":                        {false, "https://HOST:PORT"},
		"":                                {false, "none given"},
	} {
		_, endpointErr := clusterinfo.Endpoint(server)
		_, kubeconfigErr := clusterinfo.Kubeconfig(server, cas)
		_, withErr := clusterinfo.WithServer(kubeconfig, server)
		for what, err := range map[string]error{"Endpoint": endpointErr, "Kubeconfig": kubeconfigErr, "WithServer": withErr} {
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s of %q: got %v, want an error with %q", what, server, err, test.want)
			}
		}
		existing := []byte(strings.Replace(string(kubeconfig), good, `"`+server+`"`, 1))
		got, _, err := clusterinfo.ParseKubeconfig(existing)
		if test.usable && (err != nil || got != server) || !test.usable && err == nil {
			t.Errorf("an existing cluster-info with server %q: got %q, %v, want usable %t", server, got, err, test.usable)
		}
		if test.usable {
			if same, err := clusterinfo.WithServer(existing, server); err != nil || string(same) != string(existing) {
				t.Errorf("WithServer must keep the existing server %q: %s, %v", server, same, err)
			}
			if moved, err := clusterinfo.WithServer(existing, good); err != nil || string(moved) != string(kubeconfig) {
				t.Errorf("WithServer must replace the existing server %q: %s, %v", server, moved, err)
			}
		}
	}
	for _, server := range []string{
		good, "https://api", "https://10.0.0.1:1", "https://[fd00::1]:6443", "https://[fd00::1]", "HTTPS://API.example.com:65535/",
		"https://rancher.example.com/k8s/clusters/c-1", "https://xn--ncode-1sa6b.example:6443",
	} {
		if moved, err := clusterinfo.WithServer(kubeconfig, server); err != nil {
			t.Errorf("%q: %v", server, err)
		} else if got, _, err := clusterinfo.ParseKubeconfig(moved); err != nil || got != server {
			t.Errorf("%q: read back %q, %v", server, got, err)
		}
	}
}

func TestIsLoopback(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"localhost:6443": true, "LOCALHOST:6443": true, "a.localhost:6443": true, "localhost.localdomain:6443": true, "127.0.0.1:6443": true, "127.9.9.9:1": true,
		"[::1]:6443": true, "[::ffff:127.0.0.1]:6443": true, "10.0.0.1:6443": false, "localhost.example.com:6443": false, "notlocalhost:6443": false, "localhost": false, "": false,
	} {
		if got := clusterinfo.IsLoopback(endpoint); got != want {
			t.Errorf("%q: got %t, want %t", endpoint, got, want)
		}
	}
}
