package enforce

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

func TestIssue(t *testing.T) {
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	store := memdb.Open()
	authority, err := newAuthority(ca, store, store.Claims())
	if err != nil {
		t.Fatal(err)
	}
	token := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	token.Limits.MaxNodes = 1
	if token, err = store.Create(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ node, reason string }{{"worker-7", ""}, {"worker-8", "TokenSpent"}} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		subject := pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + test.node}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
		if err != nil {
			t.Fatal(err)
		}
		chain, err := issue(t.Context(), authority, token, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		reason := ""
		if refused := approval.Refused(err); refused != nil {
			reason, err = refused.Reason, nil
		}
		if err != nil || reason != test.reason || (chain != nil) != (test.reason == "") {
			t.Errorf("%s: got reason %q, %v, want %q", test.node, reason, err, test.reason)
		}
	}
}
