package safetext_test

import (
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
)

const (
	token  = "abcdeg.0123456789abcdeh"
	secret = "0123456789abcdeh"
)

func TestTextIsShortPrintableAndWithoutSecrets(t *testing.T) {
	for _, test := range []struct {
		text string
		most int
		want string
	}{
		{"worker-7.example.com", 300, "worker-7.example.com"},
		{"Grüße, 東京 𝄞", 300, "Grüße, 東京 𝄞"},
		{"two\r\nlines\tand\u2028more\u00a0", 300, "two  lines and more "},
		{"\x1b[31mred\x00\x7f\u0085\u009b", 300, "�[31mred�� �"},
		{"right\u202eto left, zero\u200bwidth, \U000e0041tag", 300, "right�to left, zero�width, �tag"},
		{"\xff" + token + "\xff", 300, "�abcdeg.<redacted>�"},
		{"\t" + token + "\n", 300, " abcdeg.<redacted> "},
		{"_" + token + "A", 300, "_abcdeg.<redacted>A"},
		// Removing invalid bytes and zero-width characters must not join the text around them into a token.
		{"abcdeg.01234567\xff89abcdeh", 300, "abcdeg.01234567�89abcdeh"},
		{"12345678", 8, "12345678"},
		{"123456789", 8, "12345…"},
		{"1234ä6789", 8, "1234…"},
		{"123456789", 2, ""},
		{"", 0, ""},
	} {
		if got := safetext.Text(test.text, test.most); got != test.want {
			t.Errorf("%q becomes %q, want %q", test.text, got, test.want)
		}
	}
}

// Once a token is cut off, Redact does not recognize it. So Text must redact before cutting.
func TestRedactsTokenBeforeCutting(t *testing.T) {
	for before := range 40 {
		text := strings.Repeat("-", before) + token + strings.Repeat("-", 40)
		for most := range 60 {
			if got := safetext.Text(text, most); strings.Contains(got, "abcdeg.0") {
				t.Errorf("%d before, %d bytes: %q", before, most, got)
			}
		}
	}
}

// tokenShape matches a token. No result may contain a match.
var tokenShape = regexp.MustCompile(`[a-z0-9]{6}\.[a-z0-9]{16}`)

func FuzzText(f *testing.F) {
	for _, text := range []string{
		token, "\t" + token + "\n", "_" + token + "X", token + "1", "x" + token, token + token, token + "." + token, strings.Repeat(token, 50),
		"abcdeg.01234567\xff89abcdeh", "abcdeg.\u200b0123456789abcdeh", "\x1b]0;x\a\u202e", "…\xe2\x80", strings.Repeat("ä", 200), strings.Repeat(".", 99) + secret,
	} {
		for _, most := range []uint16{0, 1, 2, 3, 10, 20, 300, 65535} {
			f.Add(text, most)
		}
	}
	f.Fuzz(func(t *testing.T, text string, most uint16) {
		var got string
		fuzzing.RunWithinLimit(t, func() { got = safetext.Text(text, int(most)) })
		switch {
		case tokenShape.MatchString(got):
			t.Errorf("%q has a token", got)
		case len(got) > int(most):
			t.Errorf("%d bytes, want at most %d", len(got), most)
		case !utf8.ValidString(got):
			t.Errorf("%q is not UTF-8", got)
		case strings.ContainsFunc(got, func(r rune) bool { return unicode.IsControl(r) || !unicode.IsPrint(r) }):
			t.Errorf("%q cannot be printed", got)
		case safetext.Text(got, int(most)) != got:
			t.Errorf("%q becomes %q the second time", got, safetext.Text(got, int(most)))
		}
	})
}

type word string

type stringer struct{ text string }

func (s *stringer) String() string { return s.text }

func TestListHasAWordBeforeItsLastItem(t *testing.T) {
	type name string
	for want, list := range map[string][]name{"none": nil, "a": {"a"}, "a or b": {"a", "b"}, "a, b or c": {"a", "b", "c"}} {
		if got := safetext.List(list, "or"); got != want {
			t.Errorf("%q: got %s, want %s", list, got, want)
		}
	}
}

func TestDurationHasNoZerosAtItsEnd(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 30 * time.Second: "30s", 10 * time.Minute: "10m", time.Hour: "1h", 8760 * time.Hour: "8760h", 90 * time.Minute: "1h30m",
		time.Hour + 10*time.Second: "1h0m10s", -time.Hour: "-1h", 100 * time.Millisecond: "100ms",
	} {
		if got := safetext.Duration(d); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
		if back, err := time.ParseDuration(want); err != nil || back != d {
			t.Errorf("%s: parsed as %s, %v", want, back, err)
		}
	}
	args := []any{time.Hour}
	if safetext.Args(args); args[0] != "1h" {
		t.Errorf("Args: got %v", args[0])
	}
}

func TestArgsAreRedactedBeforeTheyAreCut(t *testing.T) {
	long := strings.Repeat("-", 20) + token
	for _, arg := range []any{
		long, word(long), []byte(long), []string{long}, errors.New(long), fmt.Errorf("because: %w", errors.New(long)), pkix.Name{CommonName: long},
	} {
		args := []any{arg, 7, nil, (*stringer)(nil)}
		safetext.Args(args)
		args = args[:3]
		if got := fmt.Sprintf("%.33q %d %v", args...); strings.Contains(got, "abcdeg.0") || !strings.HasSuffix(got, " 7 <nil>") {
			t.Errorf("%T is printed as %s", arg, got)
		}
	}
	list := []string{token}
	safetext.Args([]any{list})
	if !slices.Equal(list, []string{token}) {
		t.Errorf("the caller's list became %q", list)
	}
}

// hostileNames are names for a CertificateSigningRequest. kube-apiserver accepts some of them.
var hostileNames = []string{
	"", "x >&2;id>pwned;\x1b[31m", "x\nkubectl delete ns default", "$(id)", "`id`", "a b", "a'b", `a"b`, "a;b", "a|b", "a&b", "a>b", "-f", "--all", "A", "a_b", "a..b", ".a", "a.", "a-",
	"ä", "a\u200bb", "*", "~", "#", "a=b", "a/b", "system:x", strings.Repeat("a", 254), token, "x" + token, "a\x00",
}

func TestCommandsContainNoHostileNames(t *testing.T) {
	const uid = "0c0ffee0-0000-4000-8000-000000000000"
	for _, name := range hostileNames {
		if safetext.SafeInShell(name) {
			t.Errorf("%q may be pasted", name)
		}
		want := `kubectl get csr -o jsonpath='{.items[?(@.metadata.uid=="` + uid + `")]}'`
		if got := safetext.ShowCSR(name, uid); got != want {
			t.Errorf("%q is shown by %s", name, got)
		}
		if got := safetext.ShowCSR(name, name); got != "kubectl get csr" {
			t.Errorf("%q as name and UID is shown by %s", name, got)
		}
	}
	for _, name := range []string{"csr-7xk2p", "a", "1", "a.b-c.d", strings.Repeat("a", 253)} {
		if !safetext.SafeInShell(name) {
			t.Errorf("%q may not be pasted", name)
		}
	}
	if got, want := safetext.ShowCSR("csr-7xk2p", uid), "kubectl describe csr csr-7xk2p"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
