package signer

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/cloudflare/cfssl/config"
	"github.com/cloudflare/cfssl/csr"
	"github.com/cloudflare/cfssl/log"
	cfssl "github.com/cloudflare/cfssl/signer"
	"github.com/cloudflare/cfssl/signer/local"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	certificates "k8s.io/api/certificates/v1"
)

// A Template describes the certificate that [Profile.Issue] makes.
type Template struct {
	// CSR contains the public key, the subject and the subject alternative names. The certificate takes nothing
	// else from it.
	CSR *x509.CertificateRequest
	// Usages are the usages of the certificate; at least one.
	Usages []certificates.KeyUsage
	// Duration is the requested lifetime; zero leaves it to the profile.
	Duration time.Duration
	// SignerName is the name under which the policy of a signer process allows the certificate, if the key of the CA is
	// in that process.
	SignerName string
}

// Issue makes a certificate and returns it as PEM, followed by the intermediate certificates without the root. It
// returns an [*approval.Error] if the request violates the rules of the profile or of all signers, or is not signed
// with its own key.
//
// The certificate is what kube-controller-manager makes, except that cfssl adds a subject key identifier (RFC 5280,
// section 4.2.1.2, recommends it). Issue keeps and re-encodes country, organization, organizational unit, locality,
// province, street, postal code, common name and serial number of the subject, and drops other attributes. It keeps
// DNS, IP, email and URI names.
//
// Issue does not check whether the requester may have the certificate: [Authority] does.
func (p Profile) Issue(ca *CA, t Template, now time.Time) ([]byte, error) {
	checked, err := admission.Check(approval.Request{SignerName: t.SignerName, CSR: t.CSR, Usages: t.Usages, Expiration: t.Duration})
	if err != nil {
		return nil, err
	}
	if err := p.refuses(checked.Request()); err != nil {
		return nil, err
	}
	// The caller has no context: a Remote limits its own time.
	done, err := p.issue(context.Background(), ca, checked.Request(), t.Duration, now)
	return done.chain, err
}

// issued is an issued certificate with its chain.
type issued struct {
	chain []byte            // in PEM
	own   int               // length of the certificate itself, in bytes of chain
	cert  *x509.Certificate // the certificate, parsed
	ca    *x509.Certificate // the CA that signed it
	// requester has the proven credentials and, in a rejoin, the credential of the last certificate.
	requester revocation.Subject
	// evidence is from the admission. The evidence of a rule is in the entry.
	evidence []string
}

// issue makes the certificate of a request that the profile allows. A zero lifetime leaves the lifetime to the
// profile.
func (p Profile) issue(ctx context.Context, ca *CA, r approval.Request, lifetime time.Duration, now time.Time) (issued, error) {
	if ca == nil || ca.cert == nil {
		return issued{}, errNoCA
	}
	if ca.remote != nil { // only its response shows which of the CAs has signed
		_, notAfter, err := p.Validity(ca.remote.latest(), lifetime, now)
		if err != nil {
			return issued{}, err
		}
		return ca.remote.issue(ctx, Order{r, now, notAfter})
	}
	// The files of a CA may have been replaced since the signer was made.
	if err := ca.checkUsages(r.Usages); err != nil {
		return issued{}, err
	}
	notBefore, notAfter, err := p.Validity(ca.cert.NotAfter, lifetime, now)
	if err != nil {
		return issued{}, err
	}
	return ca.issue(r, notBefore, notAfter)
}

// issue makes a certificate with the key of the CA.
func (ca *CA) issue(r approval.Request, notBefore, notAfter time.Time) (issued, error) {
	want := expected{csr: r.CSR, usages: r.Usages, serial: newSerial(), notBefore: notBefore, notAfter: notAfter, ca: ca.cert}
	certificate, err := sign(ca, want)
	if err != nil {
		return issued{}, err
	}
	cert, err := want.check(certificate)
	if err != nil {
		return issued{}, fmt.Errorf("the finished certificate differs from the request and was discarded: %w", err)
	}
	return issued{chain: append(certificate, ca.chain...), own: len(certificate), cert: cert, ca: ca.cert}, nil
}

// cfssl reads the level without synchronization, so it must be set at the start.
func init() { log.Level = log.LevelFatal }

