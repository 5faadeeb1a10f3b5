package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// Kubelet rules in the order of kube-controller-manager.
func Kubelet() []Rule { return []Rule{SelfNodeClient{}, NodeClient{}} }

// SelfNodeClient approves the renewal of a kubelet's client certificate, asked for by the node
// itself, if the node may create certificatesigningrequests/selfnodeclient.
type SelfNodeClient struct{}

// NodeClient approves a kubelet's client certificate for any requester that may create
// certificatesigningrequests/nodeclient: first certificates, asked for with a bootstrap token.
type NodeClient struct{}

// Name is "selfnodeclient".
func (SelfNodeClient) Name() string { return "selfnodeclient" }

// Name is "nodeclient".
func (NodeClient) Name() string { return "nodeclient" }

// Decide never denies: without the permission people may still approve by hand.
func (SelfNodeClient) Decide(ctx context.Context, r Request, f Facts) (Decision, error) {
	if r.CSR == nil || r.User != r.CSR.Subject.CommonName || CheckKubeletClient(r) != nil {
		return Decision{}, nil
	}
	return ifAllowed(ctx, r, f, "selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.")
}

// Decide never denies: without the permission people may still approve by hand.
func (NodeClient) Decide(ctx context.Context, r Request, f Facts) (Decision, error) {
	if CheckKubeletClient(r) != nil {
		return Decision{}, nil
	}
	return ifAllowed(ctx, r, f, "nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.")
}

func ifAllowed(ctx context.Context, r Request, f Facts, subresource, message string) (Decision, error) {
	if f == nil {
		return Decision{}, errors.New("no facts to ask for permissions")
	}
	permission := Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: subresource}
	allowed, err := f.Allowed(ctx, r, permission)
	if err != nil {
		return Decision{}, fmt.Errorf("may %q %s: %w", userName(r), permission, err)
	}
	if !allowed {
		return Decision{
			Reason:   ReasonNotPermitted,
			Message:  fmt.Sprintf("%q may not %s in certificates.k8s.io, so that automatic approval does not apply; 'kubectl certificate approve' does", userName(r), permission),
			Evidence: []string{fmt.Sprintf("%q may not %s", userName(r), permission)},
		}, nil
	}
	return Decision{
		Verdict: Approve, Reason: ReasonAutoApproved, Message: message,
		Evidence: []string{fmt.Sprintf("%q may %s", userName(r), permission)},
	}, nil
}

// userName is the requester, in a sentence.
func userName(r Request) string { return foreign.Text(r.User, foreign.MaxName) }

// CheckKubeletClient says why a request is not one for a kubelet's client certificate, or nil:
// signer kubernetes.io/kube-apiserver-client-kubelet, organization exactly system:nodes, common
// name system:node:NAME, no subject alternative names, usages digital signature and client auth,
// with or without key encipherment. These are kube-controller-manager's rules, except that it
// lets an empty NAME pass.
func CheckKubeletClient(r Request) error {
	if r.SignerName != certificates.KubeAPIServerClientKubeletSignerName {
		return fmt.Errorf("signer name is %q, want %q", r.SignerName, certificates.KubeAPIServerClientKubeletSignerName)
	}
	if err := CheckNodeSubject(r); err != nil {
		return err
	}
	c := r.CSR
	for _, san := range []struct {
		kind  string
		count int
	}{{"DNS", len(c.DNSNames)}, {"IP", len(c.IPAddresses)}, {"email", len(c.EmailAddresses)}, {"URI", len(c.URIs)}} {
		if san.count > 0 {
			return fmt.Errorf("%d %s subject alternative names given, want none", san.count, san.kind)
		}
	}
	return CheckUsages(r, certificates.UsageDigitalSignature, certificates.UsageClientAuth)
}

// CheckNodeSubject says why the subject of a request is not that of a node, or nil: organization
// exactly system:nodes, common name system:node:NAME.
func CheckNodeSubject(r Request) error {
	if r.CSR == nil {
		return errors.New("no certificate request given")
	}
	s := r.CSR.Subject
	if !slices.Equal(s.Organization, []string{tokens.NodesGroup}) {
		return fmt.Errorf("subject organization is %q, want exactly [%q]", s.Organization, tokens.NodesGroup)
	}
	name, found := strings.CutPrefix(s.CommonName, tokens.NodeUserPrefix)
	if !found {
		return fmt.Errorf("subject common name is %q, want %sNAME", s.CommonName, tokens.NodeUserPrefix)
	}
	if name == "" {
		return fmt.Errorf("subject common name is %q: the node name is empty", s.CommonName)
	}
	return nil
}

// CheckUsages says why the usages of a request are not exactly the set of those required, with
// or without key encipherment, or nil. RSA keys have that in TLS 1.2, others have no use for it;
// Kubernetes lets every key ask for it.
func CheckUsages(r Request, required ...certificates.KeyUsage) error {
	for _, u := range required {
		if !slices.Contains(r.Usages, u) {
			return fmt.Errorf("usages are %q, want %q and at most key encipherment beside", r.Usages, required)
		}
	}
	for _, u := range r.Usages {
		if u != certificates.UsageKeyEncipherment && !slices.Contains(required, u) {
			return fmt.Errorf("usages are %q, want %q and at most key encipherment beside", r.Usages, required)
		}
	}
	return nil
}
