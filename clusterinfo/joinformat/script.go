package joinformat

import (
	"bytes"
	"cmp"
	"compress/gzip"
	_ "embed"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
)

//go:embed script.sh
var scriptText string

//go:embed diagnose.sh
var diagnoseText string

//go:embed turn.sh
var turnText string

//go:embed taint.sh
var taintText string

//go:embed machine.sh
var machineText string

// The written script has no comments except in its head.
var comments = regexp.MustCompile(`(?m)^ *# .*\n`)

// Script returns a POSIX shell script that joins the machine that it runs on, as root. It requests cluster-info from
// Endpoint with curl, and only trusts a server if a CA with one of the pins has issued its certificate. Then it runs
// kubeadm, or writes files for a kubelet that is installed without kubeadm. With --diagnose it only reports problems.
// Its option --help has the details. The token is in the text of the script, but in no command line, environment or
// output. The script of a Machine contains no token: the machine gets one with its key. The script is too large for
// user data: see [Join.CloudConfig].
func (j Join) Script() ([]byte, error) { return j.script(diagnoseText) }

// script returns the script with the functions of --diagnose.
func (j Join) script(diagnosis string) (_ []byte, err error) {
	var configuration []byte
	if j.Machine {
		err = j.checkMachine()
	} else {
		configuration, err = j.configuration(false) // the script merges the taint with the file of --add-config
	}
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	rejoin, err := j.installRejoin()
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	// A line that begins with a mark is only in scripts with a token, or only in scripts of machines.
	mark, other := "#token ", "#machine "
	taint, more, server := "", "", cmp.Or(j.TurnServer, j.Endpoint)
	tainting, turns, machine := "", "", ""
	if j.Machine {
		mark, other = other, mark
		tainting, turns, machine = taintText, turnText, machineText
	}
	if j.JoiningTaint {
		taint, tainting = joiningTaint, taintText
	}
	if !j.CertificateKey.IsZero() {
		more, turns = "yes", turnText
	}
	if err := clusterinfo.CheckEndpoint(server); turns != "" && err != nil {
		return nil, fmt.Errorf("script: server of turns: %w", err)
	}
	text := strings.NewReplacer("{{TURN}}\n", turns, "{{TAINT}}\n", tainting, "{{MACHINE}}\n", machine, "{{DIAGNOSE}}\n", diagnosis).Replace(scriptText)
	text = strings.ReplaceAll(regexp.MustCompile("(?m)^"+other+".*\n").ReplaceAllString(text, ""), mark, "")
	// Unquoted values contain only safe characters. All other values are one quoted shell word, or are in a
	// here-document that the shell does not expand.
	values := strings.NewReplacer(
		"{{REJOIN}}\n", rejoin, "{{ID}}", j.Token.ID(), "{{ENDPOINT}}", j.Endpoint, "{{CONFIGURATION}}", string(configuration),
		"{{QUOTED_ENDPOINT}}", quote(j.Endpoint), "{{QUOTED_PINS}}", quote(strings.Join(clusterinfo.Pins(j.CAs), " ")),
		"{{QUOTED_TOKEN}}", quote(j.Token.Reveal()), "{{QUOTED_CONTROL_PLANE}}", quote(more), "{{QUOTED_TURNS}}", quote(server),
		"{{QUOTED_NODE}}", quote(j.Node), "{{QUOTED_TAINT}}", quote(taint),
	)
	head, code, _ := strings.Cut(text, "\n\n")
	return []byte(values.Replace(head + "\n\n" + comments.ReplaceAllString(code, ""))), nil
}

// noDiagnosis replaces --diagnose in user data.
const noDiagnosis = "#token diagnose() { die 1 'user data has no room for --diagnose: on the cluster, run kubejoin token create --print-join-command --format script, and run that script here'; }\n" +
	"#machine diagnose() { die 1 \"user data has no room for --diagnose: on the cluster, run: kubejoin machine print-join-command --endpoint $endpoint; and run that script here\"; }\n"

// userData returns the script without --diagnose, in the form that both cloud-config and Ignition accept. EC2 limits
// user data to 16 KiB, and other tools add their own data, so a document of kubejoin has at most 12 KiB.
func (j Join) userData() (string, error) {
	script, err := j.script(noDiagnosis)
	if err != nil {
		return "", err
	}
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	if _, err := w.Write(script); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(compressed.Bytes()), nil
}

// quote returns s as one quoted shell word.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
