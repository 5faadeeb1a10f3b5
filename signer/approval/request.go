package approval

import (
	"crypto/x509"
	"net/netip"
	"time"

	certificates "k8s.io/api/certificates/v1"
)

// A Request is what somebody asks for, and who that is: a CertificateSigningRequest object, or
// the same from elsewhere. User, UserUID, Groups and Extra must come from whoever authenticated
// the requester, never from the requester.
type Request struct {
	// Name and UID are those of the CertificateSigningRequest object; empty if there is none.
	Name string
	UID  string
	// SignerName is what kind of certificate it is, such as
	// "kubernetes.io/kube-apiserver-client-kubelet".
	SignerName string
	// User, UserUID, Groups and Extra are the authenticated requester.
	User    string
	UserUID string
	Groups  []string
	Extra   map[string][]string
	// Usages are the key usages asked for.
	Usages []certificates.KeyUsage
	// Expiration is the lifetime asked for; zero leaves it to the signer.
	Expiration time.Duration
	// Created is when the request was made.
	Created time.Time
	// From is the address that the requester's connection came from. It is not valid where that
	// is not known, as of CertificateSigningRequest objects.
	From netip.Addr
	// Approver is who has approved the request already; empty if nobody has.
	Approver string
	// CSR is the PKCS #10 request, as pkcs10.Parse gives it.
	CSR *x509.CertificateRequest
}
