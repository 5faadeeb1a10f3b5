package test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// A machine boots by each form of the join command, and is a node. The cluster answers anonymous
// discovery itself, as most do.
func TestMachinesBoot(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{})
	for _, test := range []struct {
		format         string
		withoutKubeadm bool
		make           func(t *testing.T, file string) []string // the command that the machine boots with
	}{
		{format: "yaml", make: func(t *testing.T, file string) []string {
			return []string{"kubeadm", "join", "--config", file}
		}},
		{format: "kubeconfig", make: func(t *testing.T, file string) []string {
			return []string{"kubeadm", "join", "--discovery-file", file}
		}},
		{format: "script", make: func(t *testing.T, file string) []string { return []string{"sh", file} }},
		{format: "script", withoutKubeadm: true, make: func(t *testing.T, file string) []string { return []string{"sh", file} }},
		{format: "cloud-config", make: cloudInit},
		{format: "ignition", make: ignite},
	} {
		name := test.format + "-node" // the Events of a node "script" look like tokens
		if test.withoutKubeadm {
			name += "-kubelet"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := s.joinFile(t, "?ttl=1h&maxNodes=1&certificateDuration=72h&nodeNames="+name, test.format)
			node, err := s.Boot(name, !test.withoutKubeadm, test.make(t, file)...)
			if err != nil {
				t.Fatal(err)
			}
			s.joined(t, node, !test.withoutKubeadm, 72*time.Hour)
			switch test.format {
			case "cloud-config":
				s.gone(t, node, joinformat.CloudConfigScript)
			case "ignition":
				s.gone(t, node, joinformat.IgnitionScript)
			}
		})
	}
	// The same from the command line, by a kubeconfig.
	t.Run("token-create", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "join.yaml")
		text := tool(t, "token", "create", "--kubeconfig="+s.Kubeconfig(), "--max-nodes=1", "--node-name=token-create-node", "--print-join-command", "--format=yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		node, err := s.Boot("token-create-node", true, "kubeadm", "join", "--config", file)
		if err != nil {
			t.Fatal(err)
		}
		s.joined(t, node, true, 365*24*time.Hour)
	})
}

// Machines boot while kube-apiserver answers no anonymous request but for its health: what holds the
// token needs nobody else, and what asks first asks kubejoin.
func TestMachinesBootWithoutAnonymousAccess(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + itoa(port)
	s := newSite(t, cluster.Options{AnonymousOff: true}, "--listen="+address, "--advertise="+address)
	if status, _ := s.anonymous(t, s.Server()+discoveryPath); status != 401 {
		t.Fatalf("the API server answers anonymous discovery with %d, want 401: this test is about nothing", status)
	}
	var nodes []*cluster.Node
	for _, boot := range []struct {
		name, format string
		withKubeadm  bool
		command      []string
	}{
		{"discovery-file-node", "kubeconfig", true, []string{"kubeadm", "join", "--discovery-file"}},
		{"script-node", "script", true, []string{"sh"}},
		{"script-node-kubelet", "script", false, []string{"sh"}},
	} {
		node, err := s.Boot(boot.name, boot.withKubeadm, append(boot.command, s.joinFile(t, "", boot.format))...)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, node)
	}
	for i, node := range nodes {
		s.joined(t, node, i < 2, 365*24*time.Hour)
	}
	// Where nothing is advertised the script says what is wrong, and goes no further.
	script := string(readFile(t, s.joinFile(t, "", "script")))
	_, apiServer, _ := strings.Cut(s.Server(), "https://")
	direct := filepath.Join(s.dir, "direct.sh")
	if err := os.WriteFile(direct, []byte(strings.ReplaceAll(script, address, apiServer)), 0o600); err != nil {
		t.Fatal(err)
	}
	node, err := s.Boot("direct", true, "sh", direct, "--timeout", "0")
	if err != nil {
		t.Fatal(err)
	}
	s.refused(t, node, 4, "HTTP 401")
}

