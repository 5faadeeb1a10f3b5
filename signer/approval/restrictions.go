package approval

import (
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// Reasons of an [*Error] for requests that an API server refuses at admission. They are the names of its plugins.
const (
	// ReasonSubjectRestriction: the subject is in a group for which no certificate is issued.
	ReasonSubjectRestriction = "CertificateSubjectRestriction"
	// ReasonNodeRestriction: a node requests the certificate of another node.
	ReasonNodeRestriction = "NodeRestriction"
)

// CheckAdmission returns an [*Error] for a request that an API server refuses before it creates a
// CertificateSigningRequest object, regardless of RBAC. It is for requests that have no such object:
//
//   - The subject must not be in group system:masters (admission plugin CertificateSubjectRestriction, here for every
//     signer but [SuperAdminSigner]). signer.Profile.Issue also refuses it, because the plugin can be disabled.
//   - A node may request the certificate of a node only for itself (NodeRestriction).
func CheckAdmission(r Request) error {
	if r.CSR == nil {
		return Refuse("no certificate request given")
	}
	if err := CheckSubject(r, ReasonSubjectRestriction); err != nil {
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

// IsNode reports whether an API server treats the user as a node.
func IsNode(user string, groups []string) bool {
	return strings.HasPrefix(user, tokens.NodeUserPrefix) && slices.Contains(groups, tokens.NodesGroup)
}

// SuperAdminSigner and SuperAdmin are the only signer and the only user for which kubejoin issues a certificate in group
// system:masters. kubeadm init needs it for its first RBAC objects if the CA key is not on the host. No configuration has
// this signer by default.
const (
	SuperAdminSigner = "kubeadm.kubejoin.io/super-admin.conf"
	SuperAdmin       = "kubernetes-super-admin"
)

// CheckSubject refuses a subject in group system:masters with the given reason. The exception is [SuperAdmin] at
// [SuperAdminSigner], if the subject has no other group and the request has no CertificateSigningRequest object: a
// cluster that has such objects already has its RBAC.
func CheckSubject(r Request, reason string) error {
	subject := r.CSR.Subject
	if !slices.Contains(subject.Organization, tokens.MastersGroup) {
		return nil
	}
	if r.SignerName == SuperAdminSigner && r.Name == "" && subject.CommonName == SuperAdmin && len(subject.Organization) == 1 {
		return nil
	}
	return RefuseFor(reason, "the subject is in group %s, and kubejoin issues no certificates for this group", tokens.MastersGroup)
}
