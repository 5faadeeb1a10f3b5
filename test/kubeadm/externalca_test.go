package kubeadm

import (
	"crypto"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// The CAs of a cluster, below the folder pki.
var cas = []string{"ca", "front-proxy-ca", "etcd/ca"}

// TestClusterWithoutCAKeys creates a cluster of two control planes and a worker with the real kubeadm. A standalone
// kubejoin on a machine outside the cluster has the CA keys. No host of the cluster may ever have a CA key.
func TestClusterWithoutCAKeys(t *testing.T) {
	harness.Parallel(t)
	c := ForTest(t)
	ctx, dir := t.Context(), t.TempDir()
	first := addMachine(t, c, "control-1")
	pki, data := filepath.Join(dir, "pki"), filepath.Join(dir, "data")
	for _, phase := range []string{"ca", "front-proxy-ca", "etcd-ca"} {
		host(t, dir, filepath.Join(c.kube, "kubeadm"), "init", "phase", "certs", phase, "--cert-dir", pki, "--kubernetes-version", c.Version)
	}
	signers := host(t, dir, harness.Kubejoin(), "signer-config", "default", "--kubeadm")
	// The scheduler gets a short-lived certificate, so that 'kubejoin host apply' renews it soon.
	before, after, _ := strings.Cut(signers, "- name: kubeadm.kubejoin.io/scheduler.conf\n")
	signers = before + "- name: kubeadm.kubejoin.io/scheduler.conf\n" + strings.Replace(after, "default: 8760h", "default: 8m", 1)
	must.OK(t, os.WriteFile(filepath.Join(pki, "signers.yaml"), []byte(signers), 0o600))
	address := c.Outside().Address + ":9443"
	log := must.Value(os.Create(filepath.Join(dir, "kubejoin.log")))(t)
	serve := c.Outside().Command(ctx, harness.Kubejoin(), "serve", "--listen="+address, "--data-dir="+data, "--signer-config="+filepath.Join(pki, "signers.yaml"),
		"--cluster-signing-cert-file="+filepath.Join(pki, "ca.crt"), "--cluster-signing-key-file="+filepath.Join(pki, "ca.key"),
		"--api-server=https://"+first.Address+":6443", "--tls-san=ca.example.com")
	serve.Stdout, serve.Stderr = log, log
	must.OK(t, serve.Start())
	t.Cleanup(func() { // the context has ended the process by now
		_ = serve.Wait()
		if content, err := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("kubejoin: %v\n%s", err, content)
		}
	})
	curlrc := filepath.Join(data, "curlrc")
	harness.Wait(t, "kubejoin", func() error {
		_, err := first.Run(ctx, "curl", "--silent", "--fail", "--config", curlrc, "https://"+address+"/readyz")
		return err
	})
	kubejoin := func(m *Machine, args ...string) string {
		t.Helper()
		return must.Value(m.Run(ctx, append(append([]string{harness.Kubejoin()}, args...), "--url=https://"+address, "--curlrc="+curlrc)...))(t)
	}
	credential := must.Value(os.ReadFile(curlrc))(t)
	ca := must.Value(os.ReadFile(filepath.Join(pki, "ca.crt")))(t)
	bearer := regexp.MustCompile(`Bearer ([^"]+)`).FindSubmatch(credential)
	for name, content := range map[string][]byte{"kubejoin-ca.crt": ca, "operator.token": bearer[1]} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	page := readPage(t, "docs/credentials.md")
	paste := func(m *Machine, heading string) string {
		t.Helper()
		script := `exec 2>&1; cd "$1"; PATH="$2:$PATH"; echo "$3 ca.example.com" >>/etc/hosts` + "\n" + page.section(heading)
		out, err := m.Run(ctx, "sh", "-euc", script, "paste", dir, filepath.Dir(harness.Kubejoin()), c.Outside().Address)
		if err != nil {
			t.Fatalf("%s: %v\n%s", heading, err, out)
		}
		return out
	}
	// prepare makes the keys of a control plane on its machine, and gets certificates for them.
	prepare := func(m *Machine) string {
		t.Helper()
		for _, ca := range cas {
			content := must.Value(os.ReadFile(filepath.Join(pki, ca+".crt")))(t)
			must.OK(t, m.writeFile(ctx, "/etc/kubernetes/pki/"+ca+".crt", string(content)))
		}
		must.OK(t, m.kubeadm(ctx, "kubeadm certs generate-csr --config="+Config))
		return paste(m, "Run control planes without a CA key")
	}

	must.OK(t, c.configure(ctx, ""))
	// In external CA mode, kubeadm expects the keys for service accounts, so make them before kubeadm init.
	must.OK(t, first.kubeadm(ctx, "kubeadm init phase certs sa --config="+Config))
	prepare(first)
	must.OK(t, c.Init(ctx, ""))
	line := must.Value(first.Run(ctx, "kubeadm", "token", "create", "--print-join-command"))(t)

	second := addMachine(t, c, "control-2")
	config := must.Value(first.ReadFile(ctx, Config))(t)
	own := strings.Replace(string(config), "advertiseAddress: "+first.Address, "advertiseAddress: "+second.Address, 1)
	must.OK(t, second.writeFile(ctx, Config, own))
	for _, file := range []string{"/etc/kubernetes/pki/sa.key", "/etc/kubernetes/pki/sa.pub"} {
		content := must.Value(first.ReadFile(ctx, file))(t)
		must.OK(t, second.writeFile(ctx, file, string(content)))
	}
	must.Value(first.Run(ctx, "sh", "-euc", unbindKubeletClient))(t)
	bind := bindKubeletClient.FindStringSubmatch(prepare(second))
	if bind == nil {
		t.Fatal("kubejoin sign does not warn that the new certificate has no rights")
	}
	must.Value(first.Run(ctx, "sh", "-euc", bind[1]))(t)
	must.OK(t, second.Join(ctx, strings.TrimSpace(line)+" --control-plane --apiserver-advertise-address="+second.Address))

	worker := addMachine(t, c, "worker-1")
	if _, err := worker.Run(ctx, "mkdir", "-p", "/etc/kubernetes"); err != nil { // as the packages of kubeadm do
		t.Fatal(err)
	}
	kubejoin(worker, "kubeconfig", "node", "worker-1", "--output-file=/etc/kubernetes/kubelet.conf")
	must.OK(t, worker.Join(ctx, line))
	harness.Wait(t, "three Nodes at the second API server", func() error {
		_, err := second.Run(ctx, "kubectl", "--server=https://"+second.Address+":6443", "get", "node", first.Name, second.Name, worker.Name)
		return err
	})
	if out := paste(second, "Check and renew the certificates of a control plane"); bindKubeletClient.MatchString(out) || !strings.Contains(out, "renewed apiserver-kubelet-client") ||
		!strings.Contains(out, "process kube-scheduler has not read its changed files; next: kubejoin host apply") {
		t.Errorf("want no warning once the rights exist, and the processes that have not restarted, got\n%s", out)
	}
	if out := kubejoin(second, "host", "apply"); !strings.Contains(out, "kube-scheduler") || strings.Contains(out, "renewed: scheduler.conf") {
		t.Errorf("after certs renew, host apply restarts what has not read its file, got\n%s", out)
	}
	harness.Wait(t, "a new certificate of the scheduler", func() error {
		if out := kubejoin(first, "host", "apply", "--renew-before=1h"); !strings.Contains(out, "renewed: scheduler.conf; restarted: kube-scheduler") {
			return errors.New(out)
		}
		return nil
	})
	expiration, err := first.Run(ctx, "kubeadm", "certs", "check-expiration")
	if err != nil || strings.Contains(expiration, " no ") || !strings.Contains(expiration, " yes ") {
		t.Errorf("want only certificates that are externally managed, got %v\n%s", err, expiration)
	}
	for _, m := range []*Machine{first, second, worker} {
		checkNoCAKey(t, m, pki)
	}
	said := must.Value(os.ReadFile(log.Name()))(t)
	secrets := harness.NewSecrets()
	secrets.Add("the operator", string(bearer[1]))
	for _, ca := range cas {
		content := must.Value(os.ReadFile(filepath.Join(pki, ca+".key")))(t)
		secrets.Add("the CA "+ca, strings.Split(string(content), "\n")[1]) // one line of the key
	}
	secrets.CheckAbsent(t, "the log", string(said))
	if !strings.Contains(string(said), "kubeadm.kubejoin.io/admin.conf") {
		t.Errorf("the log does not have the certificates, so the search could not fail:\n%s", said)
	}
}

