package signer_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	certificates "k8s.io/api/certificates/v1"
)

// throttled is an authority with a clock that the test sets.
type throttled struct {
	*signer.Authority
	log *entries
	now time.Time
}

func newThrottled(t *testing.T) *throttled {
	a, log, _ := recorded(t, rule{Verdict: approval.Approve, Reason: "Good"})
	all := &throttled{a, log, time.Now()}
	a.Now = func() time.Time { return all.now }
	a.Nodes = &admission.Nodes{Now: a.Now}
	return all
}

// ask makes the given number of requests with a pause before each and returns how many got a certificate.
func (a *throttled) ask(t *testing.T, times int, pause time.Duration, request func(i int) approval.Request) (issued int) {
	t.Helper()
	for i := range times {
		a.now = a.now.Add(pause)
		chain, err := a.Issue(t.Context(), request(i))
		switch {
		case err == nil && chain != nil:
			issued++
		case chain != nil || tooMany(err) == nil:
			t.Fatalf("%v, want a certificate or %s", err, signer.ReasonTooManyCertificates)
		}
	}
	return issued
}

// tooMany returns an error that means that the rate is used up, or else nil.
func tooMany(err error) *approval.Error {
	if no, found := errors.AsType[*approval.Error](err); found && no.Verdict == approval.Wait && no.Reason == signer.ReasonTooManyCertificates && no.RetryAfter > 0 {
		return no
	}
	return nil
}

func renewalOf(t *testing.T, name, user string) func(int) approval.Request {
	r := nodeRequest(t, user, name)
	r.UID, r.Groups = "", []string{"system:nodes"}
	return func(int) approval.Request { return r }
}

// Without a limit, one node with 100 requests a second wrote 24 GB a day to the issuance record.
func TestOneNodeCannotFillTheRecord(t *testing.T) {
	a := newThrottled(t)
	client := renewalOf(t, "worker-1", "system:node:worker-1")
	keys := []approval.Request{client(0), renewalOf(t, "worker-1", "system:node:worker-1")(0), renewalOf(t, "worker-1", "system:node:worker-1")(0)}
	issued := a.ask(t, 3600, time.Second, func(i int) approval.Request {
		r := keys[i%len(keys)]
		if i%2 == 0 {
			r.Expiration = time.Duration(i) * time.Second
		}
		return r
	})
	bytes := 0
	for _, e := range a.log.all {
		line := must.Value(json.Marshal(e))(t)
		bytes += len(line) + 1
	}
	if day := 24 * bytes; issued > 300 || issued < 299 || day > 30<<20 {
		t.Errorf("got %d certificates in an hour and %d bytes a day, want 60 at once, 240 later and at most 30 MiB", issued, day)
	}
	// Other nodes have rates of their own. The node gets its next certificate after the stated time.
	if n := a.ask(t, 60, 0, renewalOf(t, "worker-2", "system:node:worker-2")); n != 60 {
		t.Errorf("another node got %d certificates at once, want 60", n)
	}
	_, err := a.Issue(t.Context(), client(0))
	many := tooMany(err)
	if many == nil || many.RetryAfter > 15*time.Second {
		t.Fatalf("got %v, want at most 15s to wait", err)
	}
	a.now = a.now.Add(many.RetryAfter)
	if _, err := a.Issue(t.Context(), client(0)); err != nil {
		t.Errorf("after the stated time: %v", err)
	}
}

// Refusals of one node share a rate, regardless of its keys. They must not block its renewals, and the signer
// must not return a refusal that was not recorded.
func TestRefusalsCannotFillTheRecord(t *testing.T) {
	a := newThrottled(t)
	many := 0
	for i := range 500 {
		r := approval.Request{SignerName: certificates.KubeletServingSignerName, User: "system:node:worker-1", Groups: []string{"system:nodes"}}
		r.CSR = &x509.CertificateRequest{RawSubjectPublicKeyInfo: fmt.Append(nil, i)}
		switch err := a.Refuse(t.Context(), r, &approval.Error{Decision: approval.Decision{Verdict: approval.Deny, Reason: "Bad", Message: "not today"}}); {
		case tooMany(err) != nil:
			many++
		case approval.Refused(err) == nil:
			t.Fatal(err)
		}
	}
	if len(a.log.all) != 60 || many != 440 {
		t.Errorf("got %d recorded refusals and %d that wait, want 60 and 440", len(a.log.all), many)
	}
	if n := a.ask(t, 1, 0, renewalOf(t, "worker-1", "system:node:worker-1")); n != 1 {
		t.Error("the node cannot renew")
	}
	// Beyond the rate, Sign still returns the failure itself.
	a.Signers = func() map[string]signer.Signer {
		return must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return nil, errors.New("the disk is away") }, 0))
	}
	r := renewalOf(t, "worker-1", "system:node:worker-1")(0)
	r.Approver = "jane"
	if _, err := a.Sign(t.Context(), r); err == nil || errors.As(err, new(*approval.Error)) {
		t.Errorf("got %v, want the error of the CA", err)
	}
}

