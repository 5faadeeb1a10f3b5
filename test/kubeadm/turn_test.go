package kubeadm

import (
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"sigs.k8s.io/yaml"
)

// A race joins control planes that take turns.
type race struct {
	*Cluster
	t     *testing.T
	first *Machine
	key   string // the certificate key
}

// TestControlPlanesJoinAtTheSameMoment joins two control planes at the same moment, one with a key of its own, and one by a
// cloud-config from one curl. As in a cluster of an older kubeadm, kube-apiserver's client certificates for kubelets have no rights.
// Before these joins, one machine dies while it has the turn, and another after etcd has accepted it. At the end the first
// control plane is lost, and a worker joins through the others.
func TestControlPlanesJoinAtTheSameMoment(t *testing.T) {
	harness.Parallel(t)
	r := &race{Cluster: ForTest(t), t: t}
	page := readPage(t, "docs/control-planes.md")
	r.first = addMachine(t, r.Cluster, "control-1")
	r.endpoint = network + ".100" // this address moves to another control plane when the first is lost
	const takeEndpoint = "ip address add " + network + ".100/32 dev eth0"
	r.run(r.first, takeEndpoint)
	r.must(r.Init(t.Context(), ""))
	r.must(r.first.ImportProgram(t.Context(), image, harness.Kubejoin()))
	r.must(r.Install(t.Context(), image))
	r.must(r.permitControlPlanes(t.Context()))
	r.run(r.first, unbindKubeletClient)
	bind := r.checkKubeletClientWarnings()

	r.run(r.first, etcdCall("add", `{"peerURLs": ["https://`+network+`.250:2380"], "isLearner": true}`)) // as a join without a turn does
	idle := r.prepare("control-2", "script")
	ended := r.start(idle)
	r.waitExplained("control-2", "the etcd member https://"+network+".250:2380 is still a learner; if no machine joins with that address, remove the member")
	if output := paste(t, r.first, t.TempDir(), "/", page.section("Join several at once")); !strings.Contains(output, network+".250") {
		t.Errorf("no learner in the output:\n%s", output)
	}
	r.waitHolder("control-2")
	idle.Stop()
	<-ended

	// The etcd of this machine cannot start, because the machine has no etcd image. So it stays a learner.
	accepted := r.prepare("control-3", "script")
	ended = r.start(accepted)
	both := []*Machine{r.prepare("control-4", "a key of its own"), r.prepare("control-5", "cloud-config")}
	for _, m := range both {
		r.must(m.importImages(t.Context(), r.images))
		r.must(m.ImportProgram(t.Context(), image, harness.Kubejoin()))
	}
	r.waitHolder("control-3")
	harness.Wait(t, "the learner of control-3", func() error { return r.checkMembers(r.first, 2, 1) })
	accepted.Stop()
	<-ended

	died := time.Now()
	joined := []<-chan error{r.start(both[0]), r.start(both[1])}
	now := r.waitHolder("control-4", "control-5")
	t.Logf("%s has the turn %.0f s after control-3 died", now, time.Since(died).Seconds())
	other := map[string]string{"control-4": "control-5", "control-5": "control-4"}[now]
	r.waitExplained(other, "for its turn to join as a control plane; "+now+" has been joining for ")
	for _, end := range joined {
		r.must(<-end)
	}
	t.Logf("both joined %.0f s after control-3 died", time.Since(died).Seconds())
	if got := r.holder(); got != "" {
		t.Errorf("%s has not given back its turn", got)
	}
	r.checkControlPlanes(append(both, r.first))
	if commands := page.section("Restore kubectl logs and exec"); strings.Join(strings.Fields(strings.ReplaceAll(commands, "\\\n", "")), " ") != bind {
		t.Errorf("the page has the command %q, and the warning %q", commands, bind)
	}
	r.checkKubeletClient(both[0], bind)
	r.checkLogs()

	r.run(r.first, "kubectl --namespace=kubejoin-system rollout status daemonset/kubejoin --timeout=3m")
	r.first.Stop()
	r.run(both[0], takeEndpoint)
	for i, m := range both {
		line, err := r.RequestJoin(t.Context(), m.Address, "maxNodes=1")
		r.must(err)
		name := fmt.Sprintf("worker-%d", i+1)
		r.must(addMachine(t, r.Cluster, name).Join(t.Context(), line))
		r.run(m, "kubectl wait --for=create --timeout=1m node/"+name)
	}
}

