package joinformat_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
)

// The script must retry temporary failures, and print each.
func TestScriptRetriesTemporaryFailures(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	good := configMap(t, kubeconfigOf(t, ca))
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), func(w http.ResponseWriter, nth int32) {
		switch nth {
		case 1:
			w.WriteHeader(http.StatusForbidden)
		case 2:
			w.WriteHeader(http.StatusNotFound)
		case 4: // on the verified connection
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = w.Write(good)
		}
	})
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 0)
	m.hurry(t)
	output, code := m.run(t)
	if code != 0 {
		t.Errorf("got exit code %d:\n%s", code, output)
	}
	for _, want := range []string{"HTTP 403", "no cluster-info yet", "HTTP 503"} {
		if !strings.Contains(output, want) {
			t.Errorf("got output without %q:\n%s", want, output)
		}
	}
	s.Close()
	if output, code := m.run(t, "--timeout", "0"); code != 4 || !strings.Contains(output, s.Listener.Addr().String()) {
		t.Errorf("without a server: got exit code %d:\n%s", code, output)
	}
}

// The script must wait as long as a throttled or unavailable server says, but not beyond its timeout. It must not read the
// body of an error.
func TestScriptWaitsAsLongAsServerSays(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	good := configMap(t, kubeconfigOf(t, ca))
	refuse := func(w http.ResponseWriter, code int, after string) {
		w.Header().Set("Retry-After", after)
		w.WriteHeader(code)
		_, _ = w.Write(good)
	}
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), func(w http.ResponseWriter, nth int32) {
		switch nth {
		case 1:
			refuse(w, http.StatusTooManyRequests, "7")
		case 2:
			refuse(w, http.StatusServiceUnavailable, "3600")
		case 3:
			refuse(w, http.StatusNotFound, "9")
		case 4:
			refuse(w, http.StatusServiceUnavailable, "soon")
		default:
			_, _ = w.Write(good)
		}
	})
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 0)
	m.write(t, "bin/sleep", "#!/bin/sh\necho \"$1\" >>"+m.file("sleeps")+"\n")
	output, code := m.run(t)
	if got := m.read(t, "sleeps"); code != 0 || got != "7\n30\n1\n1\n" || !strings.Contains(output, "HTTP 429") {
		t.Errorf("got exit code %d and sleeps %q, want 7, 30, 1 and 1:\n%s", code, got, output)
	}
	// The pause ends with the timeout.
	s = serve(t, certtest.Serving(t, ca, "127.0.0.1"), func(w http.ResponseWriter, _ int32) { refuse(w, http.StatusServiceUnavailable, "3600") })
	m = newMachine(t, joinOf(t, s, ca))
	m.write(t, "bin/sleep", "#!/bin/sh\necho \"$1\" >>"+m.file("sleeps")+"\nexec /bin/sleep \"$1\"\n")
	output, code = m.run(t, "--no-kubeadm", "--timeout", "3")
	if got, err := strconv.Atoi(strings.TrimSpace(m.read(t, "sleeps"))); code != 4 || err != nil || got > 3 || !strings.Contains(output, "HTTP 503") {
		t.Errorf("got exit code %d and a sleep of %d s, %v, want 4 and at most 3 s:\n%s", code, got, err, output)
	}
}

// If the certificate is not valid at the local time, the script must wait, and must print the time if it gives up.
func TestScriptWaitsForClock(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	valid := certtest.Serving(t, ca, "127.0.0.1")
	for name, later := range map[string]time.Duration{"not yet valid": 24 * time.Hour, "expired": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wrong := certtest.ServingFrom(t, ca, "127.0.0.1", time.Now().Add(later-time.Minute))
			s := serveAfter(t, func(asked int32) tls.Certificate {
				if asked < 3 {
					return wrong
				}
				return valid
			}, with(configMap(t, kubeconfigOf(t, ca))))
			m := newMachine(t, joinOf(t, s, ca))
			m.kubeadm(t, 0)
			m.hurry(t)
			said := regexp.MustCompile(`its certificate is not valid at this machine's time \(date 20\d\d-`)
			output, code := m.run(t, "--timeout", "0")
			if code != 4 || !said.MatchString(output) || !strings.Contains(output, "is its clock right?") || strings.Contains(output, "waiting") {
				t.Errorf("got exit code %d:\n%s", code, output)
			}
			m.untouched(t)
			// In this run, the certificate becomes valid.
			output, code = m.run(t)
			if code != 0 || len(said.FindAllString(output, -1)) != 1 || m.read(t, "args") == "" || s.asked.Load() < 4 {
				t.Errorf("got exit code %d and %d requests:\n%s", code, s.asked.Load(), output)
			}
		})
	}
}

