package join

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
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestJoinsByEveryFormat boots a machine with each format of the join command. It catches a format that does not work
// and a token secret left on the machine. The API server allows anonymous discovery, the usual setup.
func TestJoinsByEveryFormat(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.PrepareSite(t, cluster.Options{})
	s.RunKubectl(t, "create", "clusterrole", "patch-nodes", "--verb=patch", "--resource=nodes") // for nodeReadyAfter
	s.RunKubectl(t, "create", "clusterrolebinding", "patch-nodes", "--clusterrole=patch-nodes", "--serviceaccount=kubejoin-system:kubejoin")
	s.Start(t)
	for _, test := range []struct {
		format         string
		taints         string // of the kubelet's flag; empty: none
		withoutKubeadm bool
		make           func(t *testing.T, file string) []string // returns the command that the machine runs at boot
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
		{format: "yaml", taints: "kubejoin.io/joining:NoSchedule", make: func(t *testing.T, file string) []string {
			return []string{"kubeadm", "join", "--config", file}
		}},
		{format: "script", taints: "kubejoin.io/joining:NoSchedule,gpu:NoExecute", make: func(t *testing.T, file string) []string {
			more := filepath.Join(filepath.Dir(file), "more.yaml")
			must.OK(t, os.WriteFile(more, []byte("nodeRegistration:\n  taints:\n  - key: gpu\n    effect: NoExecute\n"), 0o600))
			return []string{"sh", file, "--add-config", more}
		}},
		{format: "cloud-config", taints: "kubejoin.io/joining:NoSchedule", make: cloudInit},
	} {
		name := test.format + "-node" // not just "script": the Events of such a node look like tokens
		query := ""
		switch {
		case test.withoutKubeadm:
			name += "-kubelet"
		case test.taints != "":
			name, query = name+"-tainted", "&nodeReadyAfter=serving-certificate"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := joinFile(t, s, "?ttl=1h&maxNodes=1&certificateDuration=72h&nodeNames="+name+query, test.format)
			node := must.Value(s.Boot(name, !test.withoutKubeadm, test.make(t, file)...))(t)
			waitJoined(t, s, node, !test.withoutKubeadm, 72*time.Hour)
			if flags, err := node.ReadFile("/var/lib/kubelet/kubeadm-flags.env"); !test.withoutKubeadm {
				_, taints, _ := strings.Cut(string(flags), "--register-with-taints=")
				if end := strings.IndexAny(taints, " \""); err != nil || taints[:max(end, 0)] != test.taints {
					t.Errorf("got flags %s of the kubelet, %v, want the taints %q", flags, err, test.taints)
				}
			}
			switch test.format {
			case "cloud-config":
				checkNoFile(t, s, node, joinformat.CloudConfigScript)
			case "ignition":
				checkNoFile(t, s, node, joinformat.IgnitionScript)
			}
		})
	}
	// A machine that does not trust kubejoin's CA refuses the discovery URL.
	t.Run("untrusted-url", func(t *testing.T) {
		t.Parallel()
		_, token := s.JoinArgs(t, "")
		node := must.Value(s.StartNode("untrusting", []string{"--discovery-file", "https://" + s.Endpoint + "/v1/cluster-info", "--tls-bootstrap-token", token.Reveal()}))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := node.WaitJoined(ctx); err == nil || !strings.Contains(node.Output(), "certificate signed by unknown authority") {
			t.Errorf("got %v, want an unknown authority error\n%s", err, node.Output())
		}
	})
	// Repeat this with 'kubejoin token create' and a kubeconfig.
	t.Run("token-create", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "join.yaml")
		text := tool(t, "token", "create", "--kubeconfig="+s.Kubeconfig(), "--max-nodes=1", "--node-name=token-create-node", "--print-join-command", "--format=yaml")
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
		node := must.Value(s.Boot("token-create-node", true, "kubeadm", "join", "--config", file))(t)
		waitJoined(t, s, node, true, 365*24*time.Hour)
	})
}

