package config

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"go.yaml.in/yaml/v3"
	certificates "k8s.io/api/certificates/v1"
)

func (r *yamlReader) configuration(n *yaml.Node, c *Configuration) {
	r.mapping(n, "", r.fixed("apiVersion", APIVersion), r.fixed("kind", Kind), field{"signers", true, func(n *yaml.Node, path string) {
		c.Signers = r.signers(n, path)
	}})
}

// fixed is a required field with only one value.
func (r *yamlReader) fixed(name, value string) field {
	return field{name, true, func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.Value != value {
			r.fail(n.Line, path, "%s given, want %s", describe(n), value)
		}
	}}
}

func (r *yamlReader) signers(n *yaml.Node, path string) (signers []Signer) {
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		r.fail(n.Line, path, "the list is empty, want at least one item")
	}
	r.list(n, path, "signers", maxSigners, func(n *yaml.Node, path string) {
		s := Signer{path: path, line: n.Line, lines: map[string]int{}, wrong: map[string]bool{}}
		if !r.signer(n, path, &s) {
			return
		}
		for _, other := range signers {
			if other.Name == s.Name && s.Name != "" {
				r.fail(s.at("name"), path+".name", "duplicate signer %s, first defined in line %d", s.Name, other.at("name"))
			}
		}
		signers = append(signers, s)
	})
	return signers
}

// at returns the line of a field, or of the signer if the field is missing.
func (s *Signer) at(name string) int {
	if line := s.lines[name]; line > 0 {
		return line
	}
	return s.line
}

func (r *yamlReader) signer(n *yaml.Node, path string, s *Signer) bool {
	note := func(name string, required bool, read func(*yaml.Node, string)) field {
		return field{name, required, func(n *yaml.Node, path string) {
			s.lines[name] = n.Line
			before := len(r.errs)
			read(n, path)
			if len(r.errs) > before {
				s.wrong[name] = true
			}
		}}
	}
	bound := func(name string, to *time.Duration) field {
		return field{name, false, func(n *yaml.Node, path string) {
			s.lines["duration."+name] = n.Line
			*to = r.duration(n, path)
		}}
	}
	ok := r.mapping(n, path,
		note("name", true, func(n *yaml.Node, path string) {
			name, ok := r.text(n, path, "DOMAIN/NAME")
			if !ok {
				return
			}
			if err := checkName(name); err != nil {
				r.fail(n.Line, path, "%v", err)
			}
			s.Name = name
		}),
		note("ca", false, func(n *yaml.Node, path string) {
			r.mapping(n, path,
				field{"certFile", true, func(n *yaml.Node, path string) { s.CA.CertFile = r.path(n, path) }},
				field{"keyFile", true, func(n *yaml.Node, path string) { s.CA.KeyFile = r.path(n, path) }},
				field{"passphraseFile", false, func(n *yaml.Node, path string) { s.CA.PassphraseFile = r.path(n, path) }})
		}),
		note("duration", false, func(n *yaml.Node, path string) {
			r.mapping(n, path,
				bound("min", &s.Duration.Min), bound("default", &s.Duration.Default), bound("max", &s.Duration.Max))
		}),
		note("usages", false, func(n *yaml.Node, path string) {
			r.list(n, path, "usages", maxItems, func(n *yaml.Node, path string) {
				text, ok := r.text(n, path, `a usage such as "server auth"`)
				if !ok {
					return
				}
				usage := certificates.KeyUsage(text)
				if !approval.KnownUsage(usage) {
					r.fail(n.Line, path, `%s given, want a usage that a certificate can have, such as "server auth"`, quoted(text))
					return
				}
				s.Usages = append(s.Usages, usage)
			})
			if len(n.Content) == 0 && n.Kind == yaml.SequenceNode {
				r.fail(n.Line, path, "the list is empty, want at least one item")
			}
		}),
		note("subject", false, func(n *yaml.Node, path string) {
			s.Subject = &Subject{}
			r.mapping(n, path,
				field{"commonNames", false, func(n *yaml.Node, path string) {
					s.Subject.CommonNames = r.patterns(n, path, "common names", checkText)
				}},
				field{"organizations", false, func(n *yaml.Node, path string) {
					check := checkOrganization
					if s.Name == approval.SuperAdminSigner {
						check = checkText // every other subject in system:masters is refused at issue
					}
					s.Subject.Organizations = r.patterns(n, path, "organizations", check)
				}})
		}),
		note("names", false, func(n *yaml.Node, path string) {
			s.Names = &Names{}
			r.mapping(n, path,
				field{"dns", false, func(n *yaml.Node, path string) {
					s.Names.DNS = r.patterns(n, path, "DNS names", func(pattern string) error {
						if pattern == anyDNS {
							return nil
						}
						return checkDNSPattern(pattern)
					})
				}},
				field{"wildcards", false, func(n *yaml.Node, path string) {
					s.Names.Wildcards = r.patterns(n, path, "wildcard DNS names", checkWildcard)
				}},
				field{"ips", false, func(n *yaml.Node, path string) {
					r.list(n, path, "addresses and ranges", maxItems, func(n *yaml.Node, path string) {
						text, ok := r.text(n, path, "an address or a range such as 10.0.0.0/8")
						if !ok {
							return
						}
						prefix, err := parsePrefix(text)
						if err != nil {
							r.fail(n.Line, path, "%v", err)
						}
						s.Names.IPs = append(s.Names.IPs, prefix)
					})
				}},
				field{"emails", false, func(n *yaml.Node, path string) {
					s.Names.Emails = r.patterns(n, path, "email addresses", checkEmailPattern)
				}},
				field{"uris", false, func(n *yaml.Node, path string) {
					s.Names.URIs = r.patterns(n, path, "URIs", checkURIPattern)
				}})
		}),
		note("keys", false, func(n *yaml.Node, path string) { r.keys(n, path, &s.Keys) }),
		note("approval", false, func(n *yaml.Node, path string) {
			r.list(n, path, "rules", maxItems, func(n *yaml.Node, path string) {
				if name, ok := r.text(n, path, "the name of a rule"); ok {
					s.Approval = append(s.Approval, name)
				}
			})
		}))
	if !ok {
		return false
	}
	if s.Name == "" {
		s.wrong["name"] = true
	}
	r.checkCombined(s)
	return true
}

