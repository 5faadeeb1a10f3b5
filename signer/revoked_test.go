package signer_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	certificates "k8s.io/api/certificates/v1"
)

// unreadable is a store of revocations whose calls fail.
func unreadable() revocation.Store {
	return revocationtest.Before(nil, func(string, revocation.Key) error { return errors.New("away") })
}

// renewal returns a request of a node with a certificate for its own name.
func renewal(t *testing.T, credential revocation.Fingerprint) approval.Request {
	t.Helper()
	r := nodeRequest(t, "system:node:worker-1", "worker-1")
	r.Groups = []string{"system:nodes", "system:authenticated"}
	r.Extra = map[string][]string{revocation.CredentialIDKey: {credential.CredentialID()}}
	return r
}

// Catches a certificate for a revoked credential: approved by the rules, approved by a person, or revoked at any moment
// of the request.
func TestRevokedCredentialGetsNoCertificate(t *testing.T) {
	stolen := must.Get(revocation.ParseFingerprint("aa00000000000000000000000000000000000000000000000000000000000000"))
	causes := map[string]revocation.Entry{"node": {Node: "worker-1", Reason: "stolen"}, "certificate": {Fingerprint: stolen}}
	authority := func(t *testing.T, store revocation.Store) *signer.Authority {
		signers := must.Get(signer.KubernetesSigners(signer.Fixed(newCA(t)), time.Hour))
		return &signer.Authority{Signers: signer.FixedSigners(signers), Facts: allowsAll{}, Revocations: &revocation.Guard{Store: store}}
	}
	refused := func(t *testing.T, err error) {
		t.Helper()
		if r := approval.Refused(err); r == nil || r.Reason != revocation.Reason {
			t.Errorf("got %v, want reason %s", err, revocation.Reason)
		}
	}
	for name, entry := range causes {
		t.Run(name, func(t *testing.T) {
			revoked := rowlist.New(memdb.Open().Revocations())
			must.Get((&revocation.Guard{Store: revoked}).Revoke(t.Context(), entry))
			a := authority(t, revoked)
			for _, signerName := range []string{certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName} {
				r := renewal(t, stolen)
				r.SignerName = signerName
				admission, err := a.Decide(t.Context(), r)
				if refused(t, err); admission != nil {
					t.Errorf("%s: got an admission", signerName)
				}
			}
			chain, err := a.Sign(t.Context(), renewal(t, stolen))
			refused(t, err)
			if chain != nil {
				t.Error("got a certificate")
			}
			if e := a.Explain(t.Context(), renewal(t, stolen)); e.Decision.Reason != revocation.Reason {
				t.Errorf("explanation: got %+v", e.Decision)
			}

			// Revoke before the first, the second and each later call of the store.
			for at := 1; ; at++ {
				guard, calls := &revocation.Guard{Store: rowlist.New(memdb.Open().Revocations())}, 0
				store := revocationtest.Before(guard.Store, func(method string, _ revocation.Key) error {
					if method == "Find" {
						return nil
					}
					if calls++; calls == at {
						must.Get(guard.Revoke(t.Context(), entry))
					}
					return nil
				})
				a, log := authority(t, store), &entries{}
				a.Record = log
				chain, err := a.Issue(t.Context(), renewal(t, stolen))
				if approval.Refused(err) != nil && !strings.HasSuffix(log.outcomes(), "refused") {
					t.Errorf("revoked before call %d: recorded %q, want the refusal, too", at, log.outcomes())
				}
				if calls < at {
					if err != nil || chain == nil {
						t.Fatalf("not revoked: %v", err)
					}
					if at < 4 {
						t.Errorf("%d calls, want the credential read for the decision and again for the certificate", calls)
					}
					break
				}
				// After the last check has begun, a certificate may be delivered. The entry must bar it, too, unless
				// the entry is for another certificate.
				if chain != nil && entry.Node != "" && must.Get(guard.RevokedCertificate(t.Context(), decode(t, chain)[0])) == nil {
					t.Errorf("revoked before call %d: got a certificate that is not barred", at)
				}
			}
		})
	}
}

// Catches a certificate that is delivered although the revocations could not be read, and an error that becomes a
// refusal.
func TestUnreadableRevocationsAreNoRefusal(t *testing.T) {
	a := &signer.Authority{
		Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(newCA(t)), time.Hour))), Facts: allowsAll{}, Revocations: &revocation.Guard{Store: unreadable()},
	}
	r := renewal(t, must.Get(revocation.ParseFingerprint("aa00000000000000000000000000000000000000000000000000000000000000")))
	_, err := a.Decide(t.Context(), r)
	if d, failure := said(err); d.Verdict != approval.Wait || failure == nil {
		t.Errorf("got %+v, %v, want to wait", d, err)
	}
	if chain, err := a.Sign(t.Context(), r); chain != nil || err == nil || approval.Refused(err) != nil {
		t.Errorf("got %q, %v, want an error that is no refusal", chain, err)
	}
}

// A bound key outlasts the certificate that has bound it. Catches a key that a revoked certificate has bound before the
// server's cache had the revocation.
func TestRevokedCertificateBindsNoKey(t *testing.T) {
	store := memdb.Open()
	guard := &revocation.Guard{Store: rowlist.New(store.Revocations())}
	a := &signer.Authority{Revocations: guard, Nodes: &admission.Nodes{Claims: store.Claims(), RejoinWindow: time.Hour}}
	cert := &x509.Certificate{Raw: []byte("stolen"), Subject: pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}}}
	bind := func(reason string) {
		t.Helper()
		var refused *approval.Error
		if err := a.BindKey(t.Context(), cert, "sha256:key"); !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != reason {
			t.Errorf("got %v, want reason %s", err, reason)
		}
	}
	bind(admission.ReasonKeyNotCurrent)
	must.Get(guard.Revoke(t.Context(), revocation.Entry{Fingerprint: revocation.FingerprintOf(cert)}))
	bind(revocation.Reason)
	guard.Store = unreadable()
	if err := a.BindKey(t.Context(), cert, "sha256:key"); err == nil || approval.Refused(err) != nil {
		t.Errorf("got %v, want an error that is no refusal", err)
	}
}
