// Package servingcert issues and renews the certificate of kubejoin's HTTPS server, from the cluster CA. The private
// key stays in memory.
package servingcert

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer"
	certificates "k8s.io/api/certificates/v1"
)

// Lifetime is the validity of a certificate. kubejoin renews the certificate after two thirds of Lifetime, and at every start.
const Lifetime = 90 * 24 * time.Hour

// SignerName is the name under which the policy of a signer process allows these certificates.
const SignerName = "kubejoin.io/serving"

// commonName is the subject. Clients only check the subject alternative names.
const commonName = "kubejoin"

// A Source issues and renews a serving certificate. The zero value has no certificate yet: call Step first.
type Source struct {
	// CA returns the current CA. Step calls it each time, and issues a new certificate for a new CA.
	CA func() *signer.CA
	// Names are DNS names and IP addresses, at least one. This package does not refuse wildcards.
	Names []string
	// Cross returns a cross certificate: another CA has signed the CA's key, for clients that trust only that other CA. Cross
	// and its result may be nil. The Source presents it after the serving certificate, if its key is the key of the present CA.
	Cross func() *x509.Certificate
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	mu      sync.Mutex       // held during Step
	issued  *tls.Certificate // without the cross certificate; guarded by mu
	current atomic.Pointer[tls.Certificate]
}

// GetCertificate implements the field of the same name of [tls.Config].
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := s.current.Load()
	if c == nil {
		return nil, errors.New("kubejoin has not issued its serving certificate yet")
	}
	return c, nil
}

// Step issues a certificate if the current CA has issued none, or if the certificate is in the last third of its lifetime. It
// keeps a certificate that expires with the CA until then. Step returns when to call it again. It is safe for concurrent use.
func (s *Source) Step(context.Context) (next time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	ca := s.CA()
	if c := s.issued; c != nil {
		// Also replace a certificate that is not valid yet, because the clock was set back.
		renew := renewAt(c.Leaf, ca)
		if now().Before(renew) && !now().Before(c.Leaf.NotBefore) && bytes.Equal(c.Leaf.RawIssuer, ca.Certificate().RawSubject) && c.Leaf.CheckSignatureFrom(ca.Certificate()) == nil {
			s.serve(ca)
			return renew, nil
		}
	}
	c, err := issue(ca, s.Names, now())
	if err != nil {
		return time.Time{}, fmt.Errorf("serving certificate: %w", err)
	}
	s.issued = c
	s.serve(ca)
	return renewAt(c.Leaf, ca), nil
}

// serve sets the presented certificate, with the cross certificate if there is one.
func (s *Source) serve(ca *signer.CA) {
	c := *s.issued
	if s.Cross != nil {
		if cross := s.Cross(); cross != nil && bytes.Equal(cross.RawSubject, ca.Certificate().RawSubject) && bytes.Equal(cross.RawSubjectPublicKeyInfo, ca.Certificate().RawSubjectPublicKeyInfo) {
			c.Certificate = append(slices.Clone(c.Certificate), cross.Raw)
		}
	}
	s.current.Store(&c)
}

// renewAt returns when to renew a certificate of ca. A certificate that expires with the CA need not be renewed
// earlier, because a new one would expire at the same time.
func renewAt(c *x509.Certificate, ca *signer.CA) time.Time {
	if !c.NotAfter.Before(ca.Certificate().NotAfter) {
		return c.NotAfter
	}
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 3 * 2)
}

func issue(ca *signer.CA, names []string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName}}
	for _, name := range names {
		if ip, err := netip.ParseAddr(name); err == nil {
			have := net.IP(ip.Unmap().AsSlice())
			if !slices.ContainsFunc(template.IPAddresses, have.Equal) {
				template.IPAddresses = append(template.IPAddresses, have)
			}
		} else if !slices.Contains(template.DNSNames, name) {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, err
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}
	profile, err := signer.NewProfile(signer.ProfileConfig{Usages: usages, Default: Lifetime})
	if err != nil {
		return nil, err
	}
	chain, err := profile.Issue(ca, signer.Template{CSR: csr, Usages: usages, SignerName: SignerName}, now)
	if err != nil {
		return nil, err
	}
	certs, err := pemfile.Certificates(chain)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{PrivateKey: key, Leaf: certs[0]}
	for _, cert := range certs {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c, nil
}