// A request that a rule denies waits if the rate of its requester is used up: the denial could not be recorded.
func TestDenialBeyondTheRateWaits(t *testing.T) {
	a, log, _ := recorded(t, rule{Verdict: approval.Deny, Reason: "Bad", Message: "not today"})
	for i := range 70 {
		r := renewalOf(t, "worker-1", "system:node:worker-1")(0)
		_, err := a.Issue(t.Context(), r)
		if want := i < 60; (approval.Refused(err) != nil) != want || (tooMany(err) == nil) != want {
			t.Fatalf("request %d: got %v", i, err)
		}
	}
	if len(log.all) != 60 {
		t.Errorf("got %d recorded denials, want 60", len(log.all))
	}
}

// Requests without a current credential must not use up the rates of their name, neither of certificates nor of
// refusals. They have separate rates.
func TestOldCredentialsSpendNoRateOfTheirName(t *testing.T) {
	stolen, own := revocation.Fingerprint(strings.Repeat("a", 64)), revocation.Fingerprint(strings.Repeat("b", 64))
	by := func(f revocation.Fingerprint) approval.Request {
		r := renewal(t, f)
		r.UID, r.Approver = "", "jane" // a person, or another controller
		return r
	}
	throttledNode := func(t *testing.T) (*throttled, *revocation.Guard) {
		a, store := newThrottled(t), memdb.Open()
		a.Revocations = &revocation.Guard{Store: rowlist.New(store.Revocations())}
		a.Nodes.Claims, a.Nodes.RejoinWindow = store.Claims(), time.Hour
		return a, a.Revocations
	}
	for name, flood := range map[string]func(t *testing.T, a *throttled, guard *revocation.Guard) func(i int) error{
		"revoked certificate": func(t *testing.T, a *throttled, guard *revocation.Guard) func(int) error {
			must.Get(guard.Revoke(t.Context(), revocation.Entry{Fingerprint: stolen}))
			a.Nodes.RejoinWindow = 0 // otherwise a certificate that is not in the claim has another rate
			return func(i int) error {
				r := by(stolen)
				_, err := map[bool]func(context.Context, approval.Request) ([]byte, error){true: a.Issue, false: a.Sign}[i%2 == 0](t.Context(), r)
				return err
			}
		},
		"old key": func(t *testing.T, a *throttled, _ *revocation.Guard) func(int) error {
			return func(int) error {
				r := by(stolen)
				r.Rejoin = &approval.Rejoin{Key: "sha256:old", NotAfter: a.now.Add(-time.Second)}
				_, err := a.Issue(t.Context(), r)
				return err
			}
		},
		"bound key, last certificate revoked": func(t *testing.T, a *throttled, guard *revocation.Guard) func(int) error {
			last := decode(t, must.Value(a.Issue(t.Context(), by(own)))(t))[0]
			must.OK(t, a.BindKey(t.Context(), last, "sha256:bound"))
			must.Get(guard.Revoke(t.Context(), revocation.Entry{Fingerprint: revocation.FingerprintOf(last)}))
			return func(int) error {
				r := by(own)
				r.Extra, r.Rejoin = nil, &approval.Rejoin{Key: "sha256:bound"}
				_, err := a.Issue(t.Context(), r)
				return err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, guard := throttledNode(t)
			again, refused := flood(t, a, guard), 0
			for i := range 100 {
				switch err := again(i); {
				case approval.Refused(err) != nil:
					refused++
				case tooMany(err) == nil:
					t.Fatalf("got %v, want a refusal", err)
				}
			}
			if refused != 60 {
				t.Errorf("got %d recorded refusals, want 60", refused)
			}
			no := &approval.Error{Decision: approval.Decision{Verdict: approval.Deny, Reason: "Bad", Message: "not today"}}
			if err := a.Refuse(t.Context(), by(own), no); approval.Refused(err) == nil {
				t.Errorf("another refusal of the name: got %v, want it recorded", err)
			}
			other := by(own)
			other.Rejoin = &approval.Rejoin{Key: "sha256:other"}
			if err := a.Refuse(t.Context(), other, no); approval.Refused(err) == nil {
				t.Errorf("the refusal of another key: got %v, want it recorded", err)
			}
			if n := a.ask(t, 50, 0, func(int) approval.Request { return by(own) }); n != 50 {
				t.Errorf("got %d certificates, want 50", n)
			}
		})
	}
}

