package rotation

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
)

func invalid(field, format string, args ...any) error {
	return &tokens.FieldError{Field: field, Err: fmt.Errorf(format, args...)}
}

// begin returns the new rotation without a cross certificate, and the key of the new CA if there is one.
func (p PrepareRequest) begin(old []*x509.Certificate, now time.Time) (Rotation, crypto.Signer, error) {
	id, fresh, key := newID(), p.Certificates, p.Key
	if len(old) == 0 {
		return Rotation{}, nil, fmt.Errorf("no certificate of the %s CA is trusted now", p.CA)
	}
	switch {
	case len(fresh) == 0 && key != nil:
		return Rotation{}, nil, invalid("certificates", "required with a key")
	case len(fresh) > 0 && p.Lifetime != 0:
		return Rotation{}, nil, invalid("lifetime", "has no effect on a CA that exists")
	case len(fresh) > 0 && key != nil && !Matches(key, fresh[0]):
		return Rotation{}, nil, invalid("key", "does not match the first certificate %q", fresh[0].Subject)
	case len(fresh) == 0:
		var err error
		if fresh, key, err = p.generate(old[0], id, now); err != nil {
			return Rotation{}, nil, err
		}
	}
	r, err := New(p.CA, old, fresh, nil, now)
	if err != nil {
		return Rotation{}, nil, err
	}
	r.ID, r.HasKey = id, key != nil // the generated CA has the ID in its name
	return r, key, nil
}

// certify returns the rotation with its cross certificate. A cross certificate is a CA that the cluster trusts, and it
// cannot be revoked. So a dry run certifies a copy of the new CA with a key that is discarded, and returns the rotation
// without a cross certificate.
func (p PrepareRequest) certify(r Rotation, old []*x509.Certificate) (Rotation, error) {
	if p.Cross == nil {
		return r, nil
	}
	subject := r.New[0]
	if p.DryRun {
		var err error
		if subject, _, err = Lookalike(subject); err != nil {
			return r, err
		}
	}
	cross, err := p.Cross(subject)
	if err == nil {
		err = checkCross(cross, old, subject)
	}
	if err != nil {
		return r, invalid("cross", "%w", err)
	}
	if !p.DryRun {
		r.Cross = Bundle{cross}
	}
	return r, nil
}

// Lookalike returns a copy of a CA with a new key, which is used for a dry run.
func Lookalike(c *x509.Certificate) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := *c
	template.SerialNumber, template.SignatureAlgorithm, template.PublicKey = big.NewInt(1), 0, key.Public()
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	alike, err := x509.ParseCertificate(der)
	return alike, key, err
}

// Matches reports whether a key belongs to a certificate.
func Matches(key crypto.Signer, cert *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}

// minLifetime is the shortest lifetime of a CA that Prepare makes.
const minLifetime = 24 * time.Hour

// idSuffix matches the ID that generate adds to a common name.
var idSuffix = regexp.MustCompile(`-[0-9a-f]{16}$`)

// generate makes a self-signed CA with the same kind of key as the old CA. Its common name contains the ID of the
// rotation. kubeadm would name each CA "kubernetes". But a TLS handshake names CAs by their subjects, so if both CAs
// had the same name, nobody could see which CA a server trusts. OpenSSL also finds an issuer by its subject, and may
// use the wrong CA.
func (p PrepareRequest) generate(old *x509.Certificate, id string, now time.Time) ([]*x509.Certificate, crypto.Signer, error) {
	lifetime := p.Lifetime
	if lifetime == 0 {
		lifetime = DefaultLifetime
	}
	if lifetime < minLifetime {
		return nil, nil, invalid("lifetime", "is %s, want at least %s", safetext.Duration(lifetime), safetext.Duration(minLifetime))
	}
	key, err := sameKind(old.PublicKey)
	if err != nil {
		return nil, nil, fmt.Errorf("key of the new CA: %w", err)
	}
	name := strings.ToValidUTF8(fmt.Sprintf("%.46s", idSuffix.ReplaceAllString(old.Subject.CommonName, "")), "") // RFC 5280: 64 at most
	var serial [16]byte
	_, _ = rand.Read(serial[:]) // documented never to fail
	serial[15] |= 1             // not zero
	template := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(serial[:]),
		Subject:               pkix.Name{CommonName: name + "-" + id},
		NotBefore:             now.Add(-backdate).UTC().Truncate(time.Second),
		NotAfter:              now.Add(lifetime).UTC().Truncate(time.Second),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true, // with IsCA, crypto/x509 sets the subject key ID
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("new CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return []*x509.Certificate{cert}, key, err
}

// backdate is for machines whose clock is slow, as in signer.GenerateCA.
const backdate = 5 * time.Minute

// sameKind returns a new key of the same kind as a public key. RSA keys have 2048 to 4096 bits.
func sameKind(public crypto.PublicKey) (crypto.Signer, error) {
	switch k := public.(type) {
	case *rsa.PublicKey:
		return rsa.GenerateKey(rand.Reader, max(2048, min(4096, k.N.BitLen()/8*8)))
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P224() {
			return ecdsa.GenerateKey(k.Curve, rand.Reader)
		}
	case ed25519.PublicKey:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}
