package joinformat_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
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
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/tokens"
)

// An answer is a response for a machine or for a turn.
type answer struct {
	status     int
	body       string
	retryAfter string
}

// A machineServer serves cluster-info without a signature. It responds to machines with the answers in order, and then
// repeats the last one. It responds to requests for a turn with the turns in order, and then with 200.
type machineServer struct {
	*httptest.Server
	join    joinformat.Join // of the machine
	mu      sync.Mutex
	answers []answer
	turns   []answer
	nodes   []string // of each request by a machine
	keys    []string // of each request by a machine
	bearers []string // of each request for a turn
}

func serveMachines(t *testing.T, answers ...answer) *machineServer {
	t.Helper()
	ca := certtest.CA(t, "cluster")
	return serveMachinesAs(t, ca, certtest.Serving(t, ca, "127.0.0.1"), answers...)
}

func serveMachinesAs(t *testing.T, ca *tls.Certificate, serving tls.Certificate, answers ...answer) *machineServer {
	t.Helper()
	info := must.Value(clusterinfo.MarshalConfigMap(map[string]string{"kubeconfig": string(kubeconfigOf(t, ca))}))(t)
	s := &machineServer{answers: answers}
	write := func(w http.ResponseWriter, a answer) {
		if a.retryAfter != "" {
			w.Header().Set("Retry-After", a.retryAfter)
		}
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, a.body)
	}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch r.URL.Path {
		case "/api/v1/namespaces/kube-public/configmaps/cluster-info":
			if len(r.TLS.PeerCertificates) > 0 || r.Header.Get("Authorization") != "" {
				t.Error("got cluster-info requested with a proof")
			}
			_, _ = w.Write(info)
		case "/v1/controlplane/turn":
			s.bearers = append(s.bearers, r.Header.Get("Authorization"))
			if len(s.turns) > 0 {
				write(w, s.turns[0])
				s.turns = s.turns[1:]
			}
		default:
			content, err := io.ReadAll(r.Body)
			node, joins := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/machine/"), "/join")
			if err != nil || !joins || r.Method != http.MethodPost || len(content) > 0 || r.Header.Get("Content-Length") != "0" || r.Header.Get("Content-Type") != "" || r.Header.Get("Authorization") != "" || len(r.TLS.PeerCertificates) != 1 {
				t.Errorf("got request %s %s %v %q, %v", r.Method, r.URL, r.Header, content, err)
				return
			}
			proof := r.TLS.PeerCertificates[0]
			if subject := proof.Subject.String(); subject != "CN=system:node:"+node+",O=system:nodes" {
				t.Errorf("got certificate of %s for node %s", subject, node)
			}
			if err := proof.CheckSignature(proof.SignatureAlgorithm, proof.RawTBSCertificate, proof.Signature); err != nil {
				t.Errorf("got certificate that is not self-signed: %v", err)
			}
			s.nodes, s.keys = append(s.nodes, node), append(s.keys, keyID(proof.RawSubjectPublicKeyInfo))
			write(w, s.answers[0])
			if len(s.answers) > 1 {
				s.answers = s.answers[1:]
			}
		}
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	s.join = joinformat.Join{Machine: true, Endpoint: s.Listener.Addr().String(), Server: apiServer, CAs: []*x509.Certificate{ca.Leaf}}
	return s
}

// requests returns the number of requests by machines.
func (s *machineServer) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.nodes)
}

// machine makes a machine with a fake kubeadm and short pauses.
func (s *machineServer) machine(t *testing.T, j joinformat.Join) *machine {
	t.Helper()
	m := newMachine(t, j)
	m.env = append(m.env, "KUBEJOIN_KEY="+m.file("var/keys/machine.key"))
	m.kubeadm(t, 0)
	m.hurry(t)
	return m
}

// granted returns the answer with the configuration of a Join with a token.
func granted(t *testing.T, change func(*joinformat.Join)) answer {
	t.Helper()
	j := example(t)
	if change != nil {
		change(&j)
	}
	return answer{status: 200, body: string(must.Value(j.Configuration())(t))}
}

func problem(status int, detail string) answer {
	return answer{status: status, body: fmt.Sprintf(`{"type":"about:blank","status":%d,"detail":"%s"}`, status, detail)}
}

func keyID(spki []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(spki)) }

// wordsOf returns the words of the key in a file of a machine.
func (m *machine) wordsOf(t *testing.T, name string) string {
	t.Helper()
	block, _ := pem.Decode([]byte(m.read(t, name)))
	key := must.Value(x509.ParsePKCS8PrivateKey(block.Bytes))(t)
	spki := must.Value(x509.MarshalPKIXPublicKey(key.(crypto.Signer).Public()))(t)
	return tokens.Words(keyID(spki))
}

