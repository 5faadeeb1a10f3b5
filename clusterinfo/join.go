package clusterinfo

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
)

// A JoinCommand is the command line that makes a machine a node.
type JoinCommand struct {
	// Endpoint is the HOST:PORT from which the machine requests cluster-info.
	Endpoint string
	Token    tokens.Token
	// Pins are the pins of the CAs that the machine may trust: at least one pin, see [Pins].
	Pins []string
}

// Reveal returns the command in clear text, as one line without a newline: "kubeadm join HOST:PORT --token T
// --discovery-token-ca-cert-hash sha256:H". The last flag occurs once for each pin. It is always safe to paste
// into a shell: Reveal returns an error if a field is not a valid endpoint, token or pin.
func (c JoinCommand) Reveal() (string, error) {
	if !c.Token.HasSecret() {
		return "", fmt.Errorf("join command: token %s: its secret is not known", c.Token)
	}
	line, err := c.line(c.Token.Reveal())
	if err != nil {
		return "", fmt.Errorf("join command: %w", err)
	}
	return line, nil
}

// String returns the command with the token secret redacted.
func (c JoinCommand) String() string {
	line, err := c.line(c.Token.String())
	if err != nil {
		return "<malformed join command>"
	}
	return line
}

func (c JoinCommand) line(token string) (string, error) {
	if err := CheckEndpoint(c.Endpoint); err != nil {
		return "", err
	}
	pins, err := parsePins(c.Pins)
	if err != nil {
		return "", err
	}
	if len(pins) == 0 {
		return "", errors.New("no CA pin given, want at least one")
	}
	endpoint := c.Endpoint
	if strings.HasPrefix(endpoint, "[") {
		endpoint = "'" + endpoint + "'" // a shell expands brackets as a pattern
	}
	var b strings.Builder
	b.WriteString("kubeadm join " + endpoint + " --token " + token)
	for _, pin := range pins {
		b.WriteString(" --discovery-token-ca-cert-hash " + pin)
	}
	return b.String(), nil
}

// A shell joins lines at a backslash. A copy may have CRLF, or white space at the end of a line.
var continuation = regexp.MustCompile(`\s\\[ \t\r]*\n`)

// ParseJoinCommand parses what [JoinCommand.Reveal] returned or kubeadm printed, for a worker: one line, or
// several lines joined by backslashes. Its errors do not repeat the line, which may contain a secret.
func ParseJoinCommand(line string) (JoinCommand, error) {
	if strings.TrimSpace(line) == "" {
		return JoinCommand{}, errors.New("join command: empty, want kubeadm join …")
	}
	malformed := errors.New("join command: want kubeadm join HOST:PORT --token TOKEN --discovery-token-ca-cert-hash PIN")
	words := strings.Fields(continuation.ReplaceAllString(line, " "))
	if len(words) < 7 || len(words)%2 == 0 || words[0] != "kubeadm" || words[1] != "join" {
		return JoinCommand{}, malformed
	}
	c := JoinCommand{Endpoint: strings.Trim(words[2], "'")}
	for i := 3; i < len(words); i += 2 {
		var err error
		switch value := words[i+1]; words[i] {
		case "--token":
			if !c.Token.IsZero() {
				return JoinCommand{}, malformed
			}
			c.Token, err = tokens.Parse(value)
		case "--discovery-token-ca-cert-hash":
			c.Pins = append(c.Pins, value)
		default:
			return JoinCommand{}, malformed
		}
		if err != nil {
			return JoinCommand{}, fmt.Errorf("join command: %w", err)
		}
	}
	if _, err := c.Reveal(); err != nil {
		return JoinCommand{}, malformed
	}
	return c, nil
}