// The timeout must not depend on the clock: NTP may change it by years while the script waits.
func TestScriptTimeoutIgnoresClockChanges(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	good := configMap(t, kubeconfigOf(t, ca))
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), func(w http.ResponseWriter, nth int32) {
		if nth < 3 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(good)
	})
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 0)
	m.hurry(t)
	jump := func(before, after int) {
		m.write(t, "bin/date", fmt.Sprintf("#!/bin/sh\n[ ! -e %[1]s ] || { echo %[3]d; exit; }\n: >%[1]s\necho %[2]d\n", m.file("set"), before, after))
		must.OK(t, os.RemoveAll(m.file("set")))
	}
	jump(1000, 2_000_000_000)
	if output, code := m.run(t); code != 0 {
		t.Errorf("forward: got exit code %d:\n%s", code, output)
	}
	s.Close()
	jump(2_000_000_000, 1000)
	if output, code := m.run(t, "--timeout", "2"); code != 4 {
		t.Errorf("backward: got exit code %d:\n%s", code, output)
	}
}

// On a signal, the script must end kubeadm, delete its files and exit with 128 plus the signal number. Catches a signal
// between the start of kubeadm and the line that stores its process ID: this script sends the signal to itself there.
func TestScriptStopsKubeadmThatHasJustStarted(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 0)
	m.write(t, "bin/kubeadm", fmt.Sprintf("#!/bin/sh\ntrap 'echo >%s; exit 3' TERM\necho >%s\nfor n in $(seq 2000); do sleep 0.1; done\n", m.file("ended"), m.file("begun")))
	const note = "\n    pid=$!\n"
	script := m.read(t, "join.sh")
	if strings.Count(script, note) != 1 {
		t.Fatalf("want the line %q once in\n%s", note, script)
	}
	m.write(t, "join.sh", strings.Replace(script, note, fmt.Sprintf("\nuntil [ -e %s ]; do sleep 0.1; done; kill -TERM $$%s", m.file("begun"), note), 1))
	output, code := m.end(t, m.start(t))
	if _, err := os.Stat(m.file("ended")); err != nil || code != 143 {
		t.Errorf("got exit code %d, want 143, and kubeadm has ended: %v\n%s", code, err, output)
	}
}

func TestScriptStopsKubeadmOnSignal(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	codes := map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGHUP: 129}
	for sig := range codes {
		// A shell cannot trap a signal that is ignored when it starts, for example SIGHUP under nohup. If this process
		// handles the signal, its child processes do not ignore it.
		if signal.Ignored(sig) {
			handled := make(chan os.Signal, 1)
			signal.Notify(handled, sig)
			t.Cleanup(func() { signal.Stop(handled) })
		}
	}
	for _, shell := range []string{"sh", "dash", "bash", "busybox", "mksh"} {
		for sig, want := range codes {
			t.Run(fmt.Sprint(shell, " ", sig), func(t *testing.T) {
				t.Parallel()
				needShell(t, shell)
				m := newMachine(t, joinOf(t, s, ca))
				if m.shell = []string{shell}; shell == "busybox" {
					m.shell = append(m.shell, "sh")
				}
				m.kubeadm(t, 0)
				// This kubeadm needs some time to stop.
				m.write(t, "bin/kubeadm", fmt.Sprintf("#!/bin/sh\ntrap 'sleep 0.3; echo >%s; exit 3' TERM\necho >%s\nfor n in $(seq 2000); do sleep 0.1; done\n", m.file("ended"), m.file("begun")))
				cmd := m.start(t)
				wait.OK(t, "kubeadm starts", func() error { _, err := os.Stat(m.file("begun")); return err })
				if left, err := filepath.Glob(m.file("tmp/*/join.yaml")); err != nil || len(left) != 1 {
					t.Errorf("got files %s, %v, want one join.yaml to clean up", left, err)
				}
				must.OK(t, cmd.Process.Signal(sig))
				output, code := m.end(t, cmd)
				if code != want {
					t.Errorf("got exit code %d, want %d:\n%s", code, want, output)
				}
				if _, err := os.Stat(m.file("ended")); err != nil {
					t.Errorf("the script did not wait for kubeadm: %v:\n%s", err, output)
				}
			})
		}
	}
}
