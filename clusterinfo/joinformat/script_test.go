package joinformat_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
)

// A server serves cluster-info, and fails the test for requests with a secret or another method than GET.
type server struct {
	*httptest.Server
	asked atomic.Int32
}

const apiServer = "https://api.example.com:6443"

// serve starts a server with a certificate. The argument nth of answer is the number of the request, from 1.
func serve(t *testing.T, certificate tls.Certificate, answer func(w http.ResponseWriter, nth int32)) *server {
	t.Helper()
	return serveAfter(t, func(int32) tls.Certificate { return certificate }, answer)
}

// serveAfter is like serve. The function certificate returns the certificate after a number of requests.
func serveAfter(t *testing.T, certificate func(asked int32) tls.Certificate, answer func(w http.ResponseWriter, nth int32)) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		asked := fmt.Sprint(r.Method, r.URL, r.Header, string(body))
		if r.Header.Get("Authorization") != "" || strings.Contains(asked, "9876543210") || r.Method != http.MethodGet {
			t.Errorf("got request %s, want GET without a secret", asked)
		}
		answer(w, s.asked.Add(1))
	}))
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{certificate(s.asked.Load())}}, nil
	}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func with(body []byte) func(http.ResponseWriter, int32) {
	return func(w http.ResponseWriter, _ int32) { _, _ = w.Write(body) }
}

// configMap returns the response of kubejoin for cluster-info.
func configMap(t *testing.T, kubeconfig []byte) []byte {
	t.Helper()
	return must.Value(clusterinfo.MarshalConfigMap(map[string]string{"kubeconfig": string(kubeconfig), "jws-kubeconfig-abcdef": "e30..AA"}))(t)
}

func kubeconfigOf(t *testing.T, cas ...*tls.Certificate) []byte {
	t.Helper()
	var certs []*x509.Certificate
	for _, ca := range cas {
		certs = append(certs, ca.Leaf)
	}
	return must.Value(clusterinfo.Kubeconfig(apiServer, certs))(t)
}

// A machine is a directory in which a script runs, with or without a fake kubeadm that records its input.
type machine struct {
	dir, script string
	shell       []string
	env         []string
}

func newMachine(t *testing.T, j joinformat.Join) *machine {
	t.Helper()
	need.Programs(t, "curl", "openssl")
	m := &machine{dir: t.TempDir(), shell: []string{"sh"}}
	m.script = filepath.Join(m.dir, "join.sh")
	content := must.Value(j.Script())(t)
	m.write(t, "join.sh", string(content))
	for _, dir := range []string{"bin", "tmp"} {
		must.OK(t, os.Mkdir(filepath.Join(m.dir, dir), 0o700))
	}
	return m
}

func (m *machine) write(t *testing.T, name, content string) {
	t.Helper()
	must.OK(t, os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o700))
}

// kubeadm installs a fake kubeadm. It records its arguments, environment and configuration with the file mode, and
// exits with the code.
func (m *machine) kubeadm(t *testing.T, code int) {
	t.Helper()
	m.write(t, "bin/kubeadm", fmt.Sprintf(`#!/bin/sh
cd %s
printf '%%s\n' "$@" >args
env >environment
umask >umask
while [ "$1" != --config ]; do shift; done
cp "$2" config
stat -c %%a "$2" >mode
exit %d
`, m.dir, code))
	m.write(t, "bin/id", "#!/bin/sh\necho 0\n") // the tests need no root
}

// hurry makes each pause of the script short.
func (m *machine) hurry(t *testing.T) { m.write(t, "bin/sleep", "#!/bin/sh\nexec /bin/sleep 0.05\n") }

// run runs the script. It fails the test if the output or the remaining files contain a secret.
func (m *machine) run(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	cmd := m.start(t, args...)
	return m.end(t, cmd)
}

// start starts the script. end waits for it.
func (m *machine) start(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := m.command(t, args...)
	must.OK(t, cmd.Start())
	return cmd
}

// command returns the command of the script, which ends after [wait.Most].
func (m *machine) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, m.shell[0], slices.Concat(m.shell[1:], []string{m.script}, args)...)
	cmd.WaitDelay = time.Minute // child processes may keep the output open
	cmd.Stdout = &bytes.Buffer{}
	cmd.Stderr = cmd.Stdout
	cmd.Env = append([]string{
		"PATH=" + filepath.Join(m.dir, "bin") + ":/usr/bin:/bin", "HOME=" + m.dir, "TMPDIR=" + filepath.Join(m.dir, "tmp"),
		"KUBEJOIN_KUBECONFIG=" + m.file("kubelet.conf"), "KUBEJOIN_BOOTSTRAP_KUBECONFIG=" + m.file("bootstrap.conf"), "KUBEJOIN_CA_FILE=" + m.file("ca.crt"),
	}, m.env...)
	return cmd
}

