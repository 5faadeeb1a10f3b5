package approval_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// A rack is a rule with the common names that may have a certificate.
type rack map[string]bool

func (rack) Name() string { return "rack" }

func (known rack) Decide(_ context.Context, r approval.Request, _ approval.Facts) (approval.Decision, error) {
	if approval.CheckKubeletClient(r) != nil {
		return approval.Decision{}, nil // None: not a kubelet's client certificate
	}
	if name := r.CSR.Subject.CommonName; !known[name] {
		return approval.Decision{Verdict: approval.Deny, Reason: "NotInRack", Message: name + " is not in the rack"}, nil
	}
	return approval.Decision{Verdict: approval.Approve, Reason: "InRack"}, nil
}

// Put the rule into Rules of a signer.Signer.
func ExampleRule() {
	var rule approval.Rule = rack{"system:node:worker-1": true}
	for _, name := range []string{"system:node:worker-1", "system:node:worker-2", "kubernetes-admin"} {
		decision, err := rule.Decide(context.Background(), approval.Request{
			SignerName: certificates.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
			CSR:        &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: []string{"system:nodes"}}},
		}, nil)
		fmt.Println(name, decision.Verdict, err)
	}
	// Output:
	// system:node:worker-1 approve <nil>
	// system:node:worker-2 deny <nil>
	// kubernetes-admin none <nil>
}
