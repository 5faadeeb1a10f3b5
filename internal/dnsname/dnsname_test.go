package dnsname_test

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/dnsname"
	"k8s.io/apimachinery/pkg/util/validation"
)

var names = []string{
	"", "a", "-", "a-", "-a", "a.b", "a..b", ".a", "a.", "a-.b", "a.-b", "A.b", "a_b", "a b", "a\n", "ä", "\u212a8s", "*", "10.0.0.1", "1", "0x7f.1", "a.0x7F",
	strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 253), strings.Repeat("a", 254),
	strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 126) + "ab",
}

// kube-apiserver validates the names of Nodes and other objects with package validation.
func FuzzMatchesKubernetesValidation(f *testing.F) {
	for _, name := range names {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		subdomain := len(validation.IsDNS1123Subdomain(name)) == 0
		if got := dnsname.IsSubdomain(name); got != subdomain {
			t.Errorf("%q is a subdomain: %t, want %t", name, got, subdomain)
		}
		host := len(name) <= validation.DNS1123SubdomainMaxLength
		for label := range strings.SplitSeq(name, ".") {
			small := strings.Map(func(r rune) rune {
				if r >= 'A' && r <= 'Z' {
					r += 'a' - 'A'
				}
				return r
			}, label)
			host = host && len(validation.IsDNS1123Label(small)) == 0
		}
		if got := dnsname.IsHost(name); got != host {
			t.Errorf("%q is a host: %t, want %t", name, got, host)
		}
	})
}

func TestEndsInNumber(t *testing.T) {
	for name, want := range map[string]bool{
		"1": true, "a.1": true, "127.0.0.1": true, "a.0x7f": true, "0X7F": true, "0x": true, "a.0xG": false, "1.a": false, "1a": false, "0x.a": false, "x1": false,
	} {
		if got := dnsname.EndsInNumber(name); got != want {
			t.Errorf("%q: %t, want %t", name, got, want)
		}
	}
}
