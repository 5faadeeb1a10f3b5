package host

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

const (
	unitFile = "deploy/systemd/kubejoin.service"
	dropIns  = "deploy/systemd/kubejoin.service.d"
	// signerUnitFile is the unit of the signer process.
	signerUnitFile = "deploy/systemd/kubejoin-signer.service"
	// hostUnitFile is the unit of 'kubejoin host apply --watch'.
	hostUnitFile = "deploy/host/kubejoin-host.service"
	// dynamicUser is a number in systemd's range for DynamicUser.
	dynamicUser = "61234"
)

// systemd's own checks must accept the unit with each drop-in and the unit of the signer process, also with the socket
// drop-ins of docs/signer.md. They must rate the units as well confined.
func TestUnitIsValidAndConfined(t *testing.T) {
	t.Parallel()
	need.Programs(t, "systemd-analyze")
	for _, mode := range []string{"standalone", "cluster", "signer", "cluster on a socket", "signer on a socket", "host"} {
		root := t.TempDir()
		units := filepath.Join(root, "etc/systemd/system")
		for _, dir := range []string{units + "/kubejoin.service.d", root + "/usr/local/bin", root + "/lib/systemd", root + "/usr/lib"} {
			must.OK(t, os.MkdirAll(dir, 0o755))
		}
		// Copy the units to which every unit refers.
		if out, err := exec.CommandContext(t.Context(), "cp", "-rL", "/lib/systemd/system", root+"/lib/systemd/").CombinedOutput(); err != nil {
			t.Logf("some units of this machine are not there: %v\n%s", err, out)
		}
		way, _, onSocket := strings.Cut(mode, " on ")
		unit := "kubejoin.service"
		if file := map[string]string{"signer": signerUnitFile, "host": hostUnitFile}[way]; file != "" {
			unit = filepath.Base(file)
			harness.ReplaceFile(t, units+"/"+unit, harness.ReadFile(t, harness.RepositoryFile(t, file)))
		} else {
			harness.ReplaceFile(t, units+"/"+unit, harness.ReadFile(t, harness.RepositoryFile(t, unitFile)))
			harness.ReplaceFile(t, units+"/"+unit+".d/"+way+".conf", harness.ReadFile(t, harness.RepositoryFile(t, dropIns+"/"+way+".conf")))
		}
		if onSocket {
			must.OK(t, os.MkdirAll(units+"/"+unit+".d", 0o755))
			harness.ReplaceFile(t, units+"/"+unit+".d/override.conf", []byte(socketDropIn(t, way == "signer")))
		}
		program := root + "/usr/local/bin/kubejoin"
		harness.ReplaceFile(t, program, []byte("#!/bin/sh\n"))
		must.OK(t, os.Chmod(program, 0o755))
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--root="+root, unit).CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("kubejoin")) {
			t.Errorf("%s: systemd-analyze verify: %v\n%s", mode, err, out)
		}
		threshold := "--threshold=15" // in tenths of the exposure level
		if way == "host" {            // because it runs as root
			threshold = "--threshold=48"
		}
		out, err = exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--root="+root, threshold, unit).CombinedOutput()
		if err != nil {
			t.Errorf("%s: systemd-analyze security: %v\n%s", mode, err, out)
		}
	}
}

// socketDropIn returns the drop-in of docs/signer.md for a Unix socket.
func socketDropIn(t *testing.T, signer bool) string {
	t.Helper()
	_, section, _ := strings.Cut(string(harness.ReadFile(t, harness.RepositoryFile(t, "docs/signer.md"))), "\n## Run it on the host of kubejoin\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?ms)^```ini\n(.*?)^```$").FindAllStringSubmatch(section, -1)
	flags := regexp.MustCompile(`--policy=.* --cluster-signing-key-file=\S+`).FindString(string(harness.ReadFile(t, harness.RepositoryFile(t, signerUnitFile))))
	if len(blocks) != 3 || flags == "" {
		t.Fatalf("%d blocks in docs/signer.md, want 3: for both units, and for each; the flags of the signer process are %q", len(blocks), flags)
	}
	own := blocks[2][1]
	if signer {
		own = blocks[1][1]
	}
	return strings.NewReplacer("NAME", "daemon", "…", flags).Replace(blocks[0][1] + own)
}