func (m *machine) end(t *testing.T, cmd *exec.Cmd) (output string, code int) {
	t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	out := cmd.Stdout.(*bytes.Buffer).Bytes()
	if bytes.Contains(out, []byte(secret)) {
		t.Errorf("got output with the secret:\n%s", out)
	}
	if left, err := filepath.Glob(m.file("tmp/*")); err != nil || len(left) > 0 {
		t.Errorf("got remaining files %s, %v, want none", left, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (m *machine) file(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) read(t *testing.T, name string) string {
	t.Helper()
	content := must.Value(os.ReadFile(m.file(name)))(t)
	return string(content)
}

// untouched fails the test if the script has written a file.
func (m *machine) untouched(t *testing.T) {
	t.Helper()
	for _, name := range []string{"args", "bootstrap.conf", "ca.crt"} {
		if _, err := os.Lstat(m.file(name)); err == nil {
			t.Errorf("got file %s, want none", name)
		}
	}
}

func joinOf(t *testing.T, s *server, cas ...*tls.Certificate) joinformat.Join {
	j := joinformat.Join{Token: mustToken(t, "abcdef."+secret), Server: apiServer, Endpoint: s.Listener.Addr().String()}
	for _, ca := range cas {
		j.CAs = append(j.CAs, ca.Leaf)
	}
	return j
}

func TestScriptRunsKubeadm(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	j := joinOf(t, s, ca)
	m := newMachine(t, j)
	m.kubeadm(t, 0)
	m.write(t, "more.yaml", "nodeRegistration:\n  name: worker-7\n")
	output, code := m.run(t, "--add-config", m.file("more.yaml"), "--", "--node-name", "a b", "-v=5")
	if code != 0 {
		t.Fatalf("got exit code %d:\n%s", code, output)
	}
	args := strings.Split(m.read(t, "args"), "\n")
	if len(args) < 7 || args[0] != "join" || args[1] != "--config" || !slices.Equal(args[3:6], []string{"--node-name", "a b", "-v=5"}) {
		t.Errorf("got kubeadm arguments %q", args)
	}
	if _, err := os.Stat(args[2]); err == nil {
		t.Errorf("%s, which contains the token, still exists", args[2])
	}
	config := must.Value(j.Configuration())(t)
	if got := m.read(t, "config"); got != string(config)+m.read(t, "more.yaml") {
		t.Errorf("kubeadm read\n%s\nwant\n%s", got, config)
	}
	if mode := m.read(t, "mode"); mode != "600\n" {
		t.Errorf("got configuration with mode %s, want 600", mode)
	}
	if now := m.read(t, "umask"); now == "0077\n" {
		t.Errorf("got umask %s in kubeadm, want that of the caller: other users must read its files", now)
	}
	for _, where := range []string{"args", "environment"} {
		if strings.Contains(m.read(t, where), secret) {
			t.Errorf("got kubeadm %s with the secret", where)
		}
	}
	if n := s.asked.Load(); n != 2 {
		t.Errorf("got %d requests, want 2", n)
	}
}

// A token without a signature was deleted, has expired or is spent, or the signer is late. kubeadm waits minutes for it
// and does not say why, and a kubelet gets only 401. The responses of kubejoin and of the API server differ only in
// spaces.
func TestScriptWaitsForSignatureOfToken(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	const why, found = "no signature by this token: expired, deleted, spent, or the signer is late\n", "\nerror    signature: cluster-info has no signature by token abcdef: "
	signed := configMap(t, kubeconfigOf(t, ca))
	for name, form := range map[string]func([]byte) []byte{
		"kubejoin": func(body []byte) []byte { return body },
		"API server": func(body []byte) []byte {
			var indented bytes.Buffer
			must.OK(t, json.Indent(&indented, body, "", "  "))
			return indented.Bytes()
		},
	} {
		for _, flag := range []string{"--kubeadm", "--no-kubeadm"} {
			var late atomic.Bool
			s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), func(w http.ResponseWriter, nth int32) {
				body := signed
				if late.Load() && nth < 9 {
					body = bytes.Replace(signed, []byte("abcdef"), []byte("bbbbbb"), 1)
				}
				_, _ = w.Write(form(body))
			})
			m := newMachine(t, joinOf(t, s, ca))
			m.kubeadm(t, 0)
			m.hurry(t)
			late.Store(true)
			if output, code := m.run(t, flag, "--timeout", "0"); code != 4 || !strings.Contains(output, "waited 0 s for "+s.Listener.Addr().String()+": "+why) {
				t.Errorf("%s, %s: got exit code %d:\n%s", name, flag, code, output)
			}
			m.untouched(t)
			if output, _ := m.run(t, "--diagnose"); !strings.Contains(output, found) {
				t.Errorf("%s: --diagnose: got\n%s", name, output)
			}
			if output, code := m.run(t, flag); code != 0 || strings.Count(output, "waiting for "+s.Listener.Addr().String()+": "+why) != 1 {
				t.Errorf("%s, %s: late: got exit code %d:\n%s", name, flag, code, output)
			}
			late.Store(false)
			if output, _ := m.run(t, "--diagnose"); strings.Contains(output, found) {
				t.Errorf("%s: --diagnose: got\n%s", name, output)
			}
		}
	}
}

func TestScriptReportsFailureOfKubeadm(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 7)
	for _, test := range []struct {
		when, writes, reset string
	}{
		{"kubeadm wrote nothing", ":", ""},
		{"kubeadm wrote the CA", "echo >" + m.file("ca.crt"), "fix the problem, run 'kubeadm reset', which removes what this join wrote, then run this script again"},
		{"the CA was there before", ":", ""}, // from another join, or from another cluster
	} {
		m.write(t, "bin/kubeadm", "#!/bin/sh\n"+test.writes+"\nexit 7\n")
		output, code := m.run(t)
		if code != 5 || !strings.Contains(output, "exit code 7") || !strings.Contains(output, test.reset) || strings.Contains(output, "reset") != (test.reset != "") || !strings.Contains(output, "with --diagnose") {
			t.Errorf("%s: got exit code %d:\n%s", test.when, code, output)
		}
	}
	// On a control plane without kubelet.conf, do not suggest a reset: it would delete files that no join has made.
	must.OK(t, os.Remove(m.file("ca.crt")))
	m.write(t, "bin/kubeadm", "#!/bin/sh\necho >"+m.file("ca.crt")+"\nexit 7\n")
	must.OK(t, os.MkdirAll(m.file("root/etc/kubernetes/pki"), 0o700))
	m.write(t, "root/etc/kubernetes/pki/ca.key", "")
	m.env = append(m.env, "KUBEJOIN_ROOT="+m.file("root"))
	if output, code := m.run(t); code != 5 || strings.Contains(output, "reset") || !strings.Contains(output, "with --diagnose") {
		t.Errorf("on a control plane: got exit code %d:\n%s", code, output)
	}
}

