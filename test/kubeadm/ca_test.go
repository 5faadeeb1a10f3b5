package kubeadm

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/kubejoin/kubejoin/test/harness"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReplacesClusterCA replaces the CA of a cluster with two control planes. After that, nothing on any machine may be
// from the old CA. Then the test begins to replace the new CA, up to stage finish, and aborts. After that, each file must
// have its old content. Meanwhile a probe uses each kubeconfig and watches the Nodes, and machines join.
func TestReplacesClusterCA(t *testing.T) {
	harness.Parallel(t)
	r := newRotationTest(t).withWorker()
	r.runProxies()
	r.watched((*rotationTest).there)
	r.proxiesWork()
	if !r.olderThan("1.36") {
		r.watched((*rotationTest).back)
	}
}

// A rotationTest replaces CAs in a cluster with two control planes and workers.
type rotationTest struct {
	*pair
	nodes      []*Machine
	round      int       // number of calls of watched
	since      time.Time // begin of the stage
	pins       []string  // CA pins for ca apply
	restart    string    // flag for ca apply on the first control plane
	signersOff bool      // the second kube-controller-manager does not sign
	stopped    bool      // kube-scheduler
	proxies    bool      // kube-proxy runs

	session []commands // commands of the page for later stages
	stage   commands   // commands of the page for this stage; empty: use the commands of the test

	joining sync.Mutex // held while a machine joins in the background, and during a step
	oldest  string     // a join command from before the rotation; empty after its token was deleted

	mu     sync.Mutex // guards the fields below
	steps  []step
	joined []joined
}

// A step is a command of 'kubejoin ca' and the time when it began.
type step struct {
	began   time.Time
	command string
}

// commands are the commands of the page for one stage: the administrator's command, and the commands for each kind of host.
type commands struct{ step, controlPlane, worker string }

// sessionOf returns the commands for the stages, without status commands. Comments in block say on which hosts a command runs.
func sessionOf(block string) (session []commands) {
	for line := range strings.Lines(block) {
		line, where, _ := strings.Cut(strings.TrimSpace(line), " # ")
		switch {
		case line == "" || strings.HasPrefix(line, "kubejoin ca status"):
		case !strings.HasPrefix(line, "sudo kubejoin ca apply"):
			session = append(session, commands{step: line})
		default:
			last := &session[len(session)-1]
			if !strings.Contains(where, "worker") {
				last.controlPlane = line
			}
			if !strings.Contains(where, "control plane") {
				last.worker = line
			}
		}
	}
	return session
}

// enter takes the commands for the next stage from the page, if the test uses the page.
func (r *rotationTest) enter(args ...string) {
	r.t.Helper()
	r.stage = commands{}
	if len(r.session) == 0 {
		return
	}
	r.stage, r.session = r.session[0], r.session[1:]
	if want := "kubejoin ca " + strings.Join(args, " "); !strings.Contains(r.stage.step, want) {
		r.t.Fatalf("the page has %q, want %q", r.stage.step, want)
	}
}

// pasted returns arguments that run a line of the page on a machine.
func (r *rotationTest) pasted(line string) []string {
	return []string{"bash", "-euc", `cd /run; sudo() { "$@"; }; PATH=` + filepath.Dir(harness.Kubejoin()) + ":$PATH; " + line}
}

const image = "ghcr.io/kubejoin/kubejoin:test"

