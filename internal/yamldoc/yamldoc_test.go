package yamldoc_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/internal/yamldoc"
)

func TestOnlyFindsASecondDocument(t *testing.T) {
	for content, one := range map[string]bool{
		"":                             true,
		"a: 1\n":                       true,
		"# text\n---\na: 1\n---\n":     true,
		"a: |\n  -----BEGIN\n...\n":    true,
		"{\"a\": 1}\n":                 true,
		"a: 1\n---\nb: 2\n":            false,
		"---\na: 1\n---\n---\nb: 2\n":  false,
		"a: 1\r\n---\r\nb: 2\r\n":      false,
		"a: 1\n...\nb: 2\n":            false,
		"a: 1\r---\rb: 2\r":            false,
		"{\"a\": 1}\n{\"b\": 2}":       false,
		"{\n\t\"a\": 1\n}\n{\"b\": 2}": false,
		"{\"a\": 1}{\"b\": 2}":         false,
		"\n {\n\t\"a\": 1\n}\n":        true,
		"{a: 1}\n":                     true,
		"{a: 1}\n{b: 2}\n":             false,
		"{a: 1}\n# text\n":             true,
		"\ufeff{\"a\": 1}\n{\"b\": 2}": false,
		"{\"a\": 1}\nb: 2\n":           false,
		"a: {\n---\n":                  true, // malformed
	} {
		if err := yamldoc.Only([]byte(content)); (err == nil) != one {
			t.Errorf("%q: %v, want an error: %t", content, err, !one)
		}
	}
}