// The files for the kubelet must contain the verified values, and must not change in a second run. The cases are the
// JSON formats of kube-apiserver, and kubeconfigs as users write them into cluster-info.
func TestScriptWritesFiles(t *testing.T) {
	t.Parallel()
	ca, other := certtest.CA(t, "cluster"), certtest.CA(t, "other")
	kubeconfig := kubeconfigOf(t, other, ca)
	var asObject any
	must.OK(t, json.Unmarshal([]byte(strings.NewReplacer(
		"BUNDLE", bundle64(t, ca), "SERVER", apiServer).Replace(`{"apiVersion":"v1","clusters":[{"cluster":{"certificate-authority-data":"BUNDLE","server":"SERVER"},"name":""}],"kind":"Config"}`)), &asObject))
	flow := must.Value(json.Marshal(asObject))(t)
	var pretty bytes.Buffer
	must.OK(t, json.Indent(&pretty, configMap(t, kubeconfig), "", "  "))
	quoted := strings.ReplaceAll(string(kubeconfig), apiServer, `"`+apiServer+`"`)
	annotated := bytes.Replace(configMap(t, kubeconfig), []byte(`"metadata":{`), []byte(`"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"data\":{\"kubeconfig\":\"clusters:\\n- cluster:\\n    certificate-authority-data: AAAA\\n    server: https://old.example.com:1\\n\"}}"},`), 1)
	if !bytes.Contains(annotated, []byte("old.example.com")) {
		t.Fatal("there is no annotation")
	}
	for name, body := range map[string][]byte{
		"compact": configMap(t, kubeconfig), "pretty": pretty.Bytes(), "annotated": annotated,
		"quoted": configMap(t, []byte(quoted)), "JSON in JSON": configMap(t, flow),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(body))
			j := joinOf(t, s, ca)
			m := newMachine(t, j)
			m.write(t, "bin/kubelet", "#!/bin/sh\n")
			output, code := m.run(t)
			if code != 0 {
				t.Fatalf("got exit code %d:\n%s", code, output)
			}
			cas, err := clusterinfo.ParseCAs([]byte(m.read(t, "ca.crt")))
			if err != nil || len(cas) != 1 || !cas[0].Equal(ca.Leaf) {
				t.Errorf("%d CAs, %v, want the one with the pin", len(cas), err)
			}
			if got, want := kubeconfigIn(t, m.read(t, "bootstrap.conf")), kubeconfigIn(t, mustBytes(t, j.Kubeconfig)); got != want {
				t.Errorf("bootstrap.conf is\n%s\nwant\n%s", got, want)
			}
			for file, want := range map[string]os.FileMode{"bootstrap.conf": 0o600, "ca.crt": 0o644} {
				if info, err := os.Stat(m.file(file)); err != nil || info.Mode().Perm() != want {
					t.Errorf("%s: %v, %v, want mode %o", file, info, err, want)
				}
			}
			before := m.read(t, "bootstrap.conf")
			if output, code := m.run(t); code != 0 || m.read(t, "bootstrap.conf") != before {
				t.Errorf("second run: got exit code %d:\n%s", code, output)
			}
			m.write(t, "ca.crt", "another")
			if output, code := m.run(t); code != 1 || !strings.Contains(output, "if no other cluster uses it: rm "+m.file("ca.crt")+";") || m.read(t, "ca.crt") != "another" {
				t.Errorf("with another CA file: got exit code %d:\n%s", code, output)
			}
			m.write(t, "kubelet.conf", "")
			asked := s.asked.Load()
			if output, code := m.run(t); code != 0 || !strings.Contains(output, "joined already") || strings.Contains(output, "reset") || s.asked.Load() != asked {
				t.Errorf("after the join: got exit code %d:\n%s", code, output)
			}
		})
	}
}

