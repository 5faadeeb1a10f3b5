package revocation_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

var now = time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)

func fingerprint(n int) revocation.Fingerprint { return revocationtest.Fingerprint(n) }

func subject(node string, fingerprints ...revocation.Fingerprint) revocation.Subject {
	return revocation.Subject{Node: node, Fingerprints: fingerprints}
}

func TestBars(t *testing.T) {
	node := revocation.Entry{Node: "worker-1", Since: now, Allowed: map[revocation.Fingerprint]time.Time{fingerprint(1): now.Add(time.Hour)}}
	one := revocation.Entry{Fingerprint: fingerprint(2), Since: now}
	ended := func(e revocation.Entry) revocation.Entry { e.Until = now.Add(-time.Second); return e }
	malformed := func(e revocation.Entry) revocation.Entry { e.Malformed = errors.New("x"); return e }
	for _, test := range []struct {
		name  string
		entry revocation.Entry
		who   revocation.Subject
		want  bool
	}{
		{"an older certificate of the node", node, subject("worker-1", fingerprint(3)), true},
		{"a certificate issued since", node, subject("worker-1", fingerprint(1)), false},
		{"one issued since and an older one", node, subject("worker-1", fingerprint(1), fingerprint(3)), true},
		{"the node without a known certificate", node, subject("worker-1"), true},
		{"another node", node, subject("worker-2", fingerprint(3)), false},
		{"a user who is no node", node, subject("", fingerprint(3)), false},
		{"the node after the end of the entry", ended(node), subject("worker-1", fingerprint(3)), false},
		{"the node of a malformed entry that seems to have ended", ended(malformed(node)), subject("worker-1", fingerprint(3)), true},
		{"the certificate", one, subject("worker-1", fingerprint(2)), true},
		{"the certificate of a user", one, subject("", fingerprint(2)), true},
		{"another certificate of the node", one, subject("worker-1", fingerprint(3)), false},
		{"no certificate", one, subject("worker-1"), false},
		{"the certificate after the end of the entry", ended(one), subject("worker-1", fingerprint(2)), false},
	} {
		if got := test.entry.Bars(test.who, now); got != test.want {
			t.Errorf("%s: barred %t, want %t", test.name, got, test.want)
		}
	}
}

// Catches a list of allowed certificates that grows without bound, or loses the certificate in use.
func TestAllowKeepsCertificateInUse(t *testing.T) {
	e := revocation.Entry{Node: "worker-1"}
	e = e.Allow(fingerprint(0), now.Add(time.Minute), revocation.Subject{}, now)
	used := subject("worker-1", fingerprint(0))
	for n := range 100 {
		before := len(e.Allowed)
		next := e.Allow(fingerprint(n+1), now.Add(time.Hour+time.Duration(n)*time.Second), used, now)
		if len(e.Allowed) != before {
			t.Fatal("Allow changed its receiver")
		}
		e = next
		if e.Bars(used, now) || e.Bars(subject("worker-1", fingerprint(n+1)), now) {
			t.Fatalf("after %d certificates, the one in use or the last one is barred", n+1)
		}
	}
	if len(e.Allowed) != 8 {
		t.Errorf("got %d allowed certificates, want 8", len(e.Allowed))
	}
	later := now.Add(24 * time.Hour)
	if e = e.Allow(fingerprint(500), now.Add(48*time.Hour), used, later); len(e.Allowed) != 2 || e.Bars(used, later) {
		t.Errorf("got %d allowed certificates after the others have ended, want the last one and the one that the requester had", len(e.Allowed))
	}
}

func TestParseFingerprint(t *testing.T) {
	plain := strings.Repeat("ab", 32)
	for _, given := range []string{plain, strings.ToUpper(plain), "sha256:" + plain, "SHA256:" + plain, "sha256 Fingerprint=" + strings.TrimSuffix(strings.Repeat("AB:", 32), ":")} {
		if f, err := revocation.ParseFingerprint(given); err != nil || string(f) != plain {
			t.Errorf("%q: got %q, %v, want %s", given, f, err, plain)
		}
	}
	for _, given := range []string{"", "sha256:", plain[1:], plain + "0", strings.Repeat("zz", 32), "X509SHA256=" + plain} {
		if f, err := revocation.ParseFingerprint(given); err == nil {
			t.Errorf("%q: got %s, want an error", given, f)
		}
	}
}

