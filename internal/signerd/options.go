package signerd

import (
	"crypto"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
)

const (
	unixScheme   = "unix://"
	pkcs11Scheme = "pkcs11:"
)

// Options are the flags of 'kubejoin signer'.
type Options struct {
	Listen         string // HOST:PORT, or unix:///PATH
	Policy         string // file
	CertFile       string // certificate file of the CA
	KeyFile        string // file, or URI of a PKCS#11 key
	PassphraseFile string // empty: the key is not encrypted
	Record         string // file
	TLSCertFile    string
	TLSKeyFile     string
	ClientCAFile   string

	// OpenKey opens the key that a URI in KeyFile names. It is nil in a program without PKCS#11.
	OpenKey func(uri string) (crypto.Signer, error)
}

// A Flag is a flag that sets one of the options.
type Flag struct {
	Name, Help string
	Value      *string
	needs      need
}

// A need says when a flag that names a file is required.
type need int

const (
	optional need = iota
	always
	withHTTPS // required with HTTPS, forbidden with a Unix socket
)

// Flags returns the flags in the order of the help text.
func (o *Options) Flags() []Flag {
	return []Flag{
		{"listen", "HOST:PORT to serve HTTPS on, or unix:///PATH of a socket", &o.Listen, optional},
		{"policy", "file that says who gets which certificates; see 'kubejoin signer default-policy'", &o.Policy, always},
		{"issuance-record", "file to append a JSON line to for each certificate that is signed or refused", &o.Record, always},
		{"cluster-signing-cert-file", "certificate of the cluster CA; of several, the one that matches the key signs", &o.CertFile, always},
		{"cluster-signing-key-file", "private key of --cluster-signing-cert-file; kubejoin-pkcs11 also takes a pkcs11: URI", &o.KeyFile, always},
		{"cluster-signing-key-passphrase-file", "passphrase of --cluster-signing-key-file, in one line (default: the key is not encrypted)", &o.PassphraseFile, optional},
		{"tls-cert-file", "serving certificate and its chain, for HTTPS", &o.TLSCertFile, withHTTPS},
		{"tls-private-key-file", "private key of --tls-cert-file", &o.TLSKeyFile, withHTTPS},
		{"client-ca-file", "CA of requesters' client certificates, for HTTPS", &o.ClientCAFile, withHTTPS},
	}
}

// Socket returns the path of the socket; empty for HTTPS.
func (o Options) Socket() string {
	path, found := strings.CutPrefix(o.Listen, unixScheme)
	if !found {
		return ""
	}
	return path
}

func (o Options) onToken() bool { return strings.HasPrefix(o.KeyFile, pkcs11Scheme) }

// Check returns an error for each invalid flag.
func (o Options) Check() error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}
	socket := o.Socket()
	if _, port, err := net.SplitHostPort(o.Listen); socket == "" && (err != nil || port == "") {
		fail("listen", "%q given, want HOST:PORT or unix:///PATH", o.Listen)
	}
	if socket != "" && (!filepath.IsAbs(socket) || filepath.Clean(socket) != socket) {
		fail("listen", "%q given, want unix:// and an absolute path", o.Listen)
	}
	if o.Record == "-" { // in other commands, "-" means standard output
		fail("issuance-record", "%q given, want a file", o.Record)
	}
	for _, file := range o.Flags() {
		given := *file.Value != ""
		if given && file.needs == withHTTPS && socket != "" {
			fail(file.Name, "excludes a Unix socket, whose user the policy names")
		} else if !given && (file.needs == always || file.needs == withHTTPS && socket == "") {
			fail(file.Name, "missing, want a file")
		}
	}
	switch {
	case o.onToken() && o.OpenKey == nil:
		fail("cluster-signing-key-file", "this program has no PKCS#11, which needs cgo; want a file, or the program kubejoin-pkcs11")
	case o.onToken() && o.PassphraseFile != "":
		fail("cluster-signing-key-passphrase-file", "excludes a PKCS#11 key, whose URI names the file with the PIN")
	}
	return errors.Join(errs...)
}