func newRotationTest(t *testing.T) *rotationTest {
	t.Helper()
	began := time.Now()
	c := ForTest(t)
	r := &rotationTest{pair: &pair{c, t, addMachine(t, c, "control-1"), addMachine(t, c, "control-2")}}
	r.nodes = []*Machine{r.first, r.second}
	patches, err := AllSignersOff()
	r.must(err)
	r.network(r.first)
	r.network(r.second)
	r.must(c.Init(t.Context(), patches))
	for _, m := range r.nodes {
		r.must(m.ImportProgram(t.Context(), image, harness.Kubejoin()))
	}
	r.must(c.Install(t.Context(), image))
	r.must(c.permitControlPlanes(t.Context()))
	output := r.on(r.first, "kubeadm", "init", "phase", "upload-certs", "--upload-certs", "--config="+Config)
	key := output[strings.LastIndex(output, "\n")+1:]
	line, err := c.RequestJoin(t.Context(), r.first.Address, "maxNodes=1&role=control-plane")
	r.must(err)
	r.must(r.second.Join(t.Context(), strings.TrimSpace(line)+" --control-plane --certificate-key="+key))
	t.Logf("cluster: %.1f s", time.Since(began).Seconds())
	return r
}

func (r *rotationTest) withWorker() *rotationTest {
	r.t.Helper()
	r.add("worker-1", r.request())
	return r
}

// watched calls work while a probe runs and machines join. Every second machine joins with oldest, a join command from before.
func (r *rotationTest) watched(work func(r *rotationTest, oldest string)) {
	r.t.Helper()
	began := time.Now()
	oldest := r.request()
	r.oldest, r.joined = oldest, nil
	r.round++
	if r.olderThan("1.36") { // API servers restart
		work(r, oldest)
		return
	}
	started := r.apiServersStarted()
	probe := must.Value(r.startProbe(r.t.Context(), r.kubeconfigs(), r.first))(r.t)
	const pause = 5 * time.Second // a machine then joins at least every 20 s, even if other processes use the whole CPU
	r.repeatDuring(fmt.Sprintf("light-%d", r.round), pause, r.joinNext, func() { work(r, oldest) })
	r.kubectl("wait", "--for=condition=Ready", "--timeout=3m", "nodes", "--all")
	if got := r.apiServersStarted(); got != started {
		r.t.Errorf("API servers started at %s, before at %s: they reload certificates", got, started)
	}
	r.check(must.Value(probe.stop())(r.t), 1000)
	r.t.Logf("watched for %.1f s", time.Since(began).Seconds())
}

// network lets a Node be ready without a pod network: all pods use the host network.
func (r *rotationTest) network(m *Machine) {
	r.t.Helper()
	r.must(m.writeFile(r.t.Context(), "/etc/cni/net.d/10-none.conflist", `{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "none"}]}`))
}

func (r *rotationTest) kubeconfigs() map[*Machine][]string {
	all := map[*Machine][]string{}
	for _, m := range r.nodes {
		all[m] = []string{"/etc/kubernetes/kubelet.conf"}
	}
	for _, m := range r.nodes[:2] {
		all[m] = append([]string{"/etc/kubernetes/admin.conf", "/etc/kubernetes/controller-manager.conf", "/etc/kubernetes/scheduler.conf"}, all[m]...)
	}
	all[r.first] = append(all[r.first], "/etc/kubernetes/super-admin.conf")
	return all
}

// ca runs a command of 'kubejoin ca' as the administrator.
func (r *rotationTest) ca(args ...string) (string, error) {
	r.note("ca " + strings.Join(args, " "))
	return r.first.Run(r.t.Context(), append([]string{harness.Kubejoin(), "ca"}, args...)...)
}

// note records that a command begins.
func (r *rotationTest) note(command string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, step{time.Now(), command})
}

// step runs a step as soon as nothing is behind.
func (r *rotationTest) step(args ...string) {
	r.t.Helper()
	began, command := time.Now(), "ca "+strings.Join(args, " ")
	r.enter(args...)
	var refused error // the last refusal
	harness.Wait(r.t, "kubejoin "+command, func() error {
		err := r.try(args...)
		if err != nil && !strings.Contains(err.Error(), "not ready to ") {
			r.t.Fatal(err)
		}
		if err != nil {
			refused = err
		}
		return err
	})
	r.since = time.Now()
	r.t.Logf("%s: %.1f s, last refused with: %v", command, r.since.Sub(began).Seconds(), refused)
}

