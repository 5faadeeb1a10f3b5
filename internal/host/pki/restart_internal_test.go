package pki

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// If a file has changed that static pods do not reload, Apply must restart them under the lock, and wait for them. If a
// pod does not restart, Apply must return an error and no report, and the next Apply must wait again. A process that is
// not visible may have old files.
func TestRestartsStaticPods(t *testing.T) {
	for _, test := range []struct {
		ca   rotation.CA
		want map[rotation.Stage]string
	}{
		{rotation.Cluster, map[rotation.Stage]string{
			rotation.Trust: "kube-controller-manager kube-scheduler", rotation.Switch: "kube-controller-manager kube-scheduler kubelet", rotation.Finish: "kube-controller-manager kube-scheduler kubelet",
		}},
		{rotation.Etcd, map[rotation.Stage]string{rotation.Trust: "etcd kube-apiserver", rotation.Switch: "", rotation.Finish: "etcd kube-apiserver"}},
		{rotation.FrontProxy, map[rotation.Stage]string{}},
	} {
		f := newFixture(t, test.ca, false)
		locked, locks := false, 0
		f.Lock = func(context.Context) (func(), error) {
			locked = true
			locks++
			return func() { locked = false }, nil
		}
		for _, stage := range stages {
			locks = 0
			done := must.Value(f.Apply(t.Context(), f.at(stage)))(t)
			wantLocks := 0
			if strings.Contains(test.want[stage], "kube-") {
				wantLocks = 1
			}
			if got := strings.Join(done.Restarted, " "); got != test.want[stage] || locked || locks != wantLocks {
				t.Errorf("%s, %s: restarted %q, want %q; locked %d times, and still: %t", test.ca, stage, got, test.want[stage], locks, locked)
			}
		}
	}
	f := newFixture(t, rotation.Etcd, false)
	f.Wait = time.Millisecond
	must.Value(f.machine.find(2381))(t)
	f.machine.stuck = true
	for range 2 {
		done, err := f.Apply(t.Context(), f.at(rotation.Trust))
		if err == nil || !strings.Contains(err.Error(), "etcd was not healthy after") || !strings.Contains(done.Report.Failed, "etcd was not healthy after") || len(done.Report.Files) > 0 {
			t.Errorf("got %v, report %+v", err, done.Report)
		}
	}
	f.Wait, f.machine.stuck = time.Minute, false
	if done, err := f.Apply(t.Context(), f.at(rotation.Trust)); err != nil || len(done.Report.Restart) > 0 {
		t.Errorf("got %v, report %+v", err, done.Report)
	}
	f.Lock = func(context.Context) (func(), error) { return nil, errors.New("locked though nothing runs") }
	kubelet, running, want := f.machine.kubelet, f.machine.running, []string{"etcd", "kube-apiserver"}
	f.machine.kubelet, f.machine.running = process{}, map[int]process{}
	if done, err := f.Apply(t.Context(), f.at(rotation.Finish)); err != nil || len(done.Restarted) > 0 || !slices.Equal(done.Report.Restart, want) {
		t.Errorf("on a host where nothing runs: %v, %+v", err, done)
	}
	a := must.Value(f.look(authorities[rotation.Etcd], f.at(rotation.Finish)))(t)
	b := must.Value(f.openBackup(a, f.at(rotation.Finish)))(t)
	f.machine.invisible = errors.New("not visible")
	if got := f.allStale(t.Context(), b, a, f.at(rotation.Finish)); !slices.Equal(got, want) {
		t.Errorf("on a host where nothing is visible: %q", got)
	}
	f.machine.kubelet, f.machine.running, f.machine.invisible, f.Lock = kubelet, running, nil, nil
	if done, err := f.Apply(t.Context(), f.at(rotation.Finish)); err != nil || !slices.Equal(done.Restarted, want) || len(done.Report.Restart) > 0 {
		t.Errorf("with the kubelet again: %v, %+v", err, done)
	}
}

// Only the kubelet restarts static pods, so without the kubelet, Apply must change no file. If the kubelet stops later, Apply
// must end no process and keep the lock, because an earlier Apply may have ended a process.
func TestEndsNoPodWithoutKubelet(t *testing.T) {
	const want = "no kubelet listens on port 10248, which would start etcd again"
	f := newFixture(t, rotation.Etcd, false)
	must.Value(f.machine.find(2381))(t)
	kubelet := f.machine.kubelet
	f.machine.kubelet = process{}
	if _, err := f.Apply(t.Context(), f.at(rotation.Switch)); err == nil || !strings.Contains(err.Error(), want) || !maps.Equal(f.before, tree(t, f.Dir)) {
		t.Errorf("got %v, want no change", err)
	}
	f.machine.kubelet = kubelet
	released := false
	f.Lock = func(context.Context) (func(), error) {
		f.machine.kubelet = process{}
		return func() { released = true }, nil
	}
	if _, err := f.Apply(t.Context(), f.at(rotation.Trust)); err == nil || !strings.Contains(err.Error(), want) || released || len(f.machine.ended) > 0 {
		t.Errorf("got %v, released %t, ended %d", err, released, f.machine.ended)
	}
}