// Catches a fingerprint that is treated as a node name, or the reverse: 64 digits are a valid node name.
func TestKeyOfNodeIsNoFingerprint(t *testing.T) {
	digits := strings.Repeat("ab", 32)
	node := must.Value(revocation.ParseKey(digits))(t)
	f, err := revocation.ParseKey("sha256:" + digits)
	if err != nil || f == node {
		t.Fatalf("got %s and %s, %v, want two keys", node, f, err)
	}
	for key, wantNode := range map[revocation.Key]string{node: digits, f: ""} {
		e, err := revocation.Decode(string(key), []byte(`{"since":"2026-11-23T08:00:00Z"}`))
		if err != nil || e.Malformed != nil || e.Node != wantNode || e.Key() != key {
			t.Errorf("%s: got %+v, %v", key, e, err)
		}
		if back, err := revocation.ParseKey(key.String()); err != nil || back != key {
			t.Errorf("%s: got %s, %v after ParseKey", key, back, err)
		}
	}
	if _, err := revocation.ParseKey("Worker_1"); err == nil {
		t.Error("an invalid node name is accepted")
	}
}

func TestSubjectOf(t *testing.T) {
	id := map[string][]string{revocation.CredentialIDKey: {"JTI=x", fingerprint(1).CredentialID(), "X509SHA256=short"}}
	nodes := []string{"system:nodes", "system:authenticated"}
	for _, test := range []struct {
		user   string
		groups []string
		want   string
	}{
		{"system:node:worker-1", nodes, "worker-1"},
		{"system:node:worker-1", nil, ""},
		{"jane", nodes, ""},
	} {
		s := revocation.SubjectOf(test.user, test.groups, id)
		if s.Node != test.want || len(s.Fingerprints) != 1 || s.Fingerprints[0] != fingerprint(1) {
			t.Errorf("%s in %v: got %+v, want node %q and one fingerprint", test.user, test.groups, s, test.want)
		}
	}
}

// Catches a reason that the ValidatingAdmissionPolicy would treat as an allowed certificate.
func TestReasonAllowsNoCertificate(t *testing.T) {
	key := string(fingerprint(1).Key())
	value, err := revocation.Encode(revocation.Entry{Node: "worker-1", Since: now, Reason: `"` + key + `":"`, By: `"` + key + `":"`})
	if err != nil || strings.Contains(string(value), `"`+key+`":"`) {
		t.Errorf("got %s, %v", value, err)
	}
	value, err = revocation.Encode(revocation.Entry{Node: "worker-1", Since: now, Allowed: map[revocation.Fingerprint]time.Time{fingerprint(1): now}})
	if err != nil || !strings.Contains(string(value), `"`+key+`":"`) {
		t.Errorf("got %s, %v, want the form that the policy looks for", value, err)
	}
}

// certificate returns a client certificate. It is not signed by a CA, which does not matter here.
func certificate(t *testing.T, name string, usage x509.ExtKeyUsage) *x509.Certificate {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: []string{"system:nodes"}},
		NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	return must.Value(x509.ParseCertificate(der))(t)
}

func guard(t *testing.T) *revocation.Guard {
	t.Helper()
	return &revocation.Guard{Store: rowlist.New(memdb.Open().Revocations())}
}

func bars(t *testing.T, g *revocation.Guard, cert *x509.Certificate) bool {
	t.Helper()
	live := must.Value(g.RevokedCertificate(t.Context(), cert))(t)
	known, err := g.Known(t.Context(), revocation.SubjectOfCertificate(cert))
	if err != nil || (known == nil) != (live == nil) {
		t.Fatalf("live %+v, cached %+v, %v", live, known, err)
	}
	return live != nil
}