// In each shell, the machine must make a key, show its fingerprint, and wait until kubejoin knows the key. Then it must join
// with the response of kubejoin. Only the key must stay on its disk.
func TestMachineJoinsWithItsKey(t *testing.T) {
	t.Parallel()
	for _, shell := range [][]string{{"sh"}, {"sh", "-eu"}, {"dash", "-xv"}, {"bash", "--posix"}, {"bash", "-eu"}, {"busybox", "sh"}, {"mksh"}} {
		t.Run(strings.Join(shell, " "), func(t *testing.T) {
			t.Parallel()
			needShell(t, shell[0])
			want := granted(t, nil)
			s := serveMachines(t, problem(401, ""), problem(401, ""), want)
			s.join.Node = "worker-7"
			m := s.machine(t, s.join)
			m.shell = shell
			output, code := m.run(t, "--", "-v=5")
			words := m.wordsOf(t, "var/keys/machine.key")
			for _, line := range []string{
				"kubejoin: this machine is worker-7, the fingerprint of its key is " + words + "\n",
				"kubejoin: waiting: kubejoin knows no machine worker-7 with this key: on the cluster, run: kubejoin machine add worker-7 --key " + words + "\n",
				"kubejoin: this machine has joined\n",
			} {
				if strings.Count(output, line) != 1 {
					t.Errorf("got no %q, or more than one, in\n%s", line, output)
				}
			}
			args := strings.Split(m.read(t, "args"), "\n")
			if code != 0 || len(args) < 7 || !slices.Equal(args[3:6], []string{"--node-name", "worker-7", "-v=5"}) || m.read(t, "mode") != "600\n" || m.read(t, "config") != want.body {
				t.Errorf("got exit code %d, kubeadm %q with\n%s", code, args, m.read(t, "config"))
			}
			if !slices.Equal(s.nodes, []string{"worker-7", "worker-7", "worker-7"}) || tokens.Words(s.keys[0]) != words || s.keys[2] != s.keys[0] {
				t.Errorf("got requests of %q with keys %q, want words %s", s.nodes, s.keys, words)
			}
			for file, want := range map[string]os.FileMode{"var": 0o755, "var/keys": 0o700, "var/keys/machine.key": 0o600} {
				if info, err := os.Stat(m.file(file)); err != nil || info.Mode().Perm() != want {
					t.Errorf("%s: %v, %v, want mode %o", file, info, err, want)
				}
			}
			key := m.read(t, "var/keys/machine.key")
			if output, code := m.run(t, "--kubeadm"); code != 0 || m.read(t, "var/keys/machine.key") != key || !strings.Contains(output, words) {
				t.Errorf("second run: got exit code %d:\n%s", code, output)
			}
			if left := must.Value(filepath.Glob(m.file("var/keys/*")))(t); len(left) != 1 {
				t.Errorf("got files %q beside the key", left)
			}
			m.write(t, "kubelet.conf", "")
			asked := s.requests()
			if output, code := m.run(t); code != 0 || !strings.Contains(output, "joined already") || s.requests() != asked {
				t.Errorf("after the join: got exit code %d:\n%s", code, output)
			}
		})
	}
}

