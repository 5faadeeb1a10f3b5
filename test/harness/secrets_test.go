package harness

import (
	"testing"
)

func TestFindsFormsOfSecrets(t *testing.T) {
	for text, want := range map[string]int{
		"":                            0,
		"token abcdef was made":       0,
		"abcdef.<redacted>":           0,
		"kubejoin.18ea578cf48348ac":   0,
		"say abcdef.0123456789abcdef": 1,
		"a\nabcdef.0123456789abcdef\nb 012345.0123456789abcdef":    2,
		"-----BEGIN CERTIFICATE-----":                              0,
		"-----BEGIN EC PRIVATE KEY-----":                           1,
		"-----BEGIN PRIVATE KEY-----":                              1,
		"eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOlsia3ViZSJdfQ.c2lnbmF0dXJl": 1,
		"Authorization: Bearer 0123456789abcdefgh":                 1,
		"the header 'Authorization: Bearer TOKEN'":                 0,
	} {
		if got := formsOfSecrets(text); len(got) != want {
			t.Errorf("%q: got %q, want %d forms", text, got, want)
		}
	}
}
