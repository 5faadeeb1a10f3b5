package joinformat

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/deploy/systemd"
)

// safeURL matches URLs without characters that are special in a shell, in an environment file or in a unit.
var safeURL = regexp.MustCompile(`\Ahttps://[A-Za-z0-9.:/_\[\]-]+\z`)

// CheckRejoinURL returns an error if a URL is invalid in [Join.RejoinURL].
func CheckRejoinURL(text string) error {
	_, err := clusterinfo.Endpoint(text)
	if err == nil && !safeURL.MatchString(text) {
		err = errors.New("want https://HOST:PORT, and in a path only letters, digits and ._/-")
	}
	return err
}

// installRejoin returns a shell function that installs rejoin.sh with its drop-in of kubelet.service. Without a URL it does nothing.
func (j Join) installRejoin() (string, error) {
	if j.RejoinURL == "" {
		return "install_rejoin() { :; }\n", nil
	}
	if err := CheckRejoinURL(j.RejoinURL); err != nil {
		return "", fmt.Errorf("rejoin URL: %w", err)
	}
	const heredoc = "KUBEJOIN_FILE" // no line of the files is this word
	var b strings.Builder
	b.WriteString("install_rejoin() {\n")
	for _, file := range []struct{ name, mode, content string }{
		{"/usr/local/sbin/kubejoin-rejoin", "0755", systemd.RejoinScript},
		{"/etc/default/kubejoin-rejoin", "0644", "KUBEJOIN_URL=" + j.RejoinURL + "\n"},
		{"/etc/systemd/system/kubelet.service.d/20-kubejoin-rejoin.conf", "0644", systemd.RejoinDropIn},
	} {
		fmt.Fprintf(&b, "    cat >\"$tmp/file\" <<'%s'\n%s%s\n    place \"$tmp/file\" \"$root%s\" %s\n", heredoc, file.content, heredoc, file.name, file.mode)
	}
	b.WriteString(`    if command -v systemctl >/dev/null; then
        systemctl daemon-reload || die 1 'systemctl daemon-reload failed'
    fi
    say 'this machine can rejoin after its certificate has expired'
}
`)
	return b.String(), nil
}