// The script and kubejoin must show the same words for a key. Users may use a key of any type.
func TestMachineShowsFingerprintOfKey(t *testing.T) {
	t.Parallel()
	for _, awk := range []string{"mawk", "gawk", "busybox awk", "original-awk"} {
		for kind, generate := range map[string]func() (any, error){
			"P-256":   func() (any, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) },
			"P-384":   func() (any, error) { return ecdsa.GenerateKey(elliptic.P384(), rand.Reader) },
			"Ed25519": func() (any, error) { _, key, err := ed25519.GenerateKey(rand.Reader); return key, err },
			"RSA":     func() (any, error) { return rsa.GenerateKey(rand.Reader, 2048) },
		} {
			t.Run(awk+", "+kind, func(t *testing.T) {
				t.Parallel()
				need.Programs(t, strings.Fields(awk)[0])
				s := serveMachines(t, granted(t, nil))
				m := s.machine(t, s.join)
				m.write(t, "bin/awk", "#!/bin/sh\nPATH=/usr/bin:/bin\nexec "+awk+` "$@"`+"\n")
				key := must.Value(x509.MarshalPKCS8PrivateKey(must.Value(generate())(t)))(t)
				must.OK(t, os.WriteFile(m.file("my.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
				output, code := m.run(t, "--key", m.file("my.key"))
				words := m.wordsOf(t, "my.key")
				if code != 0 || !tokens.IsWords(words) || !strings.Contains(output, " the fingerprint of its key is "+words+"\n") || tokens.Words(s.keys[0]) != words {
					t.Errorf("got exit code %d, want %s:\n%s", code, words, output)
				}
			})
		}
	}
}

// The script must refuse a key that others can read, and must not replace an existing key.
func TestMachineRefusesKey(t *testing.T) {
	t.Parallel()
	s := serveMachines(t, granted(t, nil))
	private := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must.Value(x509.MarshalPKCS8PrivateKey(private))(t)
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	public := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must.Value(x509.MarshalPKIXPublicKey(&private.PublicKey))(t)}))
	encrypt := exec.CommandContext(t.Context(), "openssl", "pkey", "-aes256", "-passout", "pass:secret")
	encrypt.Stdin = strings.NewReader(key)
	encrypted := must.Value(encrypt.Output())(t)
	const readable, none = " is not a file that only its owner can read: ", " is not a private key in PEM without a passphrase, or is unreadable: "
	for name, test := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
	}{
		"read by the group":     {key, 0o640, readable},
		"written by the group":  {key, 0o620, readable},
		"read by others":        {key, 0o604, readable},
		"executed by others":    {key, 0o601, readable},
		"empty":                 {"", 0o600, none},
		"text":                  {"key", 0o600, none},
		"a public key":          {public, 0o600, none},
		"DER":                   {string(der), 0o600, none},
		"a key with passphrase": {string(encrypted), 0o600, none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := s.machine(t, s.join)
			must.OK(t, os.WriteFile(m.file("my.key"), []byte(test.content), 0o600))
			must.OK(t, os.Chmod(m.file("my.key"), test.mode))
			cmd := m.command(t, "--key", m.file("my.key"))
			cmd.Stdin = strings.NewReader("secret\n") // without a terminal, openssl reads the passphrase here
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			must.OK(t, cmd.Start())
			output, code := m.end(t, cmd)
			info := must.Value(os.Stat(m.file("my.key")))(t)
			if code != 1 || !strings.Contains(output, "--key: "+m.file("my.key")+test.want) || m.read(t, "my.key") != test.content || info.Mode().Perm() != test.mode {
				t.Errorf("got exit code %d, want 1 and the same file:\n%s", code, output)
			}
			m.untouched(t)
		})
	}
	m := s.machine(t, s.join)
	for path, want := range map[string]string{m.dir: readable, "/dev/null": readable, m.script + "/key": ": cannot write " + m.script + "/key\n"} {
		if output, code := m.run(t, "--key", path); code != 1 || !strings.Contains(output, want) {
			t.Errorf("%s: got exit code %d, want 1:\n%s", path, code, output)
		}
	}
	t.Cleanup(func() {
		if n := s.requests(); n > 0 {
			t.Errorf("got %d requests by machines, want none", n)
		}
	})
}

// Catches a script that replaces the key which another script has just made.
func TestMachineTakesKeyThatAnotherScriptMakes(t *testing.T) {
	t.Parallel()
	s := serveMachines(t, granted(t, nil))
	m := s.machine(t, s.join)
	openssl := must.Value(exec.LookPath("openssl"))(t)
	m.write(t, "bin/openssl", fmt.Sprintf("#!/bin/sh\ncase $1 in genpkey) %[1]s genpkey -algorithm ED25519 -out %[2]s; cp %[2]s %[3]s ;; esac\nexec %[1]s \"$@\"\n", openssl, m.file("var/keys/machine.key"), m.file("other.key")))
	output, code := m.run(t)
	if code != 0 || m.read(t, "var/keys/machine.key") != m.read(t, "other.key") || !strings.Contains(output, m.wordsOf(t, "other.key")) {
		t.Errorf("got exit code %d:\n%s", code, output)
	}
	if left := must.Value(filepath.Glob(m.file("var/keys/*")))(t); len(left) != 1 {
		t.Errorf("got files %q, want one key", left)
	}
}

