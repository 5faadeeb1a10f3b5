package config

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

const (
	// APIVersion and Kind are required in every file.
	APIVersion = "kubejoin.io/v1alpha1"
	Kind       = "SignerConfiguration"

	// MaxSize is the maximum size of a file in bytes.
	MaxSize = 64 << 10

	// maxItems limits each list. For example, every requested name is compared with all patterns.
	maxItems = 100
)

// A Configuration is the content of a file. [Parse] creates it. It must not be changed.
type Configuration struct {
	APIVersion string `yaml:"apiVersion" only:"kubejoin.io/v1alpha1"`
	Kind       string `yaml:"kind" only:"SignerConfiguration"`
	// Signers are all signers, in the order of the file.
	Signers []Signer `yaml:"signers" list:"signers"`

	document *document
}

// A Signer is one signer in a file.
type Signer struct {
	// Name is the spec.signerName of its requests.
	Name string `yaml:"name" want:"DOMAIN/NAME"`
	// CA is the CA that signs; the zero value means the CA of the cluster.
	CA CAFiles `yaml:"ca,omitempty"`
	// Duration is the lifetime of certificates.
	Duration Duration `yaml:"duration,omitempty"`
	// Usages are the allowed usages. An empty list means the built-in usages of a signer that Kubernetes defines.
	Usages []certificates.KeyUsage `yaml:"usages,omitempty" list:"usages" want:"a usage such as \"server auth\""`
	// Subject describes the allowed subjects. Nil, which only a signer of Kubernetes may have, means that only its
	// built-in rules apply.
	Subject *Subject `yaml:"subject,omitempty"`
	// Names are the allowed subject alternative names. Nil, which only a signer of Kubernetes may have, means
	// that only its built-in rules apply.
	Names *Names `yaml:"names,omitempty"`
	// Keys are the allowed public keys. If the file has no keys, all keys that are strong enough are allowed.
	Keys Keys `yaml:"keys,omitempty"`
	// Approval are the names of approval rules, in order. An empty list means that kubejoin approves no request
	// of this signer.
	Approval []string `yaml:"approval,omitempty" list:"rules" want:"the name of a rule"`

	policy func(approval.Request) error // the additional checks of a policy
	path   string                       // for example signers[2]
}

// CAFiles are the files of a CA for [signer.LoadEncryptedCA]. Their paths are absolute or relative to the working
// directory. PassphraseFile is empty if the key is not encrypted.
type CAFiles struct {
	CertFile       string `yaml:"certFile" want:"the path of a file"`
	KeyFile        string `yaml:"keyFile" want:"the path of a file"`
	PassphraseFile string `yaml:"passphraseFile,omitempty" want:"the path of a file"`
}

// A Duration limits the lifetime of certificates; Default is for requests without a lifetime. If only one of
// Default and Max is set, it is used for both.
type Duration struct {
	Min     Lifetime `yaml:"min,omitempty"`
	Default Lifetime `yaml:"default,omitempty"`
	Max     Lifetime `yaml:"max,omitempty"`
}

// A Subject holds patterns for the allowed common names and organizations. A * matches any characters.
// Other attributes of a subject are not allowed.
type Subject struct {
	CommonNames   []string `yaml:"commonNames,omitempty" list:"common names"`
	Organizations []string `yaml:"organizations,omitempty" list:"organizations"`
}

// Names are the allowed subject alternative names.
type Names struct {
	// DNS are patterns. A * matches one or more characters of one label, and never a literal *. The pattern ** matches
	// each name that kubeadm writes into certificates, including wildcards.
	DNS []string `yaml:"dns,omitempty" list:"DNS names"`
	// Wildcards are literal names such as *.example.com.
	Wildcards []string `yaml:"wildcards,omitempty" list:"wildcard DNS names"`
	// IPs are address ranges.
	IPs []netip.Prefix `yaml:"ips,omitempty" list:"addresses and ranges"`
	// Emails are patterns such as *@example.com.
	Emails []string `yaml:"emails,omitempty" list:"email addresses"`
	// URIs are patterns such as spiffe://example.com/ns/*/sa/*. A * matches one or more characters of one
	// path segment or of one label of the host.
	URIs []string `yaml:"uris,omitempty" list:"URIs"`
}

// Keys are the allowed public keys. Key types that are not listed are not allowed.
type Keys struct {
	RSA     *RSAKeys `yaml:"rsa,omitempty"`
	ECDSA   []string `yaml:"ecdsa,omitempty" list:"curves" only:"P-256|P-384|P-521"`
	Ed25519 bool     `yaml:"ed25519,omitempty" want:"true or false"`
}

// RSAKeys limits the size of RSA keys. Zero means the limit that applies to every signer.
type RSAKeys struct {
	Min Bits `yaml:"min,omitempty"`
	Max Bits `yaml:"max,omitempty"`
}

// Open is [Compile] for a file. Paths in the file are relative to its directory.
func Open(file string, d Defaults) (*Configuration, map[string]signer.Signer, error) {
	content, err := read(file)
	if err != nil {
		return nil, nil, err
	}
	return Compile(file, content, d)
}

// Compile is [Parse] and [Configuration.Build]. One [Errors] holds the mistakes that both find: Build also
// checks the valid parts of a file with mistakes.
func Compile(file string, content []byte, d Defaults) (*Configuration, map[string]signer.Signer, error) {
	c := parse(file, content)
	signers, err := c.Build(d)
	return c, signers, err
}

// Parse reads the content of a file. An [Errors] holds the mistakes in it, except mistakes that only
// [Configuration.Build] can find.
func Parse(file string, content []byte) (*Configuration, error) {
	c := parse(file, content)
	return result(c, c.document.errs)
}

// parse returns the fields that it could read. The document in it has the mistakes.
func parse(file string, content []byte) *Configuration {
	c := &Configuration{}
	c.document = newDocument(file, Kind, content, c)
	c.Signers = c.document.signers("signers", c.Signers)
	return c
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	return content, errors.Join(err, f.Close())
}

// Files returns the files of all CAs in the configuration.
func (c *Configuration) Files() []string {
	var files []string
	for _, s := range c.Signers {
		files = append(files, s.CA.CertFile, s.CA.KeyFile, s.CA.PassphraseFile)
	}
	return slices.DeleteFunc(files, func(file string) bool { return file == "" })
}