// TestJoinsWithoutAnonymousAccess catches formats that need the API server for discovery although it refuses anonymous
// requests: the kubeconfig contains all facts, and the join command and the script use kubejoin.
func TestJoinsWithoutAnonymousAccess(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	address := harness.FreeAddress(t)
	s := harness.NewSite(t, cluster.Options{AnonymousOff: true}, "--listen="+address, "--advertise="+address)
	if status, _ := anonymous(t, s, s.Server()+harness.ClusterInfoPath); status != 401 {
		t.Fatalf("precondition: got status %d for anonymous discovery at the API server, want 401", status)
	}
	args, _ := s.JoinArgs(t, "")
	if args[0] != address {
		t.Errorf("the join command names %s, want kubejoin at %s", args[0], address)
	}
	if _, err := s.Join(t.Context(), "worker-1", args); err != nil {
		t.Error(err)
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
		node := must.Value(s.Boot(boot.name, boot.withKubeadm, append(boot.command, joinFile(t, s, "", boot.format))...))(t)
		nodes = append(nodes, node)
	}
	for i, node := range nodes {
		waitJoined(t, s, node, i < 2, 365*24*time.Hour)
	}
	// If the script names the API server, it reports the 401 and stops.
	script := string(harness.ReadFile(t, joinFile(t, s, "", "script")))
	_, apiServer, _ := strings.Cut(s.Server(), "https://")
	direct := filepath.Join(s.WorkDir, "direct.sh")
	must.OK(t, os.WriteFile(direct, []byte(strings.ReplaceAll(script, address, apiServer)), 0o600))
	node := must.Value(s.Boot("direct", true, "sh", direct, "--timeout", "0"))(t)
	waitScriptFailed(t, s, node, 4, "HTTP 401")
}

