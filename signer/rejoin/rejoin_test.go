package rejoin_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/rejoin"
	"github.com/kubejoin/kubejoin/signer/rejoin/proof"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificates "k8s.io/api/certificates/v1"
)

const server = "join.example.com"

// A world is a store with a CA, and the clock of everything.
type world struct {
	store *boltstore.Store
	ca    *signer.CA
	now   time.Time
	nodes map[string]string // UIDs; nil without Nodes
}

func newWorld(t testing.TB) *world {
	t.Helper()
	store, err := boltstore.Open(filepath.Join(t.TempDir(), "kubejoin.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	w := &world{store: store, now: time.Now().Add(time.Minute)} // later than what the store creates
	if w.ca, err = signer.GenerateCA("kubernetes", time.Now(), 1000*time.Hour); err != nil {
		t.Fatal(err)
	}
	return w
}

// desk returns the Desk of one replica.
func (w *world) desk() *rejoin.Desk {
	now := func() time.Time { return w.now }
	nodes := &admission.Nodes{Tokens: w.store, Claims: w.store.Claims(), RejoinWindow: 30 * 24 * time.Hour, Now: now}
	if w.nodes != nil {
		nodes.Node = func(_ context.Context, name string) (string, error) {
			if uid := w.nodes[name]; uid != "" {
				return uid, nil
			}
			return "", tokens.ErrNotFound
		}
	}
	return &rejoin.Desk{
		Authority: &signer.Authority{
			Signers: signer.FixedSigners(signer.KubernetesSigners(signer.Fixed(w.ca), time.Hour)), Nodes: nodes, Now: now, Revocations: w.revocations(),
		},
		IsServer: func(host string) bool { return host == server }, Now: now,
	}
}

// A machine is a node with its key and certificate.
type machine struct {
	node  string
	key   crypto.Signer
	chain []byte
}

// sign has the certificate of a machine with a new key signed by an authority.
func (w *world) sign(t testing.TB, a *signer.Authority, node, user string) machine {
	t.Helper()
	m := machine{node: node, key: csrtest.NewKey()}
	r := approval.Request{
		SignerName: certificates.KubeAPIServerClientKubeletSignerName, User: user, Created: w.now,
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		CSR:    csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, m.key),
	}
	if user == "system:node:"+node {
		r.Groups = []string{"system:nodes"}
	}
	var err error
	if m.chain, err = a.Sign(t.Context(), r); err != nil {
		t.Fatalf("certificate for %s as %s: %v", node, user, err)
	}
	return m
}

// join has a first certificate signed, and lets the Node register with this UID.
func (w *world) join(t testing.TB, d *rejoin.Desk, node, user, uid string) machine {
	t.Helper()
	m := w.sign(t, d.Authority, node, user)
	w.nodes[node] = uid
	if _, err := w.store.Claims().Update(t.Context(), node, func(c *tokens.Claim) error { // as claim-cleaner does
		c.Identity.NodeUID = uid
		if !c.Released() {
			c.NodeUID = uid
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

// request returns the signed request of a machine.
func (m machine) request(t testing.TB, d *rejoin.Desk) rejoin.Request {
	t.Helper()
	challenge, _, err := d.Challenge()
	if err != nil {
		t.Fatal(err)
	}
	r := rejoin.Request{Certificate: m.chain, Challenge: challenge, Server: server}
	if r.Signature, err = proof.Sign(m.key, proof.Rejoin(challenge, m.node, server)); err != nil {
		t.Fatal(err)
	}
	return r
}

func (w *world) rejoin(t testing.TB, d *rejoin.Desk, m machine) (tokens.Record, error) {
	t.Helper()
	w.now = w.now.Add(time.Second) // challenges differ in their time
	return d.Rejoin(t.Context(), m.request(t, d), netip.Addr{})
}

func wantReason(t *testing.T, what string, err error, reason string) {
	t.Helper()
	var refused *approval.Refused
	var no *rejoin.Unproven
	if errors.As(err, &refused) && refused.Reason == reason || errors.As(err, &no) && no.Reason == reason {
		return
	}
	t.Errorf("%s: got %v, want %s", what, err, reason)
}

func (w *world) token(t testing.TB, limits tokens.Limits) string {
	t.Helper()
	r := tokens.NewRecord(tokens.Generate(), 1000*time.Hour, w.now)
	r.Limits = limits
	r, err := w.store.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return "system:bootstrap:" + r.Token.ID()
}

// A machine whose certificate expired must get one token, for its own Node only, get a certificate on it, and be able to
// do so again until the budget is spent. The keys from before the last two must be worthless.
func TestExpiredNodeComesBack(t *testing.T) {
	for name, nodes := range map[string]map[string]string{"cluster": {}, "standalone": nil} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.nodes = nodes
			d, other := w.desk(), w.desk()
			user, uid := w.token(t, tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour}), "uid-1"
			var m machine
			if nodes != nil {
				m = w.join(t, d, "worker-1", user, uid)
			} else {
				m = w.sign(t, d.Authority, "worker-1", user)
				uid = keyOf(t, m.key)
			}
			copied := m // of the disk
			for i := range rejoin.DefaultBudget {
				w.now = w.now.Add(24 * time.Hour)
				record, err := w.rejoin(t, d, m)
				if err != nil {
					t.Fatal(err)
				}
				want := tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: uid}, CertificateDuration: time.Hour}
				if !record.Limits.Equal(want) || record.Signing || !record.Authentication || record.Expires.Sub(w.now) > 10*time.Minute {
					t.Errorf("got token %+v", record)
				}
				if again, err := w.rejoin(t, other, m); err != nil || again.Token != record.Token {
					t.Errorf("the other replica: got %v, %v, want the same token %v", again.Token, err, record.Token)
				}
				m = w.sign(t, other.Authority, "worker-1", "system:bootstrap:"+record.Token.ID())
				if i == 0 {
					continue
				}
				_, err = w.rejoin(t, d, copied)
				wantReason(t, "old copy of the disk", err, "KeyNotCurrent")
			}
			_, err := w.rejoin(t, d, m)
			wantReason(t, "fourth rejoin", err, "RejoinBudgetSpent")
			w.now = w.now.Add(31 * 24 * time.Hour)
			_, err = w.rejoin(t, d, m)
			wantReason(t, "after the window", err, "RejoinTooLate")
		})
	}
}