// A kube-apiserver may continue to serve after SIGTERM, until load balancers have noticed.
func TestAPIServerHasItsShutdownDelay(t *testing.T) {
	f := newFixture(t, rotation.Etcd, false)
	f.write(t, "manifests/kube-apiserver.yaml", []byte(strings.Replace(podYAML("kube-apiserver"), "    image: x\n", "    image: x\n    command: [kube-apiserver, --shutdown-delay-duration=20s]\n", 1)))
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	slices.Sort(f.machine.graces)
	if !slices.Equal(f.machine.graces, []time.Duration{grace, grace + 20*time.Second}) {
		t.Errorf("got %s to end, want %s and 20s more", f.machine.graces, grace)
	}
}

// A process that has read its files may not listen yet. Apply must end it as soon as it listens.
func TestEndsProcessThatListensLate(t *testing.T) {
	f := newFixture(t, rotation.Etcd, false)
	must.Value(f.machine.find(2381))(t)
	f.machine.hidden = 5 // so many searches miss etcd: before any file changes, and until the restart
	done := must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	if !slices.Contains(f.machine.ended, 2381) || f.machine.hidden > 0 || len(done.Report.Restart) > 0 {
		t.Errorf("ended %d, report %q, want etcd ended", f.machine.ended, done.Report.Restart)
	}
}

// Before Kubernetes 1.36, a kube-apiserver that verifies kubelets reads their CA only at the start.
func TestRestartsAPIServerThatVerifiesKubelets(t *testing.T) {
	const file, verifies = "manifests/kube-apiserver.yaml", "    command: [kube-apiserver, --kubelet-certificate-authority=/etc/kubernetes/pki/ca.crt]\n"
	for lines, want := range map[string]bool{
		"    image: registry.k8s.io/kube-apiserver:v1.35.4\n" + verifies:                                                                        true,
		"    image: registry.k8s.io/kube-apiserver:v1.36.0\n" + verifies:                                                                        false,
		"    image: registry.k8s.io/kube-apiserver:v1.35.4\n" + strings.ReplaceAll(verifies, "kubelet-certificate-authority", "client-ca-file"): false,
	} {
		f := newFixture(t, rotation.Cluster, false)
		f.write(t, file, []byte(strings.Replace(podYAML("kube-apiserver"), "    image: x\n", strings.ReplaceAll(lines, "/etc/kubernetes", f.Dir), 1)))
		for n, stage := range stages {
			done := must.Value(f.Apply(t.Context(), f.at(stage)))(t)
			restarts := want && (stage == rotation.Trust || stage == rotation.Finish) // these two stages change the trusted CAs
			if got := slices.Contains(done.Restarted, "kube-apiserver"); got != restarts || n == 0 && len(done.Restarted) > 0 {
				t.Errorf("%s%s: restarted %q, want kube-apiserver: %t", lines, stage, done.Restarted, restarts)
			}
		}
	}
}

// All pods must restart at the same time, whether or not they need each other. They have one deadline, because the lock
// expires after twice --wait.
func TestRestartsPodsAtTheSameTime(t *testing.T) {
	for _, ca := range []rotation.CA{rotation.Cluster, rotation.Etcd} {
		f := newFixture(t, ca, false)
		must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
		log := strings.Join(f.logged, "\n")
		_, after, found := strings.Cut(log, " is healthy")
		if !found || strings.Count(log, "restarting kube-")+strings.Count(log, "restarting etcd") != 2 || strings.Contains(after, "restarting kube-") {
			t.Errorf("%s: got\n%s\nwant both pods restarted before the first one is healthy", ca, log)
		}
		if got := slices.Compact(f.machine.deadlines); len(got) != 1 || got[0].IsZero() {
			t.Errorf("%s: deadlines %s, want one for all pods", ca, got)
		}
	}
}

