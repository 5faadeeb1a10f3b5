package kube_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations/kube"
	"github.com/kubejoin/kubejoin/signer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// Catches a rotation whose old CAs are not those that the cluster trusts, and an old key from another folder.
func TestPreparesCAWithFilesOfControlPlane(t *testing.T) {
	pki := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(pki, "etcd"), 0o700))
	ca := func(name string) []byte {
		cert, key, err := must.Value(signer.GenerateCA(filepath.Base(name), time.Now(), 24*time.Hour))(t).PEM()
		must.OK(t, errors.Join(err, os.WriteFile(filepath.Join(pki, name+".crt"), cert, 0o600), os.WriteFile(filepath.Join(pki, name+".key"), key, 0o600)))
		return cert
	}
	frontProxy, etcd := ca("front-proxy-ca"), ca("etcd/ca")
	client := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		Data:       map[string]string{"requestheader-client-ca-file": string(frontProxy)},
	})
	c := must.Value(kube.Open(t.Context(), client, pki))(t)
	made := must.Value(c.PrepareCA(t.Context(), "front-proxy", api.PrepareCA{}))(t)
	if len(made.Old) != 1 || made.Old[0].Certificate != string(frontProxy) || made.Cross == "" || len(made.CertificateKey) != 64 {
		t.Errorf("front-proxy: got %+v, want the CA in extension-apiserver-authentication, and a cross certificate", made)
	}
	stored := must.Value(client.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "kubejoin-ca", metav1.GetOptions{}))(t)
	if !strings.Contains(stored.Data["front-proxy"], made.ID) {
		t.Errorf("got ConfigMap %q, want rotation %s in it", stored.Data, made.ID)
	}
	if got := must.Value(c.CARotation(t.Context(), "front-proxy"))(t); got.ID != made.ID || got.CertificateKey != "" {
		t.Errorf("got %+v, want the rotation without its certificate key", got)
	}
	// An interrupted command or another writer may leave a wrong copy. The status must report it.
	behind := func() []api.CABehind { return must.Value(c.CARotation(t.Context(), "front-proxy"))(t).Behind }
	names := func(b api.CABehind) bool {
		return strings.Contains(b.Why, "ConfigMap kube-public/kubejoin-ca has another state of the front-proxy CA")
	}
	if slices.ContainsFunc(behind(), names) {
		t.Errorf("got %+v, want nothing about the copy", behind())
	}
	stored.Data["front-proxy"] = "{}"
	must.Value(client.CoreV1().ConfigMaps("kube-public").Update(t.Context(), stored, metav1.UpdateOptions{}))(t)
	if !slices.ContainsFunc(behind(), names) {
		t.Errorf("got %+v, want the changed copy", behind())
	}
	_, err := c.StepCA(t.Context(), "front-proxy", "abort", api.StepCA{})
	must.OK(t, err)
	if slices.ContainsFunc(behind(), names) {
		t.Errorf("got %+v after a step, want the copy corrected", behind())
	}
	// Without a control plane, no host can be observed.
	must.Value(c.PrepareCA(t.Context(), "front-proxy", api.PrepareCA{}))(t)
	if _, err := c.StepCA(t.Context(), "front-proxy", "switch", api.StepCA{}); err == nil || !strings.Contains(err.Error(), "cannot switch") {
		t.Errorf("switch: got %v, want a wrong step", err)
	}
	if got := must.Value(c.PrepareCA(t.Context(), "etcd", api.PrepareCA{DryRun: true}))(t); got.Old[0].Certificate != string(etcd) {
		t.Errorf("etcd: got %+v, want the CA in etcd/ca.crt", got)
	}

	must.OK(t, os.Remove(filepath.Join(pki, "etcd/ca.key")))
	_, err = c.PrepareCA(t.Context(), "etcd", api.PrepareCA{})
	if f := (api.InvalidFields)(nil); !errors.As(err, &f) || f[0].Field != "noCrossSign" || !strings.Contains(f[0].Detail, "run the command on a control plane") {
		t.Errorf("without the old key: got %v, want field noCrossSign", err)
	}
	if got := must.Value(c.PrepareCA(t.Context(), "etcd", api.PrepareCA{NoCrossSign: true, DryRun: true}))(t); got.Cross != "" {
		t.Errorf("got a cross certificate without the old key: %s", got.Cross)
	}
	must.OK(t, os.Remove(filepath.Join(pki, "etcd/ca.crt")))
	for _, c := range []*kube.Cluster{c, must.Value(kube.Open(t.Context(), client, ""))(t)} { // a retry cannot help
		_, err := c.PrepareCA(t.Context(), "etcd", api.PrepareCA{NoCrossSign: true})
		if f := (api.InvalidFields)(nil); !errors.As(err, &f) || f[0].Field != "ca" || !strings.Contains(f[0].Detail, "with a kubeconfig on a control plane") {
			t.Errorf("without the CA of etcd: got %v, want field ca", err)
		}
	}
	if _, err := c.PrepareCA(t.Context(), "cluster", api.PrepareCA{}); err == nil || !strings.Contains(err.Error(), "cluster-info") {
		t.Errorf("without cluster-info: got %v, want an error that names it", err)
	}
}

// An operator may add the CA of a load balancer to cluster-info. If a rotation treated it as an old CA, hosts would
// accept its client certificates.
func TestReplacesOnlyCAsOfClients(t *testing.T) {
	pem := func(ca *tls.Certificate) string { return rotationtest.PEM(ca.Leaf) }
	own, balancer := certtest.CA(t, "kubernetes"), certtest.CA(t, "balancer")
	info := must.Value(clusterinfo.Kubeconfig("https://192.0.2.1:6443", []*x509.Certificate{balancer.Leaf, own.Leaf}))(t)
	for name, test := range map[string]struct{ clients, want, err string }{
		"one of two":     {pem(own), pem(own), ""},
		"an earlier one": {pem(certtest.CA(t, "earlier")) + pem(own), pem(own), ""},
		"both":           {pem(own) + pem(balancer), pem(balancer) + pem(own), ""},
		"no client CA":   {"", pem(balancer) + pem(own), ""},
		"another":        {pem(certtest.CA(t, "clients")), "", "want one of the CAs whose client certificates API servers accept"},
		"malformed":      {"x", "", "client-ca-file"},
	} {
		client := fake.NewClientset(
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{clusterinfo.KubeconfigKey: string(info)}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: map[string]string{"client-ca-file": test.clients}})
		made, err := must.Value(kube.Open(t.Context(), client, ""))(t).PrepareCA(t.Context(), "cluster", api.PrepareCA{NoCrossSign: true, DryRun: true})
		got := ""
		for _, c := range made.Old {
			got += c.Certificate
		}
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got %s, %v, want %s, %q", name, got, err, test.want, test.err)
		}
	}
}