// If the endpoint is not the cluster, the script must send no secret and write no file.
func TestScriptRefusesUntrustedEndpoint(t *testing.T) {
	t.Parallel()
	ca, other := certtest.CA(t, "cluster"), certtest.CA(t, "other")
	good := configMap(t, kubeconfigOf(t, ca))
	for name, test := range map[string]struct {
		certificate tls.Certificate
		body        []byte
		code        int
		want        string
	}{
		"another CA":                       {certtest.Serving(t, other, "127.0.0.1"), configMap(t, kubeconfigOf(t, other)), 3, clusterinfo.Pin(other.Leaf)},
		"the right CA's bundle, by others": {certtest.Serving(t, other, "127.0.0.1"), good, 3, "certificate"},
		"the same, and out of date":        {certtest.ServingFrom(t, other, "127.0.0.1", time.Now().Add(-2*time.Hour-time.Minute)), good, 3, "certificate"},
		"another machine's certificate":    {certtest.Serving(t, ca, "127.0.0.2"), good, 3, "127.0.0.1"},
		"no CA":                            {certtest.Serving(t, ca, "127.0.0.1"), []byte(`{"data":{"kubeconfig":"kind: Config"}}`), 4, "no CA"},
		"a web page":                       {certtest.Serving(t, ca, "127.0.0.1"), []byte("<html>log in</html>"), 4, "no CA"},
		"no kubeconfig":                    {certtest.Serving(t, ca, "127.0.0.1"), []byte(`{"data":{}}`), 4, "no CA"},
		"too much of a CA":                 {certtest.Serving(t, ca, "127.0.0.1"), []byte(`{"data":{"kubeconfig":"certificate-authority-data: ` + strings.Repeat("A", 200_000) + `"}}`), 4, "no CA"},
		"shell in the server":              {certtest.Serving(t, ca, "127.0.0.1"), bytes.ReplaceAll(good, []byte(apiServer), []byte("https://$(touch${IFS}reboot)`reboot`;x")), 3, "an invalid server"},
		"plain HTTP in the server":         {certtest.Serving(t, ca, "127.0.0.1"), bytes.ReplaceAll(good, []byte(apiServer), []byte("http://api")), 3, "no https:// server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, test.certificate, with(test.body))
			for _, flag := range []string{"--no-kubeadm", "--kubeadm"} {
				if strings.Contains(name, "in the server") && flag == "--kubeadm" {
					continue // kubeadm checks the server itself
				}
				m := newMachine(t, joinOf(t, s, ca))
				m.kubeadm(t, 0)
				output, code := m.run(t, "--timeout", "0", flag)
				if code != test.code || !strings.Contains(output, test.want) {
					t.Errorf("%s: got exit code %d, want %d:\n%s", flag, code, test.code, output)
				}
				if flag == "--kubeadm" || !strings.Contains(name, "in the server") {
					m.untouched(t)
				}
			}
		})
	}
}

