package signer

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/cloudflare/cfssl/config"
	"github.com/cloudflare/cfssl/log"
	cfssl "github.com/cloudflare/cfssl/signer"
	"github.com/cloudflare/cfssl/signer/local"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

// A Template is what a certificate is made from.
type Template struct {
	// CSR has the public key, the subject and the subject alternative names. Nothing else of
	// it gets into a certificate.
	CSR *x509.CertificateRequest
	// Usages are the usages of the certificate; at least one.
	Usages []certificates.KeyUsage
	// Duration is the lifetime asked for; zero leaves it to the profile.
	Duration time.Duration
}

// Issue makes a certificate and returns it as PEM, followed by intermediate certificates up to
// but without the root. A request that breaks the rules of the profile or of all signers, or is
// not signed by the key that is in it, is refused with a [*approval.Refused].
//
// The certificate is what kube-controller-manager makes, except that cfssl adds a subject key
// identifier (RFC 5280, section 4.2.1.2, recommends it): country, organization, organizational
// unit, locality, province, street, postal code, common name and serial number of the subject are
// kept and encoded anew, other attributes are dropped; DNS, IP, email and URI names are kept.
//
// Issue does not ask who wants the certificate: [Authority] does.
func (p Profile) Issue(ca *CA, t Template, now time.Time) ([]byte, error) {
	if err := pkcs10.Check(t.CSR); err != nil {
		return nil, err
	}
	done, err := p.issue(ca, t, now)
	return done.chain, err
}

// An issued certificate.
type issued struct {
	chain []byte            // in PEM
	own   int               // how much of the chain is the certificate itself
	cert  *x509.Certificate // the same, parsed
}

// issue makes a certificate from a request that [pkcs10.Check] has passed.
func (p Profile) issue(ca *CA, t Template, now time.Time) (issued, error) {
	if ca == nil || ca.cert == nil {
		return issued{}, errors.New("no CA given")
	}
	if err := p.Check(); err != nil {
		return issued{}, err
	}
	if err := p.refuses(t.CSR, t.Usages); err != nil {
		return issued{}, err
	}
	if err := ca.checkUsages(t.Usages); err != nil {
		return issued{}, err
	}
	if t.Duration < 0 {
		return issued{}, approval.Refuse("a lifetime of %s is asked for, want a positive one", t.Duration)
	}
	notBefore, notAfter, err := p.Validity(ca.cert.NotAfter, t.Duration, now)
	if err != nil {
		return issued{}, err
	}
	want := expected{csr: t.CSR, usages: t.Usages, serial: newSerial(), notBefore: notBefore, notAfter: notAfter, ca: ca.cert}
	certificate, err := sign(ca, want)
	if err != nil {
		return issued{}, err
	}
	cert, err := want.check(certificate)
	if err != nil {
		return issued{}, fmt.Errorf("the finished certificate is not as it was meant and is thrown away: %w", err)
	}
	return issued{append(certificate, ca.chain...), len(certificate), cert}, nil
}

// The level is a variable that cfssl reads without synchronisation: it may be set at the start
// alone.
func init() { log.Level = log.LevelFatal }

// profileName of the one profile that a cfssl signer has here.
const profileName = "kubejoin"

// sign has cfssl make the certificate, in PEM. A signer of cfssl is made for each, which takes less than
// a microsecond, so that its profile holds exactly the usages asked for.
func sign(ca *CA, want expected) ([]byte, error) {
	subject, err := subjectOverride(want.csr)
	if err != nil {
		return nil, err
	}
	policy := &config.Signing{
		// Where cfssl does not know a profile it falls back to the default without a word:
		// this one has no usages, so that it fails.
		Default: &config.SigningProfile{Expiry: time.Minute},
		Profiles: map[string]*config.SigningProfile{profileName: {
			Usage:  cfsslUsages(want.usages),
			Expiry: time.Minute, // not used: both times are given below
			CSRWhitelist: &config.CSRWhitelist{
				Subject: subject == nil, PublicKey: true, PublicKeyAlgorithm: true,
				DNSNames: true, IPAddresses: true, EmailAddresses: true, URIs: true,
				// Not SignatureAlgorithm: crypto/x509 picks it by the CA's key, as for KCM.
			},
			ClientProvidesSerialNumbers: true,
		}},
	}
	s, err := local.NewSigner(ca.key, ca.cert, x509.UnknownSignatureAlgorithm, policy)
	if err != nil {
		return nil, fmt.Errorf("cfssl: %w", err)
	}
	certificate, err := s.Sign(cfssl.SignRequest{
		Request:   string(pem.EncodeToMemory(&pem.Block{Type: pkcs10.BlockType, Bytes: want.csr.Raw})),
		Subject:   subject,
		Profile:   profileName,
		Serial:    new(big.Int).Set(want.serial),
		NotBefore: want.notBefore,
		NotAfter:  want.notAfter,
	})
	if err != nil {
		// cfssl verifies the signature of the request, and its errors are hard to tell apart.
		if err := want.csr.CheckSignature(); err != nil {
			return nil, approval.Refuse("the certificate request is not signed by its own key: %v", err)
		}
		return nil, fmt.Errorf("cfssl: %w", err)
	}
	return certificate, nil
}