// A machine must retry with the same server and the same key, until its timeout.
func TestMachineWaitsForToken(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer answer
		want   string
		pause  string
	}{
		"unknown key":         {problem(401, "kubejoin does not know this key, a-b: run: c"), "kubejoin does not know this key, a-b: run: c\n", "10"},
		"no proof":            {problem(401, "this server does not accept these credentials"), "this server does not accept these credentials\n", "10"},
		"no detail of a key":  {answer{status: 401}, "kubejoin knows no machine worker-7 with this key: on the cluster, run: kubejoin machine add worker-7 --key ", "10"},
		"not granted":         {problem(403, `the Node \u001b]0;a\u0007 worker-7 exists: run: kubejoin machine allow worker-7`), `the Node \u001b]0;a\u0007 worker-7 exists: run: kubejoin machine allow worker-7`, "10"},
		"control characters":  {problem(403, "a\x1b]0;title\x07\xc2\x9b\r\b"), "a]0;title\n", "10"},
		"lines":               {problem(403, "a\nkubejoin: forged"), "127.0.0.1:PORT returns HTTP 403", "10"},
		"no detail":           {answer{status: 403}, "127.0.0.1:PORT returns HTTP 403", "10"},
		"no machines":         {answer{status: 404, body: "404 page not found\n"}, "127.0.0.1:PORT does not let machines join with keys (HTTP 404)", "10"},
		"throttled":           {answer{429, "", "1"}, "127.0.0.1:PORT returns HTTP 429", "10"},
		"out of service":      {answer{503, `{"detail":"the store is down"}`, "25"}, "the store is down", "25"},
		"for a long time":     {answer{503, "", "86400"}, "127.0.0.1:PORT returns HTTP 503", "30"},
		"a page":              {answer{status: 200, body: "<html>log in</html>"}, "127.0.0.1:PORT returns no token", "10"},
		"no secret":           {answer{status: 200, body: "token: abcdef\n"}, "127.0.0.1:PORT returns no token", "10"},
		"another place":       {answer{status: 307}, "127.0.0.1:PORT returns HTTP 307", "10"},
		"a token in an error": {answer{status: 500, body: granted(t, nil).body}, "127.0.0.1:PORT returns HTTP 500", "10"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveMachines(t, test.answer, test.answer, granted(t, nil))
			s.join.Node = "worker-7"
			want := strings.ReplaceAll(test.want, "127.0.0.1:PORT", s.join.Endpoint)
			m := s.machine(t, s.join)
			m.write(t, "bin/sleep", "#!/bin/sh\necho $1 >>"+m.file("sleeps")+"\n")
			output, code := m.run(t)
			if code != 0 || strings.Count(output, "kubejoin: waiting: "+want) != 1 || m.read(t, "sleeps") != strings.Repeat(test.pause+"\n", 2) {
				t.Errorf("got exit code %d, sleeps %q:\n%s", code, m.read(t, "sleeps"), output)
			}
			printable := func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }
			if strings.ContainsFunc(output, printable) || strings.Contains(output, "\nkubejoin: forged") {
				t.Errorf("got a control character or a line of the server:\n%q", output)
			}
			s = serveMachines(t, test.answer)
			s.join.Node = "worker-7"
			m = s.machine(t, s.join)
			want = strings.ReplaceAll(test.want, "127.0.0.1:PORT", s.join.Endpoint)
			if output, code := m.run(t, "--timeout", "0"); code != 4 || !strings.Contains(output, "kubejoin: waited 0 s for a token from "+s.join.Endpoint+": "+want) || s.requests() != 1 {
				t.Errorf("--timeout 0: got exit code %d:\n%s", code, output)
			}
			m.untouched(t)
		})
	}
	s := serveMachines(t, problem(400, "node name - is invalid"))
	m := s.machine(t, s.join)
	if output, code := m.run(t); code != 1 || !strings.Contains(output, "refuses this machine: node name - is invalid") || s.requests() != 1 {
		t.Errorf("bad request: got exit code %d:\n%s", code, output)
	}
	// The pauses end with the timeout.
	s = serveMachines(t, problem(401, ""))
	m = s.machine(t, s.join)
	m.advance(t, 1)
	m.write(t, "bin/sleep", "#!/bin/sh\necho $1 >>"+m.file("sleeps")+"\n")
	if output, code := m.run(t, "--timeout", "4"); code != 4 || m.read(t, "sleeps") != "3\n2\n1\n" {
		t.Errorf("got exit code %d and sleeps %q:\n%s", code, m.read(t, "sleeps"), output)
	}
	s.Close()
	if output, code := m.run(t, "--timeout", "0"); code != 4 {
		t.Errorf("without a server: got exit code %d:\n%s", code, output)
	}
}

