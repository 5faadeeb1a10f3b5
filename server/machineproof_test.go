package server_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// A copied connection records the bytes that its client sends.
type copied struct {
	net.Conn
	sent *bytes.Buffer
}

func (c copied) Write(p []byte) (int, error) { c.sent.Write(p); return c.Conn.Write(p) }

// A machine must have its private key. Catches a server that accepts only its certificate, or replayed bytes of an earlier handshake.
func TestProofWorksOnlyForItsMachine(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.add(t, "worker-1")
	shown := m.selfSigned(t)
	dial := func() net.Conn {
		c := must.Get((&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "https://")))
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var sent bytes.Buffer
	c := tls.Client(copied{dial(), &sent}, &tls.Config{RootCAs: s.roots(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{shown}})
	_ = must.Get(fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", joinPath("worker-1"), s.Minting.Advertise))
	if body := must.Get(io.ReadAll(c)); !bytes.Contains(body, []byte("kind: JoinConfiguration")) {
		t.Fatalf("got %s", body)
	}
	before, again := s.ids(t), dial()
	_ = must.Get(again.Write(sent.Bytes()))
	_, _ = io.Copy(io.Discard, again) // until the server closes it
	if after := s.ids(t); len(after) != 1 || after[0] != before[0] {
		t.Errorf("got tokens %q after a replay, want %q", after, before)
	}
	shown.PrivateKey = anotherKey{m.key.Public()}
	if r, err := s.showing(t, shown).Post(s.url+joinPath("worker-1"), "", nil); err == nil {
		_ = r.Body.Close()
		t.Errorf("without the key: got %s, want no handshake", r.Status)
	}
	if n := s.gauge(t, "kubejoin_machine_proofs_total", "granted"); n != 1 {
		t.Errorf("got %g proofs, want 1", n)
	}
}

// A machine must join again each time its disk is wiped, even without a rejoin window. These joins must not count as rejoins. All its
// certificates must have its limits. No log may contain its token.
func TestMachineJoinsAgainWithItsLimits(t *testing.T) {
	for _, window := range []time.Duration{0, 30 * 24 * time.Hour} {
		s, _ := certifying(t)
		nodes, uid := s.Certificates.Authority.Nodes, ""
		nodes.RejoinWindow = window
		nodes.Ready = func(context.Context, string) (string, error) { return "", nil }
		nodes.Node = func(context.Context, string) (string, error) {
			return uid, map[bool]error{true: tokens.ErrNotFound}[uid == ""]
		}
		s.start(t)
		m := s.add(t, "worker-1")
		s.changeMachine(t, "worker-1", func(m *tokens.Machine) { m.CertificateDuration, m.Rejoin = time.Hour, tokens.RejoinDeny })
		for i := range admission.DefaultRejoinBudget + 2 {
			if got, _ := s.post(t, s.showing(t, m.selfSigned(t)), joinPath("worker-1"), "", ""); got.status != 200 {
				t.Fatalf("window %s, proof %d: got %d %s", window, i, got.status, got.body)
			}
			token, joined := must.Get(s.store.List(t.Context()))[0].Token, machine{node: "worker-1", key: csrtest.NewKey()}
			joined.chain = must.Get(s.by(token.Reveal()).Certificate(t.Context(), signing("", csr(t, ofNode("worker-1"), joined.key))))
			uid = "uid"
			c := must.Get(storetest.UpdateClaim(t.Context(), s.Claims, "worker-1", func(c *tokens.Claim) error { c.NodeUID = uid; return nil }))
			renewed, _ := s.post(t, s.showing(t, joined.valid(t)), certificatePath, "", csr(t, ofNode("worker-1"), joined.key))
			for _, cert := range []machine{joined, {key: joined.key, chain: []byte(renewed.body)}} {
				if leaf := cert.valid(t).Leaf; leaf.NotAfter.Sub(leaf.NotBefore) > time.Hour+10*time.Minute {
					t.Errorf("window %s: got a certificate until %s, want an hour", window, leaf.NotAfter)
				}
			}
			if got, _ := s.post(t, s.showing(t, joined.expired(t, s.ca, nil)), certificatePath, "", nodeCSR(t, "worker-1")); got.status == 200 || len(c.Identity.Rejoins) > 0 {
				t.Errorf("window %s: got %d for an expired certificate, and claim %+v, want no rejoin", window, got.status, c)
			}
			if log := s.logs.String(); strings.Contains(log, token.Reveal()) || !strings.Contains(log, token.ID()) {
				t.Errorf("got a log with the secret, or without the ID, of token %s", token.ID())
			}
		}
	}
}

// If a proof fails halfway, the machine must get no token, and no token must remain. It must not be listed as an unknown machine.
func TestMachineProofFailsHalfway(t *testing.T) {
	errAway := errors.New("away")
	works := func(*testing.T, *site) storetest.Faulty { return storetest.Fail(errAway, "none") }
	for name, test := range map[string]struct {
		fault                   func(*testing.T, *site) storetest.Faulty
		status, tokens, pending int
	}{
		"claims unread":   {fault: func(*testing.T, *site) storetest.Faulty { return storetest.Fail(errAway, "Claims.Get.cached") }, status: 503},
		"claim unwritten": {fault: func(*testing.T, *site) storetest.Faulty { return storetest.Fail(errAway, "Claims.Update") }, status: 503},
		"machine deleted": {status: 503, fault: func(t *testing.T, s *site) storetest.Faulty {
			return storetest.Before(func() error {
				s.changeMachine(t, "worker-1", func(m *tokens.Machine) { *m = tokens.Machine{} })
				return nil
			}, "Claims.Update")
		}},
		"another proof": {status: 503, fault: func(t *testing.T, s *site) storetest.Faulty {
			return storetest.Before(func() error {
				s.changeMachine(t, "worker-1", func(m *tokens.Machine) { m.TokenID, m.TokenUID = "abcdef", "uid" })
				return nil
			}, "Claims.Update")
		}},
		"earlier token kept": {status: 503, tokens: 2, fault: func(t *testing.T, s *site) storetest.Faulty {
			id, _, _ := strings.Cut(s.token(t, nil), ".")
			uid := must.Get(s.store.Get(t.Context(), id, tokens.Live)).UID
			s.changeMachine(t, "worker-1", func(m *tokens.Machine) { m.TokenID, m.TokenUID = id, uid })
			return storetest.Fail(errAway, "Store.Delete")
		}},
		"earlier token gone": {status: 200, tokens: 1, fault: func(t *testing.T, s *site) storetest.Faulty {
			s.changeMachine(t, "worker-1", func(m *tokens.Machine) { m.TokenID, m.TokenUID = "abcdef", "uid" })
			return storetest.Fail(errAway, "none")
		}},
		"deleted by another replica": {status: 401, pending: 1, fault: func(t *testing.T, s *site) storetest.Faulty {
			stale := storetest.Stale(t, s.store, s.store.Claims())
			s.changeMachine(t, "worker-1", func(m *tokens.Machine) { *m = tokens.Machine{} })
			return stale
		}},
		"too many proofs": {status: 429, tokens: 1, fault: works},
		"nowhere to report": {status: 403, fault: func(t *testing.T, s *site) storetest.Faulty {
			s.changeMachine(t, "worker-1", func(m *tokens.Machine) { m.Revoked = true })
			return storetest.Fail(errAway, "none")
		}},
	} {
		s, _ := certifying(t)
		m := machine{node: "worker-1", key: csrtest.NewKey()}
		_, key := publicPEM(t, m.key)
		must.Get(storetest.CreateClaim(t.Context(), s.store.Claims(), tokens.Claim{Node: "worker-1", Machine: tokens.Machine{Key: key}}))
		faulty := test.fault(t, s)
		s.Certificates.Authority.Nodes.Claims, s.Tokens = faulty.Claims(s.store.Claims()), faulty.Store(s.store)
		s.Limits.UserRate = atFirst(2)
		s.start(t)
		if test.status == 429 {
			s.post(t, s.showing(t, m.selfSigned(t)), joinPath("worker-1"), "", "")
			s.post(t, s.showing(t, m.selfSigned(t)), joinPath("worker-1"), "", "")
		}
		got, p := s.post(t, s.showing(t, m.selfSigned(t)), joinPath("worker-1"), "", "")
		if got.status != test.status || got.status == 503 && !p.Named("store-unavailable") || strings.Contains(got.body, "JoinConfiguration") != (got.status == 200) || len(s.ids(t)) != test.tokens {
			t.Errorf("%s: got %d %s and tokens %q, want %d and %d", name, got.status, got.body, s.ids(t), test.status, test.tokens)
		}
		if pending := must.Get(s.by(adminBearer).ListPendingMachines(t.Context())).Items; len(pending) != test.pending {
			t.Errorf("%s: got pending machines %+v, want %d", name, pending, test.pending)
		}
	}
}

// Users see pending machines on terminals, and paste their commands. Catches an invalid name and a weak key in this list.
func TestRefusesHandshakesOfNoMachine(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	handler := must.Get(s.Server.Handler())
	weak := &must.Get(ecdsa.GenerateKey(elliptic.P224(), rand.Reader)).PublicKey
	for name, key := range map[string]any{"Worker-1": nil, "a;reboot": nil, strings.Repeat("a", 254): nil, "weak": weak} {
		r := unknownKey("192.0.2.1", name, 1)
		if key != nil {
			leaf := r.TLS.PeerCertificates[0]
			leaf.PublicKey, leaf.RawSubjectPublicKeyInfo = key, must.Get(x509.MarshalPKIXPublicKey(key))
		}
		if status, body := served(handler, r); status != 401 || !strings.Contains(body, "one self-signed client certificate") {
			t.Errorf("%s: got %d %s, want no machine", name, status, body)
		}
	}
}
