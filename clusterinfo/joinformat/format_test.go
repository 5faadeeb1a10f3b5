package joinformat_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

func TestRefusesUnknownFormatsAndMissingFields(t *testing.T) {
	good := example(t)
	for name, want := range map[string]string{"toml": `"toml" given, want text, json, yaml, kubeconfig, cloud-config, ignition or script`, "abcdef." + secret: "redacted"} {
		if _, err := good.Write(name); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got error %v, want %q", name, err, want)
		}
	}
	without := good
	without.CAs = nil
	for _, name := range joinformat.Formats() {
		if _, err := without.Write(name); err == nil {
			t.Errorf("%s: got a join document without a CA, want an error", name)
		}
	}
	text, err := good.Write("")
	if line, lineErr := good.Line(); err != nil || lineErr != nil || string(text) != string(line) {
		t.Errorf("without a name: got %s, %v, want the format text", text, err)
	}
}

// Without the taint, pods would run on a Node before it has what its token asks for.
func TestFormatHasTaintOrRefusesIt(t *testing.T) {
	j := example(t)
	j.JoiningTaint = true
	const inScript = "taint='kubejoin.io/joining:NoSchedule'\n"
	for name, want := range map[string]string{"yaml": "nodeRegistration:\n  taints:\n  - effect: NoSchedule\n    key: kubejoin.io/joining\n", "script": inScript, "cloud-config": inScript, "ignition": inScript} {
		content, err := j.Write(name)
		text := string(content)
		if script := compressed.FindString(text); script != "" {
			text = gunzip(t, script)
		}
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%s: got %s, %v, want %s", name, text, err, want)
		}
		controlPlane := j
		controlPlane.CertificateKey = mustKey(t)
		if _, err := controlPlane.Write(name); err == nil || !strings.Contains(err.Error(), "a control plane registers without it") {
			t.Errorf("%s of a control plane: got %v, want an error", name, err)
		}
	}
	for _, name := range []string{"", "text", "json", "kubeconfig"} {
		if content, err := j.Write(name); err == nil || !strings.Contains(err.Error(), "has no place for the taint kubejoin.io/joining, want one of yaml, cloud-config, ignition, script") {
			t.Errorf("%s: got %s, %v, want an error", name, content, err)
		}
	}
}

// Formats with a token must fail for a machine, and so must fields of the token, because the server decides about it.
func TestMachineFormatsAndFields(t *testing.T) {
	for _, name := range []string{"", "text", "json", "yaml", "kubeconfig"} {
		if content, err := machineExample(t).Write(name); err == nil || !strings.Contains(err.Error(), "needs a token, and cannot be for a machine with a key of its own, want one of cloud-config, ignition, script") {
			t.Errorf("%s: got %s, %v, want an error", name, content, err)
		}
	}
	for name, change := range map[string]func(*joinformat.Join){
		"token":                func(j *joinformat.Join) { j.Token = mustToken(t, "abcdef."+secret) },
		"only the ID":          func(j *joinformat.Join) { j.Token = must.Value(tokens.OnlyID("abcdef"))(t) },
		"certificate key":      func(j *joinformat.Join) { j.CertificateKey = mustKey(t) },
		"taint":                func(j *joinformat.Join) { j.JoiningTaint = true },
		"no CA":                func(j *joinformat.Join) { j.CAs = nil },
		"no endpoint":          func(j *joinformat.Join) { j.Endpoint = "" },
		"quote in endpoint":    func(j *joinformat.Join) { j.Endpoint = "a';reboot;':1" },
		"quote in turn server": func(j *joinformat.Join) { j.TurnServer = "a';reboot;':1" },
		"upper case in node":   func(j *joinformat.Join) { j.Node = "Worker-7" },
		"path in node":         func(j *joinformat.Join) { j.Node = ".." },
		"line in node":         func(j *joinformat.Join) { j.Node = "a\nreboot" },
		"quote in rejoining":   func(j *joinformat.Join) { j.RejoinURL = "https://a';reboot;'" },
	} {
		for _, format := range []string{"cloud-config", "ignition", "script"} {
			j := machineExample(t)
			change(&j)
			if content, err := j.Write(format); err == nil || strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %s: got %s, %v, want an error", name, format, content, err)
			}
		}
	}
	j := machineExample(t)
	j.Node = "" // the host name
	must.Value(j.Script())(t)
}

// Everyone on the machine and in its cloud can read user data, even after the join.
func TestMachineFormatsHaveNoSecret(t *testing.T) {
	for _, name := range []string{"script", "cloud-config", "ignition"} {
		text := string(must.Value(machineExample(t).Write(name))(t))
		if script := compressed.FindString(text); script != "" {
			text = gunzip(t, script)
		}
		if found := regexp.MustCompile(`[a-z0-9]{6}\.[a-z0-9]{16}|(?m)^#(token|machine)|contains the secret|\{\{`).FindString(text); found != "" || !strings.Contains(text, "\n    token=''\n") || !strings.Contains(text, "named='worker-7'") {
			t.Errorf("%s: got %q in\n%s", name, found, text)
		}
	}
	if script := string(must.Value(example(t).Script())(t)); strings.Contains(script, "machine.key") || strings.Contains(script, "#token") || strings.Contains(script, "#machine") {
		t.Errorf("got parts of a machine in a script with a token:\n%s", script)
	}
}

func TestJSONHasExpiryAndWarnings(t *testing.T) {
	j := example(t)
	j.Expires, j.Warnings = time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC), []string{"a"}
	body, err := j.JSON()
	var got struct {
		Token    string
		Expires  time.Time
		Warnings []string
	}
	must.OK(t, json.Unmarshal(body, &got))
	if err != nil || got.Token != j.Token.Reveal() || !got.Expires.Equal(j.Expires) || len(got.Warnings) != 1 {
		t.Errorf("got %s, %v", body, err)
	}
}
