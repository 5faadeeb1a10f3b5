package kubeadm

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// proxyConfig is for kubeadm. kube-proxy must not set the connection limits, because they would apply to the whole host.
const proxyConfig = `
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
iptables:
  localhostNodePorts: false
conntrack:
  maxPerCore: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
`

// hostFolders have the iptables of the host, which the image of kube-proxy lacks.
var hostFolders = []string{"/usr/sbin", "/usr/lib", "/lib", "/lib64", "/etc/alternatives"}

// runProxies runs kube-proxy on all machines, if it reads its CA file only once.
func (r *rotationTest) runProxies() {
	r.t.Helper()
	if !r.olderThan("1.36") {
		return
	}
	r.proxies = true
	// 'kubejoin ca apply' makes the certificate without a group, as later versions of kubeadm do: see docs/control-planes.md.
	r.kubectl("create", "clusterrolebinding", "kubeadm:apiserver-kubelet-client", "--clusterrole=system:kubelet-api-admin", "--user=kube-apiserver-kubelet-client")
	for _, m := range r.nodes {
		r.importProxy(m)
	}
	const file = "/etc/kubernetes/kube-proxy.yaml"
	config := must.Value(r.first.ReadFile(r.t.Context(), Config))(r.t)
	r.must(r.first.writeFile(r.t.Context(), file, string(config)+proxyConfig))
	r.on(r.first, "kubeadm", "init", "phase", "addon", "kube-proxy", "--config="+file)
	r.on(r.first, "rm", file)
	var volumes, mounts []string
	for i, folder := range hostFolders {
		volumes = append(volumes, fmt.Sprintf(`{"name": "host-%d", "hostPath": {"path": %q}}`, i, folder))
		mounts = append(mounts, fmt.Sprintf(`{"name": "host-%d", "mountPath": %q, "readOnly": true}`, i, folder))
	}
	// All volumes of kube-proxy except /lib/modules, which this machine may lack.
	volumes = append(volumes, `{"name": "kube-proxy", "configMap": {"name": "kube-proxy"}}`,
		`{"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}}`)
	mounts = append(mounts, `{"name": "kube-proxy", "mountPath": "/var/lib/kube-proxy"}`, `{"name": "xtables-lock", "mountPath": "/run/xtables.lock"}`)
	r.kubectl("--namespace=kube-system", "patch", "daemonset/kube-proxy", "--type=json", fmt.Sprintf(`--patch=[
		{"op": "replace", "path": "/spec/template/spec/volumes", "value": [%s]},
		{"op": "replace", "path": "/spec/template/spec/containers/0/volumeMounts", "value": [%s]},
		{"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": {"name": "PATH", "value": "/usr/sbin"}}]`,
		strings.Join(volumes, ", "), strings.Join(mounts, ", ")))
	r.awaitProxies()
	r.wantService("before")
}

func (r *rotationTest) importProxy(m *Machine) {
	r.t.Helper()
	r.must(m.importImages(r.t.Context(), []string{r.proxyImage}))
}

func (r *rotationTest) awaitProxies() {
	r.t.Helper()
	r.kubectl("--namespace=kube-system", "rollout", "status", "daemonset/kube-proxy", "--timeout=3m")
}

// restartProxies waits until the status names kube-proxy as what blocks a step, and runs the command that the status shows.
func (r *rotationTest) restartProxies(step string) {
	r.t.Helper()
	if !r.proxies {
		return
	}
	const command = "kubectl -n kube-system rollout restart daemonset/kube-proxy"
	harness.Wait(r.t, "kube-proxy in the status", func() error {
		status, err := r.ca("status")
		if err == nil && !strings.Contains(status, command) {
			err = errors.New(status)
		}
		return err
	})
	r.refuse("process kube-proxy-", step)
	r.on(r.first, strings.Fields(command)...)
	r.awaitProxies()
}

// proxiesWork fails unless each kube-proxy finds an API server after its restart, and API servers reach all kubelets.
func (r *rotationTest) proxiesWork() {
	r.t.Helper()
	if !r.proxies {
		return
	}
	for _, m := range r.nodes {
		r.must(r.RunPod(r.t.Context(), m, "log-"+m.Name, "text"))
	}
	r.on(r.first, "sh", "-euc", "kill -KILL $(pidof kube-apiserver)")
	harness.Wait(r.t, "the API server again", func() error {
		_, err := r.Kubectl(r.t.Context(), "get", "--raw=/readyz")
		return err
	})
	r.wantService("after")
}

// wantService creates a Service, and waits until each kube-proxy has rules for it.
func (r *rotationTest) wantService(name string) {
	r.t.Helper()
	began := time.Now()
	r.kubectl("create", "service", "clusterip", name, "--tcp=80")
	for _, m := range r.nodes {
		harness.Wait(r.t, "rules for Service "+name+" on "+m.Name, func() error {
			rules, err := m.Run(r.t.Context(), "iptables-save")
			if err == nil && !strings.Contains(rules, "default/"+name) {
				err = fmt.Errorf("there are %d rules of other things", strings.Count(rules, "\n-A "))
			}
			return err
		})
	}
	r.t.Logf("rules for Service %s: %.1f s", name, time.Since(began).Seconds())
}