// A kubelet reads its CAs and certificates only when it starts, so each stage must restart it once. In stage trust, the
// cross certificate makes the restart unnecessary if the kubelet re-reads its client CAs.
func TestRestartsKubelet(t *testing.T) {
	third := newCA(t, "third")
	for _, test := range []struct {
		name     string
		change   func(f *fixture, r *rotation.Rotation)
		restarts bool // in stage trust
	}{
		{"all is well", func(*fixture, *rotation.Rotation) {}, false},
		{"no cross certificate", func(_ *fixture, r *rotation.Rotation) { r.Cross = nil }, true},
		{"an intermediate CA may have signed the cross certificate", func(_ *fixture, r *rotation.Rotation) { r.Old = append(r.Old, third.Certificate()) }, true},
		{"before 1.36", func(f *fixture, _ *rotation.Rotation) { f.KubeletReloads = func(context.Context) bool { return false } }, true},
		{"unknown version", func(f *fixture, _ *rotation.Rotation) { f.KubeletReloads = nil }, true},
		{"feature gate", func(f *fixture, _ *rotation.Rotation) {
			must.OK(t, os.WriteFile(filepath.Join(f.KubeletDir, "config.yaml"), []byte("featureGates: {ReloadKubeletClientCAFile: false}\n"), 0o600))
		}, true},
		{"all such feature gates", func(f *fixture, _ *rotation.Rotation) {
			must.OK(t, os.WriteFile(filepath.Join(f.KubeletDir, "config.yaml"), []byte("featureGates: {AllBeta: false}\n"), 0o600))
		}, true},
	} {
		f := newFixture(t, rotation.Cluster, true)
		f.Pins = []string{clusterinfo.Pin(f.fresh.Certificate()), clusterinfo.Pin(third.Certificate())}
		want := 0
		for n, r := range []rotation.Rotation{
			f.at(rotation.Prepare), f.at(rotation.Trust), f.at(rotation.Switch), f.at(rotation.Finish),
			f.aborted(rotation.Switch), f.aborted(rotation.Trust), f.aborted(rotation.Prepare),
		} {
			test.change(f, &r)
			if n > 0 && (r.Stage != rotation.Trust || test.restarts) {
				want++
			}
			for range 2 {
				done := must.Value(f.Apply(t.Context(), r))(t)
				if len(f.machine.ended) != want || len(done.Report.Restart) > 0 {
					t.Errorf("%s, %s: got %d restarts, want %d; report %q", test.name, r.Stage, len(f.machine.ended), want, done.Report.Restart)
				}
			}
		}
	}
}

// Apply must also restart a kubelet without a health endpoint. A kubelet that is not found may have old files.
func TestFindsKubeletWithoutHealth(t *testing.T) {
	for config, found := range map[string]bool{"healthzPort: 0\n": true, "healthzPort: 0\nport: 10260\n": true, "healthzPort: 0\nport: 1\n": false} {
		f := newFixture(t, rotation.Cluster, true)
		must.OK(t, os.WriteFile(filepath.Join(f.KubeletDir, "config.yaml"), []byte(config), 0o600))
		done := must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
		restarted, stale := slices.Equal(done.Restarted, []string{"kubelet"}), slices.Equal(done.Report.Restart, []string{"kubelet"})
		if restarted != found || stale == found {
			t.Errorf("%q: restarted %q, report %q", config, done.Restarted, done.Report.Restart)
		}
	}
}

// Apply cannot restart processes that it cannot see, so it must change no file.
func TestChangesNothingIfProcessesAreInvisible(t *testing.T) {
	for _, dry := range []bool{false, true} {
		f := newFixture(t, rotation.Cluster, true)
		f.machine.invisible, f.DryRun = errors.New("not visible"), dry
		if _, err := f.Apply(t.Context(), f.at(rotation.Trust)); err == nil || !strings.Contains(err.Error(), "kubelet: not visible") || !maps.Equal(f.before, tree(t, f.Dir)) {
			t.Errorf("dry run %t: got %v, want no change", dry, err)
		}
	}
	f := newFixture(t, rotation.FrontProxy, false) // this CA needs no restart
	f.machine.invisible = errors.New("not visible")
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
}