// try runs the command for a stage. If the page has such a command, try runs this one.
func (r *rotationTest) try(args ...string) error {
	if r.stage.step == "" {
		_, err := r.alone(args...)
		return err
	}
	defer r.pauseJoins(args)()
	r.note(r.stage.step)
	_, err := r.first.Run(r.t.Context(), r.pasted(r.stage.step)...)
	return err
}

// alone is like ca, but no machine joins meanwhile.
func (r *rotationTest) alone(args ...string) (string, error) {
	defer r.pauseJoins(args)()
	return r.ca(args...)
}

// pauseJoins lets no machine join until resume is called, because kubejoin refuses a step while a new Node is not ready. A
// step with --expire-tokens deletes tokens, including the token of the oldest join command, even if kubejoin refuses the
// step because clients need time.
func (r *rotationTest) pauseJoins(args []string) (resume func()) {
	r.joining.Lock()
	if slices.Contains(args, expireTokens) {
		r.oldest = ""
	}
	return r.joining.Unlock
}

// after returns the last command before a time.
func (r *rotationTest) after(at time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := "the beginning"
	for _, s := range r.steps {
		if s.began.Before(at) {
			last = s.command
		}
	}
	return last
}

// refuse waits until kubejoin refuses a step with a text in the error. It fails if the step succeeds.
func (r *rotationTest) refuse(want string, args ...string) {
	r.t.Helper()
	command := "kubejoin ca " + strings.Join(args, " ")
	harness.Wait(r.t, command+" refused because of "+want, func() error { // there may be other reasons first
		output, err := r.alone(args...)
		if err == nil || !strings.Contains(err.Error(), "not ready to ") {
			r.t.Fatalf("%s: %s, %v, want it refused because of %s", command, output, err, want)
		}
		if !strings.Contains(err.Error(), want) {
			return err
		}
		return nil
	})
}

// begin begins a rotation, and gives the certificate key to the control planes.
func (r *rotationTest) begin(args ...string) {
	r.t.Helper()
	r.enter("prepare")
	var key string
	var err error
	if r.stage.step == "" {
		key, err = r.ca(append([]string{"prepare"}, args...)...)
	} else {
		key = r.on(r.first, r.pasted("rm -f rotation.key; "+r.stage.step+"; cat rotation.key")...)
	}
	r.must(err)
	for _, m := range r.nodes[:2] {
		r.must(m.writeFile(r.t.Context(), certificateKeyFile, key))
	}
	r.apply(r.nodes[:2]...)
}

// prepare begins a rotation. In the first rotation, it also switches off the signer of the second control plane's
// kube-controller-manager.
func (r *rotationTest) prepare(args ...string) {
	r.t.Helper()
	r.begin(args...)
	if r.signersOff {
		return
	}
	r.signersOff = true
	// kubeadm join ignored the patches, so add the flags now. kubejoin reads the flags in the pod.
	r.kubectl("--namespace=kube-system", "wait", "--for=create", "--timeout=3m", "pod/kube-controller-manager-control-2")
	r.refuse("kube-controller-manager on control-2", "trust")
	r.on(r.second, "sh", "-euc", `
		cd /etc/kubernetes
		sed 's/--controllers=.*/&,-certificatesigningrequest-approving-controller,-certificatesigningrequest-signing-controller/' \
			manifests/kube-controller-manager.yaml >/run/new.yaml
		cat /run/new.yaml >manifests/kube-controller-manager.yaml`)
}

// stopControllers leaves only one kube-controller-manager running, and stops kube-scheduler. Otherwise each stage would
// restart them one after the other, which takes most of the time of a rotation.
func (r *rotationTest) stopControllers() {
	r.t.Helper()
	r.signersOff, r.stopped = true, true
	r.on(r.first, "mv", schedulerManifest, "/run")
	r.on(r.second, "rm", schedulerManifest, "/etc/kubernetes/manifests/kube-controller-manager.yaml")
}

