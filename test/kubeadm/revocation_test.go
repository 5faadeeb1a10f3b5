package kubeadm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/test/harness"
)

// webhookFlags are the flags of kubejoin serve in docs/revocation.md.
const webhookFlags = "--webhook-client-ca-file=/etc/kubernetes/pki/ca.crt --webhook-client-name=kube-apiserver-kubelet-client"

// A lockout revokes nodes of a pair whose API servers send access reviews to kubejoin.
type lockout struct {
	*pair
	dir  string // folder of the client certificates
	both []*Machine
}

// lockOut sets up the webhook of docs/revocation.md on both control planes, and revokes a light node, whose certificate
// kube-controller-manager has issued, and a worker. It stops one kubejoin, and then both, with each --url and each failure
// policy that the page describes. At the end it removes the webhook.
func (p *pair) lockOut(clone, bin string, stolen lightNode, worker, other *Machine) {
	p.t.Helper()
	began := time.Now()
	l := &lockout{p, p.t.TempDir(), []*Machine{p.first, p.second}}
	l.save("old", stolen.certificate)
	for _, m := range []*Machine{worker, other} {
		chain, err := m.ReadFile(p.t.Context(), "/var/lib/kubelet/pki/kubelet-client-current.pem")
		p.must(err)
		l.save(m.Name, string(chain))
	}
	for _, m := range l.both {
		l.want(m, "old", stolen.name, "200", "")
		l.want(m, worker.Name, worker.Name, "200", "")
	}

	l.setUp(clone, bin)
	kubejoin := filepath.Join(bin, "kubejoin")
	revoked := time.Now()
	p.on(p.first, kubejoin, "revoke", stolen.name, "--reason", "stolen from the rack")
	p.on(p.first, kubejoin, "revoke", worker.Name, "--reason", "retired")
	for _, m := range l.both {
		l.want(m, "old", stolen.name, "403", "stolen from the rack")
		l.want(m, worker.Name, worker.Name, "403", "retired")
		l.want(m, other.Name, other.Name, "200", "")
	}
	p.t.Logf("revoked at both API servers after %s", time.Since(revoked).Round(time.Millisecond))

	p.kubectl("delete", "node", stolen.name)
	back, err := p.joinLight(p.t.Context(), stolen.name, p.request())
	p.must(err)
	l.save("new", back.certificate)
	for _, m := range l.both {
		l.want(m, "new", stolen.name, "200", "")
		l.want(m, "old", stolen.name, "403", "stolen from the rack")
	}

	// Each API server sends reviews to the kubejoin on its own machine.
	l.stop(p.first)
	l.want(p.first, "old", stolen.name, "200", "")
	l.want(p.second, "old", stolen.name, "403", "stolen from the rack")
	l.want(p.first, other.Name, other.Name, "200", "")
	// With a name that resolves to both addresses, they use the other kubejoin.
	l.configure(kubejoin, "--url=https://"+joinHost+":9443", "--failure-policy=Deny")
	for _, m := range l.both {
		l.want(m, "old", stolen.name, "403", "stolen from the rack")
		l.want(m, other.Name, other.Name, "200", "")
	}

	l.stop(p.second)
	for _, m := range l.both {
		l.want(m, other.Name, other.Name, "500", "")
		l.want(m, "old", stolen.name, "500", "")
	}
	l.configure(kubejoin, "--url=https://"+joinHost+":9443", "--failure-policy=NoOpinion")
	for _, m := range l.both {
		l.want(m, other.Name, other.Name, "200", "")
		l.want(m, "old", stolen.name, "200", "")
	}
	// Kubelets start static pods even if the API servers refuse the kubelets.
	l.configure(kubejoin, "--failure-policy=Deny")
	for _, m := range l.both {
		l.want(m, other.Name, other.Name, "500", "")
	}
	l.start()
	for _, m := range l.both {
		l.want(m, other.Name, other.Name, "200", "")
		l.want(m, "old", stolen.name, "403", "stolen from the rack")
		l.want(m, worker.Name, worker.Name, "403", "retired")
	}

	const removeWebhook = `
		cd /etc/kubernetes/kubejoin
		sed '/^- type: Webhook/,/^- type: Node/ { /^- type: Node/!d }' authorization.yaml >new
		mv new authorization.yaml`
	for _, m := range l.both {
		p.on(m, "sh", "-euc", removeWebhook)
		l.want(m, "old", stolen.name, "200", "")
	}
	p.on(p.first, kubejoin, "revoke", "undo", worker.Name)
	p.t.Logf("revocation: %.1f s", time.Since(began).Seconds())
}

