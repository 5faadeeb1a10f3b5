package joinformat_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/tokens"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the current output to testdata")

const secret = "9876543210fedcba"

// example returns the Join of the golden files.
func example(t *testing.T) joinformat.Join {
	t.Helper()
	pem := must.Value(os.ReadFile("testdata/ca.crt"))(t)
	cas := must.Value(clusterinfo.ParseCAs(pem))(t)
	return joinformat.Join{Endpoint: "join.example.com:9443", Token: mustToken(t, "abcdef."+secret), Server: "https://api.example.com:6443", CAs: cas}
}

// machineExample returns the Join of the golden files for a machine with a key of its own.
func machineExample(t *testing.T) joinformat.Join {
	t.Helper()
	j := example(t)
	j.Token, j.Machine, j.Node = tokens.Token{}, true, "worker-7"
	return j
}

func mustToken(t *testing.T, s string) tokens.Token {
	t.Helper()
	return must.Value(tokens.Parse(s))(t)
}

func mustKey(t *testing.T) joinformat.CertificateKey {
	t.Helper()
	return must.Value(joinformat.ParseCertificateKey(strings.Repeat("5e", 32)))(t)
}

var forms = map[string]func(joinformat.Join) ([]byte, error){
	"line.txt":           joinformat.Join.Line,
	"configuration.yaml": joinformat.Join.Configuration,
	"kubeconfig.yaml":    joinformat.Join.Kubeconfig,
	"script.sh":          joinformat.Join.Script,
	"cloud-config.yaml":  joinformat.Join.CloudConfig,
	"ignition.json":      joinformat.Join.Ignition,
}

// compressed matches a script in cloud-config or Ignition.
var compressed = regexp.MustCompile("H4sI[0-9A-Za-z+/=]+")

func TestFormsEqualGoldenFiles(t *testing.T) {
	documents := map[string][]byte{}
	for name, form := range forms {
		documents[name] = must.Value(form(example(t)))(t)
	}
	for name, format := range map[string]string{"machine-script.sh": "script", "machine-cloud-config.yaml": "cloud-config", "machine-ignition.json": "ignition"} {
		documents[name] = must.Value(machineExample(t).Write(format))(t)
	}
	for name, got := range documents {
		got = compressed.ReplaceAll(got, []byte("SCRIPT")) // other versions of Go may compress it in another way
		file := filepath.Join("testdata", name)
		if *update {
			must.OK(t, os.WriteFile(file, got, 0o600))
		}
		want := must.Value(os.ReadFile(file))(t)
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from %s (run go test -update to update it); got:\n%s", name, file, got)
		}
	}
}

// cloud-config and Ignition must contain the script without --diagnose, in a file with mode 0700.
func TestDocumentsContainScript(t *testing.T) {
	j := example(t)
	j.CertificateKey = mustKey(t)
	whole := string(must.Value(j.Script())(t))
	from, to := strings.Index(whole, "checks='"), strings.Index(whole, "main() {")
	same := func(script string) bool {
		begin, rest, found := strings.Cut(script, "diagnose() { die 1 'user data has no room for --diagnose: ")
		_, end, _ := strings.Cut(rest, "\n")
		return found && begin == whole[:from] && strings.TrimLeft(end, "\n") == whole[to:]
	}
	cloud := must.Value(j.CloudConfig())(t)
	var config struct {
		Files []struct{ Path, Content, Encoding, Permissions string } `json:"write_files"`
	}
	must.OK(t, yaml.Unmarshal(cloud, &config))
	if len(config.Files) != 1 || config.Files[0].Encoding != "gz+b64" || !same(gunzip(t, config.Files[0].Content)) || config.Files[0].Permissions != "0700" || config.Files[0].Path != joinformat.CloudConfigScript {
		t.Errorf("got files %+v in cloud-config", config.Files)
	}
	if !bytes.HasPrefix(cloud, []byte("#cloud-config\n")) {
		t.Errorf("got cloud-config that begins with %.20q", cloud)
	}
	ignition := must.Value(j.Ignition())(t)
	var machine struct {
		Storage struct {
			Files []struct {
				Path     string
				Mode     int
				Contents struct{ Compression, Source string }
			}
		}
	}
	must.OK(t, json.Unmarshal(ignition, &machine))
	if len(machine.Storage.Files) != 1 {
		t.Fatalf("got files %+v in ignition", machine.Storage.Files)
	}
	file := machine.Storage.Files[0]
	if !same(gunzip(t, strings.TrimPrefix(file.Contents.Source, "data:;base64,"))) || file.Contents.Compression != "gzip" || file.Mode != 0o700 || file.Path != joinformat.IgnitionScript {
		t.Errorf("got file %s with mode %o in ignition", file.Path, file.Mode)
	}
}

