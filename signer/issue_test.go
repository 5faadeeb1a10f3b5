package signer_test

import (
	"crypto"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"io"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	certificates "k8s.io/api/certificates/v1"
)

// kcmIssue creates a certificate as kube-controller-manager does (pkg/controller/certificates/authority), for a
// parsed CSR.
func kcmIssue(csr *x509.CertificateRequest, ca *x509.Certificate, key crypto.Signer, usage x509.KeyUsage, extended []x509.ExtKeyUsage, begins, ends time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, err
	}
	return x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: csr.Subject,
		DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses, EmailAddresses: csr.EmailAddresses, URIs: csr.URIs,
		PublicKeyAlgorithm: csr.PublicKeyAlgorithm, PublicKey: csr.PublicKey,
		KeyUsage: usage, ExtKeyUsage: extended, BasicConstraintsValid: true,
		NotBefore: begins, NotAfter: ends,
	}, ca, csr.PublicKey, key)
}

// For the same request, kubejoin must issue the same certificate as kube-controller-manager, except for the
// serial number and the subject key identifier.
func TestIssuesSameCertificateAsKCM(t *testing.T) {
	for caName, key := range map[string]crypto.Signer{"P-384": csrtest.ECDSA(elliptic.P384()), "RSA": csrtest.RSA2048()} {
		root := caCertificate(t, "kubernetes", key, nil, nil, nil)
		ca := must.Get(signer.NewCA([]*x509.Certificate{root}, key))
		for _, test := range []struct {
			signer   string
			usages   []certificates.KeyUsage
			usage    x509.KeyUsage
			extended []x509.ExtKeyUsage
		}{
			{
				certificates.KubeAPIServerClientKubeletSignerName,
				[]certificates.KeyUsage{certificates.UsageKeyEncipherment, certificates.UsageClientAuth, certificates.UsageDigitalSignature},
				x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			},
			{certificates.KubeletServingSignerName, servingUsages, x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
			{certificates.KubeAPIServerClientSignerName, []certificates.KeyUsage{certificates.UsageClientAuth}, 0, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
			{ // usages of no Kubernetes signer: extended usages are sorted and unique
				certificates.KubeAPIServerClientSignerName,
				[]certificates.KeyUsage{certificates.UsageSMIME, certificates.UsageClientAuth, certificates.UsageEmailProtection, certificates.UsageSigning, certificates.UsageServerAuth},
				x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageEmailProtection},
			},
		} {
			t.Run(caName+"/"+test.signer, func(t *testing.T) {
				csr := kubernetesRequest(t, test.signer, nil).CSR
				answer := must.Value(must.Get(signer.NewProfile(signer.ProfileConfig{Usages: test.usages})).Issue(ca, signer.Template{CSR: csr, Usages: test.usages}, time.Now()))(t)
				ours := decode(t, answer)[0]
				theirs := must.Get(x509.ParseCertificate(must.Get(kcmIssue(csr, root, key, test.usage, test.extended, ours.NotBefore, ours.NotAfter))))
				if got, want := describe(ours), describe(theirs); got != want {
					t.Errorf("certificate is\n%s\nwant\n%s", got, want)
				}
				if ours.SignatureAlgorithm != theirs.SignatureAlgorithm {
					t.Errorf("signed with %s, want %s", ours.SignatureAlgorithm, theirs.SignatureAlgorithm)
				}
			})
		}
	}
}

// describe lists all parts of a certificate that are not random.
func describe(cert *x509.Certificate) string {
	var lines []string
	add := func(what string, der []byte) { lines = append(lines, what+" "+new(big.Int).SetBytes(der).Text(16)) }
	add("subject", cert.RawSubject)
	add("issuer", cert.RawIssuer)
	add("key", cert.RawSubjectPublicKeyInfo)
	for _, ext := range cert.Extensions {
		if id := ext.Id.String(); id != "2.5.29.14" { // cfssl adds a subject key identifier
			add(id, ext.Value)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// signsOtherDigest is a defective key: it signs another digest than the given one.
type signsOtherDigest struct{ crypto.Signer }

func (l signsOtherDigest) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return l.Signer.Sign(random, make([]byte, len(digest)), opts)
}

func TestIssueVerifiesSignatureOfCAKey(t *testing.T) {
	key := csrtest.ECDSA(elliptic.P256())
	ca := must.Get(signer.NewCA([]*x509.Certificate{caCertificate(t, "ca", key, nil, nil, nil)}, signsOtherDigest{key}))
	csr := csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("w")}, nil)
	answer, err := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages})).Issue(ca, signer.Template{CSR: csr, Usages: clientUsages}, time.Now())
	if err == nil || answer != nil {
		t.Errorf("got a certificate with an invalid signature, or no error: %v", err)
	}
}

// The signature of a CSR does not cover fields that somebody changed after parsing.
func TestIssueRefusesRequestChangedAfterParsing(t *testing.T) {
	ca := newCA(t)
	for name, change := range map[string]func(*x509.CertificateRequest){
		"subject": func(c *x509.CertificateRequest) { c.Subject.CommonName = "system:node:other" },
		"names":   func(c *x509.CertificateRequest) { c.DNSNames = []string{"kubernetes"} },
		"key":     func(c *x509.CertificateRequest) { c.PublicKey = csrtest.ECDSA(elliptic.P256()).Public() },
		"all but the fields": func(c *x509.CertificateRequest) {
			c.Raw = csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("other")}, nil).Raw
		},
		"raw": func(c *x509.CertificateRequest) { c.Raw = nil },
	} {
		t.Run(name, func(t *testing.T) {
			csr := csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("w")}, nil)
			change(csr)
			if _, err := must.Get(signer.NewProfile(signer.ProfileConfig{Usages: clientUsages})).Issue(ca, signer.Template{CSR: csr, Usages: clientUsages}, time.Now()); err == nil {
				t.Error("got a certificate, want an error")
			}
		})
	}
}