// isWrong reports whether one of the fields has an error. Checks that combine several fields are skipped
// then, because the same mistake could cause their errors.
func (s *Signer) isWrong(fields ...string) bool {
	return slices.ContainsFunc(fields, func(name string) bool { return s.wrong[name] })
}

// path reads a file path.
func (r *yamlReader) path(n *yaml.Node, path string) string {
	name, ok := r.text(n, path, "the path of a file")
	if !ok {
		return ""
	}
	if strings.ContainsAny(name, "\n\r\x00") || strings.Contains(name, "PRIVATE KEY") {
		r.fail(n.Line, path, "a text of %d bytes given, want the path of a file", len(name))
		return ""
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(r.file), name)
	}
	return name
}

func (r *yamlReader) duration(n *yaml.Node, path string) time.Duration {
	const want = "a duration such as 720h"
	text, ok := r.text(n, path, want)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil && overflows(text) {
		r.fail(n.Line, path, "%s given, want at most %dh (292 years)", quoted(text), math.MaxInt64/time.Hour)
		return 0
	}
	if err != nil {
		r.fail(n.Line, path, "%s given, want %s", quoted(text), want)
		return 0
	}
	if d < signer.MinDuration {
		r.fail(n.Line, path, "%s given, want at least %s: a certificate begins 5m before it is issued", quoted(text), signer.MinDuration)
		return 0
	}
	return d
}

var digits = regexp.MustCompile(`[0-9]+`)

// overflows reports whether a duration is invalid only because its numbers are too large.
func overflows(text string) bool {
	_, err := time.ParseDuration(digits.ReplaceAllString(text, "1"))
	return err == nil
}

// patterns reads a list of texts that pass check.
func (r *yamlReader) patterns(n *yaml.Node, path, what string, check func(string) error) []string {
	var list []string
	r.list(n, path, what, maxItems, func(n *yaml.Node, path string) {
		text, ok := r.text(n, path, "one of "+what)
		if !ok {
			return
		}
		if err := check(text); err != nil {
			r.fail(n.Line, path, "%v", err)
			return
		}
		list = append(list, text)
	})
	return list
}

func (r *yamlReader) keys(n *yaml.Node, path string, k *signer.KeyPolicy) {
	before := len(r.errs)
	bits := fmt.Sprintf("a number of bits from %d to %d", pkcs10.MinRSABits, pkcs10.MaxRSABits)
	bound := func(to *int) func(*yaml.Node, string) {
		return func(n *yaml.Node, path string) {
			value, ok := r.number(n, path, bits)
			if ok && (value < pkcs10.MinRSABits || value > pkcs10.MaxRSABits) {
				r.fail(n.Line, path, "%d given, want %s", value, bits)
			}
			*to = value
		}
	}
	ok := r.mapping(n, path,
		field{"rsa", false, func(n *yaml.Node, path string) {
			k.MinRSA, k.MaxRSA = pkcs10.MinRSABits, pkcs10.MaxRSABits
			r.mapping(n, path, field{"min", false, bound(&k.MinRSA)}, field{"max", false, bound(&k.MaxRSA)})
			if len(r.errs) == before && k.MinRSA > k.MaxRSA {
				r.fail(n.Line, path, "min %d is larger than max %d", k.MinRSA, k.MaxRSA)
			}
		}},
		field{"ecdsa", false, func(n *yaml.Node, path string) {
			r.list(n, path, "curves", maxItems, func(n *yaml.Node, path string) {
				text, ok := r.text(n, path, "P-256, P-384 or P-521")
				if !ok {
					return
				}
				for _, curve := range pkcs10.Curves() {
					if curve.Params().Name == text {
						k.Curves = append(k.Curves, curve)
						return
					}
				}
				r.fail(n.Line, path, "%s given, want P-256, P-384 or P-521", quoted(text))
			})
		}},
		field{"ed25519", false, func(n *yaml.Node, path string) {
			if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(&k.Ed25519) != nil {
				r.fail(n.Line, path, "%s given, want true or false", describe(n))
			}
		}})
	if ok && len(r.errs) == before && k.MaxRSA == 0 && len(k.Curves) == 0 && !k.Ed25519 {
		r.fail(n.Line, path, "no key type is allowed, want at least one of rsa, ecdsa and ed25519; leave out keys to allow all of them")
	}
}
