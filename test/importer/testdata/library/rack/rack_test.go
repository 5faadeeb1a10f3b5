package rack

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

func TestDecide(t *testing.T) {
	known := rack{"system:node:worker-1": true}
	for name, want := range map[string]approval.Verdict{
		"system:node:worker-1": approval.Approve,
		"system:node:worker-2": approval.Deny,
		"kubernetes-admin":     approval.None,
	} {
		got, err := known.Decide(t.Context(), approval.Request{
			SignerName: certificates.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
			CSR:        &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: []string{"system:nodes"}}},
		}, nil)
		if err != nil || got.Verdict != want {
			t.Errorf("%s: got %s, %v, want %s", name, got.Verdict, err, want)
		}
	}
}
