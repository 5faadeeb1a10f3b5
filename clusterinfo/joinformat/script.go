package joinformat

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
)

//go:embed script.sh
var scriptText string

// Script is a program of POSIX sh that joins the machine it runs on, as root. With curl it asks
// Endpoint for cluster-info, and trusts what has a certificate of a CA with one of the pins; then it
// runs kubeadm, or writes files for a kubelet that is installed without. Its option --help tells
// the rest. The token is in its text, and in no command line, environment or output.
func (j Join) Script() ([]byte, error) {
	configuration, err := j.Configuration()
	if err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	more := ""
	if !j.CertificateKey.IsZero() {
		more = "yes"
	}
	// What stands bare is of few characters; everything else is one word of a shell, or in a
	// document that the shell takes as it is.
	values := strings.NewReplacer(
		"{{ID}}", j.Token.ID(), "{{ENDPOINT}}", j.Endpoint, "{{CONFIGURATION}}", string(configuration),
		"{{QUOTED_ENDPOINT}}", quote(j.Endpoint), "{{QUOTED_PINS}}", quote(strings.Join(clusterinfo.Pins(j.CAs), " ")),
		"{{QUOTED_TOKEN}}", quote(j.Token.Reveal()), "{{QUOTED_CONTROL_PLANE}}", quote(more),
	)
	return []byte(values.Replace(scriptText)), nil
}

// quote makes s one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