const schedulerManifest = "/etc/kubernetes/manifests/kube-scheduler.yaml"

const expireTokens = "--expire-tokens"

const certificateKeyFile = "/run/rotation.key"

// exitUnfit is the exit code of 'kubejoin ca apply' if the host does not fit the stage although nothing failed.
const exitUnfit = 3

// bring writes an intermediate CA and its root to the first control plane, and returns the flags of prepare for it. No
// trusted CA certifies the root, so each host gets its CA pin.
func (r *rotationTest) bring() (flags []string) {
	r.t.Helper()
	template := func(name string) *x509.Certificate {
		return &x509.Certificate{
			Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
			NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().AddDate(1, 0, 0),
		}
	}
	root := certtest.Issue(r.t, template("root of the operator"), nil)
	ca := certtest.Issue(r.t, template("CA of the operator"), root)
	r.pins = []string{clusterinfo.Pin(root.Leaf)}
	key := must.Value(x509.MarshalPKCS8PrivateKey(ca.PrivateKey))(r.t)
	for name, blocks := range map[string][]pem.Block{
		"cert": {{Type: pemfile.Certificate, Bytes: ca.Leaf.Raw}, {Type: pemfile.Certificate, Bytes: root.Leaf.Raw}},
		"key":  {{Type: "PRIVATE KEY", Bytes: key}},
	} {
		var content strings.Builder
		for _, block := range blocks {
			r.must(pem.Encode(&content, &block))
		}
		file := "/run/new-ca." + name
		r.must(r.first.writeFile(r.t.Context(), file, content.String()))
		flags = append(flags, "--new-ca-"+name+"-file="+file)
	}
	return flags
}

// apply runs 'kubejoin ca apply' on machines: first on the control planes at the same time, then on the workers. It repeats
// that on each machine that does not fit the stage: kubejoin's leader may not have read its files yet.
func (r *rotationTest) apply(machines ...*Machine) {
	r.t.Helper()
	r.note("ca apply")
	control := slices.DeleteFunc(slices.Clone(machines), func(m *Machine) bool { return !r.isControlPlane(m) })
	workers := slices.DeleteFunc(slices.Clone(machines), r.isControlPlane)
	again := append(r.applyTo(control), r.applyTo(workers)...)
	if len(control) < 2 {
		return
	}
	harness.Wait(r.t, "hosts that fit", func() error {
		if len(again) == 0 {
			return nil
		}
		again = r.applyTo(again)
		return fmt.Errorf("%d do not", len(again))
	})
}

// applyOn returns the command to apply the stage on a machine.
func (r *rotationTest) applyOn(m *Machine) string {
	line, flags := r.stage.worker, ""
	if r.isControlPlane(m) {
		line, flags = r.stage.controlPlane, " --certificate-key-file="+certificateKeyFile
	}
	for _, pin := range r.pins {
		flags += " --ca-pin=" + pin
	}
	if line = cmp.Or(line, "kubejoin ca apply"+flags); m == r.first {
		line += r.restart
	}
	return line
}

// addPod adds a static pod that reads admin.conf once and holds a Lease, as kube-vip does. The pod runs kube-scheduler.
func (r *rotationTest) addPod() {
	r.t.Helper()
	r.on(r.first, "sh", "-euc", `
		cd /etc/kubernetes/manifests
		sed 's/: kube-scheduler$/: vip/; s/scheduler.conf/admin.conf/g; s/--leader-elect=true/&\n    - --leader-elect-resource-name=vip/
			s/--bind-address=.*/--secure-port=10299/; /Probe:/,/timeoutSeconds:/d; /ports:/,/protocol:/d' kube-scheduler.yaml >/run/vip.yaml
		mv /run/vip.yaml vip.yaml`)
	r.awaitPod(time.Now())
}