// EC2 accepts at most 16 KiB of user data, and other tools need a part of it.
func TestUserDataIsSmall(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	name := func() string { // hardly compressible, of 253 bytes
		label := make([]byte, 253)
		for i := range label {
			label[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[random.IntN(36)]
			if i%64 == 63 {
				label[i] = '.'
			}
		}
		return string(label)
	}
	worker := example(t)
	worker.Endpoint, worker.Server, worker.CAs = name()+":65535", "https://"+name()+":65535", nil
	for range 3 {
		worker.CAs = append(worker.CAs, certtest.CA(t, "cluster").Leaf)
	}
	controlPlane := worker
	controlPlane.CertificateKey = must.Value(joinformat.ParseCertificateKey(fmt.Sprintf("%x", sha256.Sum256(nil))))(t)
	controlPlane.TurnServer = name() + ":65535"
	tainted := worker
	tainted.JoiningTaint = true
	machine := worker
	machine.Token, machine.Machine, machine.Node, machine.TurnServer = tokens.Token{}, true, name(), controlPlane.TurnServer
	for kind, j := range map[string]joinformat.Join{"worker": worker, "worker with a taint": tainted, "control plane": controlPlane, "machine": machine} {
		for _, format := range []string{"cloud-config", "ignition"} {
			if document := must.Value(j.Write(format))(t); len(document) > 12288 {
				t.Errorf("%s of a %s: got %d bytes, want at most 12,288", format, kind, len(document))
			} else {
				t.Logf("%s of a %s: %d bytes", format, kind, len(document))
			}
		}
	}
}

// gunzip returns a text that is compressed and encoded in base64.
func gunzip(t *testing.T, encoded string) string {
	t.Helper()
	r := must.Value(gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(encoded))))(t)
	text := must.Value(io.ReadAll(r))(t)
	return string(text)
}

// systemd must accept the unit, and restart it after a failure.
func TestSystemdAcceptsIgnitionUnit(t *testing.T) {
	document := must.Value(example(t).Ignition())(t)
	var machine struct {
		Systemd struct{ Units []struct{ Contents string } }
	}
	if err := json.Unmarshal(document, &machine); err != nil || len(machine.Systemd.Units) != 1 {
		t.Fatalf("got %d units, %v, want 1", len(machine.Systemd.Units), err)
	}
	unit := machine.Systemd.Units[0].Contents
	after, _, _ := strings.Cut(strings.SplitAfter(unit, "\nAfter=")[1], "\n")
	if !slices.Contains(strings.Fields(after), "time-sync.target") {
		t.Errorf("got After=%s, want time-sync.target in it", after)
	}
	for _, want := range []string{"Type=oneshot", "Restart=on-failure", "RestartSec=60", "RestartPreventExitStatus=2"} {
		if !strings.Contains(unit, "\n"+want+"\n") {
			t.Errorf("got unit without %s:\n%s", want, unit)
		}
	}
	need.Programs(t, "systemd-analyze")
	verify := func(unit string) (string, error) {
		file := filepath.Join(t.TempDir(), joinformat.IgnitionUnit)
		must.OK(t, os.WriteFile(file, []byte(unit), 0o600))
		output, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file).CombinedOutput()
		return string(output), err
	}
	if output, err := verify(unit); err != nil || strings.Contains(output, joinformat.IgnitionUnit) {
		t.Errorf("systemd-analyze: %v\n%s", err, output)
	}
	for right, wrong := range map[string]string{"on-failure": "always", "RestartSec": "RestartSecs"} {
		if output, err := verify(strings.Replace(unit, right, wrong, 1)); err == nil && !strings.Contains(output, joinformat.IgnitionUnit) {
			t.Errorf("systemd-analyze accepts %s: this check cannot fail", wrong)
		}
	}
}

// In YAML, a token that looks like a number must stay a string, and any URL of an API server must stay one value.
func TestQuotesYAMLValues(t *testing.T) {
	for _, token := range []string{"123456.7890123456789012", "1e3456.7890123456789012", "000000.0000000000000e10", "nanabc.trueyesnonullabc"} {
		for _, server := range []string{
			"https://api.example.com:6443", "https://[fd00::1]:6443", `https://api.example.com/"$(reboot)'`,
			"https://api.example.com/%0Atoken:%20x", "https://api.example.com/a: {b}", "https://api.example.com/\u2028users:",
		} {
			j := example(t)
			j.Token, j.Server = mustToken(t, token), server
			content := must.Value(j.Kubeconfig())(t)
			var k struct {
				Clusters []struct{ Cluster struct{ Server string } }
				Users    []struct{ User struct{ Token any } }
			}
			if err := yaml.UnmarshalStrict(content, &struct {
				APIVersion, Kind string
				Current          string `json:"current-context"`
				Contexts         []any
				Clusters         []any
				Users            []any
			}{}); err != nil {
				t.Errorf("%s: %v", content, err)
			}
			if err := yaml.Unmarshal(content, &k); err != nil || len(k.Clusters) != 1 || len(k.Users) != 1 ||
				k.Clusters[0].Cluster.Server != server || k.Users[0].User.Token != token {
				t.Errorf("%s and %s, %v:\n%s", token, server, err, content)
			}
			content = must.Value(j.Configuration())(t)
			var c struct {
				Discovery struct{ BootstrapToken struct{ Token any } }
			}
			if err := yaml.Unmarshal(content, &c); err != nil || c.Discovery.BootstrapToken.Token != token {
				t.Errorf("%s, %v:\n%s", token, err, content)
			}
			// The script must contain nothing of cluster-info except the CA pins.
			script, err := j.Script()
			if err != nil || strings.Contains(string(script), server) {
				t.Errorf("got error %v, or script with %s", err, server)
			}
		}
	}
}

