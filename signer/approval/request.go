package approval

import (
	"crypto/x509"
	"net/netip"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	certificates "k8s.io/api/certificates/v1"
)

// A Request is a certificate request and its authenticated requester: a CertificateSigningRequest object, or the
// equivalent from another source. User, UserUID, Groups and Extra must come from the authenticator, never from the
// requester.
type Request struct {
	// Name and UID identify the CertificateSigningRequest object; empty if there is none.
	Name string
	UID  string
	// SignerName is the signer, for example "kubernetes.io/kube-apiserver-client-kubelet".
	SignerName string
	// User, UserUID, Groups and Extra are the authenticated requester.
	User    string
	UserUID string
	Groups  []string
	Extra   map[string][]string
	// Usages are the requested key usages.
	Usages []certificates.KeyUsage
	// Expiration is the requested lifetime; zero leaves it to the signer.
	Expiration time.Duration
	// Created is when the request was made.
	Created time.Time
	// From is the address that the requester's connection came from. It is invalid if unknown, for example for
	// CertificateSigningRequest objects.
	From netip.Addr
	// Approver is the user who has already approved the request; empty if the request is not approved.
	Approver string
	// Rejoin is the key that a node without a valid certificate has proven in the TLS handshake. It is nil for all other
	// requesters. Only the server of that handshake sets it.
	Rejoin *Rejoin
	// CSR is the PKCS #10 request, as pkcs10.Parse returns it.
	CSR *x509.CertificateRequest
}

// byHand returns instructions for a person who wants the request signed.
func byHand(r Request) string {
	if r.Name == "" { // there is no object
		return "an operator can sign it with: kubejoin sign --signer " + r.SignerName
	}
	if !safetext.SafeInShell(r.Name) {
		return "to approve it by hand: kubectl certificate approve"
	}
	return "to approve it by hand: kubectl certificate approve " + r.Name
}

// A Rejoin is the key that a TLS handshake has proven: the key of an expired certificate of the node, or the key that
// is bound to the node.
type Rejoin struct {
	// Key is the ID of the key, see pkcs10.IDOfKey.
	Key string
	// NotAfter is when the expired certificate expired. It is zero for a bound key.
	NotAfter time.Time
}
