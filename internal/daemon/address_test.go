package daemon

import (
	"bytes"
	"encoding/pem"
	"log/slog"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"k8s.io/client-go/rest"
)

// A join command cannot contain every server address that a kubeconfig may contain. kubejoin must start with such a
// kubeconfig, but not create a cluster-info with that server.
func TestCreatesNoClusterInfoWithServerThatNoJoinCommandCanName(t *testing.T) {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certtest.CA(t, "a").Leaf.Raw})
	for host, want := range map[string]string{
		"https://api.example.com:6443": "https://api.example.com:6443", "https://api.example.com.:6443": "", "https://a_b:6443": "", "10.0.0.1:6443": "", "http://a:1": "",
	} {
		c := &connection{service: &service{}, ClusterOptions: ClusterOptions{Kubeconfig: "admin.conf"}, config: &rest.Config{Host: host, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}}
		kubeconfig, err := c.firstKubeconfig()
		if err != nil || (kubeconfig == nil) != (want == "") {
			t.Fatalf("%s: %s, %v", host, kubeconfig, err)
		}
		if want == "" {
			continue
		}
		if server, _, err := clusterinfo.ParseKubeconfig(kubeconfig); err != nil || server != want {
			t.Errorf("%s: got server %q, %v", host, server, err)
		}
	}
}

// Without --advertise, a standalone kubejoin prints the address of --listen in join commands.
func TestReachableRefusesHostThatNoJoinCommandCanName(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:9443": "127.0.0.1:9443", "[fd00::1]:9443": "[fd00::1]:9443", "join.example.com:9443": "join.example.com:9443",
		"[fe80::1%eth0]:9443": "", "join_1:9443": "", "join.example.com.:9443": "", "9443": "",
	} {
		if got, err := reachable(listen); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q, %v, want %q", listen, got, err, want)
		}
	}
}

func TestWarnsOfLoopback(t *testing.T) {
	for _, test := range []struct {
		options Options
		want    string
	}{
		{Options{Advertise: "localhost:9443", APIServer: "https://api.example.com"}, "flag=--advertise address=localhost:9443\n"},
		{Options{APIServer: "https://127.0.0.1:6443"}, "flag=--api-server address=127.0.0.1:6443\n"},
		{Options{Advertise: "join.example.com:9443"}, ""},
	} {
		var log bytes.Buffer
		newService(test.options, slog.New(slog.NewTextHandler(&log, nil)), nil).warnOfLoopback()
		if !strings.HasSuffix(log.String(), test.want) || (log.Len() == 0) != (test.want == "") {
			t.Errorf("%+v: got %q, want %q", test.options, &log, test.want)
		}
	}
}