// A disk may hold many old certificates. Together they must not fill the record.
func TestRefusalsOfManyOldKeysCannotFillTheRecord(t *testing.T) {
	a := newThrottled(t)
	for i := range 200 * 60 {
		r := approval.Request{User: "system:node:worker-1", Groups: []string{"system:nodes"}, Rejoin: &approval.Rejoin{Key: fmt.Sprint(i / 60)}}
		r.CSR = &x509.CertificateRequest{RawSubjectPublicKeyInfo: fmt.Append(nil, i)}
		_ = a.Refuse(t.Context(), r, &approval.Error{Decision: approval.Decision{Verdict: approval.Deny, Reason: "Bad"}}) // or the request waits
	}
	if len(a.log.all) != 10_000 {
		t.Errorf("got %d recorded refusals, want 10,000", len(a.log.all))
	}
}

func TestUnthrottledAuthorityHasNoRate(t *testing.T) {
	a := newThrottled(t)
	a.Unthrottled = true
	if n := a.ask(t, 500, 0, renewalOf(t, "worker-1", "system:node:worker-1")); n != 500 {
		t.Errorf("got %d certificates, want 500", n)
	}
}

// A request beyond the rate must not cause reads of its Node from the API server.
func TestThrottledRequestReadsNoNode(t *testing.T) {
	a := newThrottled(t)
	reads := 0
	a.Nodes = &admission.Nodes{Now: a.Now, Node: func(context.Context, string) (string, error) { reads++; return "uid", nil }}
	client := renewalOf(t, "worker-1", "system:node:worker-1")
	a.ask(t, 60, 0, client)
	before := reads
	if _, err := a.Sign(t.Context(), client(0)); tooMany(err) == nil || reads != before || reads == 0 {
		t.Errorf("got %v after %d reads (%d before), want to wait without another read", err, reads, before)
	}
}

// Concurrent requests of one identity must not get more certificates than its rate allows.
func TestRateHoldsForConcurrentRequests(t *testing.T) {
	a := newThrottled(t)
	const most, more = 60, 8
	var all sync.WaitGroup
	at := make(chan struct{})
	arrived := make(chan struct{}, most+more)
	a.Nodes = &admission.Nodes{Now: a.Now, Node: func(context.Context, string) (string, error) {
		arrived <- struct{}{}
		<-at
		return "u", nil
	}}
	var mu sync.Mutex
	issued, throttled := 0, 0
	r := renewalOf(t, "worker-1", "system:node:worker-1")(0)
	for range most + more {
		all.Go(func() {
			_, err := a.Sign(t.Context(), r)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				issued++
			case tooMany(err) != nil:
				throttled++
			default:
				t.Error(err)
			}
		})
	}
	for range most + more {
		<-arrived // all have passed the first check of the rate
	}
	close(at)
	all.Wait()
	if issued != most || throttled != more {
		t.Errorf("got %d certificates and %d throttled requests, want %d and %d", issued, throttled, most, more)
	}
}

// A machine that was replaced may still have a valid certificate. It must not use up the rate of its successor.
func TestReplacedMachineSpendsNoRateOfItsName(t *testing.T) {
	a := newThrottled(t)
	a.Nodes.Claims, a.Nodes.RejoinWindow = memdb.Open().Claims(), time.Hour
	by := func(digit string) func(int) approval.Request {
		return func(int) approval.Request {
			r := renewal(t, revocation.Fingerprint(strings.Repeat(digit, 64)))
			r.UID, r.Approver = "", "jane"
			return r
		}
	}
	must.Value(a.Issue(t.Context(), by("b")(0)))(t) // creates the identity
	for digit, want := range map[string]int{"a": 60, "c": 60} {
		if n := a.ask(t, 100, 0, by(digit)); n != want {
			t.Errorf("stranger %s got %d certificates, want %d", digit, n, want)
		}
	}
	if n := a.ask(t, 50, 0, by("b")); n != 50 {
		t.Errorf("the machine got %d certificates, want 50", n)
	}
}
