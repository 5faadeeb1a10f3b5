package main

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/pki"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// If a certificate expires in minutes, host apply must renew it, log one line, create one Event and write metrics.
func TestHostApply(t *testing.T) {
	w := newCAWorker(t)
	w.rotation = rotation.Rotation{}
	certs, key, err := w.old.PEM()
	must.OK(t, err)
	ca := must.Value(tls.X509KeyPair(certs, key))(t)
	leaf := certtest.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"kubeadm:cluster-admins"}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10 * time.Minute),
	}, &ca)
	config := must.Value(clientcmd.LoadFromFile(filepath.Join(w.dir, "kubelet.conf")))(t)
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}), ClientKeyData: must.Value(keyutil.MarshalPrivateKeyToPEM(leaf.PrivateKey))(t),
	}
	admin, metrics := filepath.Join(w.dir, "admin.conf"), filepath.Join(t.TempDir(), "kubejoin.prom")
	must.OK(t, clientcmd.WriteToFile(*config, admin))
	before := must.Value(os.ReadFile(admin))(t)
	apply := func(args ...string) (stdout, stderr string, err error) {
		return runCommand(t, append([]string{"host", "apply", w.dir, "--kubelet-dir", w.kubelet, "--metrics-file", metrics}, args...)...)
	}
	if _, _, err := apply(); err == nil || !strings.Contains(err.Error(), "has no CA of kubeadm with its key: want "+filepath.Join(w.dir, "pki/ca.crt")) || !strings.Contains(err.Error(), "give a server that signs: --url") {
		t.Errorf("without a CA key: got %v", err)
	}
	if text := string(must.Value(os.ReadFile(metrics))(t)); !strings.Contains(text, "kubejoin_host_last_success_timestamp_seconds 0\n") {
		t.Errorf("after a failure: got metrics\n%s", text)
	}
	must.OK(t, os.WriteFile(filepath.Join(w.dir, "pki/ca.key"), key, 0o600))
	stdout, _, err := apply("--dry-run")
	if err != nil || stdout != "certificates that are due: admin.conf\nno CA is rotated\n" || string(must.Value(os.ReadFile(admin))(t)) != string(before) {
		t.Errorf("dry run: %v\n%s", err, stdout)
	}
	stdout, stderr, err := apply("-o", "json")
	var done struct{ Renewed pki.Renewed }
	if err != nil || json.Unmarshal([]byte(stdout), &done) != nil || strings.Join(done.Renewed.Changed, " ") != "admin.conf" || !strings.Contains(stderr, "kubejoin: writing "+admin) {
		t.Errorf("got %v\n%s%s", err, stdout, stderr)
	}
	if len(w.events) != 1 || !strings.Contains(w.events[0], "CertificateRenewed") || !strings.Contains(w.events[0], admin) {
		t.Errorf("got Events %q", w.events)
	}
	text := string(must.Value(os.ReadFile(metrics))(t))
	for _, want := range []string{"kubejoin_host_left 0\n", `kubejoin_host_certificate_expiration_timestamp_seconds{certificate="admin.conf"} `, "kubejoin_host_last_success_timestamp_seconds 1."} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %q:\n%s", want, text)
		}
	}
	if stdout, stderr, err := apply(); err != nil || stdout != "certificates renewed: <none>; restarted: <none>\nno CA is rotated\n" || strings.Contains(stderr, "writing") {
		t.Errorf("the second time: %v\n%s%s", err, stdout, stderr)
	}
	for want, flags := range map[string][]string{"--renew-before: -1s given": {"--renew-before", "-1s"}, "--wait: 0s given": {"--wait", "0"}, "DIR: 2 given": {"other"},
		"--pki-passphrase-file: excludes --url": {"--pki-passphrase-file", "x", "--url", "https://h"}, "want a name that ends in .prom": {"--metrics-file", "kubejoin.txt"}} {
		if _, _, err := apply(flags...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", flags, err, want)
		}
	}
}
