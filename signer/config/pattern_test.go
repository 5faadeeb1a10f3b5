package config

import (
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

func TestPatternsMatchWholeNames(t *testing.T) {
	dns := func(p, v string) bool { return matchDNS(p, v) }
	uri := func(p, v string) bool {
		u := must.Value(url.Parse(v))(t)
		return matchURI(p, u)
	}
	ip := func(p, v string) bool {
		prefix := must.Value(parsePrefix(p))(t)
		return matchIP(prefix, net.ParseIP(v).To4())
	}
	const spiffe = "spiffe://example.com/ns/*/sa/etcd-*"
	for _, test := range []struct {
		what    string
		matches func(pattern, value string) bool
		pattern string
		yes, no []string
	}{
		{"text", matchText, "etcd-*", []string{"etcd-", "etcd-1"}, []string{"etcd", "xetcd-1", "ETCD-1", "system:etcd-1"}},
		{"text", matchText, "*", []string{"", "etcd"}, []string{"system:masters"}},
		{"text", matchText, "system:*", []string{"system:etcd"}, []string{"etcd"}},
		{"part", matchPart, "etcd-*", []string{"etcd-1", "etcd-12"}, []string{"etcd-", "xetcd-1", "ops-1234"}},
		{"part", matchPart, "etcd", []string{"etcd"}, []string{"etcd-1", "ops"}},
		{"DNS", dns, "*.example.com", []string{"a.example.com", "A.Example.com"}, []string{"example.com", "a.b.example.com", "a.example.org", "*.example.com", "a-.example.com", "_a.example.com", "a.example.com.", "a.example.com.evil.org", ""}},
		{"DNS", dns, "etcd-*.example.com", []string{"etcd-1.example.com"}, []string{"etcd-.example.com", "etcd-*.example.com"}},
		{"DNS", dns, "*.*.*.*", []string{"a.b.c.d"}, []string{"10.0.0.1", "a.b.c.0x7f"}},
		{"address", ip, "10.0.0.0/8", []string{"10.1.2.3"}, []string{"11.0.0.1", "no address"}},
		{"email", matchEmail, "ops@*.example.com", []string{"ops@de.example.com"}, []string{"ada@de.example.com"}},
		{"email", matchEmail, "*@example.com", []string{"ada@example.com", "ada@EXAMPLE.com"}, []string{
			"@example.com", "ada", "example.com", "ada@example.org", "ada@de.example.com", "a@b@example.com", `"ada"@example.com`}},
		{"URI", uri, spiffe, []string{"spiffe://example.com/ns/db/sa/etcd-1"}, []string{
			"spiffe://example.com/ns/db/sa/etcd-1/x", "spiffe://example.com/ns/db/sa", "spiffe://example.com/ns/db/xx/etcd-1", "spiffe://example.com/ns/db/sa/ops-1",
			"spiffe://example.com/ns/../sa/etcd-1", "spiffe://example.com/ns/./sa/etcd-1", "spiffe://example.com/ns//sa/etcd-1", "spiffe://example.com/ns/a%2Fb/sa/etcd-1",
			"spiffe://example.com/ns/db/sa/etcd-1?x", "spiffe://example.com/ns/db/sa/etcd-1#x", "https://example.com/ns/db/sa/etcd-1", "spiffe://example.org/ns/db/sa/etcd-1"}},
		{"URI", uri, "https://*.example.com", []string{"https://a.example.com"}, []string{"https://a.example.com/", "https://a.example.com/x", "https://example.com", "https://a.b.example.com", "http://a.example.com",
			"https://a.example.com:443", "https://u@a.example.com", "https://a.example.com?x"}},
		{"URI", uri, "https://a.example.com/", []string{"https://a.example.com/"}, []string{"https://a.example.com", "https://a.example.com//"}},
		{"URI", uri, "https://a.example.com/*/", []string{"https://a.example.com/x/"}, []string{"https://a.example.com/x", "https://a.example.com/./", "https://a.example.com/x/y"}},
	} {
		for _, value := range test.yes {
			if !test.matches(test.pattern, value) {
				t.Errorf("%s pattern %q does not match %q", test.what, test.pattern, value)
			}
		}
		for _, value := range test.no {
			if test.matches(test.pattern, value) {
				t.Errorf("%s pattern %q matches %q", test.what, test.pattern, value)
			}
		}
	}
}

func TestRefusesInvalidPatterns(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, test := range []struct {
		what      string
		check     func(pattern string) error
		good, bad []string
		want      string // part of each error
	}{
		{"name", checkName, []string{"example.com/etcd-peer", "example.com/a.b"}, []string{"etcd", "example.com/", "example.com/a/b", "local/x", "Example.com/x", "example.com/etcd_peer", "example.com/-x",
			long + "a.example.com/x"}, "want DOMAIN/NAME such as example.com/etcd-peer: a lower-case domain with a dot, labels of at most 63 characters, and a name of [a-z0-9.-]"},
		{"text", checkText, []string{"", "etcd-*", "Größe"}, []string{"a\nb", "a\x1bb"}, "printable characters"},
		{"DNS", checkDNSPattern, []string{"a", "*.example.com", long + ".example.com"}, []string{
			"", "bücher.example.com", "a..b", ".a", "a.", "-a.b", "a-.b", "a_b", "A.b", "a.**", long + "a.example.com", "10.0.0.1", strings.Repeat("a.", 126) + "aa"}, ""},
		{"DNS of more than 253 characters", checkDNSPattern, nil, []string{strings.Repeat("a.", 126) + "aa"}, "at most 253 characters"},
		{"wildcard", checkWildcard, []string{"*.example.com"}, []string{"*.com", "*example.com", "a.example.com", "*.*.example.com"}, ""},
		{"email", checkEmailPattern, []string{"*@example.com", "ops@*.example.com"}, []string{"@example.com", "ada", "a@b@example.com", "a b@example.com", "ä@example.com", `"a"@example.com`}, "want an address such as"},
		{"email of a malformed domain", checkEmailPattern, nil, []string{"a@example_com", "a@"}, "want a DNS name"},
		{"URI", checkURIPattern, []string{"spiffe://example.com/ns/*/sa/*", "https://example.com", "https://example.com/", "https://example.com/a/"}, []string{
			"example.com", "://example.com", "*://x", "urn:x", "/x", "Https://example.com", "h ttps://example.com", "https://example.com/a b", "https://example.com/ä", "https://example.com/?x", "https://example.com/%41",
			"https://example.com/./a", "https://example.com/../a", "https://example.com//a"}, "want a URI such as"},
		{"URI of a malformed host", checkURIPattern, nil, []string{"https://", "https://example.com:443", "https://a@example.com"}, "want a DNS name"},
	} {
		for _, pattern := range test.good {
			if err := test.check(pattern); err != nil {
				t.Errorf("%s: %v", test.what, err)
			}
		}
		for _, pattern := range test.bad {
			if err := test.check(pattern); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: check of %q = %v, want an error with %q", test.what, pattern, err, test.want)
			}
		}
	}
}