func TestScriptOptions(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(nil))
	for _, test := range []struct {
		args, programs string
		code           int
		want           string
	}{
		{"--help", "", 0, "Usage: "},
		{"", "", 1, "neither kubeadm nor kubelet is installed"},
		{"--kubeadm", "kubelet", 1, "kubeadm is missing"},
		{"--frob", "kubeadm", 2, "--frob: unknown option"},
		{"frob", "kubeadm", 2, "frob: unknown option"},
		{"--ca-file", "kubeadm", 2, "--ca-file: missing value"},
		{"--timeout 5m", "kubeadm", 2, "number of seconds"},
		{"--timeout 010", "kubeadm", 2, "number of seconds"},
		{"--no-kubeadm -- --v=5", "kubeadm", 2, "flags for kubeadm given, but kubeadm is not used"},
		{"--no-kubeadm --add-config /etc/passwd", "kubeadm", 2, "--add-config /etc/passwd given, but kubeadm is not used"},
		{"--timeout 0 --add-config /nonexistent/more.yaml", "kubeadm id", 1, "cannot read /nonexistent/more.yaml"},
		{"--timeout 0 --add-config /", "kubeadm id", 1, "cannot read /"},
	} {
		m := newMachine(t, joinOf(t, s, ca))
		for program := range strings.FieldsSeq(test.programs) {
			m.write(t, "bin/"+program, "#!/bin/sh\necho 0\nexit 1\n")
		}
		if output, code := m.run(t, strings.Fields(test.args)...); code != test.code || !strings.Contains(output, test.want) {
			t.Errorf("%q: got exit code %d, want %d and %q:\n%s", test.args, code, test.code, test.want, output)
		}
		m.untouched(t)
	}
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 0)
	m.write(t, "bin/id", "#!/bin/sh\necho 1000\n")
	if output, code := m.run(t); code != 1 || !strings.Contains(output, "run this script as root") {
		t.Errorf("without root: got exit code %d:\n%s", code, output)
	}
	j := joinOf(t, s, ca)
	j.CertificateKey = mustKey(t)
	m = newMachine(t, j)
	if output, code := m.run(t, "--no-kubeadm"); code != 1 || !strings.Contains(output, "control plane") {
		t.Errorf("control plane without kubeadm: got exit code %d:\n%s", code, output)
	}
	if n := s.asked.Load(); n != 0 {
		t.Errorf("got %d requests, want 0", n)
	}
}

// The script must run in each installed shell, and must not print the secret with tracing enabled.
func TestScriptRunsInInstalledShells(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	for _, shell := range [][]string{
		{"sh"}, {"sh", "-x"}, {"sh", "-v"}, {"sh", "-xv"}, {"sh", "-eu"}, {"dash"}, {"dash", "-xv"}, {"bash", "--posix"}, {"bash", "-xv"}, {"busybox", "sh"}, {"mksh"},
	} {
		t.Run(strings.Join(shell, " "), func(t *testing.T) {
			needShell(t, shell[0])
			m := newMachine(t, joinOf(t, s, ca))
			m.shell = shell
			if output, code := m.run(t, "--no-kubeadm"); code != 0 {
				t.Errorf("got exit code %d:\n%s", code, output)
			}
			m.kubeadm(t, 0)
			if output, code := m.run(t); code != 0 || m.read(t, "args") == "" {
				t.Errorf("got exit code %d:\n%s", code, output)
			}
			check := exec.CommandContext(t.Context(), shell[0], slices.Concat(shell[1:], []string{"-n", m.script})...)
			if output, err := check.CombinedOutput(); err != nil {
				t.Errorf("-n: %v\n%s", err, output)
			}
		})
	}
	// From standard input, as with ssh MACHINE sh -s. kubeadm must not read the rest of the script.
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 0)
	m.shell = []string{"sh", "-c", `sh -s -- --timeout 9 <"$0"`}
	if output, code := m.run(t); code != 0 || m.read(t, "args") == "" {
		t.Errorf("from standard input: got exit code %d:\n%s", code, output)
	}
	t.Run("shellcheck", func(t *testing.T) {
		need.Programs(t, "shellcheck")
		// Exclude SC2034: depending on the join, a script does not use all variables.
		j := joinOf(t, s, ca)
		j.JoiningTaint = true
		for _, script := range []string{newMachine(t, j).script, "testdata/machine-script.sh"} {
			if output, err := exec.CommandContext(t.Context(), "shellcheck", "--shell=sh", "--severity=warning", "--exclude=SC2034", script).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		}
	})
}