// Whoever stands between a machine and the cluster, with cluster-info as it is or with one of their
// own, and even if the machine's own system trusts them, is told nothing by the script, and it does
// nothing.
func TestScriptMeetsManInTheMiddle(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, cluster.Options{}, "--advertise=127.0.0.1:"+itoa(port))
	evil, err := signer.GenerateCA("evil", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	evilPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: evil.Certificate().Raw})
	m := newMiddle(t, port, s.program, evil)
	evilFile := filepath.Join(s.dir, "evil.crt")
	if err := os.WriteFile(evilFile, evilPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	// The system's CAs are the evil one alone, by which curl trusts the man in the middle.
	trusting := func(script string) []string {
		return []string{"sh", "-euc", `
mount -t tmpfs tmpfs /etc/ssl/certs
cp "$1" /etc/ssl/certs/ca-certificates.crt
openssl rehash /etc/ssl/certs
curl --silent --show-error --fail --output /dev/null --max-time 10 "$3"
exec sh "$2" --timeout 3`, "sh", evilFile, script, "https://" + m.address + "/healthz"}
	}
	for _, test := range []struct {
		name        string
		ownCA       bool
		withKubeadm bool
		want        string
	}{
		{"relay", false, true, "certificate"},
		{"relay-kubelet", false, false, "certificate"},
		{"own", true, true, "another cluster, or somebody in between"},
		{"own-kubelet", true, false, "another cluster, or somebody in between"},
	} {
		m.ownCA.Store(test.ownCA)
		node, err := s.Boot(test.name, test.withKubeadm, trusting(s.joinFile(t, "?maxNodes=1", "script"))...)
		if err != nil {
			t.Fatal(err)
		}
		s.refused(t, node, 3, test.want)
		for _, file := range []string{"/etc/kubernetes/bootstrap-kubelet.conf", "/etc/kubernetes/pki/ca.crt"} {
			s.gone(t, node, file)
		}
		node.Stop()
	}
	m.toldNothing(t)
	// Nobody is between them, and the same machine joins.
	m.leave(t)
	node, err := s.Boot("worker-1", true, "sh", s.joinFile(t, "", "script"))
	if err != nil {
		t.Fatal(err)
	}
	s.joined(t, node, true, 365*24*time.Hour)
}

// joinFile has a join command of that format in a file.
func (s *site) joinFile(t *testing.T, query, format string) string {
	t.Helper()
	if query == "" {
		query = "?ttl=1h"
	}
	text, err := s.joinCommand(t, query+"&format="+format)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), format)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// joined waits for a machine that was booted to be a node, and looks at what the token has left.
func (s *site) joined(t *testing.T, node *cluster.Node, withKubeadm bool, lifetime time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := errors.Join(node.WaitJoined(ctx), node.WaitRegistered(ctx)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	chain, err := node.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	checkKubeletCertificate(t, s, chain[0], node.Name, lifetime)
	if output := node.Output(); tokens.Redact(output) != output {
		t.Errorf("what %s has printed holds the token", node.Name)
	}
	if !withKubeadm {
		return
	}
	args, err := node.KubeadmArgs()
	if err != nil || !strings.HasPrefix(args, "join ") || tokens.Redact(args) != args {
		t.Errorf("kubeadm of %s ran with %s, %v", node.Name, tokens.Redact(args), err)
	}
	s.gone(t, node, "/etc/kubernetes/bootstrap-kubelet.conf")
}

// refused waits for what a machine booted with to fail.
func (s *site) refused(t *testing.T, node *cluster.Node, code int, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := node.WaitJoined(ctx); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("exit status %d\n", code)) || !strings.Contains(node.Output(), why) {
		t.Errorf("%s: %v, want exit status %d and %q", node.Name, err, code, why)
	}
	if args, err := node.KubeadmArgs(); err == nil {
		t.Errorf("%s: kubeadm has run: %s", node.Name, args)
	}
	if output := node.Output(); tokens.Redact(output) != output {
		t.Errorf("what %s has printed holds the token", node.Name)
	}
}

func (s *site) gone(t *testing.T, node *cluster.Node, file string) {
	t.Helper()
	if _, err := node.ReadFile(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s of %s: %v, want it not to be there", file, node.Name, err)
	}
}

