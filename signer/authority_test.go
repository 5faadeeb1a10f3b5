package signer_test

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
)

// kubernetesRequest returns a request that the given Kubernetes signer signs.
func kubernetesRequest(t testing.TB, signerName string, key crypto.Signer) approval.Request {
	t.Helper()
	r := approval.Request{SignerName: signerName, User: "kubelet-bootstrap"}
	template := &x509.CertificateRequest{Subject: csrtest.Node("worker-1")}
	switch signerName {
	case certificates.KubeAPIServerClientKubeletSignerName:
		r.Usages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	case certificates.KubeletServingSignerName:
		r.Usages = []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth}
		template.DNSNames = []string{"worker-1", "worker-1.example.com"}
		template.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")}
	case certificates.KubeAPIServerClientSignerName:
		r.Usages = []certificates.KeyUsage{certificates.UsageClientAuth}
		template.Subject = pkix.Name{
			CommonName: "jane", Organization: []string{"dev", "ops"}, OrganizationalUnit: []string{"u"}, Country: []string{"DE"},
			Province: []string{"p"}, Locality: []string{"l"}, StreetAddress: []string{"s"}, PostalCode: []string{"1"}, SerialNumber: "7",
		}
		template.DNSNames = []string{"jane.example.com"}
		template.EmailAddresses = []string{"jane@example.com"}
		template.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/jane"}}
	}
	r.CSR = csrtest.New(t, template, key)
	return r
}

// nodeRequest returns a request of user for the client certificate of node.
func nodeRequest(t testing.TB, user, node string) approval.Request {
	t.Helper()
	r := kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, nil)
	r.User, r.Created, r.CSR = user, time.Now(), csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, nil)
	return r
}

var kubernetesSignerNames = []string{
	certificates.KubeAPIServerClientKubeletSignerName,
	certificates.KubeletServingSignerName,
	certificates.KubeAPIServerClientSignerName,
}

func TestSignsEveryKeyTypeForEverySigner(t *testing.T) {
	authorities := map[string]*signer.Authority{}
	roots := map[string]*x509.CertPool{}
	for name, key := range map[string]crypto.Signer{
		"P-256": csrtest.ECDSA(elliptic.P256()), "P-384": csrtest.ECDSA(elliptic.P384()), "RSA": csrtest.RSA2048(), "Ed25519": csrtest.Ed25519(),
	} {
		ca := must.Get(signer.NewCA([]*x509.Certificate{caCertificate(t, "kubernetes", key, nil, nil, nil)}, key))
		authorities[name] = &signer.Authority{Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 12*time.Hour)))}
		roots[name] = x509.NewCertPool()
		roots[name].AddCert(ca.Certificate())
	}
	keys := map[string]crypto.Signer{
		"P-256": csrtest.ECDSA(elliptic.P256()), "P-521": csrtest.ECDSA(elliptic.P521()), "RSA": csrtest.RSA2048(), "Ed25519": csrtest.Ed25519(),
	}
	serials := map[string]bool{}
	for caName, authority := range authorities {
		for keyName, key := range keys {
			for _, signerName := range kubernetesSignerNames {
				t.Run(caName+"/"+keyName+"/"+signerName, func(t *testing.T) {
					r := kubernetesRequest(t, signerName, key)
					if keyName == "RSA" { // kubelets with RSA keys request it
						r.Usages = append(r.Usages, certificates.UsageKeyEncipherment)
					}
					answer := must.Value(authority.Sign(t.Context(), r))(t)
					certs := decode(t, answer)
					if len(certs) != 1 {
						t.Fatalf("got %d certificates, want only the leaf because the CA is a root", len(certs))
					}
					cert := certs[0]
					use := x509.ExtKeyUsageClientAuth
					if signerName == certificates.KubeletServingSignerName {
						use = x509.ExtKeyUsageServerAuth
					}
					if _, err := cert.Verify(x509.VerifyOptions{Roots: roots[caName], KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
						t.Error(err)
					}
					if got, want := cert.Subject.String(), r.CSR.Subject.String(); got != want {
						t.Errorf("subject is %s, want %s", got, want)
					}
					if serials[cert.SerialNumber.String()] || cert.SerialNumber.Sign() <= 0 || cert.SerialNumber.BitLen() > 128 {
						t.Errorf("serial number is %s, want a new positive number of at most 128 bits", cert.SerialNumber)
					}
					serials[cert.SerialNumber.String()] = true
				})
			}
		}
	}
}

