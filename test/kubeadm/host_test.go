package kubeadm

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
	"k8s.io/client-go/tools/clientcmd"
)

// TestHostsRenewByThemselves lets the certificates of two control planes end in minutes. The DaemonSet of deploy/host must
// renew them, and restart the static pods that read them only at their start. No request may fail, and no API server may
// restart.
func TestHostsRenewByThemselves(t *testing.T) {
	harness.Parallel(t)
	r := newRotationTest(t)
	r.addPod()
	started := r.apiServersStarted()
	probe := must.Value(r.startProbe(t.Context(), r.kubeconfigs(), r.first))(t)
	began := time.Now()
	for _, m := range r.nodes {
		r.age(m)
	}
	const due = "certificates that are due: admin.conf,apiserver,apiserver-etcd-client,apiserver-kubelet-client,controller-manager.conf,etcd-healthcheck-client,etcd-peer,etcd-server,front-proxy-client,scheduler.conf,super-admin.conf\n"
	if output := r.on(r.first, harness.Kubejoin(), "host", "apply", "--dry-run"); !strings.HasPrefix(output, due) {
		t.Errorf("got %s, want %s", output, due)
	}
	r.installHost("[host, apply, --watch]", "[host, apply, --watch, --restart=vip]")
	harness.WaitFor(t, 6*time.Minute, "new certificates", func() error {
		for _, m := range r.nodes {
			list, err := credentials.KubeadmFiles{Dir: filepath.Join(m.root(), "etc/kubernetes")}.List()
			if err != nil {
				return err
			}
			for _, c := range list {
				if c.CA != "" && c.Name != "kubelet.conf" && (c.Problem != "" || c.NotAfter == nil || time.Until(*c.NotAfter) < 24*time.Hour) {
					return fmt.Errorf("%s on %s ends at %s; %s", c.Name, m.Name, c.NotAfter, c.Problem)
				}
			}
		}
		return nil
	})
	renewed := time.Now()
	t.Logf("renewed after %.1f s", renewed.Sub(began).Seconds())
	harness.Wait(t, "an Event for each certificate", func() error {
		text, err := r.Kubectl(t.Context(), "get", "events", "--field-selector=reason=CertificateRenewed", "--output=jsonpath={range .items[*]}{.message}{\"\\n\"}{end}")
		if n := strings.Count(text, "kubejoin renewed the certificate in /etc/kubernetes/"); err == nil && n != 21 {
			err = fmt.Errorf("%d Events:\n%s", n, text) // only the first control plane has super-admin.conf
		}
		return err
	})
	r.awaitPod(time.Now())
	r.on(r.first, harness.Kubejoin(), "host", "apply") // exits with 0: nothing is left to do
	if got := r.apiServersStarted(); got != started {
		t.Errorf("API servers started at %s, before at %s: they reload certificates", got, started)
	}
	r.check(must.Value(probe.stop())(t), 300)
}

// installHost creates the DaemonSet of deploy/host, with old replaced by text.
func (r *rotationTest) installHost(old, text string) {
	r.t.Helper()
	content := string(must.Value(os.ReadFile(harness.RepositoryFile(r.t, "deploy/host/daemonset.yaml")))(r.t))
	for old, text := range map[string]string{"ghcr.io/kubejoin/kubejoin:dev": image, old: text} {
		if !strings.Contains(content, old) {
			r.t.Fatalf("the DaemonSet has no %q", old)
		}
		content = strings.Replace(content, old, text, 1)
	}
	const file = "/etc/kubernetes/host.yaml"
	r.must(r.first.writeFile(r.t.Context(), file, content))
	r.kubectl("apply", "--filename", file)
}

// age replaces kubeadm's certificates on a machine by certificates for the same keys that expire in minutes.
func (r *rotationTest) age(m *Machine) {
	r.t.Helper()
	dir := filepath.Join(m.root(), "etc/kubernetes")
	var cas []tls.Certificate
	for _, name := range []string{"pki/ca", "pki/front-proxy-ca", "pki/etcd/ca"} {
		cas = append(cas, must.Value(tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")))(r.t))
	}
	aged := func(chain []byte) []byte {
		leaf := must.Value(pemfile.Certificates(chain))(r.t)[0]
		for _, ca := range cas {
			if leaf.IsCA || leaf.CheckSignatureFrom(ca.Leaf) != nil {
				continue
			}
			const ends = 15 * time.Minute
			der := must.Value(x509.CreateCertificate(rand.Reader, &x509.Certificate{
				SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: leaf.Subject, DNSNames: leaf.DNSNames, IPAddresses: leaf.IPAddresses,
				KeyUsage: leaf.KeyUsage, ExtKeyUsage: leaf.ExtKeyUsage, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(ends),
			}, ca.Leaf, leaf.PublicKey, ca.PrivateKey))(r.t)
			return pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: der})
		}
		return nil
	}
	replace := func(file string, content []byte) { // in one step, because API servers may read the file at any time
		file = strings.TrimPrefix(file, m.root())
		r.must(m.writeFile(r.t.Context(), "/run/aged", string(content)))
		r.on(m, "sh", "-euc", `cp --preserve=mode "$1" "$1.aged"; cat /run/aged >"$1.aged"; mv "$1.aged" "$1"`, "sh", file)
	}
	for _, pattern := range []string{"*.conf", "pki/*.crt", "pki/etcd/*.crt"} {
		for _, file := range must.Value(filepath.Glob(filepath.Join(dir, pattern)))(r.t) {
			content := must.Value(os.ReadFile(file))(r.t)
			if filepath.Ext(file) == ".conf" {
				config := must.Value(clientcmd.Load(content))(r.t)
				for _, user := range config.AuthInfos {
					if len(user.ClientCertificateData) > 0 {
						user.ClientCertificateData = aged(user.ClientCertificateData)
						replace(file, must.Value(clientcmd.Write(*config))(r.t))
					}
				}
			} else if content = aged(content); content != nil {
				replace(file, content)
			}
		}
	}
}
