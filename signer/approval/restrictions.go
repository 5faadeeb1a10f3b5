package approval

import (
	"crypto/x509"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// Reasons of a [*Refused] for what an API server refuses at admission. They are the names of its plugins.
const (
	// ReasonSubjectRestriction: the subject is in a group for which no certificate is issued.
	ReasonSubjectRestriction = "CertificateSubjectRestriction"
	// ReasonNodeRestriction: a node requests the certificate of another node.
	ReasonNodeRestriction = "NodeRestriction"
)

// CheckAdmission returns a [*Refused] for what an API server refuses before it creates a CertificateSigningRequest
// object, regardless of RBAC. It is for requests that have no such object:
//
//   - The subject must not be in group system:masters (admission plugin CertificateSubjectRestriction, here for every
//     signer). signer.Profile.Issue refuses it as well, because the plugin can be off.
//   - A node may request the certificate of a node only for itself (NodeRestriction).
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
		return RefuseFor(ReasonNodeRestriction, "%s requests a certificate for %.300q, but a node may request certificates only for itself", r.User, name)
	}
	return nil
}

// IsNode reports whether user is a node, by the rules of an API server.
func IsNode(user string, groups []string) bool {
	return strings.HasPrefix(user, tokens.NodeUserPrefix) && slices.Contains(groups, tokens.NodesGroup)
}

// CheckSubject refuses a subject in group system:masters with the given reason.
func CheckSubject(csr *x509.CertificateRequest, reason string) error {
	if slices.Contains(csr.Subject.Organization, tokens.MastersGroup) {
		return RefuseFor(reason, "the subject is in group %s, and kubejoin issues no certificates for this group", tokens.MastersGroup)
	}
	return nil
}
