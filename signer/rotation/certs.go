package rotation

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
)

// maxCerts is how many certificates each side of a rotation may have.
const maxCerts = 10

// maxPEM is the maximum size of the PEM of each side of a rotation, in bytes.
const maxPEM = 32 << 10

// New returns a rotation in stage Prepare, from the certificates old, which are trusted now, to the certificates fresh.
// The first certificate of fresh will sign. cross is nil, or a certificate for the key of that CA which a CA in old has
// signed. The error names the certificate and its problem. If fresh or cross is invalid, it is a [*tokens.FieldError].
func New(ca CA, old, fresh []*x509.Certificate, cross *x509.Certificate, now time.Time) (Rotation, error) {
	if err := ca.check(); err != nil {
		return Rotation{}, err
	}
	if len(old) == 0 || len(old) > maxCerts {
		return Rotation{}, fmt.Errorf("%d certificates of the %s CA are trusted now, want 1 to %d", len(old), ca, maxCerts)
	}
	if len(fresh) == 0 || len(fresh) > maxCerts {
		return Rotation{}, invalid("certificates", "there are %d, want 1 to %d", len(fresh), maxCerts)
	}
	for _, c := range fresh {
		switch {
		case !c.BasicConstraintsValid || !c.IsCA || c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0:
			return Rotation{}, invalid("certificates", "%q is not a CA that may sign certificates", c.Subject)
		case now.Before(c.NotBefore) || !now.Before(c.NotAfter):
			return Rotation{}, invalid("certificates", "%q is valid from %s to %s, the time is %s", c.Subject, c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
	}
	for _, c := range old {
		switch {
		case bytes.Equal(c.RawSubjectPublicKeyInfo, fresh[0].RawSubjectPublicKeyInfo):
			return Rotation{}, invalid("certificates", "the new CA has the key of the old CA %q, want a new key", c.Subject)
		case sameName(c, fresh[0]):
			return Rotation{}, invalid("certificates", "the new CA %q has the subject of the old CA %q (case, spaces and string type do not count): TLS handshakes name CAs by subject, so want another one", fresh[0].Subject, c.Subject)
		case slices.ContainsFunc(fresh, c.Equal):
			return Rotation{}, invalid("certificates", "%q is trusted already, so certificates of the old CA could stay valid: want only certificates that are not trusted yet", c.Subject)
		}
	}
	r := Rotation{ID: newID(), CA: ca, Stage: Prepare, Old: old, New: fresh, Started: now.UTC(), Since: now.UTC()}
	if cross != nil {
		if err := checkCross(cross, old, fresh[0]); err != nil {
			return Rotation{}, invalid("cross", "%w", err)
		}
		r.Cross = Bundle{cross}
	}
	if size := len(r.Old.PEM()); size > maxPEM {
		return Rotation{}, fmt.Errorf("the certificates of the %s CA that are trusted now have %d bytes, want at most %d", ca, size, maxPEM)
	}
	if size, crossed := len(r.New.PEM()), len(r.Cross.PEM()); size > maxPEM || crossed > maxPEM {
		return Rotation{}, invalid("certificates", "the new ones have %d bytes and the cross certificate %d, want at most %d each", size, crossed, maxPEM)
	}
	return r, nil
}

// sameName reports whether RFC 5280 (7.1) and OpenSSL treat two subjects as the same name: they ignore case, string
// type and the number of spaces.
func sameName(a, b *x509.Certificate) bool {
	fold := func(c *x509.Certificate) (attributes []string) {
		for _, n := range c.Subject.Names {
			attributes = append(attributes, n.Type.String()+"="+strings.ToLower(strings.Join(strings.Fields(fmt.Sprint(n.Value)), " ")))
		}
		return attributes
	}
	return slices.Equal(fold(a), fold(b))
}

// strict returns a warning for each CA that lacks what RFC 5280 requires. crypto/x509 accepts such a CA. Python 3.13 and
// 'openssl verify -x509_strict' refuse it.
func strict(cas []*x509.Certificate) (warnings []string) {
	for _, c := range cas {
		var lacks []string
		if !slices.ContainsFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(basicConstraints) && e.Critical }) {
			lacks = append(lacks, "critical basic constraints")
		}
		if c.KeyUsage == 0 { // New refuses other usages
			lacks = append(lacks, "key usage")
		}
		if len(c.SubjectKeyId) == 0 {
			lacks = append(lacks, "subject key identifier")
		}
		if len(c.AuthorityKeyId) == 0 && !bytes.Equal(c.RawIssuer, c.RawSubject) {
			lacks = append(lacks, "authority key identifier")
		}
		if len(lacks) > 0 {
			warnings = append(warnings, fmt.Sprintf("strict clients, for example Python 3.13, refuse certificates of CA %q: it has no %s", c.Subject, strings.Join(lacks, ", no ")))
		}
	}
	return warnings
}

func newID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // documented never to fail
	return hex.EncodeToString(id[:])
}