// While etcd of one control plane is down, etcd of the next control plane must not restart.
func TestKeepsLockUntilPodIsHealthy(t *testing.T) {
	f := newFixture(t, rotation.Etcd, false)
	released := 0
	f.Lock = func(context.Context) (func(), error) { return func() { released++ }, nil }
	f.Wait = time.Millisecond
	must.Value(f.machine.find(2381))(t)
	f.machine.stuck = true
	for range 3 { // first etcd does not start, later it starts but is not healthy
		if _, err := f.Apply(t.Context(), f.at(rotation.Trust)); err == nil || !strings.Contains(err.Error(), "etcd was not healthy after") || released > 0 {
			t.Errorf("got %v, released %d times", err, released)
		}
		f.machine.stuck, f.machine.sick = false, errors.New("no leader")
	}
	f.machine.sick = nil
	if _, err := f.Apply(t.Context(), f.at(rotation.Trust)); err != nil {
		t.Error(err)
	}
	released, f.machine.refused = 0, errors.New("operation not permitted")
	if _, err := f.Apply(t.Context(), f.at(rotation.Finish)); !errors.Is(err, f.machine.refused) || released != 1 {
		t.Errorf("a process that cannot be ended: got %v, released %d times, want once", err, released)
	}
}

// The clock may be changed at any time, even between a write and a look at processes.
func TestClockThatChanges(t *testing.T) {
	for _, skew := range []time.Duration{time.Hour, -time.Hour} {
		f := newFixture(t, rotation.Cluster, true)
		files := []string{"pki/ca.crt", kubeletConf}
		apply := func(what string, restarts int) {
			t.Helper()
			ended := len(f.machine.ended)
			done := must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
			if got := len(f.machine.ended) - ended; got != restarts || len(done.Report.Restart) > 0 {
				t.Errorf("%s %s: got %d restarts, want %d; report %q", what, skew, got, restarts, done.Report.Restart)
			}
		}
		apply("first", 1)
		running := f.machine.kubelet
		f.machine.skew = skew
		apply("clock changed after the write by", 0)
		f.machine.kubelet.started = running.started.Add(-time.Minute) // it was not restarted
		apply("old kubelet, and clock changed after the write by", 1)
		for _, name := range files { // as if the clock was skewed during the write
			info := must.Value(os.Stat(f.file(name)))(t)
			must.OK(t, os.Chtimes(f.file(name), time.Time{}, info.ModTime().Add(-skew)))
		}
		f.machine.skew = 0
		index := f.file(Backups, "cluster-"+f.rotation.ID, indexFile)
		text := strings.ReplaceAll(string(must.Value(os.ReadFile(index))(t)), "2026-01-01T00:00:00Z", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-skew).Format(time.RFC3339))
		must.OK(t, os.WriteFile(index, []byte(text), 0o600))
		apply("clock at the write changed by", 0)
		must.OK(t, os.WriteFile(index, []byte(strings.ReplaceAll(text, `"id": "1"`, `"id": "0"`)), 0o600))
		f.machine.kubelet.started = time.Now().Add(-time.Hour)
		apply("the machine booted later, clock changed by", 0)
	}
}

// A killed process still listens for a moment after its files have become invisible. Here, the socket is being passed to
// another process.
func TestListenerWaitsForProcessThatEnds(t *testing.T) {
	listener := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	at := service{port: listener.Addr().(*net.TCPAddr).Port}
	socket := must.Value(listener.(*net.TCPListener).File())(t)
	way := must.Value(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0))(t)
	must.OK(t, syscall.Sendmsg(way[0], []byte{0}, syscall.UnixRights(int(socket.Fd())), nil, 0))
	must.OK(t, errors.Join(socket.Close(), listener.Close()))
	if _, err := (machine{}).listenerNow(at); !errors.Is(err, errNotVisible) {
		t.Errorf("got %v, want %v", err, errNotVisible)
	}
	time.AfterFunc(ending/10, func() { _, _ = syscall.Close(way[0]), syscall.Close(way[1]) })
	if p, err := (machine{}).listener(at); err != nil || p.pid != 0 {
		t.Errorf("got %+v, %v, want no process", p, err)
	}
}