// cloudInit has cloud-init check a document by its schema, and gives the command by which its own
// modules do what the document says.
func cloudInit(t *testing.T, file string) []string {
	t.Helper()
	if _, err := exec.LookPath("cloud-init"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("cloud-init is missing, which says whether user data is valid, and in CI no test is skipped")
		}
		t.Skip("cloud-init is missing, which says whether user data is valid: install the package cloud-init")
	}
	check := func(file string) (string, error) {
		output, err := exec.CommandContext(t.Context(), "cloud-init", "schema", "--config-file", file).CombinedOutput()
		return string(output), err
	}
	if output, err := check(file); err != nil || !strings.Contains(output, "Valid") {
		t.Errorf("cloud-init schema: %v\n%s", err, output)
	}
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, bytes.Replace(readFile(t, file), []byte("permissions:"), []byte("permission:"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := check(wrong); err == nil && !strings.Contains(output, "permission") {
		t.Errorf("cloud-init's schema takes a field that there is not: this check could not fail:\n%s", output)
	}
	// What runcmd has made of commands, scripts_user runs; that needs a machine with an identity.
	return []string{"sh", "-euc", `
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/cloud
mount -t tmpfs tmpfs /var/lib/cloud
mkdir -p /run/cloud-init
for module in write_files runcmd; do
	cloud-init --file "$1" single --name $module --frequency always
done
test -x /run/kubejoin/join.sh
exec /var/lib/cloud/instances/*/scripts/runcmd`, "sh", file}
}

// ignite has Ignition's own library check a document, and gives the command that does what Ignition
// and systemd do with it.
func ignite(t *testing.T, file string) []string {
	t.Helper()
	dir := t.TempDir()
	reader := filepath.Join(dir, "ignition")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-C", "ignition", "-o", reader, ".").CombinedOutput(); err != nil {
		t.Fatalf("building test/ignition: %v\n%s", err, output)
	}
	read := func(document []byte) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), reader)
		cmd.Stdin = bytes.NewReader(document)
		output, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return output, err
	}
	document := readFile(t, file)
	if _, err := read(bytes.Replace(document, []byte(`"mode"`), []byte(`"modes"`), 1)); err == nil {
		t.Error("Ignition takes a field that there is not: this check could not fail")
	}
	output, err := read(document)
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Files []struct {
			Path    string
			Mode    int
			Content []byte
		}
		Units []struct {
			Name    string
			Enabled bool
			Options map[string][]string
		}
	}
	if err := json.Unmarshal(output, &m); err != nil {
		t.Fatal(err)
	}
	if len(m.Files) != 1 || len(m.Units) != 1 || m.Files[0].Mode != 0o700 || !m.Units[0].Enabled || m.Units[0].Name != joinformat.IgnitionUnit {
		t.Fatalf("ignition would write %d files and %d units", len(m.Files), len(m.Units))
	}
	unit, script := m.Units[0].Options, m.Files[0]
	if !slices.Equal(unit["Unit.ConditionPathExists"], []string{script.Path}) || !slices.Equal(unit["Install.WantedBy"], []string{"multi-user.target"}) || !slices.Equal(unit["Service.Type"], []string{"oneshot"}) {
		t.Errorf("unit %v", unit)
	}
	content := filepath.Join(dir, "content")
	if err := os.WriteFile(content, script.Content, 0o600); err != nil {
		t.Fatal(err)
	}
	// What systemd runs is words, for no shell; these have no quotes and no variables.
	commands := strings.Join(append(slices.Clone(unit["Service.ExecStart"]), unit["Service.ExecStartPost"]...), "\n")
	if strings.ContainsAny(commands, `"'$%\`) || len(unit["Service.ExecStart"]) == 0 {
		t.Fatalf("commands %s", commands)
	}
	return []string{"sh", "-euc", `
mkdir -p "$(dirname "$1")"
mount -t tmpfs tmpfs "$(dirname "$1")"
install -m 0700 "$2" "$1"
` + commands, "sh", script.Path, content}
}

// Both documents that go around the script have the very one that is answered as such.
func TestDocumentsHaveTheScript(t *testing.T) {
	t.Parallel()
	p := standalone(t, filepath.Join(t.TempDir(), "data"))
	s := &site{program: p}
	var config struct {
		Files []struct{ Content string } `json:"write_files"`
	}
	if err := yaml.Unmarshal(readFile(t, s.joinFile(t, "", "cloud-config")), &config); err != nil {
		t.Fatal(err)
	}
	script := string(readFile(t, s.joinFile(t, "", "script")))
	// Each has a token of its own.
	if len(config.Files) != 1 || tokens.Redact(config.Files[0].Content) == config.Files[0].Content || blank(config.Files[0].Content) != blank(script) {
		t.Errorf("the cloud-config has another script than this:\n%s", tokens.Redact(script))
	}
}

// blank has no token and no ID in it.
func blank(script string) string {
	var lines []string
	for line := range strings.Lines(script) {
		if !strings.Contains(line, "bootstrap token ") && tokens.Redact(line) == line {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