// Each request that is not that of the node must be refused, and leave no token.
func TestDeskRefuses(t *testing.T) {
	w := newWorld(t)
	w.nodes = map[string]string{}
	d := w.desk()
	m := w.join(t, d, "worker-1", "jane", "uid-1")
	victim := w.join(t, d, "worker-2", "jane", "uid-2")
	w.now = w.now.Add(2 * time.Hour)

	_, err := w.rejoin(t, d, machine{node: "worker-2", key: m.key, chain: victim.chain})
	wantReason(t, "another node's certificate", err, "SignatureInvalid")
	foreign := newWorld(t)
	_, err = w.rejoin(t, d, foreign.sign(t, foreign.desk().Authority, "worker-1", "jane"))
	wantReason(t, "certificate of another CA", err, "CertificateInvalid")
	r := m.request(t, foreign.desk())
	_, err = d.Rejoin(t.Context(), r, netip.Addr{})
	wantReason(t, "challenge of another server", err, "ChallengeInvalid")

	bound := m.request(t, d)
	bound.Certificate, bound.Node = nil, "worker-1"
	der, err := x509.MarshalPKIXPublicKey(m.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	bound.PublicKey = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	_, err = d.Rejoin(t.Context(), bound, netip.Addr{})
	wantReason(t, "key that is not bound", err, "KeyNotCurrent")

	w.nodes["worker-1"] = "uid-3"
	_, err = w.rejoin(t, d, m)
	wantReason(t, "Node created again", err, "NodeReplaced")
	delete(w.nodes, "worker-1")
	_, err = w.rejoin(t, d, m)
	wantReason(t, "Node deleted", err, "NodeNotFound")
	w.nodes["worker-1"] = "uid-1"
	d.Authority.Nodes.RejoinWindow = 0
	_, _, err = d.Challenge()
	wantReason(t, "challenge without a window", err, "RejoinOff")
	_, err = d.Rejoin(t.Context(), rejoin.Request{}, netip.Addr{})
	wantReason(t, "without a window", err, "RejoinOff")
	d.Authority.Nodes.RejoinWindow = time.Hour
	_, err = w.rejoin(t, d, m)
	wantReason(t, "after a shorter window", err, "RejoinTooLate")
	d.Authority.Nodes.RejoinWindow = 24 * time.Hour

	c, err := w.store.Claims().Get(t.Context(), "worker-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.Claims().Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	_, err = w.rejoin(t, d, m)
	wantReason(t, "claim released", err, "KeyNotCurrent")
	if all, err := w.store.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("got tokens %v, %v, want none", all, err)
	}

	r = victim.request(t, d)
	if _, err = d.Rejoin(t.Context(), r, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	_, err = d.Rejoin(t.Context(), r, netip.Addr{})
	wantReason(t, "replayed challenge", err, "ChallengeUsed")
}

var errUnknown = errors.New("not known now")

// A machine without a disk must come back with a key that it bound, again and again.
func TestDisklessNodeComesBackWithBoundKey(t *testing.T) {
	w := newWorld(t)
	w.nodes = map[string]string{}
	d := w.desk()
	d.Budget = 10
	m := w.join(t, d, "worker-1", "jane", "uid-1")
	kept := csrtest.Ed25519()
	der, err := x509.MarshalPKIXPublicKey(kept.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	bind := func(signer crypto.Signer, key []byte, id string) (string, error) {
		w.now = w.now.Add(time.Second)
		r := m.request(t, d)
		r.Key = key
		r.Signature, _ = proof.Sign(signer, proof.Bind(r.Challenge, "worker-1", server, id))
		return d.Bind(t.Context(), r, netip.Addr{})
	}
	var events []string
	d.Event = func(node string, refused bool, reason, message string) {
		if reason == "KeyBound" && strings.Contains(message, keyID(der)) {
			events = append(events, fmt.Sprint(node, refused))
		}
	}
	_, err = bind(m.key, nil, "")
	wantReason(t, "no key", err, "CertificateInvalid")
	_, err = bind(kept, public, keyID(der))
	wantReason(t, "signed by another key", err, "SignatureInvalid")
	if id, err := bind(m.key, public, keyID(der)); err != nil || id != keyID(der) {
		t.Fatalf("got %s, %v", id, err)
	}
	if id, err := bind(m.key, public, keyID(der)); err != nil || id != keyID(der) {
		t.Errorf("the same key again: got %s, %v", id, err)
	}
	if want := []string{"worker-1false"}; !slices.Equal(events, want) {
		t.Errorf("got Events %q of bound keys, want one", events)
	}
	other, _ := x509.MarshalPKIXPublicKey(csrtest.NewKey().Public())
	_, err = bind(m.key, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: other}), keyID(other))
	wantReason(t, "another key", err, "KeyNotCurrent")
	for range 10 {
		w.now = w.now.Add(time.Minute)
		r := machine{node: "worker-1", key: kept}.request(t, d)
		r.Node, r.PublicKey = "worker-1", public
		record, err := d.Rejoin(t.Context(), r, netip.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		w.sign(t, d.Authority, "worker-1", "system:bootstrap:"+record.Token.ID())
	}
	w.now = w.now.Add(time.Minute)
	r := machine{node: "worker-1", key: kept}.request(t, d)
	r.Node, r.PublicKey = "worker-1", public
	_, err = d.Rejoin(t.Context(), r, netip.Addr{})
	wantReason(t, "eleventh rejoin", err, "RejoinBudgetSpent")
}

func keyID(der []byte) string { return pkcs10.IDOfKey(der) }

func keyOf(t *testing.T, key crypto.Signer) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return keyID(der)
}

// faulty fails a share of the calls of a store, some of them after they took effect.
func faulty() error {
	switch rand.IntN(10) {
	case 0, 1, 2:
		return errUnknown
	}
	return nil
}

type faultyClaims struct{ tokens.Claims }

func (c faultyClaims) Update(ctx context.Context, node string, change func(*tokens.Claim) error) (tokens.Claim, error) {
	if err := faulty(); err != nil && rand.IntN(2) == 0 {
		return tokens.Claim{}, err
	}
	claim, err := c.Claims.Update(ctx, node, change)
	return claim, errors.Join(err, faulty())
}

type faultyTokens struct{ tokens.Store }

func (s faultyTokens) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	if err := faulty(); err != nil && rand.IntN(2) == 0 {
		return tokens.Record{}, err
	}
	r, err := s.Store.Create(ctx, r)
	return r, errors.Join(err, faulty())
}