// The console must repeat the reason of the wait from time to time, and show a new reason at once.
func TestMachineRepeatsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	answers := slices.Repeat([]answer{problem(401, "")}, 13)
	s := serveMachines(t, append(answers, problem(403, "the rule is off"), granted(t, nil))...)
	m := s.machine(t, s.join)
	m.advance(t, 10)
	output, code := m.run(t)
	if code != 0 || strings.Count(output, "waiting: kubejoin knows no machine") != 3 || strings.Count(output, "waiting: the rule is off") != 1 {
		t.Errorf("got exit code %d, want 3 lines for 120 s, and 1:\n%s", code, output)
	}
}

// The server decides whether the machine becomes a control plane, and with which taint.
func TestMachineBecomesWhatServerSays(t *testing.T) {
	t.Parallel()
	t.Run("control plane", func(t *testing.T) {
		t.Parallel()
		want := granted(t, func(j *joinformat.Join) { j.CertificateKey = mustKey(t) })
		s := serveMachines(t, want)
		m := s.machine(t, s.join)
		m.write(t, "more.yaml", "nodeRegistration:\n  name: Control-3\n")
		output, code := m.run(t, "--add-config", m.file("more.yaml"))
		if code != 0 || m.read(t, "config") != want.body+"timeouts:\n  etcdAPICall: 20m0s\n"+m.read(t, "more.yaml") || s.nodes[0] != "control-3" || strings.Contains(m.read(t, "args"), "--node-name") {
			t.Errorf("got exit code %d for %q:\n%s\n%s", code, s.nodes, output, m.read(t, "config"))
		}
		if bearer := "Bearer abcdef." + secret; !slices.Equal(s.bearers, []string{bearer, bearer}) { // takes the turn, and gives it back
			t.Errorf("got requests for a turn with %q", s.bearers)
		}
		m = s.machine(t, s.join)
		if output, code := m.run(t, "--no-kubeadm"); code != 1 || !strings.Contains(output, "a control plane node can only join with kubeadm") {
			t.Errorf("without kubeadm: got exit code %d:\n%s", code, output)
		}
		m.untouched(t)
	})
	t.Run("worker with a taint", func(t *testing.T) {
		t.Parallel()
		s := serveMachines(t, granted(t, func(j *joinformat.Join) { j.JoiningTaint = true }))
		s.join.Node = "worker-7"
		m := s.machine(t, s.join)
		m.write(t, "more.yaml", "nodeRegistration:\n  name: worker-8\n")
		want := granted(t, nil).body + "nodeRegistration:\n  taints: [{key: kubejoin.io/joining, effect: NoSchedule}]\n  name: worker-8\n"
		if output, code := m.run(t, "--add-config", m.file("more.yaml")); code != 0 || m.read(t, "config") != want || s.nodes[0] != "worker-8" || strings.Contains(m.read(t, "args"), "--node-name") {
			t.Errorf("got exit code %d:\n%s\n%s", code, output, m.read(t, "config"))
		}
		if output, code := m.run(t, "--no-kubeadm"); code != 0 || !strings.Contains(output, " --hostname-override=worker-7 --register-with-taints=kubejoin.io/joining:NoSchedule\n") || s.nodes[1] != "worker-7" {
			t.Errorf("without kubeadm: got exit code %d:\n%s", code, output)
		}
	})
	t.Run("kubelet", func(t *testing.T) {
		t.Parallel()
		for _, token := range []string{"abcdef." + secret, "123456.7890123456789012", "1e3456.7890123456789012"} {
			given := example(t)
			given.Token = mustToken(t, token)
			s := serveMachines(t, answer{status: 200, body: string(must.Value(given.Configuration())(t))})
			given.CAs = s.join.CAs
			m := s.machine(t, s.join)
			output, code := m.run(t, "--no-kubeadm")
			if code != 0 || kubeconfigIn(t, m.read(t, "bootstrap.conf")) != kubeconfigIn(t, mustBytes(t, given.Kubeconfig)) || strings.Contains(output, "--hostname-override") {
				t.Errorf("%s: got exit code %d:\n%s\n%s", token, code, output, m.read(t, "bootstrap.conf"))
			}
			if host := strings.ToLower(must.Value(os.Hostname())(t)); s.nodes[0] != host {
				t.Errorf("got a request of %s, want %s", s.nodes[0], host)
			}
		}
	})
}