// systemd's own check must accept the kubelet's unit with the drop-in for rejoins.
func TestRejoinDropInIsValid(t *testing.T) {
	t.Parallel()
	need.Programs(t, "systemd-analyze")
	root := t.TempDir()
	units := filepath.Join(root, "etc/systemd/system")
	for _, dir := range []string{units + "/kubelet.service.d", root + "/usr/local/sbin", root + "/usr/bin", root + "/lib/systemd", root + "/usr/lib"} {
		must.OK(t, os.MkdirAll(dir, 0o755))
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-rL", "/lib/systemd/system", root+"/lib/systemd/").CombinedOutput(); err != nil {
		t.Logf("some units of this machine are not there: %v\n%s", err, out)
	}
	const dropIn = "kubelet.service.d/20-kubejoin-rejoin.conf"
	harness.ReplaceFile(t, filepath.Join(units, dropIn), harness.ReadFile(t, harness.RepositoryFile(t, "deploy/systemd/"+dropIn)))
	harness.ReplaceFile(t, units+"/kubelet.service", []byte("[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n"))
	for _, program := range []string{"/usr/local/sbin/kubejoin-rejoin", "/usr/bin/kubelet"} {
		harness.ReplaceFile(t, root+program, []byte("#!/bin/sh\n"))
		must.OK(t, os.Chmod(root+program, 0o755))
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--root="+root, "kubelet.service").CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("rejoin")) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

var directive = regexp.MustCompile(`(?m)^([A-Za-z]+)=(.*)$`)

// settings returns the settings of the unit with a drop-in. An empty value resets the list of a setting.
func settings(t *testing.T, mode string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, file := range []string{unitFile, dropIns + "/" + mode + ".conf"} {
		for _, m := range directive.FindAllStringSubmatch(string(harness.ReadFile(t, harness.RepositoryFile(t, file))), -1) {
			if m[2] == "" {
				delete(all, m[1])
			} else {
				all[m[1]] = append(all[m[1]], m[2])
			}
		}
	}
	return all
}

// execStart returns the command of a unit, split and expanded like systemd does.
func execStart(t *testing.T, all map[string][]string, env map[string]string) []string {
	t.Helper()
	if len(all["ExecStart"]) != 1 {
		t.Fatalf("ExecStart %q, want one", all["ExecStart"])
	}
	var words []string
	for word := range strings.FieldsSeq(all["ExecStart"][0]) {
		if name, found := strings.CutPrefix(word, "$"); found && !strings.HasPrefix(name, "{") {
			words = append(words, strings.Fields(env[name])...)
			continue
		}
		words = append(words, os.Expand(word, func(name string) string {
			if env[name] == "" {
				t.Errorf("ExecStart uses %s, which is not set", name)
			}
			return env[name]
		}))
	}
	return words
}

// traced returns the command under strace, which writes all system calls to a file.
func traced(file string, command []string) []string {
	return append([]string{"strace", "-f", "-qq", "-e", "signal=none", "-o", file}, command...)
}

var systemCall = regexp.MustCompile(`(?m)^\d+ +([a-z_0-9]+)\(`)

// checkSystemCalls compares the system calls of a trace with SystemCallFilter.
func checkSystemCalls(t *testing.T, trace string, all map[string][]string) {
	t.Helper()
	allowed := expand(t, "@default")
	for _, filter := range all["SystemCallFilter"] {
		names, denies := strings.CutPrefix(filter, "~")
		for name := range strings.FieldsSeq(names) {
			for call := range expand(t, name) {
				if denies {
					delete(allowed, call)
				} else {
					allowed[call] = true
				}
			}
		}
	}
	used := map[string]bool{}
	for _, m := range systemCall.FindAllSubmatch(harness.ReadFile(t, trace), -1) {
		used[string(m[1])] = true
	}
	if len(used) < 20 || !used["accept4"] {
		t.Errorf("the trace has %d system calls, want those of a server", len(used))
	}
	for call := range used {
		if !allowed[call] {
			t.Errorf("kubejoin uses the system call %s, which SystemCallFilter denies", call)
		}
	}
}

// expand returns the system calls of a group.
func expand(t *testing.T, name string) map[string]bool {
	t.Helper()
	if !strings.HasPrefix(name, "@") {
		return map[string]bool{name: true}
	}
	out := must.Value(exec.CommandContext(t.Context(), "systemd-analyze", "syscall-filter", name).Output())(t)
	calls := map[string]bool{}
	for i, line := range strings.Split(string(out), "\n") {
		if line = strings.TrimSpace(line); i == 0 || line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for call := range expand(t, line) {
			calls[call] = true
		}
	}
	return calls
}

// traceFolder returns a folder outside the sandbox that kubejoin's user can write.
func traceFolder(t *testing.T, below string) string {
	t.Helper()
	must.OK(t, os.Mkdir(filepath.Join(below, "trace"), 0o777))
	must.OK(t, os.Chmod(filepath.Join(below, "trace"), 0o777))
	return filepath.Join(below, "trace")
}

// It catches a command of the unit that kubejoin refuses, a file that its user cannot read or write, and a system call
// that the unit denies.
func TestUnitWorksStandaloneInItsSandbox(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	need.Programs(t, "systemd-analyze", "strace")
	all, address := settings(t, "standalone"), harness.FreeAddress(t)
	if got := all["StateDirectory"]; len(got) != 1 || got[0] != "kubejoin" {
		t.Errorf("StateDirectory %q, want kubejoin", got)
	}
	state := t.TempDir()
	traceFolder(t, state)
	command := execStart(t, all, map[string]string{"STATE_DIRECTORY": "/var/lib/kubejoin", "KUBEJOIN_FLAGS": "--listen=" + address + " --issuance-record=-"})
	c := confined{user: dynamicUser, files: t.TempDir(), target: "/run/credentials/kubejoin.service", state: state, program: build(t), args: traced("/var/lib/kubejoin/trace/calls", command)}
	p := harness.Launch(t, t.TempDir(), address, filepath.Join(state, "curlrc"), c.command())
	p.WaitReady(t, filepath.Join(state, "ca.crt"))
	if status, body, err := p.Do(t.Context(), http.MethodPost, "/v1/token/print-join-command", p.Bearer(t)); err != nil || status != http.StatusCreated && status != http.StatusOK {
		t.Errorf("join command: %d %s %v", status, body, err)
	}
	checkSystemCalls(t, filepath.Join(state, "trace/calls"), all)
}

// On a cluster, the unit needs no writable folder. systemd copies the credentials.
func TestUnitWorksOnAClusterInItsSandbox(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	need.Programs(t, "systemd-analyze", "strace")
	s := harness.PrepareSite(t, cluster.Options{})
	all, address := settings(t, "cluster"), harness.FreeAddress(t)
	etc, credentials := kubernetesFolder(t, s), t.TempDir()
	for _, credential := range append(all["LoadCredential"], "operators.csv:/etc/kubernetes/pki/operators.csv") {
		name, path, _ := strings.Cut(credential, ":")
		from, found := strings.CutPrefix(path, "/etc/kubernetes/")
		if !found {
			t.Errorf("LoadCredential=%s, want a file in /etc/kubernetes", credential)
		}
		must.OK(t, os.WriteFile(filepath.Join(credentials, name), harness.ReadFile(t, filepath.Join(etc, from)), 0o400))
	}
	state := t.TempDir() // only for the trace
	const folder = "/run/credentials/kubejoin.service"
	command := execStart(t, all, map[string]string{
		"CREDENTIALS_DIRECTORY": folder,
		"KUBEJOIN_FLAGS":        fmt.Sprintf("--listen=%s --token-auth-file=%s/operators.csv --issuance-record=-", address, folder),
	})
	c := confined{user: dynamicUser, files: credentials, target: folder, state: state, program: build(t), args: traced("/var/lib/kubejoin/calls", command)}
	s.Program = harness.Launch(t, s.WorkDir, address, s.Curlrc(), c.command())
	works(t, s)
	checkSystemCalls(t, filepath.Join(state, "calls"), all)
}