// needShell skips a test without a shell.
func needShell(t *testing.T, shell string) {
	t.Helper()
	if shell != "sh" {
		need.Programs(t, shell)
	}
}

// A truncated script must run no command.
func TestTruncatedScriptRunsNothing(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(nil))
	m := newMachine(t, joinOf(t, s, ca))
	whole := m.read(t, "join.sh")
	for _, program := range []string{"curl", "openssl", "kubeadm", "kubelet", "id", "mkdir", "mktemp", "rm", "cat", "date", "cut"} {
		m.write(t, "bin/"+program, "#!/bin/sh\necho "+program+" >>"+m.file("ran")+"\n")
	}
	step := 41
	for end := 0; end < len(whole)-2; end += step { // the last byte is a newline
		if end > len(whole)-100 {
			step = 1
		}
		m.write(t, "join.sh", whole[:end])
		m.run(t, "--no-kubeadm")
		if _, err := os.Stat(m.file("ran")); err == nil {
			t.Fatalf("truncated after %d of %d bytes: got commands %s, want none", end, len(whole), m.read(t, "ran"))
		}
	}
	m.write(t, "join.sh", whole)
	m.run(t, "--no-kubeadm", "--timeout", "0")
	if _, err := os.Stat(m.file("ran")); err != nil {
		t.Error("the whole script ran no command: this test cannot fail")
	}
}

// Diagnosis must verify any signature. It must pass the token to no program in its arguments or environment. The
// endpoint must not get the token either: see serve.
func TestDiagnoseVerifiesSignature(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	kubeconfig := must.Value(clusterinfo.Kubeconfig("https://127.0.0.1:1/a/&/<b>", []*x509.Certificate{ca.Leaf}))(t)
	for _, token := range []string{"abcdef." + secret, "666666.6666666666666666", "000000.zzzzzzzzzzzzzzzz", "zzzzzz.aaaaaaaaaaaaaaaa", "0a1b2c.ponmlkjihgfedcb1"} {
		body := func(signer string) []byte {
			signature := must.Value(clusterinfo.Sign(kubeconfig, mustToken(t, signer)))(t)
			return must.Value(clusterinfo.MarshalConfigMap(map[string]string{"kubeconfig": string(kubeconfig), "jws-kubeconfig-" + token[:6]: signature}))(t)
		}
		bodies := map[string][]byte{"\nok       signature: ": body(token)}
		if token[:6] == "abcdef" {
			bodies["\nerror    signature: the signature of cluster-info by token abcdef is invalid"] = body(token[:22] + "5")
		}
		for want, body := range bodies {
			s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(body))
			j := joinOf(t, s, ca)
			j.Token = mustToken(t, token)
			m := newMachine(t, j)
			m.record(t)
			output, code := m.run(t, "--diagnose")
			if code != 1 || !strings.Contains(output, want) || !strings.Contains(output, "\nerror    api-tcp: ") {
				t.Errorf("got exit code %d, want 1 with %q:\n%s", code, want, output)
			}
			seen := m.read(t, "seen")
			if strings.Contains(seen+output, token[7:]) {
				t.Errorf("%s: got the token in the output, or in the arguments or environment of a program", token[:6])
			}
			if !strings.Contains(seen, "openssl dgst -sha256 -binary") {
				t.Error("got no call of openssl dgst")
			}
		}
	}
}

// The script must not pass the token to any program in its arguments or environment.
func TestScriptPassesTokenToNoProgram(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	m := newMachine(t, joinOf(t, s, ca))
	m.record(t)
	if output, code := m.run(t, "--no-kubeadm"); code != 0 {
		t.Fatalf("got exit code %d:\n%s", code, output)
	}
	seen := m.read(t, "seen")
	if strings.Contains(seen, secret) {
		t.Error("got the token in the arguments or environment of a program")
	}
	for _, want := range []string{"curl -q", "openssl x509", "cat "} {
		if !strings.Contains(seen, want) {
			t.Errorf("got no call of %q", want)
		}
	}
	if !strings.Contains(m.read(t, "bootstrap.conf"), secret) {
		t.Error("got bootstrap.conf without the token")
	}
}