// machine must find the process that listens on a port, its start time, and end it with SIGTERM.
func TestMachine(t *testing.T) {
	listener := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	port := listener.Addr().(*net.TCPAddr).Port
	at := service{port: port, url: "http://" + listener.Addr().String()}
	p := must.Value(machine{}.listener(at))(t)
	if p.pid != os.Getpid() || p.started.After(time.Now()) || time.Since(p.started) > time.Hour {
		t.Errorf("got %+v, want process %d", p, os.Getpid())
	}
	// Another process listens on the same port of another address. It may be a pod, which only the kubelet may signal.
	other := must.Value(net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", port)))(t)
	socket := must.Value(other.(*net.TCPListener).File())(t)
	pod := exec.CommandContext(t.Context(), "sleep", "1000")
	pod.ExtraFiles = []*os.File{socket}
	must.OK(t, pod.Start())
	must.OK(t, errors.Join(other.Close(), socket.Close()))
	defer func() { _, _ = pod.Process.Kill(), pod.Wait() }()
	self := strings.TrimSpace(string(must.Value(os.ReadFile("/proc/self/comm"))(t)))
	for _, test := range []struct {
		url, comm string
		want      int // 0 means an error
	}{
		{"http://127.0.0.1/healthz", "", os.Getpid()}, {"http://127.0.0.2/healthz", "", pod.Process.Pid},
		{"", self, os.Getpid()}, {"", "sleep", pod.Process.Pid}, {"http://127.0.0.1/", self, os.Getpid()}, {"http://127.0.0.1/", "kubelet", 0},
	} {
		p, err := machine{}.listener(service{port: port, url: test.url, comm: test.comm})
		if p.pid != test.want || (err != nil) != (test.want == 0) || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("process %d, %q of user %d, listens", os.Getpid(), self, os.Getuid())) {
			t.Errorf("%q %q: got process %d, %v, want %d", test.url, test.comm, p.pid, err, test.want)
		}
	}
	// If another process listens on all IPv6 addresses, it gets no connections to 127.0.0.1.
	if six, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp6", fmt.Sprintf("[::]:%d", port)); err == nil {
		socket := must.Value(six.(*net.TCPListener).File())(t)
		impostor := exec.CommandContext(t.Context(), "sleep", "1000")
		impostor.ExtraFiles = []*os.File{socket}
		must.OK(t, impostor.Start())
		must.OK(t, errors.Join(six.Close(), socket.Close()))
		for url, want := range map[string]int{"http://127.0.0.1/": os.Getpid(), "http://[::1]/": impostor.Process.Pid, "http://127.0.0.3/": impostor.Process.Pid} {
			if p, err := (machine{}).listener(service{port: port, url: url}); p.pid != want {
				t.Errorf("%s: got process %d, %v, want %d", url, p.pid, err, want)
			}
		}
		_, _ = impostor.Process.Kill(), impostor.Wait()
	}
	for address, url := range map[string]string{"0.0.0.0:0": "http://192.0.2.1/", "[::]:0": "http://127.0.0.1/", "[::1]:0": "http://[::1]/", "[::ffff:127.0.0.1]:0": "http://127.0.0.1/"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue // the machine has no IPv6
		}
		if p, err := (machine{}).listener(service{port: l.Addr().(*net.TCPAddr).Port, url: url}); p.pid != os.Getpid() {
			t.Errorf("%s at %s: got process %d, %v", url, address, p.pid, err)
		}
		must.OK(t, l.Close())
	}
	must.OK(t, listener.Close())
	at.url = "http://127.0.0.1/"
	if p, err := (machine{}).listener(at); err != nil || p.pid != 0 {
		t.Errorf("after Close: got %+v, %v", p, err)
	}
	before := time.Now()
	command := exec.CommandContext(t.Context(), "sleep", "1000")
	must.OK(t, command.Start())
	started := must.Value(startedAt(command.Process.Pid))(t)
	const tick = 100 * time.Millisecond
	if started.Before(before.Add(-tick)) || started.After(time.Now().Add(tick)) {
		t.Errorf("started at %s, want %s", started, before)
	}
	// Another process had this ID, so end must not signal this test.
	must.OK(t, machine{}.end(t.Context(), process{os.Getpid(), started.Add(-time.Hour)}, time.Minute))
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	must.OK(t, machine{}.end(t.Context(), process{command.Process.Pid, started}, time.Minute))
	if err := <-ended; err == nil || command.ProcessState.String() != "signal: terminated" {
		t.Errorf("got %v", command.ProcessState)
	}
}

// A kube-apiserver with open watches would refuse requests for a minute until it ends.
func TestEndsProcessThatIgnoresSIGTERM(t *testing.T) {
	command := exec.CommandContext(t.Context(), "bash", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done")
	output := must.Value(command.StdoutPipe())(t)
	must.OK(t, command.Start())
	must.Value(output.Read(make([]byte, 1)))(t)
	started := must.Value(startedAt(command.Process.Pid))(t)
	p := process{command.Process.Pid, started}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (machine{}).end(ctx, p, time.Nanosecond); !errors.Is(err, context.Canceled) {
		t.Errorf("after Ctrl-C: got %v", err)
	}
	// Simulates a --wait that is shorter than the grace period.
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	must.OK(t, machine{}.end(ctx, p, time.Hour))
	if err := command.Wait(); err == nil || command.ProcessState.String() != "signal: killed" {
		t.Errorf("got %v", command.ProcessState)
	}
}
