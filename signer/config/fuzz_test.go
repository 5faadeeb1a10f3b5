package config_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/signer/config"
)

// FuzzParse parses any file. Either the result can be used, or the error names the file.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(config.Default))
	f.Add([]byte(limitsHead + "rules: [{name: a, match: {labels: {a: b}}, maxNodes: 1}]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte(strings.Repeat("[", 10_000)))
	f.Add([]byte(strings.Repeat("{a: ", 5_000)))
	f.Add([]byte(strings.Repeat("- ", 30_000)))
	f.Add([]byte(strings.Repeat("#\n", 30_000) + "a"))
	f.Add([]byte("a: \"" + strings.Repeat(`\u0000`, 10_000) + "\"\n---\n%YAML 1.1\n"))
	f.Add([]byte(strings.Repeat("? ", 30_000)))
	f.Add([]byte("\xff\xfea\x00:\x00"))
	f.Add([]byte("a: !!binary x\nb: !!set {x, y}\n? [c]\n: |2-\n   d\n"))
	f.Add([]byte(whole + "- name: example.com/x\n  usages: [server auth]\n  names: {dns: [" + strings.Repeat("a*-*.example.com,", 100) + "]}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		fuzzing.RunWithinLimit(t, func() {
			if rules, err := config.ParseTokenLimits("file", content); (err == nil) != (len(rules) > 0) || err != nil && !strings.HasPrefix(err.Error(), "file") {
				t.Errorf("got %d rules, %v", len(rules), err)
			}
			c, err := config.Parse("file", content)
			if err != nil {
				var all config.Errors
				if !errors.As(err, &all) || len(all) == 0 || !strings.HasPrefix(err.Error(), "file") {
					t.Errorf("%T: %v", err, err)
				}
				return
			}
			if len(c.Signers) == 0 || len(content) > config.MaxSize {
				t.Errorf("got %d signers from %d bytes", len(c.Signers), len(content))
			}
			for _, s := range c.Signers {
				if err := config.KeyPolicy(s.Keys).Check(); err != nil || s.Name == "" || strings.HasPrefix(s.Name, "kubernetes.io/") && s.Name == "kubernetes.io/legacy-unknown" {
					t.Errorf("%+v: %v", s, err)
				}
			}
		})
	})
}