// A node name may have 253 characters, but openssl limits CN to 64. A host name that is not a valid node name must not
// reach the URL.
func TestMachineNames(t *testing.T) {
	t.Parallel()
	s := serveMachines(t, granted(t, nil))
	s.join.Node = strings.Repeat("a.", 126) + "b"
	m := s.machine(t, s.join)
	if output, code := m.run(t, "--no-kubeadm"); code != 0 || !slices.Equal(s.nodes, []string{s.join.Node}) {
		t.Errorf("got exit code %d for %q:\n%s", code, s.nodes, output)
	}
	for _, name := range []string{"a/b", "..", "a b", "é", "a\x1b"} {
		if output, code := m.run(t, "--kubeadm", "--", "--node-name", name); code != 1 || !strings.Contains(output, "not a valid node name") || strings.Contains(output, "\x1b") || s.requests() != 1 {
			t.Errorf("%s: got exit code %d:\n%s", name, code, output)
		}
	}
}

// The script must prove the key only to a server with a certificate of the pinned CA.
func TestMachineProvesNothingToAnotherCluster(t *testing.T) {
	t.Parallel()
	ca, other := certtest.CA(t, "cluster"), certtest.CA(t, "other")
	for name, s := range map[string]*machineServer{
		"another CA":                 serveMachinesAs(t, other, certtest.Serving(t, other, "127.0.0.1"), granted(t, nil)),
		"the right bundle by others": serveMachinesAs(t, ca, certtest.Serving(t, other, "127.0.0.1"), granted(t, nil)),
	} {
		s.join.CAs = []*x509.Certificate{ca.Leaf}
		m := s.machine(t, s.join)
		if output, code := m.run(t); code != 3 || s.requests() != 0 {
			t.Errorf("%s: got exit code %d and %d proofs, want 3 and none:\n%s", name, code, s.requests(), output)
		}
		m.untouched(t)
	}
}

// The token of a machine must be in no argument and no environment. The private key must be only in its file.
func TestMachinePassesSecretsToNoProgram(t *testing.T) {
	t.Parallel()
	s := serveMachines(t, granted(t, func(j *joinformat.Join) { j.CertificateKey = mustKey(t) }))
	m := s.machine(t, s.join)
	m.record(t)
	output, code := m.run(t)
	seen := m.read(t, "seen") + m.read(t, "args") + m.read(t, "environment")
	key := strings.Split(m.read(t, "var/keys/machine.key"), "\n")[1]
	for _, hidden := range []string{secret, mustKey(t).Reveal(), key} {
		if strings.Contains(seen+output, hidden) {
			t.Errorf("got %s in the output, or in the arguments or environment of a program", hidden)
		}
	}
	if code != 0 || !strings.Contains(seen, "openssl genpkey") || !strings.Contains(seen, "/v1/machine/") {
		t.Errorf("got exit code %d:\n%s", code, output)
	}
}

// The wait for a turn may take longer than the lifetime of a token. Catches kubeadm with an expired token.
func TestMachineRenewsTokenWhileItWaitsForTurn(t *testing.T) {
	t.Parallel()
	given := func(token string) answer {
		return granted(t, func(j *joinformat.Join) { j.CertificateKey, j.Token = mustKey(t), mustToken(t, token) })
	}
	s := serveMachines(t, given("aaaaaa."+secret), given("bbbbbb."+secret))
	s.turns = slices.Repeat([]answer{problem(409, "control-2 has been joining")}, 4)
	m := s.machine(t, s.join)
	m.advance(t, 40)
	output, code := m.run(t)
	if code != 0 || s.requests() != 2 || m.read(t, "config") != given("bbbbbb."+secret).body+"timeouts:\n  etcdAPICall: 20m0s\n" {
		t.Errorf("got exit code %d and %d requests:\n%s\n%s", code, s.requests(), output, m.read(t, "config"))
	}
	if len(s.bearers) != 6 || s.bearers[0] != "Bearer aaaaaa."+secret || s.bearers[5] != "Bearer bbbbbb."+secret {
		t.Errorf("got requests for a turn with %q", s.bearers)
	}
}

