package configmap_test

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
)

// Run must return before it replaces a working kubeconfig with a kubeconfig by which no machine can join.
func TestSignerRefusesServerThatNoJoinCommandCanName(t *testing.T) {
	for _, server := range []string{"https://[fe80::1%25eth0]:6443", "https://a_b:6443", "https://a:0", "http://a"} {
		if err := (configmap.Signer{Server: server}).Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "cluster-info: server: ") {
			t.Errorf("%s: got %v, want an error about the server", server, err)
		}
	}
}
