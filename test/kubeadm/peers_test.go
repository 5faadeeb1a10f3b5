package kubeadm

import (
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestReplacesEtcdAndFrontProxyCA replaces both CAs in a cluster with two control planes. The change of the front-proxy CA
// must interrupt nothing. The change of the etcd CA restarts etcd and kube-apiserver: writes stop for a while, but a
// machine must join, and no Node may get lost. In the end, no file or object on any machine may be from an old CA.
func TestReplacesEtcdAndFrontProxyCA(t *testing.T) {
	harness.Parallel(t)
	began := time.Now()
	r := newRotationTest(t)
	t.Logf("cluster: %.1f s", time.Since(began).Seconds())
	probed := func(work func(), check func(report)) {
		t.Helper()
		probe := must.Value(r.startProbe(t.Context(), r.kubeconfigs(), r.first))(t)
		work()
		seen := must.Value(probe.stop())(t)
		t.Logf("%d requests, longest gaps %v, longest times between heartbeats %v, %d joins", seen.Requests, seen.Gaps, seen.Heartbeats, len(r.joined))
		check(seen)
	}
	started := r.apiServersStarted()
	probed(r.frontProxy, r.wantNoFailures)
	if got := r.apiServersStarted(); got != started {
		t.Errorf("API servers started at %s, before at %s: they reload certificates", got, started)
	}
	probed(r.etcd, r.wantShortGaps)
	r.abortEtcd()
	t.Logf("all: %.1f s", time.Since(began).Seconds())
}

// frontProxy replaces the front-proxy CA.
func (r *rotationTest) frontProxy() {
	r.t.Helper()
	const flag, file = "--ca=front-proxy", "front-proxy-ca"
	proxy := func() string { return r.clientOf(r.signing(file), pkix.Name{CommonName: "front-proxy-client"}) }
	asAdmin := []string{"--header", "X-Remote-User: kubernetes-admin", "--header", "X-Remote-Group: system:masters"}
	const nodes = "https://%s:6443/api/v1/nodes"
	old, before := r.signing(file), proxy()
	r.responds(nodes, before, "200", asAdmin...)
	r.begin(flag)
	for _, step := range []string{"trust", "switch", "finish", "finish"} {
		r.step(step, flag)
		r.apply(r.first, r.second)
	}
	r.join(r.request())
	r.responds(nodes, proxy(), "200", asAdmin...)
	r.responds(nodes, before, "401", asAdmin...)
	r.wantGone(old, r.signing(file), 1)
}

const (
	etcdFlag    = "--ca=etcd"
	etcdCA      = "etcd/ca"
	etcdVersion = "https://%s:2379/version" // needs a client certificate for etcd
)

// abortEtcd begins to replace the CA of etcd, and aborts while one control plane trusts the new CA. After that, each file
// must have its old content.
func (r *rotationTest) abortEtcd() {
	r.t.Helper()
	before := r.files()
	r.begin(etcdFlag)
	r.step("trust", etcdFlag)
	r.apply(r.first)
	r.refuse("control-2", "switch", etcdFlag)
	for range 2 {
		r.step("abort", etcdFlag)
		r.apply(r.first, r.second)
	}
	r.wantFiles(before)
}

// etcd replaces the CA of etcd. A worker joins while etcd and the API servers restart.
func (r *rotationTest) etcd() {
	r.t.Helper()
	client := func() string { return r.clientOf(r.signing(etcdCA), pkix.Name{CommonName: "client"}) }
	old, before := r.signing(etcdCA), client()
	r.responds(etcdVersion, before, "200")
	r.begin(etcdFlag)
	r.step("trust", etcdFlag)
	worker := addMachine(r.t, r.Cluster, "worker-1")
	r.network(worker)
	line, joined := r.request(), make(chan error, 1)
	go func() {
		err := worker.Join(r.t.Context(), line)
		for err != nil && strings.Contains(err.Error(), "error execution phase preflight") {
			r.t.Logf("%s joins again: kubeadm gives up when the API server is away for 10 s", worker.Name)
			err = worker.Join(r.t.Context(), line)
		}
		joined <- err
	}()
	r.apply(r.first, r.second)
	r.must(<-joined)
	r.nodes = append(r.nodes, worker)
	r.step("switch", etcdFlag)
	r.apply(r.nodes...)
	r.join(r.request())
	r.responds(etcdVersion, before, "200")
	r.step("finish", etcdFlag)
	r.apply(r.nodes...)
	r.step("finish", etcdFlag)
	r.apply(r.nodes...)
	r.join(r.request())
	r.responds(etcdVersion, client(), "200")
	r.responds(etcdVersion, before, "000")
	r.kubectl("wait", "--for=condition=Ready", "--timeout=3m", "nodes", "--all")
	r.wantGone(old, r.signing(etcdCA), 0)
}

// responds waits until a server on each control plane responds with a status to a client certificate. The status 000 means
// that the TLS handshake fails.
func (r *rotationTest) responds(url, certificate, want string, args ...string) {
	r.t.Helper()
	for _, m := range r.nodes[:2] {
		url := fmt.Sprintf(url, m.Address)
		call := append([]string{"curl", "--silent", "--show-error", "--insecure", "--cert", certificate, "--output", "/dev/null", "--write-out", "%{http_code}", url}, args...)
		harness.Wait(r.t, url, func() error {
			got, err := r.outside.Run(r.t.Context(), call...)
			if got == want && (want != "000" || strings.Contains(fmt.Sprint(err), "alert")) {
				return nil
			}
			return fmt.Errorf("%s, %w, want %s", got, err, want)
		})
	}
}

// wantNoFailures fails the test for each failed request.
func (r *rotationTest) wantNoFailures(seen report) {
	r.t.Helper()
	for _, f := range append(seen.Failures, seen.NotReady...) {
		r.t.Errorf("%d times, after %s: %s: %s", f.Count, r.after(f.First), f.What, f.Text)
	}
	const least = 100
	if seen.Requests < least {
		r.t.Errorf("%d requests: the probe could not fail", seen.Requests)
	}
}

// mostGap is the longest interruption that a restart of etcd and kube-apiserver may cause on a busy machine.
const mostGap = time.Minute

// wantShortGaps fails the test for each refused certificate, for each Node that was not ready for another reason than a
// late heartbeat, and for each interruption that is too long.
func (r *rotationTest) wantShortGaps(seen report) {
	r.t.Helper()
	for _, f := range seen.Failures {
		for _, refused := range []string{"x509: ", "tls: ", "401 "} {
			if strings.Contains(f.Text, refused) {
				r.t.Errorf("after %s: %s: %s", r.after(f.First), f.What, f.Text)
			}
		}
	}
	for _, f := range seen.NotReady {
		line := fmt.Sprintf("after %s: %s: %s", r.after(f.First), f.What, f.Text)
		if strings.HasPrefix(f.Text, "NodeStatusUnknown: ") {
			r.t.Log(line) // allowed: without etcd, kubelets cannot renew their Leases
		} else {
			r.t.Error(line)
		}
	}
	for what, gap := range seen.Gaps {
		if gap > mostGap {
			r.t.Errorf("%s: a gap of %s, want at most %s", what, gap, mostGap)
		}
	}
	if len(seen.Gaps) != 3 || len(seen.Heartbeats) != len(r.nodes) {
		r.t.Errorf("gaps of %d, heartbeats of %d Nodes: the probe could not fail", len(seen.Gaps), len(seen.Heartbeats))
	}
}