// A token lasts 15 minutes, so a short outage must not end the wait for the turn. Also catches a script that continues with an
// expired token, or with a token that kubejoin has deleted.
func TestMachineKeepsTokenIfItGetsNoOther(t *testing.T) {
	t.Parallel()
	given := func(token string) answer {
		return granted(t, func(j *joinformat.Join) { j.CertificateKey, j.Token = mustKey(t), mustToken(t, token+"."+secret) })
	}
	a, b, down := given("aaaaaa"), given("bbbbbb"), problem(503, "the store is down")
	wait := func(n int, then ...answer) []answer { // each takes 120 s
		return append(slices.Repeat([]answer{problem(409, "control-2 has been joining")}, n), then...)
	}
	for name, test := range map[string]struct {
		answers, turns []answer
		timeout        string
		code           int
		token          string // that kubeadm gets
	}{
		"out of service": {[]answer{a, down}, wait(4), "300", 0, "aaaaaa"},
		"short timeout":  {[]answer{a, down}, wait(4), "100", 0, "aaaaaa"},
		"bad request":    {[]answer{a, problem(400, "no")}, wait(4), "300", 0, "aaaaaa"},
		"no token":       {[]answer{a, {status: 200, body: "<html>"}}, wait(4), "300", 0, "aaaaaa"},
		"for 14 minutes": {[]answer{a, down}, wait(10), "300", 4, ""},
		"then renewed":   {[]answer{a, down, b}, wait(4), "300", 0, "bbbbbb"},
		"deleted":        {[]answer{a, down, down, b}, wait(3, answer{status: 401}), "300", 0, "bbbbbb"},
		"no turns":       {[]answer{down, a, b}, []answer{{status: 401}}, "300", 0, "aaaaaa"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveMachines(t, test.answers...)
			s.turns = test.turns
			m := s.machine(t, s.join)
			m.advance(t, 40)
			output, code := m.run(t, "--timeout", test.timeout)
			if code != test.code {
				t.Fatalf("got exit code %d, want %d:\n%s", code, test.code, output)
			}
			if code != 0 {
				m.untouched(t)
			} else if got := m.read(t, "config"); got != given(test.token).body+"timeouts:\n  etcdAPICall: 20m0s\n" || s.bearers[len(s.bearers)-1] != "Bearer "+test.token+"."+secret {
				t.Errorf("got requests for a turn with %q, and configuration\n%s\n%s", s.bearers, got, output)
			}
		})
	}
	s := serveMachines(t, a, answer{503, "", "30"})
	s.turns = wait(20)
	m := s.machine(t, s.join)
	m.advance(t, 7) // each turn takes 21 s
	if output, code := m.run(t); code != 0 || s.requests() != 5 {
		t.Errorf("got exit code %d and %d requests, want a pause of 30 s between 4 renewals:\n%s", code, s.requests(), output)
	}
}

// Without a token, --diagnose must not report an error about a token.
func TestMachineDiagnoses(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" || len(r.TLS.PeerCertificates) > 0 {
			t.Errorf("got request %s", r.URL)
		}
		_, _ = io.WriteString(w, `{"gitVersion": "v1.36.3"}`)
	}))
	api.TLS = &tls.Config{Certificates: []tls.Certificate{certtest.Serving(t, ca, "127.0.0.1")}, ClientAuth: tls.RequestClientCert}
	api.StartTLS()
	t.Cleanup(api.Close)
	for _, server := range []string{api.URL, "https://127.0.0.1:1"} {
		s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, must.Value(clusterinfo.Kubeconfig(server, []*x509.Certificate{ca.Leaf}))(t))))
		m := (&machineServer{}).machine(t, joinformat.Join{Machine: true, Node: "worker-7", Endpoint: s.Listener.Addr().String(), CAs: []*x509.Certificate{ca.Leaf}})
		m.write(t, "bin/kubeadm", "#!/bin/sh\necho v1.36.3\n")
		m.write(t, "bin/kubelet", "#!/bin/sh\necho v1.36.3\n")
		output, _ := m.run(t, "--diagnose")
		for _, check := range []string{"token", "signature", "node", "requests"} {
			want := "\nunknown  " + check + ": the machine gets its token when it joins; on the cluster, run: kubejoin explain worker-7\n"
			if strings.Contains(output, want) != (server == api.URL) || strings.Contains(output, "error    "+check+": ") {
				t.Errorf("%s: want %q in\n%s", server, want, output)
			}
		}
		if strings.Contains(output, "\nok       version: ") != (server == api.URL) || !strings.Contains(output, "\nok       node-name: worker-7\n") {
			t.Errorf("%s: got\n%s", server, output)
		}
		if _, err := os.Stat(m.file("var")); err == nil {
			t.Error("got a key, want none")
		}
	}
}

func TestMachineOptions(t *testing.T) {
	t.Parallel()
	s := serveMachines(t, granted(t, nil))
	m := s.machine(t, s.join)
	if output, code := m.run(t, "--help"); code != 0 || !strings.Contains(output, "--key FILE ") || !strings.Contains(output, "This file contains no secret") {
		t.Errorf("got exit code %d:\n%s", code, output)
	}
	if output, code := m.run(t, "--key"); code != 2 || !strings.Contains(output, "--key: missing value") {
		t.Errorf("got exit code %d:\n%s", code, output)
	}
	other := newMachine(t, example(t))
	if output, code := other.run(t, "--key", m.file("a")); code != 2 || !strings.Contains(output, "--key: unknown option") {
		t.Errorf("script with a token: got exit code %d:\n%s", code, output)
	}
}

