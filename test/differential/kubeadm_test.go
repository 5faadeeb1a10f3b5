package differential

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

const initConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.11}
nodeRegistration: {name: control-1, criSocket: "unix:///nonexistent"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: %s
controlPlaneEndpoint: api.example.com:6443
encryptionAlgorithm: %s
certificatesDir: %s
apiServer: {certSANs: [other.example.com, 198.51.100.7]}
`

// A host is a folder with kubeadm's files, and kubeadm's configuration.
type host struct{ dir, config string }

// newKubeadmHost returns a folder in which the real kubeadm has made all certificates and kubeconfigs. Before that, edit
// changes the configuration.
func newKubeadmHost(t *testing.T, algorithm string, edit ...string) (h host, kubeadm string) {
	t.Helper()
	need.Long(t)
	bin := must.Value(cluster.Build(t.Context(), t.Output()))(t)
	kubeadm = filepath.Join(bin, "kubeadm")
	version := strings.TrimSpace(command(t, kubeadm, "version", "--output=short"))
	h = host{dir: t.TempDir(), config: filepath.Join(t.TempDir(), "kubeadm.yaml")}
	must.OK(t, os.WriteFile(h.config, fmt.Appendf(nil, initConfig, version, algorithm, filepath.Join(h.dir, "pki")), 0o600))
	h.edit(t, edit...)
	command(t, kubeadm, "init", "phase", "certs", "all", "--config", h.config)
	command(t, kubeadm, "init", "phase", "kubeconfig", "all", "--config", h.config, "--kubeconfig-dir", h.dir)
	return h, kubeadm
}

// newCSRHost returns a folder with the certificate requests of kubeadm, and only the CA certificates of another host.
func newCSRHost(t *testing.T, kubeadm string, other host) host {
	t.Helper()
	h := host{dir: t.TempDir(), config: other.config}
	command(t, kubeadm, "certs", "generate-csr", "--config", h.config, "--cert-dir", filepath.Join(h.dir, "pki"), "--kubeconfig-dir", h.dir)
	for _, ca := range []string{"ca.crt", "front-proxy-ca.crt", "etcd/ca.crt"} {
		content := harness.ReadFile(t, filepath.Join(other.dir, "pki", ca))
		must.OK(t, os.WriteFile(filepath.Join(h.dir, "pki", ca), []byte(content), 0o600))
	}
	return h
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", filepath.Base(name), args, err, out)
	}
	return string(out)
}

// certificates returns the certificates in a host's folder by file, and its kubeconfigs without credentials.
func (h host) certificates(t *testing.T) (certs map[string]*x509.Certificate, kubeconfigs map[string]string) {
	t.Helper()
	certs, kubeconfigs = map[string]*x509.Certificate{}, map[string]string{}
	data := regexp.MustCompile(`client-(certificate|key)-data: (\S+)`)
	must.OK(t, filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && (d.Name() == "tmp" || d.Name() == "kubejoin-ca") { // these folders have only copies
				return fs.SkipDir
			}
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, h.dir)
		switch filepath.Ext(path) {
		case ".conf":
			m := data.FindSubmatch(content)
			if m == nil {
				return fmt.Errorf("%s has no client certificate", path)
			}
			kubeconfigs[name] = string(data.ReplaceAll(content, nil))
			if content, err = base64.StdEncoding.DecodeString(string(m[2])); err != nil {
				return err
			}
		case ".crt":
		default:
			return nil
		}
		block, _ := pem.Decode(content)
		if block == nil {
			return fmt.Errorf("%s: no PEM", path)
		}
		certs[name], err = x509.ParseCertificate(block.Bytes)
		return err
	}))
	return certs, kubeconfigs
}

// TestSignsWhatKubeadmMakes compares the certificates that kubejoin signs for a host without CA keys with the certificates
// of kubeadm init. They must be equal in every field except serial, key and times. In addition, kubejoin's certificates
// have a subject key identifier, which is a hash of the key. apiserver-kubelet-client lacks the group that kubeadm 1.35.4
// gives it.
func TestSignsWhatKubeadmMakes(t *testing.T) {
	harness.Parallel(t)
	for _, algorithm := range []string{"RSA-2048", "ECDSA-P256"} {
		t.Run(algorithm, func(t *testing.T) {
			theirs, kubeadm := newKubeadmHost(t, algorithm)
			ours, pki := newCSRHost(t, kubeadm, theirs), filepath.Join(theirs.dir, "pki")
			signer := []string{"--pki-dir", pki}
			if algorithm == "RSA-2048" { // use HTTPS with this algorithm
				must.OK(t, os.WriteFile(filepath.Join(pki, "signers.yaml"), []byte(command(t, harness.Kubejoin(), "signer-config", "default", "--kubeadm")), 0o600))
				data := filepath.Join(t.TempDir(), "data")
				server := harness.ServeStandalone(t, data, "--signer-config="+filepath.Join(pki, "signers.yaml"),
					"--cluster-signing-cert-file="+filepath.Join(pki, "ca.crt"), "--cluster-signing-key-file="+filepath.Join(pki, "ca.key"))
				signer = []string{"--url", "https://" + server.Endpoint, "--curlrc", filepath.Join(data, "curlrc")}
			}
			if out := command(t, harness.Kubejoin(), append([]string{"sign", "--kubeadm-dir", ours.dir}, signer...)...); strings.Count(out, "signed") != 12 {
				t.Errorf("want 12 certificates, got\n%s", out)
			}
			want, wantFiles := theirs.certificates(t)
			got, gotFiles := ours.certificates(t)
			compare(t, want, got)
			for name, text := range wantFiles {
				if name == "/kubelet.conf" { // its server is the host itself with kubeadm init, but the endpoint with kubeadm certs generate-csr
					text = strings.Replace(text, "https://192.0.2.11:6443", "https://api.example.com:6443", 1)
				}
				if gotFiles[name] != text {
					t.Errorf("%s: got\n%s\nwant\n%s", name, gotFiles[name], text)
				}
			}

			// The second time, the command must find nothing to do.
			if out := command(t, harness.Kubejoin(), append([]string{"sign", "--kubeadm-dir", ours.dir}, signer...)...); !strings.Contains(out, "all certificates are valid already") {
				t.Errorf("the second time: %s", out)
			}
			out := command(t, harness.Kubejoin(), "certs", "check", ours.dir)
			if strings.Contains(out, " yes ") || strings.Count(out, "<none>") != 12+3+3+15 {
				t.Errorf("check:\n%s", out)
			}
			renewed := command(t, harness.Kubejoin(), append([]string{"certs", "renew", ours.dir}, signer...)...)
			again, _ := ours.certificates(t)
			compare(t, want, again)
			for name, cert := range got {
				same := cert.SerialNumber.Cmp(again[name].SerialNumber) == 0
				if keep := cert.IsCA || name == "/kubelet.conf"; same != keep {
					t.Errorf("%s: renewed: %v", name, !same)
				}
				if !bytes.Equal(cert.RawSubjectPublicKeyInfo, again[name].RawSubjectPublicKeyInfo) {
					t.Errorf("%s has another key", name)
				}
			}
			_, backup, _ := strings.Cut(renewed, "the old files are in ")
			if old, _ := (host{dir: strings.TrimSpace(backup)}).certificates(t); len(old) != 11 || !old["/pki/apiserver.crt"].Equal(got["/pki/apiserver.crt"]) {
				t.Errorf("the old files are not kept: %v", slices.Collect(maps.Keys(old)))
			}
			for _, file := range []string{"ca.key", "front-proxy-ca.key", "etcd/ca.key"} {
				if _, err := os.Stat(filepath.Join(ours.dir, "pki", file)); err == nil {
					t.Errorf("the host has %s", file)
				}
			}
		})
	}
}

func compare(t *testing.T, want, got map[string]*x509.Certificate) {
	t.Helper()
	if len(want) != 15 || len(got) != len(want) {
		t.Errorf("got %d certificates, want %d of kubeadm, which are 15", len(got), len(want))
	}
	extensions := func(c *x509.Certificate) map[string]string {
		all := map[string]string{}
		for _, e := range c.Extensions {
			if id := e.Id.String(); id != "2.5.29.14" || c.IsCA { // subject key identifier
				all[id] = fmt.Sprintf("%v %x", e.Critical, e.Value)
			}
		}
		return all
	}
	for name, w := range want {
		g := got[name]
		if g == nil {
			t.Errorf("there is no %s", name)
			continue
		}
		subject := w.RawSubject
		if name == "/pki/apiserver-kubelet-client.crt" && slices.Equal(w.Subject.Organization, []string{"kubeadm:cluster-admins"}) { // kubeadm before 1.35.5

			subject = must.Value(asn1.Marshal(pkix.Name{CommonName: w.Subject.CommonName}.ToRDNSequence()))(t)
		}
		for field, pair := range map[string][2]any{
			"subject":              {fmt.Sprintf("%x", subject), fmt.Sprintf("%x", g.RawSubject)},
			"issuer":               {fmt.Sprintf("%x", w.RawIssuer), fmt.Sprintf("%x", g.RawIssuer)},
			"version":              {w.Version, g.Version},
			"signature algorithm":  {w.SignatureAlgorithm, g.SignatureAlgorithm},
			"public key algorithm": {w.PublicKeyAlgorithm, g.PublicKeyAlgorithm},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s: %s: got %v, want %v", name, field, pair[1], pair[0])
			}
		}
		if we, ge := extensions(w), extensions(g); !maps.Equal(we, ge) {
			t.Errorf("%s: extensions: got %v, want %v", name, ge, we)
		}
		if differs := g.NotAfter.Sub(w.NotAfter).Abs(); differs > time.Hour {
			t.Errorf("%s: it ends %s apart", name, differs)
		}
	}
}
