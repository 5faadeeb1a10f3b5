package kubeadm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/harness"
)

// joinHost is the name of kubejoin in docs/helm.md. On each machine, it resolves to the addresses of both control planes.
const joinHost = "join.example.com"

// A pair is a cluster for two control planes that run kubejoin. If the leader is lost, the other control plane takes over.
type pair struct {
	*Cluster
	t             *testing.T
	first, second *Machine
}

// newPair creates the first control plane, and starts the machine for the second.
func newPair(t *testing.T) *pair {
	t.Helper()
	c := ForTest(t)
	p := &pair{c, t, addMachine(t, c, "control-1"), addMachine(t, c, "control-2")}
	p.must(c.Init(t.Context(), ""))
	p.name(p.first)
	p.name(p.second)
	p.must(c.outside.writeFile(t.Context(), c.outside.dir+"/hosts", "127.0.0.1 localhost\n"))
	p.on(c.outside, "mount", "--bind", c.outside.dir+"/hosts", "/etc/hosts")
	p.name(c.outside)
	return p
}

// name gives joinHost to a machine.
func (p *pair) name(m *Machine) {
	p.t.Helper()
	p.on(m, "sh", "-euc", `for address; do echo "$address `+joinHost+`" >>/etc/hosts; done`, "name", p.first.Address, p.second.Address)
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// on runs a command on a machine.
func (p *pair) on(m *Machine, args ...string) string {
	p.t.Helper()
	output, err := m.Run(p.t.Context(), args...)
	p.must(err)
	return strings.TrimSpace(output)
}

func (p *pair) kubectl(args ...string) string {
	p.t.Helper()
	return p.on(p.first, append([]string{"kubectl"}, args...)...)
}

// migrate moves the work of kube-controller-manager to kubejoin, as the page says for this way to run kubejoin. The second
// control plane joins meanwhile: its kube-controller-manager never signs. migrate returns the join command that the page's
// commands print.
func (p *pair) migrate(page page, way, bin, clone string) (line string) {
	p.t.Helper()
	off := page.blocks("Switch the controllers off")
	if len(off) != 2 {
		p.t.Fatalf("%d blocks of commands, want 2: once for the cluster, and on each control plane", len(off))
	}
	paste(p.t, p.first, bin, clone, page.section(way)+off[0])
	p.joinSecond(func() { paste(p.t, p.first, bin, clone, off[1]) })
	paste(p.t, p.second, bin, clone, off[1])
	return lineOf(p.t, paste(p.t, p.first, bin, clone, page.section("Check the cluster")))
}

// giveBack starts the controllers of kube-controller-manager again, as the page says, and runs more commands on each
// control plane.
func (p *pair) giveBack(page page, bin, clone, more string) {
	p.t.Helper()
	back := page.blocks("Go back")
	if len(back) != 3 {
		p.t.Fatalf("%d blocks of commands, want 3: once for the cluster, on each control plane, and a check", len(back))
	}
	paste(p.t, p.first, bin, clone, back[0])
	for _, m := range []*Machine{p.first, p.second} {
		paste(p.t, m, bin, clone, back[1])
	}
	paste(p.t, p.first, bin, clone, back[2])
	for _, m := range []*Machine{p.first, p.second} {
		paste(p.t, m, bin, clone, more)
	}
}

// joinSecond joins the second control plane. Meanwhile it calls work.
func (p *pair) joinSecond(work func()) {
	p.t.Helper()
	output := p.on(p.first, "kubeadm", "init", "phase", "upload-certs", "--upload-certs", "--config="+Config)
	key := output[strings.LastIndex(output, "\n")+1:]
	p.kubectl("create", "clusterrolebinding", "control-planes", "--clusterrole=kubejoin:token-admin", "--serviceaccount=default:"+requester)
	line, err := p.RequestJoin(p.t.Context(), joinHost, "maxNodes=1&role=control-plane")
	p.must(err)
	joined := make(chan error, 1)
	go func() {
		joined <- p.second.Join(p.t.Context(), strings.TrimSpace(line)+" --control-plane --certificate-key="+key)
	}()
	work()
	p.must(<-joined)
}

// worker starts a machine and joins it with a join command.
func (p *pair) worker(name, line string) *Machine {
	p.t.Helper()
	m := addMachine(p.t, p.Cluster, name)
	p.name(m)
	p.must(m.Join(p.t.Context(), line))
	return m
}

// request requests a join command from any control plane.
func (p *pair) request() string {
	p.t.Helper()
	line, err := p.RequestJoin(p.t.Context(), joinHost, "maxNodes=1")
	p.must(err)
	return line
}

// waitPods waits until both control planes run an image of kubejoin, and are ready.
func (p *pair) waitPods(image string) {
	p.t.Helper()
	want := fmt.Sprintf("control-1 %s True\ncontrol-2 %[1]s True", image)
	began := time.Now()
	defer func() { p.t.Logf("kubejoin on both control planes after %.1f s", time.Since(began).Seconds()) }()
	harness.Wait(p.t, "kubejoin on both control planes", func() error {
		pods, err := p.Kubectl(p.t.Context(), "--namespace=kubejoin-system", "get", "pods", "--sort-by=.spec.nodeName", "--output",
			`jsonpath={range .items[*]}{.spec.nodeName} {.spec.containers[0].image} {.status.conditions[?(@.type=="Ready")].status}{.metadata.deletionTimestamp}{"\n"}{end}`)
		if err != nil || strings.TrimSpace(pods) != want {
			return fmt.Errorf("want\n%s, got\n%s, %w", want, pods, err)
		}
		return nil
	})
}

// checkWorker fails unless logs and commands of a worker's pod work through a serving certificate that kubejoin signed.
func (p *pair) checkWorker(worker *Machine) {
	p.t.Helper()
	text := "Hello from " + worker.Name
	p.must(p.RunPod(p.t.Context(), worker, "hello", text))
	if got := p.kubectl("logs", "hello"); got != text {
		p.t.Errorf("logs: %q", got)
	}
	if got := p.kubectl("exec", "hello", "--", "pause", "-once", "inside"); got != "inside" {
		p.t.Errorf("exec: %q", got)
	}
	checkServingCertificate(p.t, p.first, worker)
	want := "kubernetes.io/kubelet-serving AutoApproved kubejoin"
	if got := p.requests("system:node:" + worker.Name); got != want {
		p.t.Errorf("requests of the worker: got %q, want %q", got, want)
	}
}

// checkNoLogs fails if kube-apiserver returns the logs of a kubelet without a serving certificate.
func (p *pair) checkNoLogs() {
	p.t.Helper()
	harness.Wait(p.t, "logs without a serving certificate", func() error {
		_, err := p.Kubectl(p.t.Context(), "--namespace=kube-system", "logs", "etcd-control-1")
		if err == nil {
			p.t.Fatal("kube-apiserver returns the logs of a kubelet without a serving certificate")
		}
		if strings.Contains(err.Error(), "tls: internal error") {
			return nil
		}
		return err
	})
}

// requests lists the certificate requests of a user, with their signer, reason and last writer of the status.
func (p *pair) requests(user string) string {
	p.t.Helper()
	return p.kubectl("get", "csr", "--output", `jsonpath={range .items[?(@.spec.username=="`+user+
		`")]}{.spec.signerName} {.status.conditions[*].reason} {.metadata.managedFields[?(@.subresource=="status")].manager}{"\n"}{end}`)
}

// joinLightOnce requests a join command and joins a light node.
func (p *pair) joinLightOnce(ctx context.Context, name string) (lightNode, error) {
	line, err := p.RequestJoin(ctx, joinHost, "maxNodes=1")
	if err != nil {
		return lightNode{}, err
	}
	return p.joinLight(ctx, name, line)
}

// joinDuring requests join commands and joins light nodes, one after the other, while work runs.
func (p *pair) joinDuring(what string, work func()) {
	p.t.Helper()
	const pause = 2 * time.Second // leaves CPU time for the rest
	p.repeatDuring(what, pause, func(name string) error {
		_, err := p.joinLightOnce(p.t.Context(), name)
		return err
	}, work)
}

// repeatDuring calls join with node names, one after the other, while work runs. It fails the test unless all nodes join,
// even if work ends the test.
func (p *pair) repeatDuring(what string, pause time.Duration, join func(name string) error, work func()) {
	p.t.Helper()
	stop, failed, count := make(chan struct{}), make(chan error, 1), 0
	go func() {
		var err error
		for {
			count++
			if failure := join(fmt.Sprintf("%s-%d", what, count)); failure != nil {
				err = errors.Join(err, fmt.Errorf("node %d: %w", count, failure))
			}
			select {
			case <-stop:
				failed <- err
				return
			case <-time.After(pause):
			}
		}
	}()
	defer func() {
		close(stop)
		if err := <-failed; err != nil {
			p.t.Error(err)
		}
		p.t.Logf("%s: %d nodes joined", what, count)
	}()
	work()
}

// loseLeader stops the kubelet of the leader's machine, kills the leader and deletes its pod. Nodes join and renew through
// the other control plane. Then the kubelet starts again.
func (p *pair) loseLeader(image string) {
	p.t.Helper()
	before := time.Now()
	node, err := p.joinLightOnce(p.t.Context(), "renews")
	p.must(err)
	usual := time.Since(before)

	lease := []string{"--namespace=kubejoin-system", "get", "lease", "kubejoin", "--output=jsonpath={.spec.holderIdentity}"}
	identity := p.kubectl(lease...)
	host, _, _ := strings.Cut(identity, "_")
	leader := p.first
	if host == p.second.Name {
		leader = p.second
	}
	pod := p.kubectl("--namespace=kubejoin-system", "get", "pods", "--field-selector=spec.nodeName="+host, "--output=name")
	p.must(leader.StopKubelet(p.t.Context()))
	p.on(leader, "sh", "-euc", `ctr --namespace=k8s.io tasks kill --signal=KILL "$(
		ctr --namespace=k8s.io containers list --quiet 'labels."io.kubernetes.container.name"==kubejoin,labels."io.cri-containerd.kind"==container' |
		while read -r id; do ctr --namespace=k8s.io tasks list | awk -v id="$id" '$1 == id && $3 == "RUNNING" { print id }'; done)"`)
	lost := time.Now()
	p.kubectl("--namespace=kubejoin-system", "delete", pod, "--wait=false")
	var joined, renewed time.Duration
	done := make(chan error, 1)
	go func() {
		_, err := p.joinLight(p.t.Context(), node.name, node.certificate)
		renewed = time.Since(lost)
		done <- err
	}()
	_, err = p.joinLightOnce(p.t.Context(), "joins")
	joined = time.Since(lost)
	if err := errors.Join(err, <-done); err != nil {
		p.t.Fatalf("after the leader was lost: %v", err)
	}
	p.t.Logf("leader on %s lost: a node joined after %s, another one renewed after %s; a join usually takes %s", host,
		joined.Round(time.Millisecond), renewed.Round(time.Millisecond), usual.Round(time.Millisecond))
	// 20 s are enough on an idle machine. On a busy machine, the first join already took longer.
	if most := 20*time.Second + 5*usual; max(joined, renewed) > most {
		p.t.Errorf("want both within %s", most)
	}
	if p.kubectl(lease...) == identity {
		p.t.Error("the lost leader still holds the Lease: the check could not fail")
	}
	p.must(leader.StartKubelet(p.t.Context()))
	p.waitPods(image)
}

// checkGivenBack joins a worker with a token of kubeadm. kube-controller-manager signs its certificate.
func (p *pair) checkGivenBack() {
	p.t.Helper()
	line := p.on(p.first, "kubeadm", "token", "create", "--print-join-command")
	worker := p.worker("worker-last", line)
	id, _, _ := strings.Cut(strings.Fields(line)[4], ".")
	want := "kubernetes.io/kube-apiserver-client-kubelet AutoApproved kube-controller-manager"
	if got := p.requests("system:bootstrap:" + id); got != want {
		p.t.Errorf("requests of %s: got %q, want %q", worker.Name, got, want)
	}
}
