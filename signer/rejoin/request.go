package rejoin

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/rejoin/proof"
	"github.com/kubejoin/kubejoin/tokens"
)

// Reasons of an [*Unproven]: the caller has not proven that it has the key of a node.
const (
	// ReasonChallengeInvalid: the challenge is malformed, of another server, or older than a minute.
	ReasonChallengeInvalid = "ChallengeInvalid"
	// ReasonCertificateInvalid: the certificate is no client certificate of a node, or of another CA.
	ReasonCertificateInvalid = "CertificateInvalid"
	// ReasonSignatureInvalid: the signature is not of this key, challenge, node name and server.
	ReasonSignatureInvalid = "SignatureInvalid"
)

// Unproven is the error of a caller that has not proven that it has the key of a node.
type Unproven struct{ Reason, Message string }

// Error returns Message.
func (u *Unproven) Error() string { return u.Message }

func unproven(reason, format string, args ...any) error {
	foreign.Args(args)
	return &Unproven{reason, fmt.Sprintf(format, args...)}
}

// A Request is a request to rejoin, or to bind a key.
type Request struct {
	// Certificate is the node's client certificate in PEM, with its intermediates. It may have expired.
	Certificate []byte
	// Node and PublicKey replace Certificate for a bound key. PublicKey is in PEM (SubjectPublicKeyInfo).
	Node      string
	PublicKey []byte
	// Challenge is a challenge of [Desk.Challenge].
	Challenge string
	// Server is the host of the server as the machine has dialled it.
	Server string
	// Signature is the signature of [proof.Rejoin] or [proof.Bind].
	Signature []byte
	// Key is the public key to bind, in PEM. It is empty to rejoin.
	Key []byte
}

// maxChain is the maximum number of certificates in a request.
const maxChain = 5

// A verified is a Request whose signature is valid.
type verified struct {
	node string
	key  string            // ID of the key that signed
	cert *x509.Certificate // nil with a bound key
	made time.Time         // when the challenge was made
	bind string            // ID of the key to bind
}

// verify checks everything about a request that needs no state. Its error is an [*Unproven].
func verify(r Request, challengeKey []byte, roots *x509.CertPool, isServer func(string) bool, now time.Time) (verified, error) {
	made, ok := checkChallenge(challengeKey, r.Challenge, now)
	if !ok {
		return verified{}, unproven(ReasonChallengeInvalid, "the challenge is not of this server, or older than %s; request another one", challengeTTL)
	}
	v := verified{made: made}
	var public any
	var err error
	if len(r.PublicKey) > 0 && len(r.Certificate) == 0 {
		v.node = r.Node
		public, v.key, err = readKey(r.PublicKey)
		if err == nil {
			err = tokens.CheckNodeName(r.Node)
		}
	} else {
		v.cert, err = readCertificate(r.Certificate, roots, now)
		if err == nil {
			v.node = strings.TrimPrefix(v.cert.Subject.CommonName, tokens.NodeUserPrefix)
			v.key, public = pkcs10.IDOfKey(v.cert.RawSubjectPublicKeyInfo), v.cert.PublicKey
			err = pkcs10.CheckKey(public)
		}
		if err == nil && (r.Node != "" && r.Node != v.node || len(r.PublicKey) > 0) {
			err = errors.New("want either a certificate, or a node name with a public key")
		}
	}
	if err != nil {
		return verified{}, unproven(ReasonCertificateInvalid, "%v", err)
	}
	server := strings.ToLower(r.Server)
	text := proof.Rejoin(r.Challenge, v.node, server)
	if len(r.Key) > 0 {
		if _, v.bind, err = readKey(r.Key); err != nil {
			return verified{}, unproven(ReasonCertificateInvalid, "key to bind: %v", err)
		}
		text = proof.Bind(r.Challenge, v.node, server, v.bind)
	}
	if !isServer(server) {
		return verified{}, unproven(ReasonSignatureInvalid, "the signature is for server %q, which is not a name of this server; its names are those in its certificate, --advertise and --tls-san", r.Server)
	}
	if proof.Verify(public, text, r.Signature) != nil {
		return verified{}, unproven(ReasonSignatureInvalid, "the signature is not by the key of node %s over this challenge, node name and server %s", v.node, server)
	}
	return v, nil
}

// readKey reads a public key in PEM. It returns its ID, too.
func readKey(text []byte) (any, string, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PUBLIC KEY" || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, "", errors.New("want one public key in PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, "", fmt.Errorf("public key: %w", err)
	}
	return key, pkcs10.IDOfKey(block.Bytes), pkcs10.CheckKey(key)
}

// readCertificate reads the client certificate of a node, which may have expired. It must have been valid for client
// authentication until its end.
func readCertificate(text []byte, roots *x509.CertPool, now time.Time) (*x509.Certificate, error) {
	var chain []*x509.Certificate
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if len(strings.TrimSpace(string(rest))) > 0 {
				return nil, errors.New("want certificates in PEM, and nothing else")
			}
			break
		}
		if block.Type != "CERTIFICATE" || len(chain) == maxChain {
			return nil, fmt.Errorf("want at most %d certificates in PEM, and no %.40q", maxChain, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		chain = append(chain, cert)
	}
	if len(chain) == 0 {
		return nil, errors.New("want a certificate in PEM")
	}
	leaf, at := chain[0], now
	if leaf.NotAfter.Before(at) {
		at = leaf.NotAfter
	}
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	// Verify checks the signatures, the usage and the times of the whole chain.
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil, fmt.Errorf("the certificate is no client certificate of this cluster: %w", err)
	}
	if !approval.IsNode(leaf.Subject.CommonName, leaf.Subject.Organization) || len(leaf.Subject.Organization) != 1 ||
		tokens.CheckNodeName(strings.TrimPrefix(leaf.Subject.CommonName, tokens.NodeUserPrefix)) != nil {
		return nil, fmt.Errorf("the certificate is of subject %q, want that of a node", foreign.Text(leaf.Subject.String(), foreign.MaxName))
	}
	return leaf, nil
}
