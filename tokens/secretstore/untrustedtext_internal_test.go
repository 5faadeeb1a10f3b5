package secretstore

import (
	"strings"
	"testing"
)

// Problems of malformed limits must not contain part of a token secret, at any position where the text is cut.
func TestLimitsProblemContainsNoSecret(t *testing.T) {
	const token = "8w4usg.qwertzuiopasdfgh"
	for n := range 320 {
		for _, value := range []string{strings.Repeat("-", n) + token + "_", strings.Repeat("-", n) + token + "_*"} {
			for _, name := range []string{"max-nodes", "node-names", "certificate-duration", "replaces-node", "role", value} {
				l := readLimits(map[string]string{annotationPrefix + name: value})
				if l.Problem == nil || strings.Contains(l.Problem.Error(), "8w4usg.q") {
					t.Fatalf("%s after %d: %v", name, n, l.Problem)
				}
			}
		}
	}
}
