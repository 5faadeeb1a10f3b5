package signer

import (
	"fmt"
	"slices"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// mastersGroup has every permission in a cluster, and cannot be taken away by RBAC.
const mastersGroup = "system:masters"

// kubernetesChecks are the rules of the signers that Kubernetes names, as
// kube-controller-manager has them.
var kubernetesChecks = map[string]func(approval.Request) error{
	certificates.KubeAPIServerClientKubeletSignerName: approval.CheckKubeletClient,
	certificates.KubeletServingSignerName:             checkKubeletServing,
	certificates.KubeAPIServerClientSignerName:        checkAPIServerClient,
}

// checkKubeletServing: the subject of a node, at least one DNS or IP name, no other names,
// usages digital signature and server auth with or without key encipherment.
func checkKubeletServing(r approval.Request) error {
	if err := approval.CheckNodeSubject(r); err != nil {
		return err
	}
	switch {
	case len(r.CSR.DNSNames) == 0 && len(r.CSR.IPAddresses) == 0:
		return fmt.Errorf("no DNS or IP subject alternative name given, want at least one")
	case len(r.CSR.EmailAddresses) > 0:
		return fmt.Errorf("%d email subject alternative names given, want none", len(r.CSR.EmailAddresses))
	case len(r.CSR.URIs) > 0:
		return fmt.Errorf("%d URI subject alternative names given, want none", len(r.CSR.URIs))
	}
	return approval.CheckUsages(r, certificates.UsageDigitalSignature, certificates.UsageServerAuth)
}

// checkAPIServerClient: usage client auth, beside it at most digital signature and key
// encipherment. The group system:masters is refused here as well as by the API server's
// admission (CertificateSubjectRestriction), which can be off or passed by.
func checkAPIServerClient(r approval.Request) error {
	if !slices.Contains(r.Usages, certificates.UsageClientAuth) {
		return fmt.Errorf("usages are %q, want %q among them", r.Usages, certificates.UsageClientAuth)
	}
	if r.CSR == nil {
		return fmt.Errorf("no certificate request given")
	}
	for _, u := range r.Usages {
		switch u {
		case certificates.UsageClientAuth, certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment:
		default:
			return fmt.Errorf("usage %q is asked for, which a client certificate has not", u)
		}
	}
	if slices.Contains(r.CSR.Subject.Organization, mastersGroup) {
		return fmt.Errorf("subject organization %q is not given to anybody", mastersGroup)
	}
	return nil
}
