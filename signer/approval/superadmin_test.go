package approval_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"

	"github.com/kubejoin/kubejoin/signer/approval"
)

// A caller who may sign, but not approve, gets no certificate in group system:masters from the only signer that issues
// such certificates.
func TestSuperAdminNeedsPermissionToApprove(t *testing.T) {
	csr := &x509.CertificateRequest{Subject: pkix.Name{CommonName: approval.SuperAdmin, Organization: []string{"system:masters"}}}
	if got := approval.SystemName(csr); got != "system:masters" {
		t.Errorf("got reserved name %q, want system:masters", got)
	}
	if err := approval.CheckAdmission(approval.Request{SignerName: approval.SuperAdminSigner, User: "ada", CSR: csr}); err != nil {
		t.Errorf("the super-admin signer: %v", err)
	}
	if err := approval.CheckAdmission(approval.Request{SignerName: "example.com/any", User: "ada", CSR: csr}); err == nil {
		t.Error("another signer: got no error")
	}
}
