// Package credentials creates client certificates and kubeconfigs on the machine that uses them, and finds faults in
// existing ones. It generates the private keys and never sends them: a [SignFunc] gets only the certificate request.
package credentials

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// ecKeyBlock is the PEM block type of new keys.
const ecKeyBlock = "EC PRIVATE KEY"

// A SigningRequest asks for one certificate.
type SigningRequest struct {
	// Signer is the signer name, for example "kubernetes.io/kube-apiserver-client".
	Signer string
	// CSR is one PKCS #10 request in PEM.
	CSR []byte
	// Usages are the usages of the certificate.
	Usages []certificates.KeyUsage
	// Duration is the requested lifetime; zero leaves it to the signer.
	Duration time.Duration
}

// A SignFunc returns the certificate for a request in PEM, followed by its intermediates.
type SignFunc func(context.Context, SigningRequest) ([]byte, error)

// SignLocally returns a SignFunc that signs with CA keys on this machine. It applies the signers' rules, as a kubejoin
// server does.
func SignLocally(signers map[string]signer.Signer) SignFunc {
	authority := signer.Authority{Signers: signer.FixedSigners(signers), Unthrottled: true}
	return func(ctx context.Context, r SigningRequest) ([]byte, error) {
		csr, err := pkcs10.Parse(r.CSR)
		if err != nil {
			return nil, err
		}
		return authority.Sign(ctx, approval.Request{
			SignerName: r.Signer, User: "local", Approver: "local", CSR: csr, Usages: r.Usages, Expiration: r.Duration,
		})
	}
}

// A ClientIdentity is the user of a client certificate.
type ClientIdentity struct {
	// Signer is the signer that issues certificates for this identity.
	Signer string
	// User is the common name, Groups are the organizations.
	User   string
	Groups []string
}

// Node returns the identity of the kubelet on a node.
func Node(name string) (ClientIdentity, error) {
	if err := tokens.CheckNodeName(name); err != nil {
		return ClientIdentity{}, err
	}
	return ClientIdentity{certificates.KubeAPIServerClientKubeletSignerName, tokens.NodeUserPrefix + name, []string{tokens.NodesGroup}}, nil
}

// User returns the identity of a user. User does not check the name; the signer refuses names that it does not issue.
func User(name string, groups []string) (ClientIdentity, error) {
	if name == "" {
		return ClientIdentity{}, errors.New("the name is empty")
	}
	return ClientIdentity{certificates.KubeAPIServerClientSignerName, name, groups}, nil
}

// A KeyPair is a client certificate with its key, both in PEM.
type KeyPair struct {
	Certificate *x509.Certificate
	Chain, Key  []byte
}

// Issue generates a P-256 key, and requests a client certificate for it.
func (id ClientIdentity) Issue(ctx context.Context, sign SignFunc, duration time.Duration) (KeyPair, error) {
	key, err := NewKey()
	if err != nil {
		return KeyPair{}, err
	}
	return id.IssueFor(ctx, key, sign, duration)
}

// NewKey returns a new private key for a credential.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// IssueFor is like Issue, but uses the given key.
func (id ClientIdentity) IssueFor(ctx context.Context, key *ecdsa.PrivateKey, sign SignFunc, duration time.Duration) (KeyPair, error) {
	encoded, err := EncodeKey(key)
	if err != nil {
		return KeyPair{}, err
	}
	names := &x509.CertificateRequest{Subject: pkix.Name{CommonName: id.User, Organization: id.Groups}}
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	chain, certs, err := sign.For(ctx, key, names, SigningRequest{Signer: id.Signer, Usages: usages, Duration: duration})
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{certs[0], chain, encoded}, nil
}

// For creates a CSR for key with the names of a template, and calls sign with it. It returns the certificate and its
// intermediates, in PEM and parsed.
func (sign SignFunc) For(ctx context.Context, key crypto.Signer, names *x509.CertificateRequest, r SigningRequest) ([]byte, []*x509.Certificate, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, names, key)
	if err != nil {
		return nil, nil, err
	}
	r.CSR = pem.EncodeToMemory(&pem.Block{Type: pkcs10.BlockType, Bytes: der})
	chain, err := sign(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	certs, err := pemfile.Certificates(chain)
	if err != nil {
		return nil, nil, fmt.Errorf("the signer returned no valid certificate: %w", err)
	}
	if !matches(key, certs[0].PublicKey) {
		return nil, nil, errors.New("the signer returned a certificate for another key")
	}
	return chain, certs, nil
}

// EncodeKey returns a private key in PEM.
func EncodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: ecKeyBlock, Bytes: der}), err
}

// matches reports whether a key belongs to a certificate or a request.
func matches(key crypto.Signer, public any) bool {
	own, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && own.Equal(public)
}
