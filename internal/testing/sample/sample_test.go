package sample

import (
	"strings"
	"testing"
)

const shown = `kubeadm join 127.0.0.1:9443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:…
token abcdef is spent: …
…
NODE       TOKEN     AGE       ENDS
worker-7   abcdef    4s        2026-11-20T12:18:38Z
worker-8   qwertz    59m       no
qwertz.0123456789abcdef
`

// Each row changes the output that the sample was made of.
func TestSampleDiffersOnlyInWhatVaries(t *testing.T) {
	printed := strings.NewReplacer("sha256:…", "sha256:"+strings.Repeat("0", 64), ": …", ": it allows 1 node", "\n…\n", "\nline\nline\n").Replace(shown)
	for _, test := range []struct {
		old, new string
		want     bool
	}{
		{"", "", true},
		{"abcdef", "4o1u4a", true},
		{".0123456789abcdef", ".y265hoqyo4fojvpy", true},
		{"4s   ", "12m3s", true},
		{"4s        ", "1000000d5s  ", true},
		{"2026-11-20T12:18:38Z", "2027-01-02T03:04:05Z", true},
		{"127.0.0.1:9443", "127.0.0.1:40001", true},
		{"line\nline\n", "", true},
		{"it allows 1 node", "it allows 2 nodes", true},

		{"worker-7", "worker-9", false},
		{"worker-7   abcdef", "worker-7   qwertz", false}, // another token
		{"worker-8   qwertz    59m       no\n", "", false},
		{"qwertz.0", "another line\nqwertz.0", false},
		{"NODE    ", "NODE     ", false},
		{"is spent", "is used", false},
		{"no\n", "yes\n", false},
		{"0123456789abcdef\n", "0123456789abcde\n", false},
		{"127.0.0.1:9443", "127.0.0.2:9443", false},
	} {
		got := strings.ReplaceAll(printed, test.old, test.new)
		if test.old != "" && got == printed {
			t.Errorf("%q is not in the output", test.old)
		}
		if matches(shown, got) != test.want {
			t.Errorf("%q instead of %q: want %t", test.new, test.old, test.want)
		}
	}
}