// record makes the programs that the script uses append their arguments and environment to the file seen.
func (m *machine) record(t *testing.T) {
	t.Helper()
	for _, program := range []string{"curl", "openssl", "base64", "awk", "sed", "mktemp", "cat", "mv", "chmod", "mkdir", "rm", "tr", "head", "tail", "sort", "grep", "dirname", "cut", "wc", "date", "uname"} {
		path := must.Value(exec.LookPath(program))(t)
		m.write(t, "bin/"+program, fmt.Sprintf("#!/bin/sh\n{ echo %s \"$@\"; /usr/bin/env; } >>%s\nexec %s \"$@\"\n", program, m.file("seen"), path))
	}
}

func mustBytes(t *testing.T, form func() ([]byte, error)) string {
	t.Helper()
	content := must.Value(form())(t)
	return string(content)
}

// Catches a script with its own proxy rules: it treated a range in no_proxy, which curl supports since 7.86, as a
// name. Catches also a check that skips the API server in cluster-info, to which kubeadm talks after discovery.
func TestDiagnoseAsksCurlForTheProxy(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	const ok = "ok       proxy: there is none for 127.0.0.1\n"
	const api = "warning  proxy: https_proxy or all_proxy is set, and no_proxy does not have api.example.com; run: export no_proxy=\"${no_proxy:-$NO_PROXY},api.example.com\" && export NO_PROXY=\"$no_proxy\"\n"
	for env, want := range map[string]string{
		"":                                     ok,
		"no_proxy=127.0.0.0/8":                 ok + api,
		"NO_PROXY=example.com, 127.0.0.1":      ok,
		"no_proxy=127.0.0.1,.example.com":      ok,
		"no_proxy=10.0.0.0/8,*.0.0.1,0.0.1":    "warning  proxy: https_proxy or all_proxy is set, and no_proxy does not have 127.0.0.1; run: export no_proxy=\"${no_proxy:-$NO_PROXY},127.0.0.1\" && export NO_PROXY=\"$no_proxy\"\n",
		"no_proxy=127.0.0.1;NO_PROXY=10.0.0.1": "warning  proxy: no_proxy and NO_PROXY differ: curl prefers the first, kubeadm the second; run: export NO_PROXY=\"$no_proxy\"\n",
		"no_proxy=127.0.0.1;HTTPS_PROXY=http://127.0.0.2:1": "warning  proxy: https_proxy and HTTPS_PROXY differ: curl prefers the first, kubeadm the second; run: export HTTPS_PROXY=\"$https_proxy\"\n",
		"no_proxy=127.0.0.1;NO_PROXY=127.0.0.1":             ok + api,
	} {
		m := newMachine(t, joinOf(t, s, ca))
		m.kubeadm(t, 0)
		if env != "" {
			m.env = append(append(m.env, strings.Split(env, ";")...), "https_proxy=http://127.0.0.1:1")
		}
		output, _ := m.run(t, "--diagnose")
		if got := strings.Join(regexp.MustCompile(`(?m)^.* proxy: .*\n`).FindAllString(output, -1), ""); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s\nin\n%s", env, got, want, output)
		}
	}
}

// kubeadm and the kubelet use a name in lower case.
func TestDiagnoseChecksTheNodeNameInLowerCase(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	m := newMachine(t, joinOf(t, serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca)))), ca))
	m.kubeadm(t, 0)
	for name, want := range map[string]string{
		"Worker-7": "\nok       node-name: worker-7\n", "LocalHost": "\nerror    node-name: localhost is not", "localhost.localdomain": "\nerror    node-name: localhost.localdomain is not",
		"localhost7": "\nok       node-name: localhost7\n",
	} {
		if output, _ := m.run(t, "--diagnose", "--", "--node-name", name); !strings.Contains(output, want) {
			t.Errorf("%s: want %s in\n%s", name, want, output)
		}
	}
}