// setUp runs the commands of the page, and returns when both API servers run with the configuration.
func (l *lockout) setUp(clone, bin string) {
	l.t.Helper()
	blocks := readPage(l.t, "docs/revocation.md").blocks("Refuse revoked certificates with a webhook")
	if len(blocks) != 3 {
		l.t.Fatalf("%d blocks of commands, want 3: the merge comes after the first, the rest is for each control plane", len(blocks))
	}
	paste(l.t, l.first, bin, clone, blocks[0])
	lists, err := l.first.ReadFile(l.t.Context(), "/etc/kubernetes/kubejoin/kubeadm.yaml")
	l.must(err)
	harness.AppendLists(l.t, filepath.Join(clone, "cluster.yaml"), lists)
	paste(l.t, l.first, bin, clone, blocks[1])
	for _, m := range l.both {
		paste(l.t, m, bin, clone, blocks[2])
		harness.Wait(l.t, "kube-apiserver of "+m.Name+" with the new flag", func() error {
			_, err := m.Run(l.t.Context(), "sh", "-euc", `
				grep -qs -e '--authorization-confi[g]' /proc/[0-9]*/cmdline
				curl --silent --show-error --insecure --fail-with-body "https://$1:6443/readyz"`, "ready", m.Address)
			return err
		})
	}
}

// configure writes the files for both API servers again. The API servers notice the change.
func (l *lockout) configure(kubejoin string, flags ...string) {
	l.t.Helper()
	for _, m := range l.both {
		l.on(m, append([]string{kubejoin, "authorization-config", "--ca-file=/etc/kubernetes/pki/ca.crt", "--output-dir=/etc/kubernetes/kubejoin"}, flags...)...)
	}
}

// stop stops the kubejoin of a machine.
func (l *lockout) stop(m *Machine) {
	l.t.Helper()
	l.on(m, "mv", "/etc/kubernetes/manifests/kubejoin.yaml", "/etc/kubernetes/kubejoin.off")
}

// start starts kubejoin on both machines.
func (l *lockout) start() {
	l.t.Helper()
	for _, m := range l.both {
		l.on(m, "mv", "/etc/kubernetes/kubejoin.off", "/etc/kubernetes/manifests/kubejoin.yaml")
	}
}

// save writes a certificate with its key to a file for curl.
func (l *lockout) save(name, pem string) {
	l.t.Helper()
	l.must(os.WriteFile(filepath.Join(l.dir, name), []byte(pem), 0o600))
}

// want reads a Node with a certificate at the API server of a machine, until the response has this status and contains text.
func (l *lockout) want(m *Machine, certificate, node, status, text string) {
	l.t.Helper()
	began := time.Now()
	what := fmt.Sprintf("status %s for %s with certificate %s at %s", status, node, certificate, m.Name)
	harness.Wait(l.t, what, func() error {
		got, err := l.outside.Run(l.t.Context(), "curl", "--silent", "--show-error", "--insecure", "--max-time", "10", "--write-out", "\n%{http_code}",
			"--cert", filepath.Join(l.dir, certificate), "https://"+m.Address+":6443/api/v1/nodes/"+node)
		if err != nil || !strings.HasSuffix(got, "\n"+status) || !strings.Contains(got, text) {
			return fmt.Errorf("%v, got %.1000s", err, got)
		}
		return nil
	})
	l.t.Logf("%s after %s", what, time.Since(began).Round(time.Millisecond))
}
