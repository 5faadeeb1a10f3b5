package joinformat

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/kubejoin/kubejoin/deploy/systemd"
)

// The files that a script with a RejoinURL installs.
const (
	RejoinScript   = "/usr/local/sbin/kubejoin-rejoin"
	RejoinDefaults = "/etc/default/kubejoin-rejoin"
	rejoinUnits    = "/etc/systemd/system"
)

// safeURL matches URLs that mean the same in a shell, in an environment file and in a unit.
var safeURL = regexp.MustCompile(`\Ahttps://[A-Za-z0-9.:/_\[\]-]+\z`)

// CheckRejoinURL returns an error if a URL is invalid in [Join.RejoinURL].
func CheckRejoinURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !safeURL.MatchString(text) {
		return errors.New("want https://HOST:PORT of the kubejoin server")
	}
	return nil
}

// heredoc ends the files in the script. No line of them is this word.
const heredoc = "KUBEJOIN_FILE"

// installRejoin returns a shell function that installs rejoin.sh with its units. Without a URL it does nothing.
func (j Join) installRejoin() (string, error) {
	if j.RejoinURL == "" {
		return "install_rejoin() { :; }\n", nil
	}
	if err := CheckRejoinURL(j.RejoinURL); err != nil {
		return "", fmt.Errorf("rejoin URL: %w", err)
	}
	var b strings.Builder
	b.WriteString("install_rejoin() {\n")
	for _, file := range []struct{ name, to, mode string }{
		{"rejoin.sh", RejoinScript, "0755"},
		{"", RejoinDefaults, "0644"},
		{"kubejoin-rejoin.service", path.Join(rejoinUnits, "kubejoin-rejoin.service"), "0644"},
		{"kubejoin-rejoin.timer", path.Join(rejoinUnits, "kubejoin-rejoin.timer"), "0644"},
		{"kubelet.service.d/20-kubejoin-rejoin.conf", path.Join(rejoinUnits, "kubelet.service.d/20-kubejoin-rejoin.conf"), "0644"},
	} {
		content := []byte("KUBEJOIN_URL=" + j.RejoinURL + "\n")
		if file.name != "" {
			var err error
			if content, err = systemd.Rejoin.ReadFile(file.name); err != nil {
				return "", err
			}
		}
		fmt.Fprintf(&b, "    cat >\"$tmp/file\" <<'%s'\n%s%s\n    place \"$tmp/file\" \"$root%s\" %s\n", heredoc, content, heredoc, file.to, file.mode)
	}
	b.WriteString(`    if command -v systemctl >/dev/null; then
        systemctl daemon-reload && systemctl enable --now kubejoin-rejoin.timer || die 1 'cannot enable kubejoin-rejoin.timer'
    fi
    say "installed ` + RejoinScript + `: this machine can rejoin after its certificate has expired"
}
`)
	return b.String(), nil
}