func (r *race) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// run runs a line of shell on a machine.
func (r *race) run(m *Machine, line string) string {
	r.t.Helper()
	output, err := m.Run(r.t.Context(), "sh", "-euc", line)
	r.must(err)
	return output
}

const (
	joinScript = "/run/kubejoin/join.sh"
	joinConfig = "/run/more.yaml"
)

// prepare starts a machine, and writes a script onto it that joins the machine as a control plane.
func (r *race) prepare(name, format string) *Machine {
	r.t.Helper()
	m := addMachine(r.t, r.Cluster, name)
	r.must(m.writeFile(r.t.Context(), joinConfig, "nodeRegistration:\n  name: "+name+"\n  ignorePreflightErrors: [all]\n  imagePullPolicy: Never\n"))
	if format == "a key of its own" {
		const public = "/run/machine.pub"
		r.run(m, "umask 077; mkdir -p /var/lib/kubejoin; openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out /var/lib/kubejoin/machine.key")
		r.must(r.first.writeFile(r.t.Context(), public, r.run(m, "openssl pkey -in /var/lib/kubejoin/machine.key -pubout")))
		r.run(r.first, harness.Kubejoin()+" machine add "+name+" --key-file "+public+" --role control-plane")
		script := r.run(r.first, harness.Kubejoin()+" machine print-join-command --endpoint "+net.JoinHostPort(r.first.Address, "9443"))
		if strings.Contains(script, "certificateKey:") || tokens.Redact(script) != script {
			r.t.Errorf("the script of %s has a secret", name)
		}
		r.must(m.writeFile(r.t.Context(), joinScript, script))
		return m
	}
	document, err := r.requestJoin(r.t.Context(), r.first.Address, "controlPlane=true&format="+format)
	r.must(err)
	if format == "cloud-config" {
		document = scriptOf(r.t, document)
	}
	key := regexp.MustCompile(`certificateKey: ([0-9a-f]{64})\n`).FindStringSubmatch(document)
	if key == nil {
		r.t.Fatalf("the script of %s has no certificate key", name)
	}
	r.key = key[1]
	r.must(m.writeFile(r.t.Context(), joinScript, document[strings.Index(document, "#!/bin/sh"):]))
	return m
}

// start runs the script of a machine.
func (r *race) start(m *Machine) <-chan error {
	ended := make(chan error, 1)
	go func() {
		const log = "/var/log/kubeadm.log"
		_, err := m.Run(r.t.Context(), "sh", "-c", "KUBEJOIN_ADD_CONFIG="+joinConfig+" sh "+joinScript+" >"+log+" 2>&1 </dev/null || { tail -n 40 "+log+" >&2; exit 1; }")
		if err != nil {
			err = fmt.Errorf("%s: %w", m.Name, err)
		}
		ended <- err
	}()
	return ended
}

// holder returns the machine that has the turn.
func (r *race) holder() string {
	identity, _ := r.Kubectl(r.t.Context(), "--namespace=kubejoin-system", "get", "lease", "kubejoin-control-plane-turn", "--output=jsonpath={.spec.holderIdentity}")
	name, _, _ := strings.Cut(identity, "/")
	return name
}

// waitHolder waits until one of the machines has the turn, and returns it.
func (r *race) waitHolder(names ...string) (name string) {
	r.t.Helper()
	harness.Wait(r.t, fmt.Sprintf("the turn of one of %q", names), func() error {
		if name = r.holder(); !slices.Contains(names, name) {
			return fmt.Errorf("it is the turn of %q", name)
		}
		return nil
	})
	return name
}

