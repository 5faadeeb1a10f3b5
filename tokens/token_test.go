package tokens_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
)

const (
	id     = "abc123"
	secret = "s3cr3ts3cr3ts3cr"
)

func parse(t testing.TB, s string) tokens.Token {
	t.Helper()
	return must.Value(tokens.Parse(s))(t)
}

func TestParse(t *testing.T) {
	for _, s := range []string{id + "." + secret, "000000.0000000000000000", "zzzzzz.zzzzzzzzzzzzzzzz", "abcdef.0123456789abcdee"} {
		token, err := tokens.Parse(s)
		if err != nil {
			t.Errorf("Parse(%q): %v", s, err)
		}
		if token.ID() != s[:6] || token.RevealSecret() != s[7:] || token.Reveal() != s || !token.HasSecret() || token.IsZero() {
			t.Errorf("Parse(%q) gives ID %q and secret %q", s, token.ID(), token.RevealSecret())
		}
	}
	for name, s := range map[string]string{
		"empty":          "",
		"dot":            ".",
		"no dot":         id + secret,
		"ID only":        id,
		"no secret":      id + ".",
		"no ID":          "." + secret,
		"short secret":   id + "." + secret[1:],
		"long secret":    id + "." + secret + "4",
		"short ID":       "abc12." + secret,
		"long ID":        "abc1234." + secret,
		"swapped":        secret + "." + id,
		"misplaced dot":  id + secret[:4] + "." + secret[4:],
		"two dots":       id + "." + secret + ".",
		"upper case ID":  "ABC123." + secret,
		"upper case":     id + "." + strings.ToUpper(secret),
		"newline":        id + "." + secret + "\n",
		"space":          " " + id + "." + secret,
		"NUL":            id + ".s3cr3ts3cr3ts3c\x00",
		"other letters":  id + ".ſ3cr3ts3cr3ts3c",
		"other digits":   "abc12٣." + secret,
		"underscore":     id + ".s3cr3t_3cr3ts3cr",
		"dash in the ID": "abc-23." + secret,
	} {
		token, err := tokens.Parse(s)
		if !errors.Is(err, tokens.ErrMalformed) || token != (tokens.Token{}) {
			t.Errorf("%s: Parse = %v, %v, want ErrMalformed", name, token, err)
			continue
		}
		if strings.Contains(err.Error(), secret[4:]) || strings.Contains(err.Error(), secret[:4]) {
			t.Errorf("%s: the error %q contains part of the secret", name, err)
		}
		// If the dot is misplaced, the part before it may contain a part of the secret.
		if before, _, _ := strings.Cut(s, "."); len(before) > 4 && strings.Contains(err.Error(), before) {
			t.Errorf("%s: the error %q repeats the part before the dot", name, err)
		}
	}
}

func TestNewRefusesMalformedParts(t *testing.T) {
	for _, part := range [][2]string{{"ABC123", secret}, {"abc12", secret}, {id, secret[1:]}, {id, ""}, {"", ""}} {
		if token, err := tokens.New(part[0], part[1]); !errors.Is(err, tokens.ErrMalformed) || !token.IsZero() {
			t.Errorf("New(%q, %q) = %v, %v, want ErrMalformed", part[0], part[1], token, err)
		}
	}
}

func TestRefusesPublicExamples(t *testing.T) {
	for _, s := range []string{
		"abcdef.0123456789abcdef", "abcdef.1234567890abcdef", "07401b.f395accd246ae52d", "5didvk.d09sbcov8ph2amjw",
		"8ewj1p.9r9hcjoqgajrj4gi", "9vr73a.a8uxyaju799qwdjv", "783bde.3f89s0fje9f38fhf", "b0f7b8.8d1767876297d85c",
	} {
		if token, err := tokens.Parse(s); !errors.Is(err, tokens.ErrPublicExample) || !token.IsZero() {
			t.Errorf("Parse(%q) = %v, %v, want ErrPublicExample", s, token, err)
		}
		if _, err := tokens.New(s[:6], s[7:]); !errors.Is(err, tokens.ErrPublicExample) {
			t.Errorf("New of %q = %v, want ErrPublicExample", s, err)
		}
	}
}