// checkNoCAKey fails the test for each file of a machine that contains the key of a CA.
func checkNoCAKey(t *testing.T, m *Machine, pki string) {
	t.Helper()
	public := func(key crypto.Signer) string {
		der := must.Value(x509.MarshalPKIXPublicKey(key.Public()))(t)
		return string(der)
	}
	secret := map[string]string{}
	for _, ca := range cas {
		content := must.Value(os.ReadFile(filepath.Join(pki, ca+".key")))(t)
		for _, key := range keysIn(content) {
			secret[public(key)] = ca
		}
	}
	// grep fails if a file is deleted meanwhile. The count below shows whether grep searched.
	list, _ := m.Run(t.Context(), "grep", "-rslIE", "PRIVATE KEY|client-key-data", "/etc", "/var", "/run", "/opt")
	seen := 0
	for file := range strings.FieldsSeq(list) {
		content, err := m.ReadFile(t.Context(), file)
		if err != nil {
			continue // the file was deleted when its process ended
		}
		for _, key := range keysIn(content) {
			seen++
			if ca, found := secret[public(key)]; found {
				t.Errorf("%s: %s has the key of %s", m.Name, file, ca)
			}
		}
	}
	if len(secret) != len(cas) || seen == 0 {
		t.Errorf("%s: %d keys seen and %d CA keys known: the search cannot fail", m.Name, seen, len(secret))
	}
}
