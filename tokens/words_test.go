package tokens_test

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/tokens"
)

// The words are those of the proquint proposal for 127.0.0.1, 63.84.220.193, 63.118.7.35 and 140.98.193.141.
func TestWords(t *testing.T) {
	rest := strings.Repeat("5e", 24)
	for key, want := range map[string]string{
		"sha256:7f0000013f54dcc1" + rest: "lusab-babad-gutih-tugad",
		"sha256:3f7607238c62c18d" + rest: "gutuk-bisog-mudof-sakat",
		"sha256:0000000000000000" + rest: "babab-babab-babab-babab",
		"sha256:ffffffffffffffff" + rest: "zuzuz-zuzuz-zuzuz-zuzuz",

		"":                                 "",
		"sha256:":                          "",
		"7f0000013f54dcc1" + rest:          "",
		"sha512:7f0000013f54dcc1" + rest:   "",
		"sha256:7F0000013f54dcc1" + rest:   "",
		"sha256:7g0000013f54dcc1" + rest:   "",
		"sha256:7f0000013f54dc" + rest:     "",
		"sha256:7f0000013f54dcc100" + rest: "",
	} {
		if got := tokens.Words(key); got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		} else if tokens.IsWords(got) != (want != "") {
			t.Errorf("IsWords(%q): got %v", got, want == "")
		}
	}
}

func TestIsWords(t *testing.T) {
	for _, s := range []string{
		"lusab", "lusab-babad-gutih", "lusab-babad-gutih-tugad-", "lusab-babad-gutih-tugad\n", "lusab-babad-gutih-tugad-lusab", "Lusab-babad-gutih-tugad",
		"lusab babad gutih tugad", "lusab-babad-gutih-tuged", "lusab-babad-gutih-tugac", "-lusab-babad-gutih-tugad", "lusab--babad-gutih-tugad",
	} {
		if tokens.IsWords(s) {
			t.Errorf("%q: got true, want false", s)
		}
	}
}