func TestOnlyID(t *testing.T) {
	token := must.Value(tokens.OnlyID(id))(t)
	if token.ID() != id || token.HasSecret() || token.IsZero() || token.Reveal() != "" || token.RevealSecret() != "" || token.Equal(token) {
		t.Errorf("OnlyID gives %v with secret %t", token, token.HasSecret())
	}
	for _, s := range []string{"", "abc12", "ABC123", "abc1234", id + "\n", id + "." + secret} {
		_, err := tokens.OnlyID(s)
		if !errors.Is(err, tokens.ErrMalformed) || !errors.Is(tokens.CheckID(s), tokens.ErrMalformed) {
			t.Errorf("OnlyID(%q) = %v, want ErrMalformed", s, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error %q repeats the secret", err)
		}
	}
}

func TestForSigning(t *testing.T) {
	for _, test := range []struct {
		id, secret string
		want       error
	}{{id, "x", nil}, {"ABC123", "x", tokens.ErrMalformed}, {id, "", tokens.ErrMalformed}} {
		token, err := tokens.ForSigning(test.id, test.secret)
		if !errors.Is(err, test.want) || token.HasSecret() != (test.want == nil) {
			t.Errorf("ForSigning(%q, %q) = %v, %v, want %v", test.id, test.secret, token, err, test.want)
		}
	}
}

func TestEqual(t *testing.T) {
	a, again := parse(t, id+"."+secret), parse(t, strings.Clone(id+"."+secret))
	otherID, otherSecret := parse(t, "abc124."+secret), parse(t, id+".t"+secret[1:])
	onlyID := must.Value(tokens.OnlyID(id))(t)
	if !a.Equal(again) || a != again {
		t.Error("got different, want equal")
	}
	for _, b := range []tokens.Token{otherID, otherSecret, onlyID, {}} {
		if a.Equal(b) || b.Equal(a) || a == b {
			t.Errorf("%v equals %v", a, b)
		}
	}
	if (tokens.Token{}).Equal(tokens.Token{}) {
		t.Error("two zero Tokens are equal: anyone could authenticate")
	}
}

// TestRedaction prints a token in all ways of the standard library: alone, and in unexported fields of structs, where
// fmt cannot call its methods. No output may contain the secret.
func TestRedaction(t *testing.T) {
	token := parse(t, id+"."+secret)
	type inner struct{ token tokens.Token }
	type holder struct {
		Token   tokens.Token
		Pointer *tokens.Token
		private tokens.Token
		any     any
		inner   inner
		list    []tokens.Token
		byToken map[tokens.Token]tokens.Token
	}
	h := holder{token, &token, token, token, inner{token}, []tokens.Token{token}, map[tokens.Token]tokens.Token{token: token}}
	record := tokens.Record{Token: token, Description: "d"}
	values := []any{
		token, &token, h, &h, record, &record, []any{token, h}, []tokens.Record{record},
		map[string]any{"a": h}, map[tokens.Token]int{token: 1}, struct{ e error }{fmt.Errorf("with %v", token)},
	}
	check := func(how, printed string) {
		t.Helper()
		if strings.Contains(printed, secret) || strings.Contains(printed, fmt.Sprintf("%x", secret)) || strings.Contains(printed, fmt.Sprintf("%v", []byte(secret))) {
			t.Errorf("%s shows the secret: %s", how, printed)
		}
	}
	for i, v := range values {
		for _, flags := range []string{"", "+", "#", "-", "0", " ", "# ", "50", ".3", "+.60", "#+50.50"} {
			for verb := rune('A'); verb <= 'z'; verb++ {
				format := "%" + flags + string(verb)
				check(fmt.Sprintf("value %d as %s", i, format), fmt.Sprintf(format, v))
			}
		}
		check("Sprint", fmt.Sprint(v))
		check("Sprintln", fmt.Sprintln(v))
		for name, handler := range map[string]func(io.Writer) slog.Handler{
			"slog text": func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
			"slog JSON": func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
		} {
			var b bytes.Buffer
			slog.New(handler(&b)).With("with", v).Error("m", "v", v, slog.Group("g", "v", v))
			check(name, b.String())
		}
	}
	for _, v := range []any{token, &token, record, map[tokens.Token]tokens.Token{token: token}, holder{Token: token, Pointer: &token}} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Errorf("JSON of %T: %v", v, err)
		}
		check("JSON", string(b))
		if !strings.Contains(string(b), id+".") {
			t.Errorf("JSON of %T is %s, want the ID in it", v, b)
		}
	}
	b, err := xml.Marshal(token)
	if err != nil {
		t.Error(err)
	}
	check("XML", string(b))

	for format, want := range map[string]string{
		"%v": "abc123.<redacted>", "%s": "abc123.<redacted>", "%+v": "abc123.<redacted>", "%q": "abc123.<redacted>",
		"%x": "abc123.<redacted>", "%#v": "tokens.Token(abc123.<redacted>)",
	} {
		if got := fmt.Sprintf(format, token); got != want {
			t.Errorf("%s prints %s, want %s", format, got, want)
		}
	}
	if got := (tokens.Token{}).String(); got != "<no token>" {
		t.Errorf("the zero Token prints %s", got)
	}
}

// TestGenerate checks that all characters are equally likely at each position. A generator that takes random bytes modulo
// 36 is biased: the first four letters have a probability of 8/256, and the others 7/256.
func TestGenerate(t *testing.T) {
	const n = 20_000
	seen := map[string]bool{}
	var counts [23][256]int
	for range n {
		s := tokens.Generate().Reveal()
		if len(s) != 23 || seen[s] || !bootstraputil.IsValidBootstrapToken(s) {
			t.Fatal("Generate returned a malformed or repeated token")
		}
		seen[s] = true
		for i := range len(s) {
			counts[i][s[i]]++
		}
	}
	// Chi-squared with 22 positions of 35 degrees of freedom each: mean 770, standard deviation
	// 39. The biased generator would have a mean above 4,000.
	var chi2 float64
	for i := range counts {
		if i == 6 {
			continue
		}
		const expected = n / 36.0
		for _, c := range "abcdefghijklmnopqrstuvwxyz0123456789" {
			d := float64(counts[i][c]) - expected
			chi2 += d * d / expected
		}
	}
	if chi2 < 570 || chi2 > 1000 { // more than 5 standard deviations from the mean
		t.Errorf("chi-squared of the characters is %.0f, want about 770", chi2)
	}
}

