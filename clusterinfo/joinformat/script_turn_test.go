package joinformat_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"crypto/tls"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
)

// A turnServer serves cluster-info and the turn. It responds to requests for the turn with the statuses in order,
// and then with 200.
type turnServer struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
	got      []string // method, node and ID of each request
	asked    chan string
}

func serveTurns(t *testing.T, statuses ...int) (*turnServer, *machine) {
	t.Helper()
	ca := certtest.CA(t, "cluster")
	info := configMap(t, kubeconfigOf(t, ca))
	s := &turnServer{statuses: statuses, asked: make(chan string, 100)}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/controlplane/turn" {
			_, _ = w.Write(info)
			return
		}
		var body struct{ Node, ID, Address string }
		content, err := io.ReadAll(r.Body)
		if err != nil || json.Unmarshal(content, &body) != nil || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Authorization") != "Bearer abcdef."+secret ||
			body.Address != "127.0.0.1" {
			t.Errorf("%v: %s %v %s", err, r.Method, r.Header, content)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got = append(s.got, fmt.Sprint(r.Method, " ", body.Node, " ", body.ID))
		s.asked <- r.Method
		status := http.StatusOK
		if len(s.statuses) > 0 {
			status, s.statuses = s.statuses[0], s.statuses[1:]
		}
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"type":"x","status":%d,"detail":"control-2 has been joining \u0007 since noon"}`, status)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certtest.Serving(t, ca, "127.0.0.1")}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	j := joinOf(t, &server{Server: s.Server}, ca)
	j.CertificateKey = mustKey(t)
	m := newMachine(t, j)
	m.hurry(t)
	return s, m
}

// methods returns the methods of the requests for the turn. All of them must have the same node and ID.
func (s *turnServer) methods(t *testing.T, node string) (methods []string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, got := range s.got {
		words := strings.Fields(got)
		if len(words) != 3 || words[1] != node || len(words[2]) != 32 || words[2] != strings.Fields(s.got[0])[2] {
			t.Errorf("got request %q, want the node %s and one ID", got, node)
			continue
		}
		methods = append(methods, words[0])
	}
	return methods
}

// In each shell, the script must not run kubeadm before it has the turn, and must give back the turn after kubeadm.
func TestScriptWaitsForTurn(t *testing.T) {
	t.Parallel()
	for _, shell := range [][]string{{"sh"}, {"sh", "-eu"}, {"bash", "--posix"}, {"busybox", "sh"}, {"mksh"}} {
		t.Run(strings.Join(shell, " "), func(t *testing.T) {
			t.Parallel()
			s, m := serveTurns(t, http.StatusConflict, http.StatusServiceUnavailable)
			m.shell = installed(t, shell)
			m.kubeadm(t, 0)
			output, code := m.run(t, "--timeout", "60", "--", "--node-name=Control-3")
			if code != 0 || !strings.Contains(output, "waiting for the turn to join: control-2 has been joining") || !strings.Contains(output, "HTTP 503") || !strings.Contains(output, "turn of this machine") {
				t.Errorf("got exit code %d:\n%s", code, output)
			}
			if got := s.methods(t, "control-3"); !slices.Equal(got, []string{"POST", "POST", "POST", "DELETE"}) {
				t.Errorf("got requests %q", got)
			}
			if config := m.read(t, "config"); !strings.Contains(config, "\ntimeouts:\n  etcdAPICall: 20m0s\n") {
				t.Errorf("kubeadm waits too briefly for etcd:\n%s", config)
			}
		})
	}
}

// installed returns the shell, or sh if it is not installed.
func installed(t *testing.T, shell []string) []string {
	t.Helper()
	for _, dir := range []string{"/bin/", "/usr/bin/"} {
		if _, err := os.Stat(dir + shell[0]); err == nil {
			return shell
		}
	}
	t.Logf("%s is not installed", shell[0])
	return []string{"sh"}
}

// An endpoint without turns, for example the API server or an earlier kubejoin, must not prevent the machine from
// joining.
func TestScriptJoinsWithoutTurns(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 404} {
		s, m := serveTurns(t, status)
		m.kubeadm(t, 0)
		m.write(t, "more.yaml", "nodeRegistration:\n  name: \"control-4\"\ntimeouts:\n  discovery: 1m0s\n")
		output, code := m.run(t, "--add-config", m.file("more.yaml"))
		if code != 0 || !strings.Contains(output, "no turns") || len(s.methods(t, "control-4")) != 1 {
			t.Errorf("%d: got exit code %d and requests %q:\n%s", status, code, s.got, output)
		}
		if config := m.read(t, "config"); strings.Count(config, "timeouts:") != 1 {
			t.Errorf("got configuration with two timeouts:\n%s", config)
		}
	}
}

// A file of --add-config may end without a newline or with another document.
func TestScriptWaitsForEtcdWithAddedConfig(t *testing.T) {
	t.Parallel()
	for _, added := range []string{"nodeRegistration:\n  name: control-4", "dryRun: false\n---\nkind: KubeletConfiguration\n"} {
		_, m := serveTurns(t)
		m.kubeadm(t, 0)
		m.write(t, "more.yaml", added)
		if output, code := m.run(t, "--add-config", m.file("more.yaml")); code != 0 {
			t.Errorf("got exit code %d:\n%s", code, output)
		}
		if config := m.read(t, "config"); !strings.HasSuffix(config, "\ntimeouts:\n  etcdAPICall: 20m0s\n"+added) {
			t.Errorf("got configuration\n%s", config)
		}
	}
}

// If kubejoin cannot read the turn or etcd, the script must run kubeadm without the turn.
func TestScriptJoinsWithoutTurnAfterTimeout(t *testing.T) {
	t.Parallel()
	s, m := serveTurns(t, 500)
	m.kubeadm(t, 0)
	output, code := m.run(t, "--timeout", "0", "--", "--node-name", "control-2")
	if code != 0 || !strings.Contains(output, "HTTP 500: joining without one") || !slices.Equal(s.methods(t, "control-2"), []string{"POST"}) {
		t.Errorf("got exit code %d and requests %q:\n%s", code, s.got, output)
	}
}

// A failed or stopped script must give back the turn.
func TestScriptGivesBackTurn(t *testing.T) {
	t.Parallel()
	s, m := serveTurns(t)
	m.kubeadm(t, 7)
	if output, code := m.run(t, "--", "--node-name", "control-2"); code != 5 || !slices.Equal(s.methods(t, "control-2"), []string{"POST", "DELETE"}) {
		t.Errorf("got exit code %d and requests %q:\n%s", code, s.got, output)
	}
	for _, statuses := range [][]int{nil, {409, 409, 409, 409}} { // in kubeadm, and while it waits
		s, m = serveTurns(t, statuses...)
		m.kubeadm(t, 0)
		m.write(t, "bin/kubeadm", "#!/bin/sh\nexec /bin/sleep 600\n")
		cmd := m.start(t, "--", "--node-name", "control-2")
		<-s.asked
		must.OK(t, cmd.Process.Signal(syscall.SIGTERM))
		output, code := m.end(t, cmd)
		if got := s.methods(t, "control-2"); code != 143 || got[len(got)-1] != "DELETE" {
			t.Errorf("%v: got exit code %d and requests %q:\n%s", statuses, code, got, output)
		}
	}
}

// The turn must be renewed while kubeadm runs, and no longer.
func TestScriptRenewsTurn(t *testing.T) {
	t.Parallel()
	s, m := serveTurns(t)
	m.kubeadm(t, 0)
	m.write(t, "bin/kubeadm", "#!/bin/sh\nuntil [ -e "+m.file("done")+" ]; do sleep 1; done\n")
	cmd := m.start(t, "--", "--node-name", "control-2")
	for range 2 {
		<-s.asked
	}
	m.write(t, "done", "")
	output, code := m.end(t, cmd)
	if got := s.methods(t, "control-2"); code != 0 || slices.Index(got, "DELETE") != len(got)-1 {
		t.Errorf("got exit code %d and requests %q:\n%s", code, got, output)
	}
}

// A killed script cannot renew the turn, unless its kubeadm still runs.
func TestKilledScriptDoesNotRenewTurn(t *testing.T) {
	t.Parallel()
	s, m := serveTurns(t)
	m.kubeadm(t, 0)
	m.write(t, "bin/kubeadm", "#!/bin/sh\necho $$ >"+m.file("pid.new")+"\nmv "+m.file("pid.new")+" "+m.file("pid")+"\nexec /bin/sleep 600\n")
	cmd := m.command(t, "--", "--node-name", "control-2")
	left, held, err := os.Pipe()
	must.OK(t, err)
	defer func() { _ = left.Close() }()
	cmd.ExtraFiles = []*os.File{held} // every process of the script inherits it
	must.OK(t, cmd.Start())
	must.OK(t, held.Close())
	<-s.asked
	var pid int
	wait.OK(t, "kubeadm starts", func() error {
		content, err := os.ReadFile(m.file("pid"))
		if err == nil {
			_, err = fmt.Sscan(string(content), &pid)
		}
		return err
	})
	must.OK(t, cmd.Process.Kill())
	<-s.asked // a renewal for kubeadm, which was not killed
	must.OK(t, syscall.Kill(pid, syscall.SIGKILL))
	must.OK(t, left.SetReadDeadline(time.Now().Add(wait.Most)))
	if _, err := left.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("a process renews the turn after the end of kubeadm: %v", err)
	}
	_ = cmd.Wait()
	if got := s.methods(t, "control-2"); slices.Contains(got, "DELETE") {
		t.Errorf("got requests %q", got)
	}
}

// advance makes each read of the machine's clock return a later time.
func (m *machine) advance(t *testing.T, seconds int) {
	t.Helper()
	m.write(t, "time", "0")
	m.write(t, "bin/cut", fmt.Sprintf(`#!/bin/sh
case $* in
*/proc/uptime) echo $(($(cat %[1]s) + %[2]d)) | tee %[1]s.new; mv %[1]s.new %[1]s ;;
*) exec /usr/bin/cut "$@" ;;
esac
`, m.file("time"), seconds))
}

// If the server of the join command cannot be reached from the machine, kubeadm itself must wait for etcd.
func TestScriptJoinsIfTurnServerIsOutOfReach(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	j := joinOf(t, s, ca)
	j.CertificateKey, j.TurnServer = mustKey(t), "127.0.0.1:1"
	m := newMachine(t, j)
	m.kubeadm(t, 0)
	m.hurry(t)
	m.advance(t, 10)
	output, code := m.run(t)
	if code != 0 || !strings.Contains(output, "127.0.0.1:1 is out of reach") || m.read(t, "args") == "" {
		t.Errorf("got exit code %d:\n%s", code, output)
	}
	j.TurnServer = "a'b:1"
	if _, err := j.Script(); err == nil {
		t.Error("got a script with a quote in TurnServer, want an error")
	}
}
