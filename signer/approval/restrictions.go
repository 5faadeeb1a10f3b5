package approval

import (
	"crypto/x509"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// Reasons of a [*Refused] for what an API server stops at admission. They are the names of its
// plugins.
const (
	// ReasonSubjectRestriction: the subject is in a group that nobody is given a certificate for.
	ReasonSubjectRestriction = "CertificateSubjectRestriction"
	// ReasonNodeRestriction: a node asks for another one's certificate.
	ReasonNodeRestriction = "NodeRestriction"
)

// CheckAdmission says, with a [*Refused], what an API server stops before there is a
// CertificateSigningRequest object, whatever RBAC says. It is for requests that have not come by
// way of one:
//
//   - nobody is in group system:masters (admission plugin CertificateSubjectRestriction, here for
//     every signer); signer.Profile.Issue refuses it, too, since the plugin can be off;
//   - a node asks for a certificate of a node only if the node is itself (NodeRestriction).
func CheckAdmission(r Request) error {
	if r.CSR == nil {
		return Refuse("no certificate request given")
	}
	if err := CheckSubject(r.CSR, ReasonSubjectRestriction); err != nil {
		return err
	}
	name := r.CSR.Subject.CommonName
	nodes := strings.HasPrefix(name, tokens.NodeUserPrefix) ||
		r.SignerName == certificates.KubeAPIServerClientKubeletSignerName || r.SignerName == certificates.KubeletServingSignerName
	if IsNode(r.User, r.Groups) && nodes && name != r.User {
		return RefuseFor(ReasonNodeRestriction, "%s asks for a certificate of %.300q, and a node is given its own alone", r.User, name)
	}
	return nil
}

// IsNode reports whether that is the user of a node, as an API server tells.
func IsNode(user string, groups []string) bool {
	return strings.HasPrefix(user, tokens.NodeUserPrefix) && slices.Contains(groups, tokens.NodesGroup)
}

// CheckSubject refuses a subject in group system:masters, for a reason.
func CheckSubject(csr *x509.CertificateRequest, reason string) error {
	if slices.Contains(csr.Subject.Organization, tokens.MastersGroup) {
		return RefuseFor(reason, "the subject is in group %s, which nobody is given a certificate for", tokens.MastersGroup)
	}
	return nil
}