// Catches a private key that stays beside that of the machine: each stopped script would leave one.
func TestStoppedMachineLeavesNoKey(t *testing.T) {
	t.Parallel()
	for _, shell := range [][]string{{"dash"}, {"bash", "--posix"}, {"busybox", "sh"}} {
		needShell(t, shell[0])
		s := serveMachines(t, problem(401, ""))
		m := s.machine(t, s.join)
		m.shell = shell
		openssl := must.Value(exec.LookPath("openssl"))(t)
		m.write(t, "bin/openssl", fmt.Sprintf("#!/bin/sh\n[ \"$1\" != genpkey ] || kill -TERM $PPID\nexec %s \"$@\"\n", openssl))
		if output, code := m.run(t); code != 143 {
			t.Errorf("%s: got exit code %d:\n%s", shell, code, output)
		}
		if left := must.Value(filepath.Glob(m.file("var/keys/*")))(t); len(left) > 0 {
			t.Errorf("%s: got files %q, want none", shell, left)
		}
	}
}

// Catches a diagnosis of a machine with a key that asks for a token, which cannot take the name of the machine.
func TestMachineDiagnosisAsksForNoToken(t *testing.T) {
	t.Parallel()
	s := serveMachines(t)
	other := s.join
	ca := certtest.CA(t, "another")
	other.CAs = []*x509.Certificate{ca.Leaf}
	remedy := "on the cluster, run: kubejoin machine print-join-command --endpoint " + s.join.Endpoint
	for name, test := range map[string]struct {
		join joinformat.Join
		do   func(*machine)
		want string
	}{
		"another pin": {join: other, want: remedy},
		"user data": {join: s.join, do: func(m *machine) {
			_, data, _ := strings.Cut(string(must.Value(s.join.CloudConfig())(t)), "content: ")
			data, _, _ = strings.Cut(data, "\n")
			m.write(t, "join.sh", gunzip(t, data))
		}, want: remedy},
		"expired certificate": {join: s.join, do: func(m *machine) {
			old := certtest.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "system:node:worker-7"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}, ca)
			must.OK(t, os.MkdirAll(m.file("root/var/lib/kubelet/pki"), 0o700))
			m.write(t, "root/var/lib/kubelet/pki/kubelet-client-current.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: old.Certificate[0]})))
		}, want: "run 'kubejoin rejoin', or do what the line leftovers says, and run this script again"},
	} {
		m := s.machine(t, test.join)
		m.env = append(m.env, "KUBEJOIN_ROOT="+m.file("root"))
		if test.do != nil {
			test.do(m)
		}
		if output, _ := m.run(t, "--diagnose"); !strings.Contains(output, test.want) || strings.Contains(output, "kubejoin token create") {
			t.Errorf("%s: want %q in\n%s", name, test.want, output)
		}
	}
}

// Catches a remedy that changes nothing: while the kubeconfig of a machine exists, its script proves no key, even if its certificate
// has expired. The diagnosis names the first step.
func TestMachineWithExpiredCertificateIsDiagnosed(t *testing.T) {
	t.Parallel()
	s := serveMachines(t, granted(t, nil))
	j := &joined{m: s.machine(t, s.join), ca: certtest.CA(t, "another"), server: "https://127.0.0.1:1"}
	j.m.env = append(j.m.env, "KUBEJOIN_ROOT="+j.m.file("root"), "KUBEJOIN_KUBECONFIG="+j.m.file("kubelet.conf"))
	j.kubelet(t, time.Now().Add(-time.Hour))
	if output, code := j.m.run(t); code != 0 || !strings.Contains(output, "run this script again with --diagnose") || s.requests() > 0 {
		t.Errorf("got exit code %d, %d proofs and\n%s", code, s.requests(), output)
	}
	output, _ := j.m.run(t, "--diagnose")
	if !strings.Contains(output, "kubelet-client-current.pem has expired, so the kubelet cannot renew it; run 'kubejoin rejoin', or do what the line leftovers says, and run this script again\n") || !strings.Contains(output, "no kubelet can use this machine: run 'kubeadm reset -f'") {
		t.Errorf("got\n%s", output)
	}
	must.OK(t, os.Remove(j.m.file("kubelet.conf"))) // as kubeadm reset does
	if output, code := j.m.run(t); code != 0 || s.requests() != 1 {
		t.Errorf("got exit code %d, %d proofs and\n%s", code, s.requests(), output)
	}
}