// awaitPod waits until the pod of addPod has renewed its Lease after this time.
func (r *rotationTest) awaitPod(after time.Time) {
	r.t.Helper()
	harness.Wait(r.t, "the Lease of static pod vip", func() error {
		text, err := r.Kubectl(r.t.Context(), "--namespace=kube-system", "get", "lease", "vip", "--output=jsonpath={.spec.renewTime}")
		if err != nil {
			return err
		}
		at, err := time.Parse(time.RFC3339, text)
		if err == nil && !at.After(after) {
			err = fmt.Errorf("renewed at %s, want after %s", at, after)
		}
		return err
	})
}

// restartPod applies on the first control plane. The pod uses the former admin.conf until --restart permits kubejoin to end
// the pod.
func (r *rotationTest) restartPod() {
	r.t.Helper()
	const next = "process vip on control-1 has not read its changed files; next: on control-1: kubejoin ca apply --restart vip"
	if output, err := r.first.Run(r.t.Context(), r.pasted("("+r.applyOn(r.first)+") 2>&1")...); err == nil || !strings.Contains(output, next) {
		r.t.Fatalf("got %v, want %s\n%s", err, next, output)
	}
	r.refuse("process vip on control-1", "switch")
	r.restart = " --restart vip"
}

func (r *rotationTest) isControlPlane(m *Machine) bool { return slices.Contains(r.nodes[:2], m) }

// applyTo runs 'kubejoin ca apply' on machines at the same time. It returns the machines that still do not fit the stage.
func (r *rotationTest) applyTo(machines []*Machine) (again []*Machine) {
	r.t.Helper()
	var mu sync.Mutex
	var failed error
	var running sync.WaitGroup
	for _, m := range machines {
		running.Go(func() {
			began := time.Now()
			output, err := m.Run(r.t.Context(), r.pasted("("+r.applyOn(m)+") 2>&1")...)
			r.t.Logf("%s: %.1f s: %s", m.Name, time.Since(began).Seconds(), strings.TrimSpace(output))
			mu.Lock()
			defer mu.Unlock()
			switch exit := (*exec.ExitError)(nil); {
			case errors.As(err, &exit) && exit.ExitCode() == exitUnfit:
				again = append(again, m)
			case err != nil:
				failed = errors.Join(failed, fmt.Errorf("%s: %w", m.Name, err))
			}
		})
	}
	running.Wait()
	r.must(failed)
	return again
}

// back begins three rotations, up to the stages prepare, switch and finish, and aborts each. In the second rotation, only
// some machines apply stage switch, as if the operator had then found a reason to abort. In the last rotation, the new CA
// comes from the operator, and the old CA does not certify it.
func (r *rotationTest) back(string) {
	const waits = "clients need until"
	settled := func(state *rotation.Rotation) *time.Time { return &state.Settled }
	r.stopControllers()
	before := r.files()
	r.prepare()
	r.goBack(0, before)

	r.prepare()
	r.step("trust")
	r.apply(r.nodes...)
	r.step("switch")
	r.apply(r.nodes[1:]...)
	r.awaitJoins()
	r.goBack(2, before)

	r.prepare(append(r.bring(), "--no-cross-sign")...)
	r.step("trust")
	r.apply(r.nodes...)
	r.refuse("pins only the old CA", "switch")
	r.refuse(waits, "switch", expireTokens)
	r.passTime(settled)
	r.step("switch", expireTokens) // for kubejoin, tokens of the first minute may pin the old CA
	r.apply(r.nodes...)
	r.awaitJoins()
	r.step("finish", expireTokens)
	r.apply(r.nodes...)
	r.awaitJoins()
	r.step("abort")
	r.apply(r.nodes...)
	r.awaitJoins()
	r.refuse(waits, "abort")
	r.passTime(settled)
	r.step("abort")
	r.apply(r.nodes...)
	r.awaitJoins()
	r.refuse("pins only the new CA", "abort")
	r.step("abort", expireTokens)
	r.apply(r.nodes...)
	r.awaitJoins()
	r.goBack(0, before)
}

