package joinformat_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What may pass is waited for, and named.
func TestScriptRetriesTemporaryFailures(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "cluster")
	good := configMap(t, kubeconfigOf(t, ca))
	s := serve(t, ca.serving(t, "127.0.0.1"), func(w http.ResponseWriter, nth int32) {
		switch nth {
		case 1:
			w.WriteHeader(http.StatusForbidden)
		case 2:
			w.WriteHeader(http.StatusNotFound)
		case 4: // when it is trusted already
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = w.Write(good)
		}
	})
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 0)
	output, code := m.run(t)
	if code != 0 {
		t.Errorf("%d:\n%s", code, output)
	}
	for _, want := range []string{"HTTP 403", "no cluster-info yet", "HTTP 503"} {
		if !strings.Contains(output, want) {
			t.Errorf("it does not say %q:\n%s", want, output)
		}
	}
	s.Close()
	if output, code := m.run(t, "--timeout", "0"); code != 4 || !strings.Contains(output, s.Listener.Addr().String()) {
		t.Errorf("nobody there: %d:\n%s", code, output)
	}
}

// A clock that is wrong may be set yet, and is named when it was not.
func TestScriptWaitsForClock(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "cluster")
	valid := ca.serving(t, "127.0.0.1")
	for name, later := range map[string]time.Duration{"not yet valid": 24 * time.Hour, "expired": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wrong := ca.servingIn(t, "127.0.0.1", later)
			s := serveAfter(t, func(asked int32) tls.Certificate {
				if asked < 3 {
					return wrong
				}
				return valid
			}, with(configMap(t, kubeconfigOf(t, ca))))
			m := newMachine(t, joinOf(t, s, ca))
			m.kubeadm(t, 0)
			said := "its certificate is not valid at this machine's time (date " + time.Now().UTC().Format("2006-")
			output, code := m.run(t, "--timeout", "0")
			if code != 4 || !strings.Contains(output, said) || !strings.Contains(output, "is its clock right?") || strings.Contains(output, "waiting") {
				t.Errorf("%d:\n%s", code, output)
			}
			m.untouched(t)
			// The certificate becomes valid, and not the time.
			output, code = m.run(t)
			if code != 0 || strings.Count(output, said) != 1 || m.read(t, "args") == "" || s.asked.Load() < 4 {
				t.Errorf("%d, asked %d times:\n%s", code, s.asked.Load(), output)
			}
		})
	}
}

// NTP sets the clock meanwhile, by years.
func TestScriptTimeoutIgnoresClockChanges(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "cluster")
	good := configMap(t, kubeconfigOf(t, ca))
	s := serve(t, ca.serving(t, "127.0.0.1"), func(w http.ResponseWriter, nth int32) {
		if nth < 3 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(good)
	})
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 0)
	jump := func(before, after int) {
		m.write(t, "bin/date", fmt.Sprintf("#!/bin/sh\n[ ! -e %[1]s ] || { echo %[3]d; exit; }\n: >%[1]s\necho %[2]d\n", m.file("set"), before, after))
		if err := os.RemoveAll(m.file("set")); err != nil {
			t.Fatal(err)
		}
	}
	jump(1000, 2_000_000_000)
	if output, code := m.run(t); code != 0 {
		t.Errorf("forward: %d:\n%s", code, output)
	}
	s.Close()
	jump(2_000_000_000, 1000)
	if output, code := m.run(t, "--timeout", "2"); code != 4 {
		t.Errorf("backward: %d:\n%s", code, output)
	}
}

// A signal ends kubeadm, and then the script with what it has written.
func TestScriptStopsKubeadmOnSignal(t *testing.T) {
	t.Parallel()
	ca := newCA(t, "cluster")
	s := serve(t, ca.serving(t, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	codes := map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGHUP: 129}
	for sig := range codes {
		// A shell cannot trap a signal that is ignored when it starts, as SIGHUP under nohup. One that
		// this process handles is not ignored in the programs that it starts.
		if signal.Ignored(sig) {
			handled := make(chan os.Signal, 1)
			signal.Notify(handled, sig)
			t.Cleanup(func() { signal.Stop(handled) })
		}
	}
	for _, shell := range []string{"sh", "dash", "bash", "busybox", "mksh", "ksh"} {
		if _, err := exec.LookPath(shell); err != nil && shell != "sh" {
			t.Logf("%s is not here", shell)
			continue
		}
		for sig, want := range codes {
			t.Run(fmt.Sprint(shell, " ", sig), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, joinOf(t, s, ca))
				if m.shell = []string{shell}; shell == "busybox" {
					m.shell = append(m.shell, "sh")
				}
				m.kubeadm(t, 0)
				// It has something to bring to an end.
				m.write(t, "bin/kubeadm", fmt.Sprintf("#!/bin/sh\ntrap 'sleep 1; echo >%s; exit 3' TERM\necho >%s\nfor n in $(seq 200); do sleep 0.1; done\n", m.file("ended"), m.file("begun")))
				cmd := m.start(t)
				for until := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
					if _, err := os.Stat(m.file("begun")); err == nil {
						break
					}
					if time.Now().After(until) {
						t.Fatal("kubeadm was not run in 30 s")
					}
				}
				if left, err := filepath.Glob(m.file("tmp/*/join.yaml")); err != nil || len(left) != 1 {
					t.Errorf("%s, %v: there is nothing to clean up", left, err)
				}
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				output, code := m.end(t, cmd)
				if code != want {
					t.Errorf("%d, want %d:\n%s", code, want, output)
				}
				if _, err := os.Stat(m.file("ended")); err != nil {
					t.Errorf("kubeadm was not waited for: %v:\n%s", err, output)
				}
			})
		}
	}
}
