package signer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// kubernetesChecks are the rules of the signers that Kubernetes names, as
// kube-controller-manager has them.
var kubernetesChecks = map[string]func(approval.Request) error{
	certificates.KubeAPIServerClientKubeletSignerName: approval.CheckKubeletClient,
	certificates.KubeletServingSignerName:             checkKubeletServing,
	certificates.KubeAPIServerClientSignerName:        checkAPIServerClient,
}

// checkKubeletServing: what kube-controller-manager wants, and a name that a Node can have.
func checkKubeletServing(r approval.Request) error {
	if err := approval.CheckKubeletServing(r); err != nil {
		return err
	}
	if err := tokens.CheckNodeName(strings.TrimPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix)); err != nil {
		return fmt.Errorf("no Node can have this name: %w", err)
	}
	return nil
}

// checkAPIServerClient: usage client auth, beside it at most digital signature and key
// encipherment. The group system:masters is refused for every signer, see [approval.CheckAdmission].
func checkAPIServerClient(r approval.Request) error {
	if !slices.Contains(r.Usages, certificates.UsageClientAuth) {
		return fmt.Errorf("usages are %q, want %q among them", r.Usages, certificates.UsageClientAuth)
	}
	for _, u := range r.Usages {
		switch u {
		case certificates.UsageClientAuth, certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment:
		default:
			return fmt.Errorf("usage %q is asked for, which a client certificate has not", u)
		}
	}
	return nil
}