// profileName is the name of the one profile in a cfssl signer.
const profileName = "kubejoin"

// sign makes the certificate with cfssl and returns it as PEM. It makes a cfssl signer for each certificate, which
// takes less than a microsecond, so that its profile holds exactly the requested usages.
func sign(ca *CA, want expected) ([]byte, error) {
	subject, err := subjectOverride(want.csr)
	if err != nil {
		return nil, err
	}
	policy := &config.Signing{
		// cfssl silently falls back to the default for an unknown profile. This default has no usages, so that
		// signing fails.
		Default: &config.SigningProfile{Expiry: time.Minute},
		Profiles: map[string]*config.SigningProfile{profileName: {
			Usage:  cfsslUsages(want.usages),
			Expiry: time.Minute, // unused, because both times are given below
			CSRWhitelist: &config.CSRWhitelist{
				Subject: subject == nil, PublicKey: true, PublicKeyAlgorithm: true,
				DNSNames: true, IPAddresses: true, EmailAddresses: true, URIs: true,
				// Leave SignatureAlgorithm unset: crypto/x509 selects it by the CA's key, as in
				// kube-controller-manager.
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
		// cfssl verifies the signature of the request, but its errors are hard to distinguish.
		if err := pkcs10.CheckSignature(want.csr); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("cfssl: %w", err)
	}
	return certificate, nil
}

// newSerial returns a random positive number of at most 128 bits, as kube-controller-manager does. RFC 5280, section
// 4.1.2.2, requires at most 160 bits and not zero.
func newSerial() *big.Int {
	for {
		var b [16]byte
		_, _ = rand.Read(b[:]) // documented never to fail
		if serial := new(big.Int).SetBytes(b[:]); serial.Sign() > 0 {
			return serial
		}
	}
}

// subjectOverride returns the subject that cfssl must use in place of the request's subject; nil if cfssl may use
// the request's subject. cfssl copies unknown attributes, for example an email address from openssl.
// kube-controller-manager drops them. cfssl cannot set a street or postal code, so a subject with one of these and
// an unknown attribute is refused.
func subjectOverride(request *x509.CertificateRequest) (*cfssl.Subject, error) {
	var unknown asn1.ObjectIdentifier
	for _, attribute := range request.Subject.Names {
		if !pkcs10.Kept(attribute.Type) {
			unknown = attribute.Type
		}
	}
	if unknown == nil {
		return nil, nil
	}
	from := request.Subject
	if len(from.StreetAddress) > 0 || len(from.PostalCode) > 0 {
		return nil, approval.Refuse("the subject has attribute %s together with a street or postal code: leave out one of them", unknown)
	}
	to := &cfssl.Subject{CN: from.CommonName, SerialNumber: from.SerialNumber}
	for _, v := range from.Country {
		to.Names = append(to.Names, csr.Name{C: v})
	}
	for _, v := range from.Province {
		to.Names = append(to.Names, csr.Name{ST: v})
	}
	for _, v := range from.Locality {
		to.Names = append(to.Names, csr.Name{L: v})
	}
	for _, v := range from.Organization {
		to.Names = append(to.Names, csr.Name{O: v})
	}
	for _, v := range from.OrganizationalUnit {
		to.Names = append(to.Names, csr.Name{OU: v})
	}
	return to, nil
}

// cfsslUsages returns the usages by cfssl's names, the extended ones sorted and without duplicates. cfssl keeps the
// order and the duplicates that it is given.
func cfsslUsages(usages []certificates.KeyUsage) []string {
	number := func(u certificates.KeyUsage) int { // number of an extended usage; -1 for others
		if _, extended, _ := approval.X509Usages([]certificates.KeyUsage{u}); len(extended) > 0 { // no error: all usages are known here
			return int(extended[0])
		}
		return -1
	}
	var bits, extended []certificates.KeyUsage
	for _, u := range usages {
		if number(u) < 0 {
			bits = append(bits, u)
		} else if !slices.ContainsFunc(extended, func(e certificates.KeyUsage) bool { return number(e) == number(u) }) {
			extended = append(extended, u)
		}
	}
	slices.SortFunc(extended, func(a, b certificates.KeyUsage) int { return number(a) - number(b) })
	var names []string
	for _, u := range append(bits, extended...) {
		names = append(names, string(u))
	}
	return names
}
