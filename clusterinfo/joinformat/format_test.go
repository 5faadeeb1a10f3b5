package joinformat_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/must"
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
	compressed := regexp.MustCompile(`H4sI[A-Za-z0-9+/=]+`)
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
