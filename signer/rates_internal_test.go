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

// issued makes the given number of requests with a pause before each and returns how many get a certificate.
func (l *rates) issued(times int, now *time.Time, pause time.Duration, request func(i int) approval.Request) (n int) {
	for i := range times {
		*now = now.Add(pause)
		r := request(i)
		if l.take(r.User, new(Authority).allowances(r, nil, false), *now) == nil {
			n++
		}
	}
	return n
}

// requestBy returns a request of user with this key and common name.
func requestBy(user, key, name string) approval.Request {
	return approval.Request{User: user, CSR: &x509.CertificateRequest{RawSubjectPublicKeyInfo: []byte(key), Subject: pkix.Name{CommonName: name}}}
}

// A kubelet with the shortest possible lifetime renews its client and serving certificate for a day.
func TestNeverThrottlesKubeletRenewals(t *testing.T) {
	var l rates
	now := time.Now()
	renewal := (backdate+MinDuration)*7/10 - backdate // the earliest time at which a kubelet renews
	day := int(24*time.Hour/renewal) * 2
	if n := l.issued(day, &now, renewal/2, func(i int) approval.Request {
		r := requestBy("system:node:worker-1", fmt.Sprint(i), "system:node:worker-1")
		r.Groups = []string{tokens.NodesGroup}
		return r
	}); n != day {
		t.Errorf("got %d certificates, want %d", n, day)
	}
}

// Thousands of machines join with one token. One machine in a request loop must not use up the rate of the others.
func TestThousandsOfMachinesJoinWithOneToken(t *testing.T) {
	var l rates
	now := time.Now()
	ask := func(times int, name func(i int) string) int {
		return l.issued(times, &now, 0, func(i int) approval.Request { return requestBy("system:bootstrap:qwertz", fmt.Sprint(i), name(i)) })
	}
	if n := ask(1000, func(int) string { return "loop" }); n != 60 {
		t.Errorf("one machine got %d certificates at once, want 60", n)
	}
	if n := ask(5000, func(i int) string { return fmt.Sprint("worker-", i) }); n != 5000 {
		t.Errorf("got certificates for %d machines, want 5,000", n)
	}
	// On a token without limits, a machine can choose any node name, so the token itself has a rate.
	if n := ask(6000, func(i int) string { return fmt.Sprint("other-", i) }); n != 10_000-5060 {
		t.Errorf("got %d more certificates on one token, want 10,000 in total", n)
	}
	now = now.Add(time.Minute)
	if n := ask(100, func(i int) string { return fmt.Sprint("late-", i) }); n != 60 {
		t.Errorf("got %d certificates a minute later, want 60", n)
	}
}

// For a user who requests certificates for thousands of machines, only the rate of each key applies.
func TestLimitsOperatorByKeyOnly(t *testing.T) {
	var l rates
	now := time.Now()
	if n := l.issued(20*3000, &now, 0, func(i int) approval.Request { return requestBy("ada", fmt.Sprint(i%3000), fmt.Sprint(i)) }); n != 20*3000 {
		t.Errorf("got %d certificates for 3,000 keys, want %d", n, 20*3000)
	}
	if n := l.issued(100, &now, 0, func(i int) approval.Request { return requestBy("ada", "0", fmt.Sprint(i)) }); n != 40 {
		t.Errorf("got %d more certificates for one key, want 40 (60 in total)", n)
	}
	if n := l.issued(100, &now, 0, func(i int) approval.Request { return requestBy("eve", "0", fmt.Sprint(i)) }); n != 60 {
		t.Errorf("got %d certificates for the same key and another user, want 60", n)
	}
}
