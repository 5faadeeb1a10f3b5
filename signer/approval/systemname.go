package approval

import (
	"crypto/x509"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
)

// SystemName returns the first name or group in a subject that Kubernetes or kubeadm reserves; empty if there is
// none. Examples are system:kube-controller-manager and kubeadm:cluster-admins. By default RBAC gives some of them
// full access to the cluster. A certificate with such a name therefore needs the permission to approve, in addition
// to the permission to sign. SystemName ignores nodes, whose names node admission checks. It includes
// system:masters, which only [SuperAdminSigner] issues.
func SystemName(csr *x509.CertificateRequest) string {
	for _, name := range append([]string{csr.Subject.CommonName}, csr.Subject.Organization...) {
		reserved := strings.HasPrefix(name, tokens.SystemPrefix) || strings.HasPrefix(name, "kubeadm:")
		if reserved && name != tokens.NodesGroup &&
			!(strings.HasPrefix(name, tokens.NodeUserPrefix) && slices.Contains(csr.Subject.Organization, tokens.NodesGroup)) {
			return name
		}
	}
	return ""
}