// waitExplained waits for a part of the explanation of a machine.
func (r *race) waitExplained(name, want string) {
	r.t.Helper()
	harness.Wait(r.t, "the explanation of "+name, func() error {
		got, err := r.first.Run(r.t.Context(), harness.Kubejoin(), "explain", name)
		if !strings.Contains(got, want) {
			return fmt.Errorf("%w: %s, want %q", err, got, want)
		}
		return nil
	})
}

// etcdCall returns a command for the JSON API of etcd on a control plane.
func etcdCall(method, body string) string {
	const pki = "/etc/kubernetes/pki/etcd/"
	return "curl --silent --show-error --fail --cacert " + pki + "ca.crt --cert " + pki + "healthcheck-client.crt --key " + pki +
		"healthcheck-client.key --data '" + body + "' https://127.0.0.1:2379/v3/cluster/member/" + method
}

// checkMembers returns an error unless the etcd of a machine has this number of members, and this number of learners among
// them.
func (r *race) checkMembers(m *Machine, members, learners int) error {
	text, err := m.Run(r.t.Context(), "sh", "-c", etcdCall("list", "{}"))
	if err != nil {
		return err
	}
	if got, of := strings.Count(text, `"peerURLs"`), strings.Count(text, `"isLearner":true`); got != members || of != learners {
		return fmt.Errorf("etcd of %s has %d members, %d of them learners, want %d and %d", m.Name, got, of, members, learners)
	}
	return nil
}

// checkControlPlanes fails unless all machines are complete control planes, with a voting etcd member, a working API server
// and the same keys.
func (r *race) checkControlPlanes(machines []*Machine) {
	r.t.Helper()
	for _, m := range machines {
		if err := r.checkMembers(m, len(machines), 0); err != nil {
			r.t.Error(err)
		}
		harness.Wait(r.t, "kubectl through the API server of "+m.Name, func() error {
			nodes, err := m.Run(r.t.Context(), "kubectl", "--server=https://"+net.JoinHostPort(m.Address, "6443"), "get", "nodes", "--output=name")
			for _, other := range machines {
				if !strings.Contains(nodes, "node/"+other.Name+"\n") {
					return fmt.Errorf("no %s among\n%s%w", other.Name, nodes, err)
				}
			}
			return nil
		})
		for _, file := range []string{"ca.key", "sa.key", "front-proxy-ca.key", "etcd/ca.key"} {
			a, errA := r.first.ReadFile(r.t.Context(), "/etc/kubernetes/pki/"+file)
			b, errB := m.ReadFile(r.t.Context(), "/etc/kubernetes/pki/"+file)
			if errA != nil || errB != nil || string(a) != string(b) {
				r.t.Errorf("%s of %s differs: %v, %v", file, m.Name, errA, errB)
			}
		}
	}
}

// unbindKubeletClient deletes a binding that kubeadm before 1.35.5 and 1.36.1 does not create.
const unbindKubeletClient = "kubectl delete clusterrolebinding kubeadm:apiserver-kubelet-client --ignore-not-found"

// bindKubeletClient finds the command in a warning about these rights.
var bindKubeletClient = regexp.MustCompile(`may not use kubelets, .* run: (kubectl create clusterrolebinding [-:=a-z ]+)`)