// TestGuard follows a node that is revoked, joins again with a new certificate, renews, and is revoked again.
func TestGuard(t *testing.T) {
	g := guard(t)
	old, first, second := certificate(t, "system:node:worker-1", x509.ExtKeyUsageClientAuth), certificate(t, "system:node:worker-1", x509.ExtKeyUsageClientAuth), certificate(t, "system:node:worker-1", x509.ExtKeyUsageClientAuth)
	serving := certificate(t, "system:node:worker-1", x509.ExtKeyUsageServerAuth)
	issue := func(requester revocation.Subject, cert *x509.Certificate, allowed bool) {
		t.Helper()
		e, err := g.Issue(t.Context(), requester, cert)
		if e == nil && err == nil { // as an Authority does before it delivers the certificate
			e, err = g.Revoked(t.Context(), requester)
		}
		if err != nil || (e == nil) != allowed {
			t.Fatalf("got %+v, %v, want allowed %t", e, err, allowed)
		}
	}
	check := func(want ...bool) {
		t.Helper()
		for i, cert := range []*x509.Certificate{old, first, second} {
			if got := bars(t, g, cert); got != want[i] {
				t.Fatalf("certificate %d: barred %t, want %t", i, got, want[i])
			}
		}
	}
	byToken := revocation.Subject{}
	issue(byToken, old, true)
	check(false, false, false)
	must.Value(g.Revoke(t.Context(), revocation.Entry{Node: "worker-1", Reason: "stolen"}))(t)
	check(true, true, true)
	issue(revocation.SubjectOfCertificate(old), first, false)
	issue(revocation.SubjectOfCertificate(old), serving, false)
	check(true, true, true)
	issue(byToken, first, true)
	check(true, false, true)
	issue(revocation.SubjectOfCertificate(first), serving, true)
	issue(revocation.SubjectOfCertificate(first), second, true)
	check(true, false, false)
	if e, err := g.Store.Get(t.Context(), "worker-1", tokens.Live); err != nil || len(e.Allowed) != 2 {
		t.Errorf("got %+v, %v, want two allowed certificates and not the serving one", e, err)
	}
	must.Value(g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}))(t)
	check(true, true, true)
	must.Value(g.Undo(t.Context(), "worker-1"))(t)
	check(false, false, false)
	if _, err := g.Undo(t.Context(), "worker-1"); !errors.Is(err, revocation.ErrNotFound) {
		t.Errorf("Undo of nothing: got %v, want %v", err, revocation.ErrNotFound)
	}
	must.Value(g.Revoke(t.Context(), revocation.Entry{Fingerprint: revocation.FingerprintOf(first)}))(t)
	check(false, true, false)
	issue(revocation.SubjectOfCertificate(first), second, false)
	issue(revocation.SubjectOfCertificate(first), serving, false)
}

// A node has joined again, and is revoked again while its certificate is signed. Catches a valid certificate for it.
func TestRevocationWhileSigning(t *testing.T) {
	g := guard(t)
	old, next := certificate(t, "system:node:worker-1", x509.ExtKeyUsageClientAuth), certificate(t, "system:node:worker-1", x509.ExtKeyUsageClientAuth)
	must.Value(g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}))(t)
	must.Value(g.Issue(t.Context(), revocation.Subject{}, old))(t)
	revoked := false // between the read and the write of Issue
	store := revocationtest.Before(g.Store, func(method string, _ revocation.Key) error {
		if method == "Update" && !revoked {
			revoked = true
			_, err := g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"})
			return err
		}
		return nil
	})
	signing := &revocation.Guard{Store: store}
	if e, err := signing.Issue(t.Context(), revocation.SubjectOfCertificate(old), next); err != nil || e == nil {
		t.Errorf("got %+v, %v, want the entry", e, err)
	}
	if !bars(t, g, next) {
		t.Error("the new certificate is not barred")
	}
}

func TestMalformedEntries(t *testing.T) {
	for _, value := range []string{"", "{", "null", `{"since":"x"}`, `{}`, `{"since":"2026-11-23T08:00:00Z","allowed":{"x":"2026-11-23T08:00:00Z"}}`, `{"since":"2026-11-23T08:00:00Z","allowed":{"X509SHA256.` + string(fingerprint(1)) + `":"soon"}}`} {
		e, err := revocation.Decode("worker-1", []byte(value))
		if err != nil || e.Malformed == nil || !e.Bars(subject("worker-1", fingerprint(1)), now) {
			t.Errorf("%q: got %+v, %v, want a malformed entry that bars", value, e, err)
		}
	}
	if _, err := revocation.Decode("Not_a_node", []byte(`{}`)); err == nil {
		t.Error("an invalid key is accepted")
	}
}

// Catches an entry of a certificate that is listed as a node without a name.
func TestCachedNodesAreNodes(t *testing.T) {
	g := &revocation.Guard{Store: rowlist.New(memdb.Open().Revocations())}
	for _, e := range []revocation.Entry{{Node: "worker-1"}, {Fingerprint: revocationtest.Fingerprint(1)}} {
		must.Value(g.Revoke(t.Context(), e))(t)
	}
	if got, err := g.CachedNodes(t.Context()); err != nil || len(got) != 1 || !got["worker-1"] {
		t.Errorf("got %v, %v, want worker-1 alone", got, err)
	}
}

