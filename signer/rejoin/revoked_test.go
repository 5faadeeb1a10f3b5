package rejoin_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/rejoin"
	"github.com/kubejoin/kubejoin/signer/rejoin/proof"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

func (w *world) revocations() *revocation.Guard {
	return &revocation.Guard{Store: rowlist.New(w.store.Revocations()), Now: func() time.Time { return w.now }}
}

func (w *world) revoke(t *testing.T, e revocation.Entry) {
	t.Helper()
	if _, err := w.revocations().Revoke(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// signed returns the error of a request for the first certificate of a machine.
func (w *world) signed(t *testing.T, d *rejoin.Desk, node, user string) error {
	t.Helper()
	_, err := d.Authority.Sign(t.Context(), approval.Request{
		SignerName: certificates.KubeAPIServerClientKubeletSignerName, User: user, Created: w.now,
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		CSR:    csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, csrtest.NewKey()),
	})
	return err
}

// A revoked machine must not come back: neither before nor after its certificate has expired, neither with its
// certificate nor with a bound key, and not with the token of a rejoin from before.
func TestRevokedMachineDoesNotComeBack(t *testing.T) {
	for name, entry := range map[string]func(machine) revocation.Entry{
		"node": func(machine) revocation.Entry { return revocation.Entry{Node: "worker-1", Reason: "stolen"} },
		"certificate": func(m machine) revocation.Entry {
			block, _ := pem.Decode(m.chain)
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			return revocation.Entry{Fingerprint: revocation.FingerprintOf(cert)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.nodes = map[string]string{}
			d := w.desk()
			m := w.join(t, d, "worker-1", "jane", "uid-1")
			kept, public := w.bind(t, d, m)
			before, err := w.rejoin(t, d, m)
			if err != nil {
				t.Fatal(err)
			}
			w.revoke(t, entry(m))
			_, err = w.rejoin(t, d, m)
			wantReason(t, "valid certificate", err, "Revoked")
			wantReason(t, "token of a rejoin from before", w.signed(t, d, "worker-1", "system:bootstrap:"+before.Token.ID()), "Revoked")
			w.now = w.now.Add(2 * time.Hour)
			_, err = w.rejoin(t, d, m)
			wantReason(t, "expired certificate", err, "Revoked")
			_, err = d.Rejoin(t.Context(), kept.bound(t, d, public), netip.Addr{})
			wantReason(t, "bound key", err, "Revoked")
		})
	}
}

// A revoked node that an operator lets join again must be able to rejoin like any other, also with a bound key.
func TestReplacedMachineOfRevokedNodeComesBack(t *testing.T) {
	w := newWorld(t)
	w.nodes = map[string]string{}
	d := w.desk()
	stolen := w.join(t, d, "worker-1", "jane", "uid-1")
	w.revoke(t, revocation.Entry{Node: "worker-1"})
	replace := tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: "uid-1"}}
	m := w.sign(t, d.Authority, "worker-1", w.token(t, replace))
	kept, public := w.bind(t, d, m)
	for range 2 {
		w.now = w.now.Add(2 * time.Hour)
		record, err := w.rejoin(t, d, m)
		if err != nil {
			t.Fatal(err)
		}
		m = w.sign(t, d.Authority, "worker-1", "system:bootstrap:"+record.Token.ID())
	}
	w.now = w.now.Add(2 * time.Hour)
	if _, err := d.Rejoin(t.Context(), kept.bound(t, d, public), netip.Addr{}); err != nil {
		t.Errorf("bound key: %v", err)
	}
	_, err := w.rejoin(t, d, stolen)
	wantReason(t, "the stolen machine", err, "Revoked")
}

// Revocations that cannot be read must not let a machine rejoin, and are not its fault.
func TestUnreadableRevocationsAreNoRefusal(t *testing.T) {
	w := newWorld(t)
	w.nodes = map[string]string{}
	d := w.desk()
	m := w.join(t, d, "worker-1", "jane", "uid-1")
	d.Authority.Revocations.Store = unreadable{d.Authority.Revocations.Store}
	if _, err := w.rejoin(t, d, m); !errors.Is(err, errUnknown) {
		t.Errorf("got %v, want an error", err)
	}
}

type unreadable struct{ revocation.Store }

func (unreadable) Get(context.Context, revocation.Key) (revocation.Entry, error) {
	return revocation.Entry{}, errUnknown
}

// bind binds a new key to a machine, and returns it as a machine, and as PEM.
func (w *world) bind(t *testing.T, d *rejoin.Desk, m machine) (kept machine, public []byte) {
	t.Helper()
	kept = machine{node: m.node, key: csrtest.Ed25519()}
	der, err := x509.MarshalPKIXPublicKey(kept.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Second)
	r := m.request(t, d)
	r.Key = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if r.Signature, err = proof.Sign(m.key, proof.Bind(r.Challenge, m.node, server, keyID(der))); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Bind(t.Context(), r, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	return kept, r.Key
}

// bound returns the request of a machine that has only its bound key.
func (m machine) bound(t *testing.T, d *rejoin.Desk, public []byte) rejoin.Request {
	t.Helper()
	r := m.request(t, d)
	r.Node, r.PublicKey = m.node, public
	return r
}
