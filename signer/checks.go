package signer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// kubernetesChecks are the rules of kube-controller-manager for the signers of Kubernetes.
var kubernetesChecks = map[string]func(approval.Request) error{
	certificates.KubeAPIServerClientKubeletSignerName: approval.CheckKubeletClient,
	certificates.KubeletServingSignerName:             checkKubeletServing,
	certificates.KubeAPIServerClientSignerName:        checkAPIServerClient,
}

// checkKubeletServing applies the rules of kube-controller-manager, and requires a name that a Node can have.
func checkKubeletServing(r approval.Request) error {
	if err := approval.CheckKubeletServing(r); err != nil {
		return err
	}
	if err := tokens.CheckNodeName(strings.TrimPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix)); err != nil {
		return fmt.Errorf("invalid subject: %w", err)
	}
	return nil
}

// checkAPIServerClient requires usage client auth, and allows digital signature and key encipherment in addition.
// Every signer refuses group system:masters, see [approval.CheckSubject].
func checkAPIServerClient(r approval.Request) error {
	if !slices.Contains(r.Usages, certificates.UsageClientAuth) {
		return fmt.Errorf("usages are %s, want %s and optionally digital signature and key encipherment", safetext.List(r.Usages, "and"), certificates.UsageClientAuth)
	}
	for _, u := range r.Usages {
		switch u {
		case certificates.UsageClientAuth, certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment:
		default:
			return fmt.Errorf("usage %q is not allowed in a client certificate", u)
		}
	}
	return nil
}
