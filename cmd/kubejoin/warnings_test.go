package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With a kubeconfig alone, who makes a token is told of a cluster-info that is nearly full, and of
// CAs that end.
func TestWarnsOfFullClusterInfoAndExpiringCA(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{})
	kube := onKube{t, c.Kubeconfig()}
	if r := kube.run("token", "create", "--wait", "0").ok(); r.stderr != "" {
		t.Errorf("a cluster with nothing amiss: %s", r.stderr)
	}
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := clusterinfo.Kubeconfig(c.Server(), ca.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	maps := c.Client().CoreV1().ConfigMaps(clusterinfo.Namespace)
	info, err := maps.Get(t.Context(), clusterinfo.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	info.Data[clusterinfo.KubeconfigKey] = string(kubeconfig)
	info.BinaryData = map[string][]byte{"filling": make([]byte, clusterinfo.MaxData*85/100)}
	if _, err := maps.Update(t.Context(), info, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := kube.run("token", "create", "--wait", "0").ok()
	r.warned("kubejoin: warning: cluster-info is 85 % full").warned("kubejoin: warning: no CA in cluster-info lasts longer than to")
	if r := kube.run("token", "create", "--usages", "authentication", "--wait", "0").ok(); strings.Contains(r.stderr, "full") {
		t.Errorf("a token that needs no signature: %s", r.stderr)
	}

	// So is who asks a kubejoin that leaves the signing to others, of whose CA it knows no more.
	dir := t.TempDir()
	own, bearer := filepath.Join(dir, "signers.yaml"), filepath.Join(dir, "bearer")
	for file, content := range map[string]string{
		bearer: "sixteen-or-more-characters",
		own:    "apiVersion: kubejoin.io/v1alpha1\nkind: SignerConfiguration\nsigners:\n- name: example.com/etcd\n  usages: [server auth]\n  subject: {commonNames: [etcd]}\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, flags := range map[string][]string{
		"csr-signer off": {"--controllers", "*,-csr-signer"},
		"shadow":         {"--shadow"},
		"not in a file":  {"--signer-config", own},
	} {
		t.Run(name, func(t *testing.T) {
			url := serveCluster(t, c, "sixteen-or-more-characters,ada,1,kubejoin:admins\n", flags...)
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), []string{"token", "create", "--max-nodes", "1", "--wait", "0", "--url", url, "--ca-file", c.CAFile(), "--bearer-file", bearer}, &stdout, &stderr)
			if err != nil || strings.Count(stderr.String(), "kubejoin: warning: no CA in cluster-info lasts longer than to") != 1 ||
				strings.Count(stderr.String(), "kubejoin: warning: the limits of this token hold only where kubejoin signs") != 1 {
				t.Errorf("%v, and the warnings are %q", err, stderr.String())
			}
		})
	}
}