// goBack goes back by this number of stages, and ends the rotation. After that, the machines must have the same files as
// before.
func (r *rotationTest) goBack(stages int, before map[string]string) {
	r.t.Helper()
	for range stages {
		r.step("abort")
		r.apply(r.nodes...)
		r.awaitJoins()
	}
	r.step("abort")
	r.apply(r.nodes...)
	r.wantFiles(before)
}

// wantFiles fails the test unless the machines have the same files as before.
func (r *rotationTest) wantFiles(before map[string]string) {
	r.t.Helper()
	after := r.files()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			r.t.Errorf("%s differs after the aborts", name)
		}
		delete(after, name)
	}
	if len(after) > 0 {
		r.t.Errorf("after the aborts there are %q", slices.Sorted(maps.Keys(after)))
	}
}

// there replaces the CA by a CA that kubejoin makes, with the commands of the page. During the rotation, a machine joins
// with the oldest join command.
func (r *rotationTest) there(oldest string) {
	r.session = sessionOf(readPage(r.t, "docs/ca.md").section("Rotate the CA of a cluster"))
	old := r.signing("ca")
	admin := r.oldAdmin()
	r.addPod()
	r.prepare()
	r.join(r.oldest, r.request())
	r.step("trust")
	r.restartPod()
	r.apply(r.first, r.second)
	r.refuse("worker-1", "switch")
	r.apply(r.nodes[2:]...)
	r.restartProxies("switch")
	r.awaitJoins()
	r.step("switch")
	r.add("worker-2", oldest)
	r.apply(r.nodes...)
	r.awaitJoins()
	if r.signing("ca").Leaf.Equal(old.Leaf) {
		r.t.Error("the new CA does not sign")
	}
	r.wantCode(admin, "200")
	r.refuse("pins only the old CA", "finish")
	r.step("finish", expireTokens)
	r.apply(r.nodes...)
	r.restartProxies("finish")
	r.awaitJoins()
	r.step("finish")
	r.passSettling()
	r.wantIncomplete(len(r.nodes))
	r.apply(r.nodes...)
	r.wantIncomplete(0)
	r.awaitJoins()

	r.wantCode(admin, "401")
	r.awaitPod(time.Now())
	r.on(r.first, "rm", "/etc/kubernetes/manifests/vip.yaml")
	r.restart = ""
	r.wantGone(old, r.signing("ca"), 4)
	if len(r.session) > 0 {
		r.t.Errorf("the page has more commands: %q", r.session)
	}
}

// wantIncomplete fails unless the status of an ended rotation names this number of hosts that have not completed it.
func (r *rotationTest) wantIncomplete(hosts int) {
	r.t.Helper()
	output, err := r.ca("status")
	r.must(err)
	if got := strings.Count(output, "has not completed the rotation there"); got != hosts {
		r.t.Errorf("%d hosts are behind after the end, want %d:\n%s", got, hosts, output)
	}
}

// wantGone fails the test for each trace of an old CA, and unless at least this number of objects has the new CA.
func (r *rotationTest) wantGone(old, fresh *tls.Certificate, inObjects int) {
	r.t.Helper()
	for _, m := range r.nodes {
		search := func(folders ...string) error {
			files, err := filesBelow(m.root(), folders...)
			for name, text := range files {
				if strings.HasPrefix(name, "/var/lib/kubelet/pki/kubelet-server-") {
					files[name] = leafIn(text) // the cross certificate may follow the leaf until the kubelet renews
				}
			}
			if traces := tracesOf(old, files); err == nil && (len(traces) > 0 || len(files) < 5) {
				err = fmt.Errorf("%d files, with the old CA: %q", len(files), traces)
			}
			return err
		}
		harness.Wait(r.t, "no trace of the old CA on "+m.Name, func() error { // kubelets update the files of pods within 90 s
			return search("/var/lib/kubelet")
		})
		r.must(search("/etc"))
	}
	harness.Wait(r.t, "no object with the old CA", func() error { // kube-controller-manager writes some of them
		objects := r.objects()
		if traces, now := tracesOf(old, objects), tracesOf(fresh, objects); len(traces) > 0 || len(now) < inObjects {
			return fmt.Errorf("with the old CA: %q, with the new CA: %q", traces, now)
		}
		return nil
	})
}