// Each form must refuse missing values, and values that a shell or YAML could read as more than one value.
func TestFormsRefuseInvalidValues(t *testing.T) {
	withKey := example(t)
	withKey.CertificateKey = mustKey(t)
	if content, err := withKey.Kubeconfig(); err == nil {
		t.Errorf("got kubeconfig with a certificate key, want an error: %s", content)
	}
	onlyID := must.Value(tokens.OnlyID("abcdef"))(t)
	for name, change := range map[string]func(*joinformat.Join){
		"zero":              func(j *joinformat.Join) { *j = joinformat.Join{} },
		"no token":          func(j *joinformat.Join) { j.Token = tokens.Token{} },
		"no secret":         func(j *joinformat.Join) { j.Token = onlyID },
		"no CA":             func(j *joinformat.Join) { j.CAs = nil },
		"quote in endpoint": func(j *joinformat.Join) { j.Endpoint = "a';reboot;':1" },
		"line in endpoint":  func(j *joinformat.Join) { j.Endpoint = "a:1\nreboot" },
		"shell in endpoint": func(j *joinformat.Join) { j.Endpoint = "$(reboot):1" },
		"EOF in endpoint":   func(j *joinformat.Join) { j.Endpoint = "a\nEOF\nreboot:1" },
	} {
		j := example(t)
		change(&j)
		for form, make := range forms {
			if form == "kubeconfig.yaml" && strings.Contains(name, "endpoint") {
				continue // a kubeconfig does not contain the endpoint
			}
			if content, err := make(j); err == nil || content != nil {
				t.Errorf("%s: %s: %s, %v, want an error", form, name, content, err)
			} else if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %s: the error contains the secret: %v", form, name, err)
			}
		}
	}
	for _, server := range []string{"", "http://a:1", "https://user:pass@a:1", "https://a:1?q", "https://a:1\nusers:"} {
		j := example(t)
		j.Server = server
		if content, err := j.Kubeconfig(); err == nil {
			t.Errorf("server %q: got %s, want an error", server, content)
		}
	}
}

func TestCertificateKey(t *testing.T) {
	key := mustKey(t)
	j := example(t)
	j.CertificateKey = key
	for _, shown := range []string{fmt.Sprintf("%v %+v %#v %s %q", key, key, key, key, key), fmt.Sprintf("%v %+v %#v", j, j, j), fmt.Sprint(key.LogValue())} {
		if strings.Contains(shown, "5e5e5e5e5e5e") || strings.Contains(shown, secret) {
			t.Errorf("got %s, which contains a secret", shown)
		}
	}
	if text, err := json.Marshal(key); err != nil || strings.Contains(string(text), "5e5e5e5e5e5e") {
		t.Errorf("%s, %v", text, err)
	}
	for _, wrong := range []string{"", "5e", strings.Repeat("5g", 32), strings.Repeat("5e", 33)} {
		if key, err := joinformat.ParseCertificateKey(wrong); err == nil || !key.IsZero() || wrong != "" && strings.Contains(err.Error(), wrong) {
			t.Errorf("%q: got %v, %v, want an error without the value", wrong, key, err)
		}
	}
	for form, make := range map[string]func() ([]byte, error){"line": j.Line, "configuration": j.Configuration, "script": j.Script} {
		if content, err := make(); err != nil || !strings.Contains(string(content), key.Reveal()) {
			t.Errorf("%s: %s, %v", form, content, err)
		}
	}
	if (joinformat.CertificateKey{}).Reveal() != "" {
		t.Error("got a value from Reveal of the zero key, want none")
	}
}

func TestBundle(t *testing.T) {
	a, b := certtest.CA(t, "a"), certtest.CA(t, "b")
	cas, err := clusterinfo.ParseCAs([]byte(joinformat.Join{CAs: []*x509.Certificate{a.Leaf, b.Leaf}}.Bundle()))
	if err != nil || len(cas) != 2 || !cas[0].Equal(a.Leaf) || !cas[1].Equal(b.Leaf) {
		t.Errorf("got %d CAs, %v, want 2", len(cas), err)
	}
}

// bundle64 returns a CA as in a kubeconfig.
func bundle64(t *testing.T, ca *tls.Certificate) string {
	t.Helper()
	return base64.StdEncoding.EncodeToString([]byte(joinformat.Join{CAs: []*x509.Certificate{ca.Leaf}}.Bundle()))
}

// kubeconfigIn returns the same text for equivalent kubeconfigs.
func kubeconfigIn(t *testing.T, content string) string {
	t.Helper()
	asJSON := must.Value(yaml.YAMLToJSONStrict([]byte(content)))(t)
	return string(asJSON)
}