// checkKubeletClientWarnings fails unless the join command of a control plane and kubejoin doctor report that
// kube-apiserver's client certificates for kubelets have no rights. It returns the command that grants the rights.
func (r *race) checkKubeletClientWarnings() (bind string) {
	r.t.Helper()
	const finding = "kubelet-client-rights-missing"
	document, err := r.requestJoin(r.t.Context(), r.first.Address, "controlPlane=true&format=json")
	r.must(err)
	found := bindKubeletClient.FindStringSubmatch(document)
	if found == nil {
		r.t.Fatal("the join command has no warning about missing rights") // the join command has a certificate key, so do not log it
	}
	// The kubelet may create its mirror Pods only a minute after its Node.
	r.run(r.first, "kubectl wait --namespace kube-system --for=create --timeout=3m pod/kube-apiserver-"+r.first.Name)
	report, _ := r.first.Run(r.t.Context(), harness.Kubejoin(), "doctor", "--output=jsonpath={.findings[*].id}") // exit code 1 means findings
	if !strings.Contains(report, finding) {
		r.t.Errorf("kubejoin doctor reports %q, want %s among them", report, finding)
	}
	return found[1]
}

// checkKubeletClient fails unless a joined control plane can read logs and run commands after the command bind. Before bind
// it must not, if kubeadm made its certificate without a group.
func (r *race) checkKubeletClient(m *Machine, bind string) {
	r.t.Helper()
	content, err := m.ReadFile(r.t.Context(), "/etc/kubernetes/pki/apiserver-kubelet-client.crt")
	r.must(err)
	block, _ := pem.Decode(content)
	if block == nil {
		r.t.Fatalf("apiserver-kubelet-client.crt: got %q, want PEM", content)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	r.must(err)
	grouped := len(leaf.Subject.Organization) > 0
	if older := strings.HasPrefix(r.Version, "v1.35.4"); grouped != older {
		r.t.Errorf("kubeadm %s made a certificate for %s", r.Version, leaf.Subject)
	}
	at := "kubectl --server=https://" + net.JoinHostPort(m.Address, "6443") + " --namespace=kube-system "
	calls := []string{"logs etcd-" + r.first.Name, "exec etcd-" + r.first.Name + " -- etcd --version"}
	for _, call := range calls {
		harness.Wait(r.t, call, func() error { // wait until the kubelet has a serving certificate
			_, err := m.Run(r.t.Context(), "sh", "-euc", at+call)
			if grouped {
				return err
			}
			if err == nil {
				r.t.Fatalf("%s works with a certificate for %s: the check could not fail", call, leaf.Subject)
			}
			if strings.Contains(err.Error(), "user=kube-apiserver-kubelet-client, verb=") {
				return nil
			}
			return err
		})
	}
	r.run(r.first, bind)
	for _, call := range calls {
		harness.Wait(r.t, call+" after "+bind, func() error {
			_, err := m.Run(r.t.Context(), "sh", "-euc", at+call)
			return err
		})
	}
}

// checkLogs fails if a log of kubejoin contains the certificate key, or if no log reports the upload and the removed learner.
func (r *race) checkLogs() {
	r.t.Helper()
	var log string
	harness.Wait(r.t, "the logs of kubejoin", func() (err error) { // needs the serving certificates of the kubelets
		log, err = r.Kubectl(r.t.Context(), "--namespace=kubejoin-system", "logs", "--selector=app.kubernetes.io/name=kubejoin", "--tail=-1")
		return err
	})
	if strings.Contains(log, r.key) {
		r.t.Error("the log of kubejoin has the certificate key")
	}
	for _, want := range []string{"uploaded the certificates of control planes", `removed the etcd learner of a control plane that did not join" node=control-3`} {
		if !strings.Contains(log, want) {
			r.t.Errorf("the log of kubejoin has no line %q:\n%s", want, log)
		}
	}
}

// scriptOf returns the script in a cloud-config.
func scriptOf(t *testing.T, document string) string {
	t.Helper()
	var config struct {
		Files []struct{ Content []byte } `json:"write_files"` // base64
	}
	document = document[max(0, strings.Index(document, "#cloud-config")):]
	if err := yaml.Unmarshal([]byte(document), &config); err != nil || len(config.Files) != 1 {
		t.Fatalf("%d files, %v", len(config.Files), err)
	}
	r := must.Value(gzip.NewReader(bytes.NewReader(config.Files[0].Content)))(t)
	script := must.Value(io.ReadAll(r))(t)
	return string(script)
}
