package signer

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// issued gives how many of so many requests get a certificate, with a pause before each.
func (l *rates) issued(times int, now *time.Time, pause time.Duration, request func(i int) approval.Request) (n int) {
	for i := range times {
		*now = now.Add(pause)
		if l.take(request(i), false, true, *now) == nil {
			n++
		}
	}
	return n
}

// requestBy is a request of a user with a key for a subject.
func requestBy(user, key, name string) approval.Request {
	return approval.Request{User: user, CSR: &x509.CertificateRequest{RawSubjectPublicKeyInfo: []byte(key), Subject: pkix.Name{CommonName: name}}}
}

// A kubelet whose certificates last for as short as can be renews both of them, for a day.
func TestNeverThrottlesKubeletRenewals(t *testing.T) {
	var l rates
	now := time.Now()
	renewal := (backdate+MinDuration)*7/10 - backdate // of a kubelet at the earliest
	day := int(24*time.Hour/renewal) * 2
	if n := l.issued(day, &now, renewal/2, func(i int) approval.Request {
		r := requestBy("system:node:worker-1", fmt.Sprint(i), "system:node:worker-1")
		r.Groups = []string{tokens.NodesGroup}
		return r
	}); n != day {
		t.Errorf("%d certificates of %d", n, day)
	}
}

// Thousands of machines join on one token at once, and one of them that asks without end takes
// nothing from the others.
func TestThousandsOfMachinesJoinWithOneToken(t *testing.T) {
	var l rates
	now := time.Now()
	ask := func(times int, name func(i int) string) int {
		return l.issued(times, &now, 0, func(i int) approval.Request { return requestBy("system:bootstrap:qwertz", fmt.Sprint(i), name(i)) })
	}
	if n := ask(1000, func(int) string { return "loop" }); n != 60 {
		t.Errorf("a machine has %d certificates at once, want 60", n)
	}
	if n := ask(5000, func(i int) string { return fmt.Sprint("worker-", i) }); n != 5000 {
		t.Errorf("%d of 5,000 machines have a certificate", n)
	}
	// Names cost nothing where a token has no limits.
	if n := ask(6000, func(i int) string { return fmt.Sprint("other-", i) }); n != 10_000-5060 {
		t.Errorf("%d more certificates on one token, want 10,000 in all", n)
	}
	now = now.Add(time.Minute)
	if n := ask(100, func(i int) string { return fmt.Sprint("late-", i) }); n != 60 {
		t.Errorf("%d certificates a minute later, want 60", n)
	}
}

// Who has certificates signed for thousands of machines is held to a rate for each key alone.
func TestLimitsOperatorByKeyOnly(t *testing.T) {
	var l rates
	now := time.Now()
	if n := l.issued(20*3000, &now, 0, func(i int) approval.Request { return requestBy("ada", fmt.Sprint(i%3000), fmt.Sprint(i)) }); n != 20*3000 {
		t.Errorf("%d certificates of 3,000 keys, want %d", n, 20*3000)
	}
	if n := l.issued(100, &now, 0, func(i int) approval.Request { return requestBy("ada", "0", fmt.Sprint(i)) }); n != 40 {
		t.Errorf("%d more certificates of one key, want 60 in all", n)
	}
	if n := l.issued(100, &now, 0, func(i int) approval.Request { return requestBy("eve", "0", fmt.Sprint(i)) }); n != 60 {
		t.Errorf("%d certificates of the same key for somebody else, want 60", n)
	}
}