// The server in cluster-info becomes an argument of curl and a part of the output.
func TestDiagnoseReportsInvalidServer(t *testing.T) {
	ca := certtest.CA(t, "kubernetes")
	good := configMap(t, kubeconfigOf(t, ca))
	for server, want := range map[string]string{
		"https://api\x1b]0;title\x07:6443": "an invalid server",
		"https://api:6443/;x":              "an invalid server",
		"-K/etc/hosts":                     "no https:// server",
	} {
		s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(bytes.ReplaceAll(good, []byte(apiServer), []byte(server))))
		m := newMachine(t, joinOf(t, s, ca))
		m.kubeadm(t, 0)
		output, code := m.run(t, "--diagnose")
		if code != 1 || !strings.Contains(output, "error    cluster-info: it contains "+want+";") || strings.ContainsAny(output, "\x1b\x07") || strings.Contains(output, "api-dns: ") {
			t.Errorf("%q: code %d, want a report of %s:\n%q", server, code, want, output)
		}
	}
}

// Catches a version of an API server, or a host name, that changes the terminal or adds a line to the diagnosis.
func TestDiagnosePrintsNoControlCharacters(t *testing.T) {
	const hostile = "\x1b[31m\xc2\x9b\nok       forged: line"
	ca := certtest.CA(t, "cluster")
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"gitVersion": "v1.36.3`+hostile+`"}`)
	}))
	web.TLS = &tls.Config{Certificates: []tls.Certificate{certtest.Serving(t, ca, "127.0.0.1")}}
	web.StartTLS()
	defer web.Close()
	kubeconfig := must.Value(clusterinfo.Kubeconfig(web.URL, []*x509.Certificate{ca.Leaf}))(t)
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfig)))
	m := newMachine(t, joinOf(t, s, ca))
	m.kubeadm(t, 0)
	m.write(t, "bin/kubeadm", "#!/bin/sh\necho v1.36.3\n")
	output, code := m.run(t, "--diagnose", "--", "--node-name=worker"+hostile)
	control := func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }
	if code != 1 || strings.ContainsFunc(output, control) || strings.Contains(output, "\nok       forged") {
		t.Errorf("got exit code %d, want 1 without control characters and lines of others:\n%q", code, output)
	}
	for _, want := range []string{"v1.36.3[31mok       forged: line\n", "worker[31mok       forged: line is not a name for a node;"} {
		if !strings.Contains(output, want) {
			t.Errorf("got no %q in\n%s", want, output)
		}
	}
}

// A script with a RejoinURL must install rejoin.sh and its drop-in after the join. Other scripts must not
// install them.
func TestScriptInstallsRejoin(t *testing.T) {
	ca := certtest.CA(t, "kubernetes")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	for _, url := range []string{"", "https://join.example.com:9443"} {
		j := joinOf(t, s, ca)
		j.RejoinURL = url
		m := newMachine(t, j)
		root := t.TempDir()
		m.write(t, "bin/systemctl", "#!/bin/sh\necho \"$@\" >>"+filepath.Join(root, "calls")+"\n")
		m.env = append(m.env, "KUBEJOIN_ROOT="+root)
		out, code := m.run(t, "--no-kubeadm")
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, out)
		}
		installed := func(file string) string {
			content, err := os.ReadFile(root + file)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
			return string(content)
		}
		if url == "" {
			if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
				t.Errorf("without a URL: got %v, %v", entries, err)
			}
			continue
		}
		for file, part := range map[string]string{
			"/usr/local/sbin/kubejoin-rejoin":                               "/v1/certificate",
			"/etc/default/kubejoin-rejoin":                                  "KUBEJOIN_URL=" + url + "\n",
			"/etc/systemd/system/kubelet.service.d/20-kubejoin-rejoin.conf": "ExecStartPre=-/usr/local/sbin/kubejoin-rejoin ",
			"/calls": "daemon-reload\n",
		} {
			if content := installed(file); !strings.Contains(content, part) {
				t.Errorf("%s lacks %q:\n%s", file, part, content)
			}
		}
		original, err := os.ReadFile("../../deploy/systemd/rejoin.sh")
		if err != nil || installed("/usr/local/sbin/kubejoin-rejoin") != string(original) {
			t.Errorf("the installed script differs from deploy/systemd/rejoin.sh: %v", err)
		}
		if info, err := os.Stat(root + "/usr/local/sbin/kubejoin-rejoin"); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("got mode %v, %v", info, err)
		}
	}
	for _, url := range []string{"http://x", "https://", "https://x/$(id)", "https://x y", "https://u@x", "https://x\n"} {
		j := joinOf(t, s, ca)
		j.RejoinURL = url
		if _, err := j.Script(); err == nil {
			t.Errorf("URL %q: got no error", url)
		}
	}
}
