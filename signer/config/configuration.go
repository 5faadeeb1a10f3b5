package config

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"go.yaml.in/yaml/v3"
	certificates "k8s.io/api/certificates/v1"
)

const (
	// APIVersion and Kind are required in every file.
	APIVersion = "kubejoin.io/v1alpha1"
	Kind       = "SignerConfiguration"

	// MaxSize is the maximum size of a file in bytes.
	MaxSize = 64 << 10

	maxSigners = 100
	// maxItems limits each list of patterns: every requested name is compared with all of them.
	maxItems = 100
)

// A Configuration is the content of a file. [Load] and [Parse] create it. It must not be changed.
type Configuration struct {
	// Signers are all signers, in the order of the file.
	Signers []Signer

	file string
}

// A Signer is one signer in a file.
type Signer struct {
	// Name is the spec.signerName of its requests.
	Name string
	// CA is the CA that signs; the zero value means the CA of the cluster.
	CA CAFiles
	// Duration is the lifetime of certificates.
	Duration Duration
	// Usages are the allowed usages. None means the built-in usages of a signer that Kubernetes defines.
	Usages []certificates.KeyUsage
	// Subject is what subjects are allowed. Nil allows those that the signer's built-in rules allow, or
	// none if the signer has no such rules.
	Subject *Subject
	// Names are the allowed subject alternative names. Nil is as with Subject.
	Names *Names
	// Keys are the allowed public keys.
	Keys signer.KeyPolicy
	// Approval are the names of approval rules, in order. None means that kubejoin approves no request of
	// this signer.
	Approval []string

	policy func(approval.Request) error // more checks of a policy; nil: none

	path  string          // for example signers[2]
	line  int             // of the signer
	lines map[string]int  // of its fields
	wrong map[string]bool // fields with an error
}

// CAFiles are the files of a CA for [signer.LoadEncryptedCA]. Their paths are absolute or relative to the working
// directory. PassphraseFile is empty if the key is not encrypted.
type CAFiles struct{ CertFile, KeyFile, PassphraseFile string }

// A Duration limits the lifetime of certificates; Default is for requests that ask for none. If only one of
// Default and Max is set, it is used for both.
type Duration struct{ Min, Default, Max time.Duration }

// A Subject holds patterns for the allowed common names and organizations. A * matches any characters.
// Other attributes of a subject are not allowed.
type Subject struct{ CommonNames, Organizations []string }

// Names are the allowed subject alternative names.
type Names struct {
	// DNS are patterns. A * matches one or more characters of one label, and never a literal *. The pattern ** matches
	// each name that kubeadm writes into certificates, wildcards too.
	DNS []string
	// Wildcards are literal names such as *.example.com.
	Wildcards []string
	// IPs are address ranges.
	IPs []netip.Prefix
	// Emails are patterns such as *@example.com.
	Emails []string
	// URIs are patterns such as spiffe://example.com/ns/*/sa/*. A * matches one or more characters of one
	// path segment or of one label of the host.
	URIs []string
}

// Load reads a file. An [Errors] holds the mistakes in it. Any other error means that the file could not be
// read. Paths in the file are relative to its directory.
func Load(file string) (*Configuration, error) {
	content, err := read(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, content)
}

// Open is [Compile] for a file.
func Open(file string, d Defaults) (*Configuration, map[string]signer.Signer, error) {
	content, err := read(file)
	if err != nil {
		return nil, nil, err
	}
	return Compile(file, content, d)
}

// Compile is [Parse] and [Configuration.Build]. One [Errors] holds the mistakes that either finds: Build
// also checks the valid parts of a file with mistakes.
func Compile(file string, content []byte, d Defaults) (*Configuration, map[string]signer.Signer, error) {
	c, errs := parse(file, content)
	signers, more := c.build(d)
	if err := append(errs, more...).asError(); err != nil {
		return nil, nil, err
	}
	return c, signers, nil
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return content, nil
}

// Parse is [Load] for the content of a file.
func Parse(file string, content []byte) (*Configuration, error) {
	c, errs := parse(file, content)
	if err := errs.asError(); err != nil {
		return nil, err
	}
	return c, nil
}

// parse returns what could be read, and the mistakes.
func parse(file string, content []byte) (*Configuration, Errors) {
	c := &Configuration{file: file}
	r := &yamlReader{file: file}
	if document := r.document(content, Kind); document != nil {
		r.configuration(document, c)
	}
	return c, r.errs
}

// Files returns the files of all CAs in the configuration.
func (c *Configuration) Files() []string {
	var files []string
	for _, s := range c.Signers {
		if s.CA != (CAFiles{}) {
			files = append(files, s.CA.CertFile, s.CA.KeyFile)
		}
		if s.CA.PassphraseFile != "" {
			files = append(files, s.CA.PassphraseFile)
		}
	}
	return files
}

// document returns the only YAML document of a file, or nil after an error.
func (r *yamlReader) document(content []byte, kind string) *yaml.Node {
	if len(content) > MaxSize {
		r.fail(0, "", "the file is larger than %d bytes", MaxSize)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var first, second yaml.Node
	err := decoder.Decode(&first)
	if errors.Is(err, io.EOF) || err == nil && len(first.Content) != 1 {
		r.fail(0, "", "the file is empty, want a %s", kind)
		return nil
	}
	if err == nil {
		if !r.rejectAliases(&first) {
			return nil
		}
		if err = decoder.Decode(&second); err == nil {
			r.fail(second.Line, "", "a second YAML document begins here, want only one")
			return nil
		}
	}
	if !errors.Is(err, io.EOF) {
		r.notYAML(content, err)
		return nil
	}
	return first.Content[0]
}

var (
	yamlLine    = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	yamlUnknown = regexp.MustCompile(`unknown anchor '(.*)' referenced`)
)

func (r *yamlReader) notYAML(content []byte, err error) {
	text, line := err.Error(), 0
	if match := yamlLine.FindStringSubmatch(text); match != nil {
		line, _ = strconv.Atoi(match[1]) // 0 if the error has no line
		text = text[len(match[0]):]
	}
	const quotes = "put a value that begins with * in quotes" // many patterns do
	if match := yamlUnknown.FindStringSubmatch(text); match != nil {
		before, _, _ := bytes.Cut(content, []byte("*"+match[1]))
		r.fail(bytes.Count(before, []byte("\n"))+1, "", "%s given: %s", quoted("*"+match[1]), quotes)
		return
	}
	if strings.Contains(text, "expected alphabetic or numeric character") {
		text += ": " + quotes
	}
	r.fail(line, "", "invalid YAML: %s", strings.ToValidUTF8(text, ""))
}
