package clusterinfo_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

var (
	pin1 = "sha256:" + strings.Repeat("1f", 32)
	pin2 = "sha256:" + strings.Repeat("2e", 32)
)

func TestJoinCommand(t *testing.T) {
	c := clusterinfo.JoinCommand{
		Endpoint: "10.0.0.1:6443", Token: mustToken(t, "abcdef.9876543210fedcba"), Pins: []string{strings.ToUpper(pin1), pin2, pin1},
	}
	got, err := c.Reveal()
	want := "kubeadm join 10.0.0.1:6443 --token abcdef.9876543210fedcba --discovery-token-ca-cert-hash " + pin1 +
		" --discovery-token-ca-cert-hash " + pin2
	if err != nil || got != want {
		t.Errorf("got  %q, %v\nwant %q", got, err, want)
	}
	for _, shown := range []string{c.String(), fmt.Sprint(c), fmt.Sprintf("%+v %#v %q", c, c, c)} {
		if strings.Contains(shown, "9876543210") || !strings.Contains(shown, "abcdef.<redacted>") {
			t.Errorf("got %s as the log value", shown)
		}
	}
	c.Endpoint = "[fd00::1]:6443"
	if got, err := c.Reveal(); err != nil || !strings.HasPrefix(got, "kubeadm join '[fd00::1]:6443' --token ") {
		t.Errorf("IPv6: %q, %v", got, err)
	}
}

func TestJoinCommandRefuses(t *testing.T) {
	token := mustToken(t, "abcdef.9876543210fedcba")
	for name, c := range map[string]clusterinfo.JoinCommand{
		"zero":         {},
		"no token":     {Endpoint: "a:1", Pins: []string{pin1}},
		"no secret":    {Endpoint: "a:1", Pins: []string{pin1}, Token: onlyID(t, "abcdef").Token},
		"no pin":       {Endpoint: "a:1", Token: token},
		"not a pin":    {Endpoint: "a:1", Token: token, Pins: []string{pin1, "sha256:; reboot"}},
		"no endpoint":  {Token: token, Pins: []string{pin1}},
		"two in one":   {Endpoint: "a:1 --ignore-preflight-errors=all", Token: token, Pins: []string{pin1}},
		"option":       {Endpoint: "--node-name:1", Token: token, Pins: []string{pin1}},
		"quote in IP6": {Endpoint: "[fd00::1%';reboot;']:1", Token: token, Pins: []string{pin1}},
	} {
		if line, err := c.Reveal(); err == nil || line != "" {
			t.Errorf("%s: %q, %v, want an error", name, line, err)
		} else if strings.Contains(err.Error(), "9876543210") {
			t.Errorf("%s: the error contains the secret: %v", name, err)
		}
		if s := c.String(); strings.Contains(s, "9876543210") || strings.Contains(s, "reboot") {
			t.Errorf("%s: got %s as the log value", name, s)
		}
	}
}

func ExampleJoinCommand() {
	token := tokens.Generate()
	command := clusterinfo.JoinCommand{
		Endpoint: "10.0.0.1:6443",
		Token:    token,
		Pins:     []string{"sha256:0f4c1ba8f6b3e6f3a1d6a4f1c0e4b2d9a7c5e8f0b1d2c3a4958677869504a3b2"},
	}
	shown := command.String() // safe to log
	fmt.Println(strings.ReplaceAll(shown, token.ID(), "ID"))
	// Output: kubeadm join 10.0.0.1:6443 --token ID.<redacted> --discovery-token-ca-cert-hash sha256:0f4c1ba8f6b3e6f3a1d6a4f1c0e4b2d9a7c5e8f0b1d2c3a4958677869504a3b2
}

func TestParseJoinCommand(t *testing.T) {
	token := mustToken(t, "abcdef.9876543210fedcba")
	for _, endpoint := range []string{"10.0.0.1:6443", "api.example.com:443", "[fd00::1]:6443"} {
		c := clusterinfo.JoinCommand{Endpoint: endpoint, Token: token, Pins: []string{pin1, pin2}}
		line := must.Value(c.Reveal())(t)
		twoLines := strings.Replace(line, " --discovery", " \\\n\t--discovery", 1) + " " // as kubeadm prints it
		for _, printed := range []string{
			line, line + "\n", line + " \n", twoLines, twoLines + "\n\n", "\t" + twoLines + "\r\n",
			strings.ReplaceAll(twoLines, "\n", "\r\n"), strings.ReplaceAll(twoLines, "\n\t", " \t\n      "),
			strings.ReplaceAll(line, " --", " \\\n  --"),
		} {
			got, err := clusterinfo.ParseJoinCommand(printed)
			if err != nil || got.Endpoint != endpoint || got.Token != token || !slices.Equal(got.Pins, c.Pins) {
				t.Errorf("%q: %v, %v", strings.ReplaceAll(printed, token.RevealSecret(), "SECRET"), got, err)
			}
		}
	}
	good := "kubeadm join a:1 --token abcdef.9876543210fedcba --discovery-token-ca-cert-hash " + pin1
	for name, line := range map[string]string{
		"empty":          "",
		"white space":    " \t\r\n",
		"backslash":      strings.Replace(good, " --token", " \\ --token", 1),
		"cut off":        strings.Replace(good, " --discovery", " \\\n", 1)[:60],
		"inside a word":  strings.Replace(good, "fedcba", "fed\\\ncba", 1),
		"two in one":     strings.Replace(good, "a:1", "a\\\n:1", 1),
		"another":        strings.Replace(good, "join", "init", 1),
		"no endpoint":    strings.Replace(good, " a:1", "", 1),
		"no token":       "kubeadm join a:1 --discovery-token-ca-cert-hash " + pin1 + " --discovery-token-ca-cert-hash " + pin2,
		"malformed":      strings.Replace(good, "fedcba", "FEDCBA", 1),
		"two tokens":     good + " --token abcdef.9876543210fedcba",
		"no pin":         "kubeadm join a:1 --token abcdef.9876543210fedcba",
		"not a pin":      strings.Replace(good, "1f", "zz", 1),
		"control plane":  good + " --control-plane --certificate-key " + strings.Repeat("5e", 32),
		"another flag":   good + " --node-name a",
		"without a word": good + " --node-name",
	} {
		if c, err := clusterinfo.ParseJoinCommand(line); err == nil {
			t.Errorf("%s: %v", name, c)
		} else if strings.Contains(err.Error(), "9876543210") {
			t.Errorf("%s: the error contains the secret: %v", name, err)
		}
	}
}
