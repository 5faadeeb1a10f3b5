package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// Kubelet returns the rules of kube-controller-manager for kubelets, in its order.
func Kubelet() []Rule { return []Rule{SelfNodeClient{}, NodeClient{}} }

// SelfNodeClient approves the renewal of a kubelet's client certificate. The node itself must request it, and must
// have permission to create certificatesigningrequests/selfnodeclient.
type SelfNodeClient struct{}

// NodeClient approves a kubelet's client certificate for any requester that may create
// certificatesigningrequests/nodeclient. These are first certificates, requested with a bootstrap token.
type NodeClient struct{}

// Name returns "selfnodeclient".
func (SelfNodeClient) Name() string { return "selfnodeclient" }

// Name returns "nodeclient".
func (NodeClient) Name() string { return "nodeclient" }

// Decide never denies: if the permission is missing, people may still approve by hand.
func (SelfNodeClient) Decide(ctx context.Context, r Request, f Facts) (Decision, error) {
	if r.CSR == nil || r.User != r.CSR.Subject.CommonName || CheckKubeletClient(r) != nil {
		return Decision{}, nil
	}
	return ifAllowed(ctx, r, f, "selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.")
}

// Decide never denies: if the permission is missing, people may still approve by hand.
func (NodeClient) Decide(ctx context.Context, r Request, f Facts) (Decision, error) {
	if CheckKubeletClient(r) != nil {
		return Decision{}, nil
	}
	return ifAllowed(ctx, r, f, "nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.")
}

func ifAllowed(ctx context.Context, r Request, f Facts, subresource, message string) (Decision, error) {
	if f == nil {
		return Decision{}, errors.New("cannot check permissions: want Facts")
	}
	permission := Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: subresource}
	allowed, err := f.Allowed(ctx, r, permission)
	if err != nil {
		return Decision{}, fmt.Errorf("check whether %q may %s: %w", userName(r), permission, err)
	}
	if !allowed {
		return notPermitted(r, permission.String()), nil
	}
	return Decision{
		Verdict: Approve, Reason: ReasonAutoApproved, Message: message,
		Evidence: []string{fmt.Sprintf("%q may %s", userName(r), permission)},
	}, nil
}

// notPermitted returns None for a request whose requester lacks the permission what.
func notPermitted(r Request, what string) Decision {
	return Decision{
		Reason:   ReasonNotPermitted,
		Message:  fmt.Sprintf("%q may not %s in certificates.k8s.io, so kubejoin does not approve the request automatically; %s", userName(r), what, byHand(r)),
		Evidence: []string{fmt.Sprintf("%q may not %s", userName(r), what)},
	}
}

// userName returns the requester for a sentence: redacted, printable and short.
func userName(r Request) string { return safetext.Text(r.User, safetext.MaxName) }

// CheckKubeletClient returns an error unless a request is for a kubelet's client certificate:
//
//   - signer kubernetes.io/kube-apiserver-client-kubelet,
//   - organization exactly system:nodes, common name system:node:NAME,
//   - no subject alternative names,
//   - usages digital signature and client auth, with or without key encipherment.
//
// These are kube-controller-manager's rules, except that it accepts an empty NAME.
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

// CheckNodeSubject returns an error unless the subject of a request is a node's subject: organization exactly
// system:nodes, common name system:node:NAME, NAME not empty.
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

// CheckUsages returns an error unless a request has exactly the required usages, with or without key encipherment.
// RSA keys use key encipherment in TLS 1.2; other keys do not need it. Kubernetes allows it for every key.
func CheckUsages(r Request, required ...certificates.KeyUsage) error {
	missing := func(u certificates.KeyUsage) bool { return !slices.Contains(r.Usages, u) }
	other := func(u certificates.KeyUsage) bool {
		return u != certificates.UsageKeyEncipherment && !slices.Contains(required, u)
	}
	if slices.ContainsFunc(required, missing) || slices.ContainsFunc(r.Usages, other) {
		return fmt.Errorf("usages are %s, want %s and optionally key encipherment", safetext.List(r.Usages, "and"), safetext.List(required, "and"))
	}
	return nil
}
