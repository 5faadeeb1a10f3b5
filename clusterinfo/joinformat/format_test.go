package joinformat_test

import (
	"encoding/json"
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