// FuzzParse compares Parse with the upstream code of kubeadm and kube-apiserver, and looks for secrets in errors.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		id + "." + secret, "abcdef.0123456789abcdef", "", ".", "..", id + secret, secret + "." + id, id + ".", "." + secret,
		id + secret[:4] + "." + secret[4:], "abc-23." + secret, "x." + secret, id + "." + secret + "\n", "\xff\xfe.\x00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var token tokens.Token
		var err error
		fuzzing.RunWithinLimit(t, func() { token, err = tokens.Parse(s) })
		if err == nil {
			if token.Reveal() != s {
				t.Errorf("Parse(%q) gives another token", s)
			}
		} else if !errors.Is(err, tokens.ErrMalformed) && !errors.Is(err, tokens.ErrPublicExample) {
			t.Errorf("Parse(%q) = %v, want one of the sentinels", s, err)
		}
		if got, want := err == nil || errors.Is(err, tokens.ErrPublicExample), bootstraputil.IsValidBootstrapToken(s); got != want {
			t.Errorf("got Parse(%q) = %v, want valid = %t as upstream", s, err, want)
		}
		if err == nil {
			return
		}
		// Short parts of a secret may occur in the error by chance.
		if _, part, found := strings.Cut(s, "."); found && len(part) > 8 && strings.Contains(err.Error(), part) {
			t.Errorf("the error %q repeats what follows the dot of %q", err, s)
		}
	})
}

func ExampleGenerate() {
	token := tokens.Generate()
	fmt.Println(len(token.ID()), len(token.Reveal()))
	// Output: 6 23
}

func ExampleParse() {
	token, err := tokens.Parse("abc123.s3cr3ts3cr3ts3cr")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(token)
	fmt.Println(token.Reveal())
	_, err = tokens.Parse("abcdef.0123456789abcdef")
	fmt.Println(err)
	// Output:
	// abc123.<redacted>
	// abc123.s3cr3ts3cr3ts3cr
	// token abcdef is a published example, so others know it: generate one with 'kubejoin token generate'
}

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"abcdeg.0123456789abcdeh": "abcdeg.<redacted>",
		`ttl: "abcdeg.0123456789abcdeh" is not a duration`:                `ttl: "abcdeg.<redacted>" is not a duration`,
		"--token abcdeg.0123456789abcdeh --token k4f2pz.hgfedcba98765432": "--token abcdeg.<redacted> --token k4f2pz.<redacted>",
		"worker.example.com": "worker.example.com", "token abcdeg": "token abcdeg",
		"a.b worker1.example.com abcdeg.0123456789abcdeh.": "a.b worker1.example.com abcdeg.<redacted>.",
		"abcdeg.0123456789abcde":                           "abcdeg.0123456789abcde", // not a token
		// Characters next to a token do not hide it.
		"abcdeg.0123456789abcdeh1": "abcdeg.<redacted>", "1abcdeg.0123456789abcdeh": "1abcdeg.<redacted>",
		"_abcdeg.0123456789abcdeh_": "_abcdeg.<redacted>_", "Xabcdeg.0123456789abcdehX": "Xabcdeg.<redacted>X",
		"\tabcdeg.0123456789abcdeh\n": "\tabcdeg.<redacted>\n", `\tabcdeg.0123456789abcdeh\n`: `\tabcdeg.<redacted>\n`,
		"%20abcdeg.0123456789abcdeh%0a": "%20abcdeg.<redacted>%0a", `\u003cabcdeg.0123456789abcdeh`: `\u003cabcdeg.<redacted>`,
		"äabcdeg.0123456789abcdehä": "äabcdeg.<redacted>ä", "\xffabcdeg.0123456789abcdeh\xff": "\xffabcdeg.<redacted>\xff",
		"abcdeg.0123456789abcdehk4f2pz.hgfedcba98765432":   "abcdeg.<redacted>.<redacted>",
		"abcdeg.0123456789abcdeh.k4f2pz.hgfedcba98765432.": "abcdeg.<redacted>.k4f2pz.<redacted>.",
		// Node names, resource names and versions stay unchanged.
		"ip-10-0-0-1.eu-central-1.compute.internal v1.36.3": "ip-10-0-0-1.eu-central-1.compute.internal v1.36.3",
		"certificatesigningrequests.certificates.k8s.io":    "certificatesigningrequests.certificates.k8s.io",
		"worker01.rack7.dc-frankfurt.example.com":           "worker01.rack7.dc-frankfurt.example.com",
	} {
		if got := tokens.Redact(text); got != want {
			t.Errorf("Redact(%q) = %q, want %q", text, got, want)
		}
	}
}