// passSettling changes the stored begin of the last stage, so that the last apply need not wait until clients have read
// their CA files.
func (r *rotationTest) passSettling() {
	r.t.Helper()
	r.passTime(func(state *rotation.Rotation) *time.Time { return &state.Since })
}

// passTime changes a time in the stored state, so that kubejoin does not wait 7 minutes for clients to read their CA files
// again. Before that, it restarts kubejoin. Only kubejoin reads CA files as rarely as every 5 minutes here, so no program
// needs the rest of the wait.
func (r *rotationTest) passTime(field func(*rotation.Rotation) *time.Time) {
	r.t.Helper()
	began := time.Now()
	if r.stopped { // new pods need kube-scheduler
		r.on(r.first, "mv", "/run/kube-scheduler.yaml", schedulerManifest)
		defer r.on(r.first, "mv", schedulerManifest, "/run")
	}
	r.kubectl("--namespace=kubejoin-system", "rollout", "restart", "daemonset/kubejoin")
	r.kubectl("--namespace=kubejoin-system", "rollout", "status", "daemonset/kubejoin", "--timeout=3m")
	state := storedRotation(r.t, r.kubectl)
	*field(&state) = field(&state).Add(-rotation.Rereads)
	patch := must.Value(json.Marshal(map[string]any{"data": map[string][]byte{"cluster": must.Value(rotation.Encode(state))(r.t)}}))(r.t)
	r.kubectl("-n", clusterstore.KeyNamespace, "patch", "secret", clusterstore.KeyName, "--type=merge", "--patch="+string(patch))
	r.t.Logf("starting kubejoin again: %.1f s", time.Since(began).Seconds())
}

// storedRotation returns the rotation of the cluster CA.
func storedRotation(t *testing.T, kubectl func(...string) string) rotation.Rotation {
	t.Helper()
	var secret corev1.Secret
	must.OK(t, json.Unmarshal([]byte(kubectl("-n", clusterstore.KeyNamespace, "get", "secret", clusterstore.KeyName, "--output=json")), &secret))
	return must.Value(clusterstore.FromSecret(&secret, rotation.Cluster))(t)
}

// objects returns the objects that may contain CA certificates, except the Secret with the state of the rotation.
func (r *rotationTest) objects() map[string]string {
	r.t.Helper()
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	kinds := "configmaps"
	if !r.olderThan("1.37") {
		kinds += ",clustertrustbundles"
	}
	r.must(json.Unmarshal([]byte(r.kubectl("get", kinds, "--all-namespaces", "--output=json")), &list))
	all := map[string]string{}
	for _, item := range list.Items {
		var object metav1.PartialObjectMetadata
		r.must(json.Unmarshal(item, &object))
		if object.Name != "kubejoin-ca" {
			all[object.Kind+" "+object.Namespace+"/"+object.Name] = string(item)
		}
	}
	return all
}

// files returns the content, owner and mode of all files of the machines below /etc/kubernetes.
func (r *rotationTest) files() map[string]string {
	r.t.Helper()
	all := map[string]string{}
	for _, m := range r.nodes {
		for name, content := range must.Value(filesBelow(m.root(), "/etc/kubernetes"))(r.t) {
			info := must.Value(os.Stat(m.root() + name))(r.t)
			owner := info.Sys().(*syscall.Stat_t)
			all[m.Name+name] = fmt.Sprint(info.Mode(), owner.Uid, owner.Gid, content)
		}
	}
	return all
}

// signing returns the CA and its key from two files of the first control plane.
func (r *rotationTest) signing(name string) *tls.Certificate {
	r.t.Helper()
	pair := must.Value(tls.X509KeyPair(r.pki(name+".crt"), r.pki(name+".key")))(r.t)
	return &pair
}