func (s faultyTokens) Get(ctx context.Context, id string) (tokens.Record, error) {
	if err := faulty(); err != nil {
		return tokens.Record{}, err
	}
	return s.Store.Get(ctx, id)
}

// 200 machines rejoin at two replicas at once, each at both, while calls of the store fail: each machine must get exactly
// one token, and spend one rejoin of its budget.
func TestConcurrentRejoinsGetOneTokenEach(t *testing.T) {
	const machines = 200
	w := newWorld(t)
	w.nodes = map[string]string{}
	prepare := w.desk()
	all := make([]machine, machines)
	for i := range all {
		all[i] = w.join(t, prepare, fmt.Sprint("worker-", i), "jane", "uid")
	}
	var replicas []*rejoin.Desk
	for range 2 {
		d := w.desk()
		d.Now = time.Now // machines retry, and challenges must differ
		n := d.Authority.Nodes
		n.Claims, n.Tokens = faultyClaims{n.Claims}, faultyTokens{n.Tokens}
		replicas = append(replicas, d)
	}
	var mu sync.Mutex
	got := map[string][]tokens.Token{}
	var rejoining sync.WaitGroup
	for _, m := range all {
		for _, d := range replicas {
			rejoining.Go(func() {
				for range 200 {
					record, err := d.Rejoin(t.Context(), m.request(t, d), netip.Addr{})
					var refused *approval.Refused
					switch {
					case err == nil:
						mu.Lock()
						got[m.node] = append(got[m.node], record.Token)
						mu.Unlock()
						return
					case errors.As(err, &refused) && refused.Reason != "ChallengeUsed":
						t.Errorf("%s: %v", m.node, err)
						return
					}
				}
				t.Errorf("%s got no token in 200 attempts", m.node)
			})
		}
	}
	rejoining.Wait()
	for _, m := range all {
		if all := got[m.node]; len(all) != 2 || all[0] != all[1] {
			t.Errorf("%s got tokens %v, want one, from both replicas", m.node, all)
		}
		c, err := w.store.Claims().Get(t.Context(), m.node)
		if err != nil || len(c.Identity.Rejoins) != 1 {
			t.Errorf("%s: got rejoins %v, %v, want one", m.node, c.Identity.Rejoins, err)
		}
	}
	if stored, err := w.store.List(t.Context()); err != nil || len(stored) != machines {
		t.Errorf("got %d tokens, %v, want %d", len(stored), err, machines)
	}
}

