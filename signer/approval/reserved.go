package approval

import (
	"crypto/x509"
	"slices"
	"strings"
)

// ReservedName gives the name or group of a subject that Kubernetes or kubeadm has for itself, such as
// system:kube-controller-manager or kubeadm:cluster-admins: RBAC gives some of them the whole cluster by
// default. A certificate with it takes the permission to approve, beside the one to sign. It is empty if
// there is none. Nodes are left out, since node admission holds their names, and system:masters, which
// every signer refuses.
func ReservedName(csr *x509.CertificateRequest) string {
	const node, nodes, masters = "system:node:", "system:nodes", "system:masters"
	for _, name := range append([]string{csr.Subject.CommonName}, csr.Subject.Organization...) {
		reserved := strings.HasPrefix(name, "system:") || strings.HasPrefix(name, "kubeadm:")
		if reserved && name != nodes && name != masters && !(strings.HasPrefix(name, node) && slices.Contains(csr.Subject.Organization, nodes)) {
			return name
		}
	}
	return ""
}
