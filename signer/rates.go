package signer

import (
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	"golang.org/x/time/rate"
)

// ReasonTooManyCertificates: the requester has used up its rate of certificates or of refusals. It is a
// reason to wait.
const ReasonTooManyCertificates = "TooManyCertificates"

// Rates of certificates. Each one is an entry of the record, of 3 KB.
const (
	// machineEvery and machineBurst are for one machine, or for one key of somebody who has them signed
	// for many. A kubelet whose two certificates last for [MinDuration] renews three times a minute.
	machineEvery, machineBurst = 15 * time.Second, 60
	// manyEvery and manyBurst are for a bootstrap token, on which thousands of machines may join at once,
	// and for the refusals of a requester that asks for thousands of certificates.
	manyEvery, manyBurst = time.Second, 10_000
)

// TooMany is the error of a requester that has to wait for its next certificate. [Waits] gives its verdict.
type TooMany struct {
	// After is how long it has to wait.
	After time.Duration

	requester string
}

// Error says who has to wait, and for how long.
func (t *TooMany) Error() string {
	return fmt.Sprintf("%.300s has used up its rate of certificates; retry in %s", t.requester, t.After.Round(time.Second))
}

// An allowance is burst certificates at once, and one more each time every has passed.
type allowance struct {
	key   digest
	every time.Duration
	burst int
}

// allowances are what one more certificate, or one more refusal, of a request is taken from.
//
// A node has one allowance, whatever it asks for. A bootstrap token has one, and each machine that
// joins on it another, so that one that asks without end leaves others theirs. Everybody else may have
// certificates signed for thousands of machines: the allowance is for each key. Refusals have their own,
// so that what a machine asks for in vain does not keep it from renewing; they are not counted by key,
// since a key costs nothing.
func allowances(r approval.Request, refusal bool) []allowance {
	kind := "issued"
	if refusal {
		kind = "refused"
	}
	machine := func(parts ...string) allowance {
		return allowance{digestOf(append([]string{kind, r.User}, parts...)...), machineEvery, machineBurst}
	}
	many := allowance{digestOf(kind, r.User), manyEvery, manyBurst}
	switch {
	case approval.IsNode(r.User, r.Groups):
		return []allowance{machine()}
	case refusal || r.CSR == nil:
		return []allowance{many}
	case strings.HasPrefix(r.User, tokens.BootstrapUserPrefix):
		return []allowance{many, machine(r.CSR.Subject.CommonName)}
	}
	return []allowance{machine(pkcs10.KeyID(r.CSR))}
}

// rates keep what is left of each allowance. An allowance that is not used for long is dropped, and is whole
// at its next use.
type rates struct{ left twoGenCache[*rate.Limiter] }

// take takes one of each allowance, or is a [*TooMany] and takes none. With spend false nothing is taken.
func (l *rates) take(r approval.Request, refusal, spend bool, now time.Time) error {
	l.left.Lock()
	defer l.left.Unlock()
	var limiters []*rate.Limiter
	wait := time.Duration(0)
	for _, a := range allowances(r, refusal) {
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
		return &TooMany{After: wait, requester: r.User}
	}
	if spend {
		for _, limiter := range limiters {
			limiter.AllowN(now, 1)
		}
	}
	return nil
}