// Catches an end that is lost when a node is revoked again.
func TestRevokeAgainKeepsEnd(t *testing.T) {
	g := guard(t)
	late := time.Now().Add(48 * time.Hour).UTC().Truncate(time.Second)
	first := revocation.Entry{Node: "worker-1", Until: late}
	must.Value(g.Revoke(t.Context(), first))(t)
	again, err := g.Revoke(t.Context(), revocation.Entry{Node: "worker-1", Until: late.Add(-time.Hour)})
	if err != nil || !again.Until.Equal(late) {
		t.Errorf("got %+v, %v, want the later end", again, err)
	}
}

// Catches an entry that ends while a certificate that it bars is valid, or that never ends although its end is known.
func TestEndOfEntry(t *testing.T) {
	const rejoin = 24 * time.Hour
	cas := now.Add(10 * time.Hour)
	for name, test := range map[string]struct {
		e      revocation.Entry
		cas    time.Time
		issued revocation.Certificate
		want   time.Time
	}{
		"a node":                             {revocation.Entry{Node: "a"}, cas, revocation.Certificate{Node: "a", NotAfter: now}, cas.Add(rejoin)},
		"its certificate ends after the CAs": {revocation.Entry{Node: "a"}, cas, revocation.Certificate{Node: "a", NotAfter: cas.Add(1)}, cas.Add(1 + rejoin)},
		"one of another node":                {revocation.Entry{Node: "a"}, cas, revocation.Certificate{Node: "b", NotAfter: cas.Add(1)}, cas.Add(rejoin)},
		"unknown CAs":                        {revocation.Entry{Node: "a"}, time.Time{}, revocation.Certificate{Node: "a", NotAfter: cas}, time.Time{}},
		"a certificate of a node":            {revocation.Entry{Fingerprint: fingerprint(1)}, cas, revocation.Certificate{Node: "a", Fingerprint: fingerprint(1), NotAfter: now}, cas.Add(rejoin)},
		"a certificate of a user":            {revocation.Entry{Fingerprint: fingerprint(1)}, cas, revocation.Certificate{Fingerprint: fingerprint(1), NotAfter: now}, now},
		"a user, and unknown CAs":            {revocation.Entry{Fingerprint: fingerprint(1)}, time.Time{}, revocation.Certificate{Fingerprint: fingerprint(1), NotAfter: now}, now},
		"an unknown certificate":             {revocation.Entry{Fingerprint: fingerprint(1)}, cas, revocation.Certificate{Fingerprint: fingerprint(2), NotAfter: now}, cas.Add(rejoin)},
	} {
		if got := test.e.End(test.cas, rejoin, []revocation.Certificate{test.issued}); !got.Equal(test.want) {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

// Catches an entry that ends before a certificate that it allowed until the node was revoked again.
func TestRevokeAgainLastsAsLongAsAllowedCertificates(t *testing.T) {
	g := guard(t)
	end := time.Now().Add(48 * time.Hour).UTC().Truncate(time.Second)
	must.Value(g.Revoke(t.Context(), revocation.Entry{Node: "worker-1", Until: end}))(t)
	must.Value(g.Store.Update(t.Context(), "worker-1", func(e *revocation.Entry) (*revocation.Entry, error) {
		allowed := e.Allow(fingerprint(1), end.Add(time.Hour), revocation.Subject{}, time.Now())
		return &allowed, nil
	}))(t)
	if again, err := g.Revoke(t.Context(), revocation.Entry{Node: "worker-1", Until: end}); err != nil || !again.Until.Equal(end.Add(time.Hour)) {
		t.Errorf("got %+v, %v, want the end of the allowed certificate", again, err)
	}
}

// Catches a certificate that is allowed because of an outdated view: an entry that the view lacks has to bar it.
func TestIssueWithOutdatedView(t *testing.T) {
	g := guard(t)
	must.Value(g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}))(t)
	outdated := &revocation.Guard{Store: revocationtest.Before(g.Store, func(method string, _ revocation.Key) error {
		if method != "Update" && method != "Get.live" {
			return revocation.ErrNotFound
		}
		return nil
	})}
	old, next := certificate(t, "system:node:worker-1", x509.ExtKeyUsageClientAuth), certificate(t, "system:node:worker-1", x509.ExtKeyUsageClientAuth)
	for name, requester := range map[string]revocation.Subject{
		"a token": {}, "the node": {Node: "worker-1"}, "its certificate": {Fingerprints: []revocation.Fingerprint{revocation.FingerprintOf(old)}}, "both": revocation.SubjectOfCertificate(old),
	} {
		if e, err := outdated.Issue(t.Context(), requester, next); err != nil || e != nil || !bars(t, g, next) {
			t.Errorf("%s: Issue = %+v, %v, want none, and the certificate barred", name, e, err)
		}
	}
}
