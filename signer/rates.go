package signer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"golang.org/x/time/rate"
)

// ReasonTooManyCertificates: the requester has used up its rate of certificates or of refusals. The request waits, and
// [approval.Error.RetryAfter] says for how long.
const ReasonTooManyCertificates = "TooManyCertificates"

// Rates of certificates. Each certificate is an entry of 3 KB in the record.
const (
	// machineEvery and machineBurst apply to one machine. They also apply to each key of a requester that has keys of
	// many machines signed. A kubelet whose two certificates last for [MinDuration] renews three times a minute.
	machineEvery, machineBurst = 15 * time.Second, 60
	// manyEvery and manyBurst apply to a bootstrap token, with which thousands of machines may join at once. They
	// also apply to the refusals of a requester that requests thousands of certificates.
	manyEvery, manyBurst = time.Second, 10_000
)

// An allowance is a rate limit: burst certificates at once, and one more each time every has passed.
type allowance struct {
	key   digest
	every time.Duration
	burst int
}

// allowances returns the rate limits that the next certificate of r uses up; with refusal, the limits that this
// refusal uses up.
//
// A node has one allowance for all its requests. A bootstrap token has one allowance, and each machine that joins
// with it has another. So one machine that requests without end leaves certificates for the other machines. Any
// other requester may have certificates signed for thousands of machines, so it has an allowance for each key.
//
// Refusals have allowances of their own, so that refused requests do not block the renewal of a machine. There is
// no allowance of refusals per key, because a new key costs nothing.
//
// The refusal of a rejoin or of a revoked certificate uses up the allowance of the credential, not of the node: another
// machine may have the name now. A certificate for a stranger, which holds a valid certificate of the name, also uses
// up the allowance of its credential. In addition, all such credentials of a name share one allowance, because a disk
// may hold many.
func (a *Authority) allowances(r approval.Request, refusal *issuance.Entry, stranger bool) []allowance {
	kind := "issued"
	if refusal != nil {
		kind = "refused"
	}
	machine := func(parts ...string) allowance {
		return allowance{digestOf(append([]string{kind, r.User}, parts...)...), machineEvery, machineBurst}
	}
	many := allowance{digestOf(kind, r.User), manyEvery, manyBurst}
	credential := strings.Join(r.Extra[revocation.CredentialIDKey], " ")
	node, old := approval.IsNode(r.User, r.Groups), allowance{digestOf("old", r.User), manyEvery, manyBurst}
	switch {
	case a.Unthrottled:
		return nil
	case node && refusal != nil && r.Rejoin != nil:
		return []allowance{old, machine("rejoin", r.Rejoin.Key)}
	case node && refusal != nil && refusal.Reason == revocation.Reason:
		return []allowance{old, machine("revoked", credential)}
	case node && stranger:
		return []allowance{old, machine("stranger", credential)}
	case node:
		return []allowance{machine()}
	case refusal != nil || r.CSR == nil:
		return []allowance{many}
	case strings.HasPrefix(r.User, tokens.BootstrapUserPrefix):
		return []allowance{many, machine(r.CSR.Subject.CommonName)}
	}
	return []allowance{machine(pkcs10.KeyID(r.CSR))}
}

// rates keeps the remaining part of each allowance. It drops an allowance that has not been used for long: the
// allowance is full at its next use.
type rates struct{ left twoGenCache[*rate.Limiter] }

// check fails with [ReasonTooManyCertificates] if the user has used up one of the allowances.
func (l *rates) check(user string, all []allowance, now time.Time) error {
	l.left.Lock()
	defer l.left.Unlock()
	_, err := l.limiters(user, all, now)
	return err
}

// take takes one from each allowance. If one is used up, take fails like check and takes nothing.
func (l *rates) take(user string, all []allowance, now time.Time) error {
	l.left.Lock()
	defer l.left.Unlock()
	limiters, err := l.limiters(user, all, now)
	if err != nil {
		return err
	}
	for _, limiter := range limiters {
		limiter.AllowN(now, 1)
	}
	return nil
}

// limiters returns the limiters of allowances. The caller must hold the lock.
func (l *rates) limiters(user string, all []allowance, now time.Time) (limiters []*rate.Limiter, err error) {
	wait := time.Duration(0)
	for _, a := range all {
		limiter, found := l.left.get(a.key)
		if !found {
			limiter = rate.NewLimiter(rate.Every(a.every), a.burst)
		}
		l.left.put(a.key, limiter)
		limiters = append(limiters, limiter)
		if missing := 1 - limiter.TokensAt(now); missing > 0 {
			wait = max(wait, time.Duration(missing*float64(a.every)))
		}
	}
	if wait > 0 {
		return nil, &approval.Error{RetryAfter: wait, Decision: approval.Decision{
			Verdict: approval.Wait, Rule: ruleRate, Reason: ReasonTooManyCertificates,
			Message: fmt.Sprintf("%.300s has used up its rate of certificates; retry in %s", user, wait.Round(time.Second)),
		}}
	}
	return limiters, nil
}

type digest = [sha256.Size]byte

// digestOf returns a different digest for each list of texts.
func digestOf(texts ...string) digest {
	var all []byte
	for _, text := range texts {
		all = append(binary.AppendUvarint(all, uint64(len(text))), text...)
	}
	return sha256.Sum256(all)
}

// maxRecent is the minimum number of values that a full twoGenCache keeps. It keeps at most twice as many. A value
// takes 130 bytes.
const maxRecent = 16384

// twoGenCache is a cache of the values that were stored last. The caller must hold its lock.
type twoGenCache[V any] struct {
	sync.Mutex
	last, earlier map[digest]V
}

func (m *twoGenCache[V]) get(key digest) (V, bool) {
	v, found := m.last[key]
	if !found {
		v, found = m.earlier[key]
	}
	return v, found
}

func (m *twoGenCache[V]) put(key digest, v V) {
	if _, found := m.last[key]; !found && (m.last == nil || len(m.last) >= maxRecent) {
		m.last, m.earlier = map[digest]V{}, m.last
	}
	m.last[key] = v
}
