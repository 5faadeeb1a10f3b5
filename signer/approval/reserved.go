package approval

import (
	"crypto/x509"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
)

// ReservedName gives the name or group of a subject that Kubernetes or kubeadm has for itself, such as
// system:kube-controller-manager or kubeadm:cluster-admins: RBAC gives some of them the whole cluster by
// default. A certificate with it takes the permission to approve, beside the one to sign. It is empty if
// there is none. Nodes are left out, since node admission holds their names, and system:masters, which
// every signer refuses.
func ReservedName(csr *x509.CertificateRequest) string {
	for _, name := range append([]string{csr.Subject.CommonName}, csr.Subject.Organization...) {
		reserved := strings.HasPrefix(name, "system:") || strings.HasPrefix(name, "kubeadm:")
		if reserved && name != tokens.NodesGroup && name != tokens.MastersGroup &&
			!(strings.HasPrefix(name, tokens.NodeUserPrefix) && slices.Contains(csr.Subject.Organization, tokens.NodesGroup)) {
			return name
		}
	}
	return ""
}