func TestSignReturnsErrorsThatAreNoRefusals(t *testing.T) {
	ca, kubelet := newCA(t), kubernetesSignerNames[0]
	broken := errors.New("no such file")
	r := kubernetesRequest(t, kubelet, nil)
	other := r
	other.SignerName = "example.com/other"
	later := func() time.Time { return time.Now().Add(20 * 365 * 24 * time.Hour) }
	for _, test := range []struct {
		name      string
		authority *signer.Authority
		request   approval.Request
		is        error
		want      string
	}{
		{name: "zero authority", authority: &signer.Authority{}, request: r, is: signer.ErrUnknownSigner, want: kubelet},
		{name: "unknown signer", authority: &signer.Authority{Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 0)))}, request: other, is: signer.ErrUnknownSigner, want: "example.com/other"},
		{name: "CA cannot be loaded", authority: &signer.Authority{Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return nil, broken }, 0)))}, request: r, is: broken, want: "no such file"},
		{name: "CA expired", authority: &signer.Authority{Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 0))), Now: later}, request: r, is: signer.ErrExpiredCA, want: "expired"},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer, err := test.authority.Sign(t.Context(), test.request)
			if err == nil || answer != nil || approval.Refused(err) != nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q that is not a refusal", err, test.want)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("error is %v, want it to wrap %v", err, test.is)
			}
		})
	}
}

// allowsAll grants every permission. It has no other facts.
type allowsAll struct{ approval.Facts }

func (allowsAll) Allowed(context.Context, approval.Request, approval.Permission) (bool, error) {
	return true, nil
}

func TestIssueFollowsDecision(t *testing.T) {
	ca := newCA(t)
	authority := signer.Authority{Facts: allowsAll{}, Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 0)))}
	answer, err := authority.Issue(t.Context(), kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, nil))
	if err != nil || answer == nil {
		t.Errorf("kubelet: got %v, want a certificate", err)
	}
	answer, err = authority.Issue(t.Context(), kubernetesRequest(t, certificates.KubeAPIServerClientSignerName, nil))
	if d, failure := said(err); err == nil || failure != nil || d.Verdict != approval.None || answer != nil {
		t.Errorf("user: got %v, want no decision and no certificate", err)
	}
	authority.Facts = nil
	answer, err = authority.Issue(t.Context(), kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, nil))
	if d, failure := said(err); failure == nil || d.Verdict != approval.Wait || answer != nil {
		t.Errorf("without facts: got %v, want verdict wait", err)
	}
}

// The current duration of certificates must not limit the result: earlier certificates may have been issued for up
// to the lifetime of the CA.
func TestMaxRemainingLifetimeIsThatOfTheCA(t *testing.T) {
	const days = 24 * time.Hour
	of := func(ca *signer.CA, err error) signer.Signer {
		s, _ := signer.NewSigner("example.com/a", func() (*signer.CA, error) { return ca, err }, signer.ProfileConfig{Usages: clientUsages, Default: time.Hour}, anyRequest)
		return s
	}
	lasts := func(d time.Duration) signer.Signer { return of(signer.GenerateCA("kubernetes", time.Now(), d)) }
	for name, test := range map[string]struct {
		signers map[string]signer.Signer
		want    time.Duration
	}{
		"no signer":           {},
		"short certificates":  {map[string]signer.Signer{"example.com/a": lasts(3650 * days)}, 3650 * days},
		"of several":          {map[string]signer.Signer{"example.com/a": lasts(3650 * days), "example.com/b": lasts(30 * days)}, 3650 * days},
		"CA without end":      {map[string]signer.Signer{"example.com/a": lasts(280 * 365 * days)}, 100 * 365 * days},
		"CA cannot be loaded": {map[string]signer.Signer{"example.com/a": of(nil, errors.New("no file"))}, 100 * 365 * days},
	} {
		got := (&signer.Authority{Signers: signer.FixedSigners(test.signers)}).MaxRemainingLifetime()
		if got > test.want || got < test.want-time.Hour {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
	if got := (&signer.Authority{}).MaxRemainingLifetime(); got != 0 {
		t.Errorf("no signers: got %s, want 0", got)
	}
}

// A certificate whose key could not be stored must not be delivered: the machine could not rejoin with it.
func TestCertificateIsIssuedOnlyIfItsKeyIsStored(t *testing.T) {
	store := memdb.Open()
	nodes := &admission.Nodes{Tokens: store, Claims: storetest.Fail(errNotStored, "Claims.Create").Claims(store.Claims()), RejoinWindow: time.Hour}
	ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	a := &signer.Authority{Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 0))), Nodes: nodes}
	r := nodeRequest(t, "jane", "worker-1")
	if chain, err := a.Sign(t.Context(), r); !errors.Is(err, errNotStored) || chain != nil {
		t.Errorf("got %q, %v, want no certificate and the error of the store", chain, err)
	}
	nodes.RejoinWindow = 0
	if chain, err := a.Sign(t.Context(), r); err != nil || chain == nil {
		t.Errorf("without a window: %v", err)
	}
}

var errNotStored = errors.New("not stored")
