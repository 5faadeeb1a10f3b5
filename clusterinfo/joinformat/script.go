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

// The written script has no comments except in its head.
var comments = regexp.MustCompile(`(?m)^ *# .*\n`)

// Script returns a POSIX shell script that joins the machine that it runs on, as root. It requests cluster-info from
// Endpoint with curl, and only trusts a server if a CA with one of the pins has issued its certificate. Then it runs
// kubeadm, or writes files for a kubelet that is installed without kubeadm. With --diagnose it only reports problems.
// Its option --help has the details. The token is in the text of the script, but in no command line, environment or
// output. The script is too large for user data: see [Join.CloudConfig].
func (j Join) Script() ([]byte, error) { return j.script(comments.ReplaceAllString(diagnoseText, "")) }

// script returns the script with the functions of --diagnose.
func (j Join) script(diagnosis string) ([]byte, error) {
	configuration, err := j.configuration(false) // the script merges the taint with the file of --add-config
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	rejoin, err := j.installRejoin()
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	taint, tainting := "", ""
	if j.JoiningTaint {
		taint, tainting = joiningTaint, comments.ReplaceAllString(taintText, "")
	}
	more, turns := "", ""
	if !j.CertificateKey.IsZero() {
		server := cmp.Or(j.TurnServer, j.Endpoint)
		if err := clusterinfo.CheckEndpoint(server); err != nil {
			return nil, fmt.Errorf("script: server of turns: %w", err)
		}
		more, turns = "yes", strings.Replace(comments.ReplaceAllString(turnText, ""), "{{QUOTED_TURNS}}", quote(server), 1)
	}
	// Unquoted values contain only safe characters. All other values are one quoted shell word, or are in a
	// here-document that the shell does not expand.
	values := strings.NewReplacer(
		"{{TURN}}\n", turns, "{{TAINT}}\n", tainting, "{{QUOTED_TAINT}}", quote(taint), "{{REJOIN}}\n", rejoin, "{{DIAGNOSE}}\n", diagnosis, "{{ID}}", j.Token.ID(), "{{ENDPOINT}}", j.Endpoint, "{{CONFIGURATION}}", string(configuration),
		"{{QUOTED_ENDPOINT}}", quote(j.Endpoint), "{{QUOTED_PINS}}", quote(strings.Join(clusterinfo.Pins(j.CAs), " ")),
		"{{QUOTED_TOKEN}}", quote(j.Token.Reveal()), "{{QUOTED_CONTROL_PLANE}}", quote(more),
	)
	head, code, _ := strings.Cut(scriptText, "\n\n")
	return []byte(values.Replace(head + "\n\n" + comments.ReplaceAllString(code, ""))), nil
}

// noDiagnosis replaces --diagnose in user data.
const noDiagnosis = "diagnose() { die 1 'user data has no room for --diagnose: on the cluster, run kubejoin token create --print-join-command --format script, and run that script here'; }\n"

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