// pki reads a file of the first control plane.
func (r *rotationTest) pki(name string) []byte {
	r.t.Helper()
	return must.Value(os.ReadFile(filepath.Join(r.first.root(), "/etc/kubernetes/pki", name)))(r.t)
}

// oldAdmin returns a file with an administrator's certificate from the current CA, and its key.
func (r *rotationTest) oldAdmin() string {
	r.t.Helper()
	return r.clientOf(r.signing("ca"), pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}})
}

// clientOf returns a file with a client certificate and its key.
func (r *rotationTest) clientOf(ca *tls.Certificate, subject pkix.Name) string {
	r.t.Helper()
	client := certtest.Issue(r.t, &x509.Certificate{Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca)
	key := must.Value(x509.MarshalPKCS8PrivateKey(client.PrivateKey))(r.t)
	file := filepath.Join(r.t.TempDir(), "client.pem")
	content := slices.Concat(pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: client.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	r.must(os.WriteFile(file, content, 0o600))
	return file
}

// wantCode waits until all API servers and kubelets respond with a status to a client certificate.
func (r *rotationTest) wantCode(certificate, want string) {
	r.t.Helper()
	for i, m := range r.nodes {
		urls := []string{"https://" + m.Address + ":10250/pods"}
		if i < 2 {
			urls = append(urls, "https://"+m.Address+":6443/api")
		}
		for _, url := range urls {
			harness.Wait(r.t, url, func() error { // wait until the kubelet has a serving certificate
				got, err := r.outside.Run(r.t.Context(), "curl", "--silent", "--show-error", "--insecure", "--cert", certificate, "--output", "/dev/null", "--write-out", "%{http_code}", url)
				if err == nil && got != want {
					err = fmt.Errorf("%s for a certificate of the old CA, want %s", got, want)
				}
				return err
			})
		}
	}
}

// apiServersStarted returns when both API servers started.
func (r *rotationTest) apiServersStarted() (started string) {
	r.t.Helper()
	harness.Wait(r.t, "the pods of both API servers", func() error { // a kubelet may create its mirror Pods only a minute after its Node
		started = r.kubectl("--namespace=kube-system", "get", "pods", "--selector=component=kube-apiserver", "--output=jsonpath={.items[*].status.containerStatuses[*].state.running.startedAt}")
		if len(strings.Fields(started)) != 2 {
			return fmt.Errorf("API servers started at %q", started)
		}
		return nil
	})
	return started
}

// check fails the test for each failure that a probe saw, and logs the figures of the probe.
func (r *rotationTest) check(seen report, atLeast int) {
	r.t.Helper()
	line := func(f failure) string {
		return fmt.Sprintf("%d times from %s to %s, after %s: %s: %s", f.Count, f.First.Format(time.StampMilli), f.Last.Format(time.StampMilli), r.after(f.First), f.What, f.Text)
	}
	for _, f := range seen.Failures {
		r.t.Error(line(f))
	}
	for _, f := range seen.NotReady {
		if strings.HasPrefix(f.Text, "KubeletNotReady: ") {
			r.t.Log(line(f)) // allowed: on a busy machine, a kubelet that restarts reports this for a moment
		} else {
			r.t.Error(line(f))
		}
	}
	if seen.Requests < atLeast || len(seen.Heartbeats) < len(r.nodes) {
		r.t.Errorf("%d requests, heartbeats of %d Nodes: the probe could not fail", seen.Requests, len(seen.Heartbeats))
	}
	old := 0
	for _, j := range r.joined {
		if j.oldest {
			old++
		}
	}
	r.t.Logf("%d requests, longest gaps of API servers %v, longest times between heartbeats %v, %d joins, %d of them with the oldest join command", seen.Requests, seen.Gaps, seen.Heartbeats, len(r.joined), old)
}
