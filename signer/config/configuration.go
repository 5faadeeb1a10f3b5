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
	"go.yaml.in/yaml/v3"
	certificates "k8s.io/api/certificates/v1"
)

const (
	// APIVersion and Kind begin every file.
	APIVersion = "kubejoin.io/v1alpha1"
	Kind       = "SignerConfiguration"

	// MaxSize is the most bytes of a file.
	MaxSize = 64 << 10

	maxSigners = 100
	// maxItems of a list of patterns: each name that is asked for is held against all of them.
	maxItems = 100
)

// A Configuration is what a file says. It is made by [Load] and [Parse], and must not be changed.
type Configuration struct {
	// Signers are all that there are, in the order of the file.
	Signers []Signer

	file string
}

// A Signer is one signer of a file.
type Signer struct {
	// Name is as in a request's spec.signerName.
	Name string
	// CA is the CA that signs; zero is the cluster's.
	CA CAFiles
	// Duration is how long certificates last.
	Duration Duration
	// Usages are those that may be asked for; none are the built-in ones of a signer that
	// Kubernetes names.
	Usages []certificates.KeyUsage
	// Subject is what a subject may be. Nil is any that the signer's built-in rules let pass, and
	// none where it has none.
	Subject *Subject
	// Names are the subject alternative names that may be asked for. Nil is as with Subject.
	Names *Names
	// Keys are the public keys that may have a certificate.
	Keys signer.KeyPolicy
	// Approval are the names of rules, in their order. None leaves requests to others.
	Approval []string

	path  string          // such as signers[2]
	line  int             // of the signer
	lines map[string]int  // of its fields
	wrong map[string]bool // fields that there is an error about
}

// CAFiles are the files of a CA, as [signer.LoadCA] reads them, with their paths relative to the
// working directory or absolute.
type CAFiles struct{ CertFile, KeyFile string }

// A Duration is what may be asked for and what is given if nothing is. Zero leaves a bound to the
// others: Default is Max, and Max is Default.
type Duration struct{ Min, Default, Max time.Duration }

// A Subject is what may stand in a subject: common name and organizations, each a pattern in which
// * stands for any characters. Other attributes may not.
type Subject struct{ CommonNames, Organizations []string }

// Names are what may stand in subject alternative names.
type Names struct {
	// DNS are patterns; a * stands for one or more characters of one label, and never for a *.
	DNS []string
	// Wildcards are names such as *.example.com, each for itself.
	Wildcards []string
	// IPs are ranges of addresses.
	IPs []netip.Prefix
	// Emails are patterns such as *@example.com.
	Emails []string
	// URIs are patterns such as spiffe://example.com/ns/*/sa/*, in which a * stands for one or
	// more characters between two slashes or, in the host, two dots.
	URIs []string
}

// Load reads a file. What is wrong with it is an [Errors]; that it cannot be read at all is another
// error. Paths in it are relative to its folder.
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

// Compile is [Parse] and [Configuration.Build], with all that is wrong for either in one [Errors]: what
// could be read of a file that is wrong somewhere is built as far as that goes.
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

// parse gives what could be read, and what is wrong.
func parse(file string, content []byte) (*Configuration, Errors) {
	c := &Configuration{file: file}
	r := &nodes{file: file}
	if document := r.document(content); document != nil {
		r.configuration(document, c)
	}
	return c, r.errs
}

// Files are the files of all CAs that are named.
func (c *Configuration) Files() []string {
	var files []string
	for _, s := range c.Signers {
		if s.CA != (CAFiles{}) {
			files = append(files, s.CA.CertFile, s.CA.KeyFile)
		}
	}
	return files
}

// document gives the one document of a file, or nil.
func (r *nodes) document(content []byte) *yaml.Node {
	if len(content) > MaxSize {
		r.fail(0, "", "longer than %d bytes", MaxSize)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var first, second yaml.Node
	err := decoder.Decode(&first)
	if errors.Is(err, io.EOF) || err == nil && len(first.Content) != 1 {
		r.fail(0, "", "empty, want a %s", Kind)
		return nil
	}
	if err == nil {
		if !r.rejectAliases(&first) {
			return nil
		}
		if err = decoder.Decode(&second); err == nil {
			r.fail(second.Line, "", "another document begins, want one alone")
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

func (r *nodes) notYAML(content []byte, err error) {
	text, line := err.Error(), 0
	if match := yamlLine.FindStringSubmatch(text); match != nil {
		line, _ = strconv.Atoi(match[1]) // 0 if it says none
		text = text[len(match[0]):]
	}
	const quotes = "a value that begins with * has to be in quotes" // as many patterns do
	if match := yamlUnknown.FindStringSubmatch(text); match != nil {
		before, _, _ := bytes.Cut(content, []byte("*"+match[1]))
		r.fail(bytes.Count(before, []byte("\n"))+1, "", "%s given: %s", quoted("*"+match[1]), quotes)
		return
	}
	if strings.Contains(text, "expected alphabetic or numeric character") {
		text += ": " + quotes
	}
	r.fail(line, "", "not YAML: %s", strings.ToValidUTF8(text, ""))
}