// A token that has the ID of a grant by chance, or was put there, must not be given away.
func TestGivesAwayNoOtherToken(t *testing.T) {
	w := newWorld(t)
	d := w.desk()
	m := w.sign(t, d.Authority, "worker-1", "jane")
	record, err := w.rejoin(t, d, m)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.Delete(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if again, err := w.rejoin(t, d, m); err != nil || again.Token.ID() != record.Token.ID() || again.Token == record.Token {
		t.Errorf("after the token was deleted: got %v, %v, want another secret under its ID", again.Token, err)
	}
	if _, err := w.store.Update(t.Context(), record.Token.ID(), func(r *tokens.Record) error { r.Limits = tokens.Limits{}; return nil }); err != nil {
		t.Fatal(err)
	}
	if again, err := w.rejoin(t, d, m); err == nil {
		t.Errorf("got token %v of somebody else", again.Token)
	}
}

// Refusals of machines that have proven their key must be in the record, in an Event and in the metric, and nothing of
// those that have not.
func TestReportsRefusals(t *testing.T) {
	w := newWorld(t)
	d := w.desk()
	registry := prometheus.NewRegistry()
	record := &lines{}
	var events []string
	d.Authority.Record, d.Registerer, d.Authority.Unthrottled = record, registry, true
	d.Event = func(node string, refused bool, reason, message string) {
		events = append(events, fmt.Sprint(node, refused, reason))
	}
	m := w.sign(t, d.Authority, "worker-1", "jane")
	if _, err := w.rejoin(t, d, m); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(60 * 24 * time.Hour)
	_, err := w.rejoin(t, d, m)
	wantReason(t, "too late", err, "RejoinTooLate")
	_, err = w.rejoin(t, d, machine{"worker-1", csrtest.NewKey(), m.chain})
	wantReason(t, "another key", err, "SignatureInvalid")
	if want := []string{"worker-1falseRejoined", "worker-1trueRejoinTooLate"}; !slices.Equal(events, want) {
		t.Errorf("got Events %q, want %q", events, want)
	}
	if e := record.last(); len(record.all) != 2 || e.Outcome != issuance.Refused || e.Rule != "rejoin" || e.Reason != "RejoinTooLate" || e.Node != "worker-1" || e.SPKI == "" || e.Requester != "system:node:worker-1" {
		t.Errorf("got record %+v", record.all)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP kubejoin_rejoins_total Requests of nodes to rejoin, by result: granted, granted_again (the same token), bound (a key), unbound_key (any key that is not bound), failed (an error of kubejoin), or the reason of the refusal.
# TYPE kubejoin_rejoins_total counter
kubejoin_rejoins_total{result="RejoinTooLate"} 1
kubejoin_rejoins_total{result="SignatureInvalid"} 1
kubejoin_rejoins_total{result="granted"} 1
`), "kubejoin_rejoins_total"); err != nil {
		t.Error(err)
	}
	// A refusal that cannot be recorded is not reported as one.
	record.err = errUnknown
	w.now = w.now.Add(2 * time.Hour)
	if _, err = w.rejoin(t, d, m); !errors.Is(err, errUnknown) {
		t.Errorf("without a record: got %v, want its error", err)
	}
}

type lines struct {
	all []issuance.Entry
	err error
}

func (l *lines) Append(_ context.Context, e issuance.Entry) error {
	if l.err == nil {
		l.all = append(l.all, e)
	}
	return l.err
}

func (l *lines) last() issuance.Entry { return l.all[len(l.all)-1] }

// Where a part is missing, nodes must be refused, and nothing may be logged for requests that prove nothing.
func TestDeskWithoutParts(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*rejoin.Desk){
		"no Authority": func(d *rejoin.Desk) { d.Authority = nil },
		"no Nodes":     func(d *rejoin.Desk) { d.Authority.Nodes = nil },
		"no Claims":    func(d *rejoin.Desk) { d.Authority.Nodes.Claims = nil },
		"no Tokens":    func(d *rejoin.Desk) { d.Authority.Nodes.Tokens = nil },
		"no window":    func(d *rejoin.Desk) { d.Authority.Nodes.RejoinWindow = 0 },
	} {
		var log bytes.Buffer
		d := w.desk()
		d.Logger = slog.New(slog.NewTextHandler(&log, nil))
		change(d)
		_, err := d.Rejoin(t.Context(), rejoin.Request{}, netip.Addr{})
		wantReason(t, name, err, "RejoinOff")
		if log.Len() > 0 {
			t.Errorf("%s: got log %s", name, &log)
		}
	}
	for name, signers := range map[string]map[string]signer.Signer{"no signer": {}, "no CA": {certificates.KubeAPIServerClientKubeletSignerName: {}}} {
		d := w.desk()
		d.Authority.Signers = signer.FixedSigners(signers)
		var refused *approval.Refused
		if _, err := d.Rejoin(t.Context(), rejoin.Request{}, netip.Addr{}); err == nil || errors.As(err, &refused) || errors.As(err, new(*rejoin.Unproven)) {
			t.Errorf("%s: got %v, want an error that is no refusal", name, err)
		}
	}
}

// An error of the cluster or of the store must be no refusal and no token.
func TestFailedCallsAreNoRefusals(t *testing.T) {
	w := newWorld(t)
	d := w.desk()
	m := w.sign(t, d.Authority, "worker-1", "jane")
	n := d.Authority.Nodes
	store := n.Tokens
	n.Tokens = brokenTokens{store}
	if _, err := w.rejoin(t, d, m); !errors.Is(err, errUnknown) {
		t.Errorf("token not created: got %v", err)
	}
	n.Tokens = store
	n.Node = func(context.Context, string) (string, error) { return "", errUnknown }
	if _, err := w.rejoin(t, d, m); !errors.Is(err, errUnknown) {
		t.Errorf("Node not read: got %v", err)
	}
}

type brokenTokens struct{ tokens.Store }

func (brokenTokens) Create(context.Context, tokens.Record) (tokens.Record, error) {
	return tokens.Record{}, errUnknown
}

// Anyone can make a key. One that is not bound must be refused by the cache alone.
func TestUnboundKeyCostsNoCall(t *testing.T) {
	w := newWorld(t)
	d := w.desk()
	registry := prometheus.NewRegistry()
	d.Registerer = registry
	w.sign(t, d.Authority, "worker-1", "jane")
	calls := 0
	d.Authority.Nodes.Node = func(context.Context, string) (string, error) { calls++; return "uid", nil }
	for _, node := range []string{"worker-1", "worker-2"} {
		m := machine{node: node, key: csrtest.NewKey()}
		r := m.request(t, d)
		der, err := x509.MarshalPKIXPublicKey(m.key.Public())
		if err != nil {
			t.Fatal(err)
		}
		r.Node, r.PublicKey = node, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
		_, err = d.Rejoin(t.Context(), r, netip.Addr{})
		wantReason(t, node, err, "KeyNotCurrent")
	}
	if calls > 0 {
		t.Errorf("got %d calls, want none", calls)
	}
	families, err := registry.Gather() // the alert is about KeyNotCurrent
	if err != nil || len(families) != 1 || len(families[0].Metric) != 1 || families[0].Metric[0].Label[0].GetValue() != "unbound_key" {
		t.Errorf("got %v, %v, want only result unbound_key", families, err)
	}
}

// The window counts from the certificate that the machine presents, also if the node has a later one.
func TestWindowCountsFromPresentedCertificate(t *testing.T) {
	w := newWorld(t)
	d := w.desk()
	m := w.sign(t, d.Authority, "worker-1", "jane")
	w.now = w.now.Add(20 * 24 * time.Hour)
	later := w.sign(t, d.Authority, "worker-1", "system:node:worker-1")
	w.now = w.now.Add(11 * 24 * time.Hour)
	_, err := w.rejoin(t, d, m)
	wantReason(t, "older certificate", err, "RejoinTooLate")
	if _, err := w.rejoin(t, d, later); err != nil {
		t.Error(err)
	}
}