// TestScriptRejectsManInTheMiddle has an attacker who relays or replaces cluster-info, and whose CA the machine's system
// trusts. The test catches a script that sends its token to the attacker, or that does not stop.
func TestScriptRejectsManInTheMiddle(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	address := harness.FreeAddress(t)
	s := harness.NewSite(t, cluster.Options{}, "--advertise="+address)
	evil := must.Value(signer.GenerateCA("evil", time.Now(), 24*time.Hour))(t)
	evilPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: evil.Certificate().Raw})
	m := newAttacker(t, address, s.Program, evil)
	evilFile := filepath.Join(s.WorkDir, "evil.crt")
	must.OK(t, os.WriteFile(evilFile, evilPEM, 0o600))
	// The system trusts only the attacker's CA, so curl trusts the attacker.
	trusting := func(script string) []string {
		return []string{"sh", "-euc", `
mount -t tmpfs tmpfs /etc/ssl/certs
cp "$1" /etc/ssl/certs/ca-certificates.crt
openssl rehash /etc/ssl/certs
curl --silent --show-error --fail --output /dev/null --max-time 60 "$3"
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
		{"own", true, true, "another cluster or a man in the middle"},
		{"own-kubelet", true, false, "another cluster or a man in the middle"},
	} {
		m.ownCA.Store(test.ownCA)
		node := must.Value(s.Boot(test.name, test.withKubeadm, trusting(joinFile(t, s, "?maxNodes=1", "script"))...))(t)
		waitScriptFailed(t, s, node, 3, test.want)
		for _, file := range []string{"/etc/kubernetes/bootstrap-kubelet.conf", "/etc/kubernetes/pki/ca.crt"} {
			checkNoFile(t, s, node, file)
		}
		node.Stop()
	}
	m.checkNoSecrets(t)
	// Without the attacker, a machine joins.
	m.forwardUnchanged(t)
	node := must.Value(s.Boot("worker-1", true, "sh", joinFile(t, s, "", "script")))(t)
	waitJoined(t, s, node, true, 365*24*time.Hour)
}

// joinFile writes a join command in this format to a file and returns the path.
func joinFile(t *testing.T, s *harness.Site, query, format string) string {
	t.Helper()
	if query == "" {
		query = "?ttl=1h"
	}
	text := must.Value(s.JoinCommand(t, query+"&format="+format))(t)
	file := filepath.Join(t.TempDir(), format)
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// waitJoined waits until a booted machine is a node. It checks the node's certificate, and that no token secret is left on
// the machine.
func waitJoined(t *testing.T, s *harness.Site, node *cluster.Node, withKubeadm bool, lifetime time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	must.OK(t, errors.Join(node.WaitJoined(ctx), node.WaitRegistered(ctx)))
	if _, err := s.Client().CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	chain := must.Value(node.ClientCertificate())(t)
	harness.CheckKubeletCertificate(t, s, chain[0], node.Name, lifetime)
	if output := node.Output(); tokens.Redact(output) != output {
		t.Errorf("the output of %s contains the token", node.Name)
	}
	if !withKubeadm {
		return
	}
	args, err := node.KubeadmArgs()
	if err != nil || !strings.HasPrefix(args, "join ") || tokens.Redact(args) != args {
		t.Errorf("kubeadm of %s ran with %s, %v, want join without a token", node.Name, tokens.Redact(args), err)
	}
	checkNoFile(t, s, node, "/etc/kubernetes/bootstrap-kubelet.conf")
}

// waitScriptFailed waits until the boot command exits with code and prints why. kubeadm must not have run.
func waitScriptFailed(t *testing.T, s *harness.Site, node *cluster.Node, code int, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := node.WaitJoined(ctx); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("exit status %d\n", code)) || !strings.Contains(node.Output(), why) {
		t.Errorf("%s: got %v, want exit status %d and %q", node.Name, err, code, why)
	}
	if args, err := node.KubeadmArgs(); err == nil {
		t.Errorf("%s: kubeadm ran with %s, want it not to run", node.Name, args)
	}
	if output := node.Output(); tokens.Redact(output) != output {
		t.Errorf("the output of %s contains the token", node.Name)
	}
}

func checkNoFile(t *testing.T, s *harness.Site, node *cluster.Node, file string) {
	t.Helper()
	if _, err := node.ReadFile(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s of %s: got %v, want no such file", file, node.Name, err)
	}
}

// cloudInit validates a document with the schema of cloud-init, and returns the command that applies it with
// cloud-init's own modules.
func cloudInit(t *testing.T, file string) []string {
	t.Helper()
	need.Programs(t, "cloud-init")
	check := func(file string) (string, error) {
		output, err := exec.CommandContext(t.Context(), "cloud-init", "schema", "--config-file", file).CombinedOutput()
		return string(output), err
	}
	if output, err := check(file); err != nil || !strings.Contains(output, "Valid") {
		t.Errorf("cloud-init schema: %v\n%s", err, output)
	}
	wrong := filepath.Join(t.TempDir(), "wrong")
	must.OK(t, os.WriteFile(wrong, bytes.Replace(harness.ReadFile(t, file), []byte("permissions:"), []byte("permission:"), 1), 0o600))
	if output, err := check(wrong); err == nil && !strings.Contains(output, "permission") {
		t.Errorf("the schema of cloud-init accepts an unknown field, want an error:\n%s", output)
	}
	// The module scripts_user would run the script of runcmd, but needs an instance ID. So run the script directly.
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

// ignite validates a document with Ignition's own library, and returns a command that has the same effect as Ignition and
// systemd.
func ignite(t *testing.T, file string) []string {
	t.Helper()
	dir := t.TempDir()
	reader := filepath.Join(dir, "ignition")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-C", harness.RepositoryFile(t, "test/ignition"), "-o", reader, ".").CombinedOutput(); err != nil {
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
	document := harness.ReadFile(t, file)
	if _, err := read(bytes.Replace(document, []byte(`"mode"`), []byte(`"modes"`), 1)); err == nil {
		t.Error("Ignition accepts an unknown field, want an error")
	}
	output := must.Value(read(document))(t)
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
	must.OK(t, json.Unmarshal(output, &m))
	if len(m.Files) != 1 || len(m.Units) != 1 || m.Files[0].Mode != 0o700 || !m.Units[0].Enabled || m.Units[0].Name != joinformat.IgnitionUnit {
		t.Fatalf("Ignition would write %d files and %d units, want one of each, with mode 0700 and enabled", len(m.Files), len(m.Units))
	}
	unit, script := m.Units[0].Options, m.Files[0]
	if !slices.Equal(unit["Unit.ConditionPathExists"], []string{script.Path}) || !slices.Equal(unit["Install.WantedBy"], []string{"multi-user.target"}) || !slices.Equal(unit["Service.Type"], []string{"oneshot"}) {
		t.Errorf("unexpected options of the unit: %v", unit)
	}
	content := filepath.Join(dir, "content")
	must.OK(t, os.WriteFile(content, script.Content, 0o600))
	// systemd runs the command without a shell. If it has no quotes and variables, a shell runs the same command.
	commands := strings.Join(append(slices.Clone(unit["Service.ExecStart"]), unit["Service.ExecStartPost"]...), "\n")
	if strings.ContainsAny(commands, `"'$%\`) || len(unit["Service.ExecStart"]) == 0 {
		t.Fatalf("got commands %s, want some without quotes and variables", commands)
	}
	return []string{"sh", "-euc", `
mkdir -p "$(dirname "$1")"
mount -t tmpfs tmpfs "$(dirname "$1")"
install -m 0700 "$2" "$1"
` + commands, "sh", script.Path, content}
}