// checkCross returns an error unless cross certifies the key of the CA fresh and a CA in old has signed it. cross
// must also allow certificates below it.
func checkCross(cross *x509.Certificate, old []*x509.Certificate, fresh *x509.Certificate) error {
	if !bytes.Equal(cross.RawSubjectPublicKeyInfo, fresh.RawSubjectPublicKeyInfo) || !bytes.Equal(cross.RawSubject, fresh.RawSubject) {
		return errors.New("the cross certificate is not of the subject and the key of the new CA")
	}
	signed := func(c *x509.Certificate) bool { return cross.CheckSignatureFrom(c) == nil }
	by := slices.IndexFunc(old, signed)
	switch {
	case by < 0:
		return errors.New("the cross certificate is not signed by the old CA")
	case old[by].MaxPathLenZero && old[by].MaxPathLen == 0:
		return fmt.Errorf("the old CA %q has path length 0 and cannot certify another CA: prepare without a cross certificate", old[by].Subject)
	case !cross.BasicConstraintsValid || !cross.IsCA || cross.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("the cross certificate is not of a CA that may sign certificates")
	case cross.MaxPathLen > 0 || cross.MaxPathLenZero:
		return fmt.Errorf("the new CA %q has path length %d, and so has its cross certificate, which proves no CA without that limit: prepare without a cross certificate", fresh.Subject, cross.MaxPathLen)
	case len(cross.ExtKeyUsage)+len(cross.UnknownExtKeyUsage) > 0 || constrained(cross):
		return errors.New("the cross certificate limits what the new CA may sign, so it proves no CA without limits")
	}
	return nil
}

// constrained reports whether a CA may sign only certain names.
func constrained(c *x509.Certificate) bool {
	return slices.ContainsFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(nameConstraints) })
}

var (
	basicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19} // RFC 5280, 4.2.1.9
	nameConstraints  = asn1.ObjectIdentifier{2, 5, 29, 30} // RFC 5280, 4.2.1.10
)

// Unproven returns the certificates of this stage that a host must not trust. trusted are the CAs that the host trusted
// before the rotation. A writer of the state could add a CA to either side. So the host accepts only the CAs that it
// trusted before and CAs that pinned accepts. It also accepts a new CA with a cross certificate from a trusted CA,
// valid at now, and CAs that such a new CA has signed.
func (r Rotation) Unproven(trusted []*x509.Certificate, pinned func(*x509.Certificate) bool, now time.Time) []*x509.Certificate {
	var proven []*x509.Certificate
	for _, cross := range r.Cross {
		if checkCross(cross, trusted, r.New[0]) == nil && !now.Before(cross.NotBefore) && now.Before(cross.NotAfter) {
			proven = r.New[:1]
		}
	}
	for again := true; again; { // until no further CA is proven
		again = false
		for _, c := range r.New {
			signed := func(by *x509.Certificate) bool { return c.CheckSignatureFrom(by) == nil }
			if !slices.ContainsFunc(proven, c.Equal) && (pinned(c) || slices.ContainsFunc(proven, signed)) {
				proven, again = append(slices.Clone(proven), c), true
			}
		}
	}
	return slices.DeleteFunc(r.Trusted(), func(c *x509.Certificate) bool {
		return pinned(c) || slices.ContainsFunc(trusted, c.Equal) || slices.ContainsFunc(proven, c.Equal)
	})
}

// Trusted returns the certificates that hosts trust in this stage, the old ones first.
func (r Rotation) Trusted() (all []*x509.Certificate) {
	if r.TrustsOld() {
		all = slices.Clone(r.Old)
	}
	if r.TrustsNew() {
		all = append(all, r.New...)
	}
	return all
}

// In returns which CAs of the rotation are among the given certificates. Old is true if any old CA is among them, New if
// all new CAs are, and Replaced if any replaced CA is.
func (r Rotation) In(certs []*x509.Certificate) Trusted {
	has := func(c *x509.Certificate) bool { return slices.ContainsFunc(certs, c.Equal) }
	lacks := func(c *x509.Certificate) bool { return !has(c) }
	return Trusted{Old: slices.ContainsFunc(r.Old, has), New: !slices.ContainsFunc(r.New, lacks), Replaced: replaced(r.Replaced, certs)}
}

// A Bundle is a list of certificates, which JSON contains as one text in PEM.
type Bundle []*x509.Certificate

// PEM returns the certificates in PEM.
func (b Bundle) PEM() []byte { return pemfile.Encode(b...) }

// MarshalText implements [encoding.TextMarshaler].
func (b Bundle) MarshalText() ([]byte, error) { return b.PEM(), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (b *Bundle) UnmarshalText(text []byte) (err error) {
	if len(text) > maxPEM {
		return fmt.Errorf("certificates with %d bytes, want at most %d", len(text), maxPEM)
	}
	*b, err = pemfile.OnlyCertificates(text)
	return err
}

// check returns an error unless the bundle has least to most certificates and is not too long.
func (b Bundle) check(field string, least, most int) error {
	if len(b) < least || len(b) > most || len(b.PEM()) > maxPEM {
		return fmt.Errorf("%s has %d certificates and %d bytes, want %d to %d and at most %d", field, len(b), len(b.PEM()), least, most, maxPEM)
	}
	return nil
}
