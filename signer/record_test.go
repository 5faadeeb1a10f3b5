package signer_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// entries is an issuance record in memory. While full is set, Append fails with it.
type entries struct {
	mu   sync.Mutex
	all  []issuance.Entry
	full error
}

func (l *entries) Append(ctx context.Context, e issuance.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := errors.Join(ctx.Err(), l.full); err != nil {
		return err
	}
	l.all = append(l.all, e)
	return nil
}

// outcomes lists the outcomes of all entries in order.
func (l *entries) outcomes() string {
	var all []string
	for _, e := range l.all {
		all = append(all, string(e.Outcome))
	}
	return strings.Join(all, " ")
}

// rule is an approval rule that gives every request the same decision.
type rule approval.Decision

func (rule) Name() string { return "test" }

func (r rule) Decide(context.Context, approval.Request, approval.Facts) (approval.Decision, error) {
	return approval.Decision(r), nil
}

// recorded returns an authority with a record and one rule. Setting caErr makes its CA unavailable.
func recorded(t *testing.T, r rule) (a *signer.Authority, log *entries, caErr *error) {
	ca, log, caErr := newCA(t), &entries{}, new(error)
	signers := must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return ca, *caErr }, time.Hour))
	for name, s := range signers {
		s.Rules = []approval.Rule{r}
		signers[name] = s
	}
	return &signer.Authority{Signers: signer.FixedSigners(signers), Record: log}, log, caErr
}

func TestRecordsIssuedCertificate(t *testing.T) {
	a, log, _ := recorded(t, rule{Verdict: approval.Approve, Reason: "Good", Evidence: []string{"it is Monday"}})
	r := kubernetesRequest(t, certificates.KubeletServingSignerName, nil)
	r.Name, r.UID, r.User, r.From = "csr-1", "uid-1", "system:node:worker-1", netip.MustParseAddr("192.0.2.1")
	chain, err := a.Issue(t.Context(), r)
	if err != nil || len(log.all) != 1 {
		t.Fatalf("got %v and %d entries, want one", err, len(log.all))
	}
	block, _ := pem.Decode(chain)
	cert := must.Value(x509.ParseCertificate(block.Bytes))(t)
	got := log.all[0]
	if age := time.Since(got.Time); age < 0 || age > time.Minute {
		t.Errorf("got time %s, want now", got.Time)
	}
	if !strings.HasPrefix(got.SPKI, "sha256:") || len(got.SPKI) != 71 {
		t.Errorf("got SPKI %q", got.SPKI)
	}
	s, _ := a.Signer(r.SignerName)
	want := issuance.Entry{
		Time: got.Time, Outcome: issuance.Issued, Signer: r.SignerName, Request: "csr-1", RequestUID: "uid-1", Requester: r.User, From: "192.0.2.1",
		Node: "worker-1", Subject: "CN=system:node:worker-1,O=system:nodes", DNSNames: []string{"worker-1", "worker-1.example.com"},
		IPAddresses: []string{"192.0.2.1", "2001:db8::1"}, Usages: []string{"digital signature", "server auth"}, SPKI: got.SPKI,
		Serial: cert.SerialNumber.Text(16), Fingerprint: revocation.FingerprintOf(cert).String(), NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, Certificate: string(pem.EncodeToMemory(block)),
		CA: clusterinfo.Pin(must.Get(s.CA()).Certificate()), Approver: "kubejoin", Rule: "test", Evidence: []string{"it is Monday"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got entry\n%+v\nwant\n%+v", got, want)
	}

	// Signing the request again issues another certificate. The entry names the person who approved it.
	r.Approver = "jane"
	if _, err := a.Sign(t.Context(), r); err != nil || log.outcomes() != "issued issued" {
		t.Fatalf("got %v and outcomes %s", err, log.outcomes())
	}
	if e := log.all[1]; e.Approver != "jane" || e.Rule != "" || e.Serial == got.Serial {
		t.Errorf("got entry %+v, want approver jane and another serial number", e)
	}
}

// The record names the approver and rule even if more than a second passes between approval and signing.
func TestRecordNamesApproverOfLateCertificate(t *testing.T) {
	a, log, _ := recorded(t, rule{Verdict: approval.Approve, Reason: "Good"})
	now := time.Now()
	a.Now = func() time.Time { return now }
	a.Nodes = &admission.Nodes{Now: a.Now}
	r := kubernetesRequest(t, certificates.KubeletServingSignerName, nil)
	admission := must.Value(a.Decide(t.Context(), r))(t)
	now = now.Add(time.Minute)
	if _, err := a.SignAdmitted(t.Context(), admission); err != nil || log.all[0].Approver != "kubejoin" || log.all[0].Rule != "test" {
		t.Errorf("got %v and entries %+v", err, log.all)
	}
	// Without the Admission, the entry has no approver.
	if _, err := a.Sign(t.Context(), r); err != nil || log.all[1].Approver != "" {
		t.Errorf("got %v and entries %+v", err, log.all)
	}
}

func TestRecordsEachRefusalOnce(t *testing.T) {
	deny := rule{Verdict: approval.Deny, Reason: "Bad", Message: "not today", Evidence: []string{"it is Sunday"}}
	for _, test := range []struct {
		name string
		rule rule
		ask  func(r *approval.Request)
		want issuance.Entry
	}{
		{"by a rule", deny, nil, issuance.Entry{Reason: "Bad", Message: "not today", Rule: "test", Evidence: []string{"it is Sunday"}}},
		{
			"by admission", rule{Verdict: approval.Approve, Reason: "Good"}, func(r *approval.Request) { r.User = "system:bootstrap:qwertz" },
			issuance.Entry{Reason: "TokenRevoked", Rule: "node-admission", TokenID: "qwertz"},
		},
		{
			"by its signer", rule{Verdict: approval.Approve, Reason: "Good"}, func(r *approval.Request) { r.Usages = []certificates.KeyUsage{"cert sign"} },
			issuance.Entry{Reason: "SignerValidationFailure", Rule: "signer"},
		},
		{
			"by its signer, approved by hand", rule{}, func(r *approval.Request) { r.Usages, r.Approver = []certificates.KeyUsage{"cert sign"}, "jane" },
			issuance.Entry{Reason: "SignerValidationFailure", Approver: "jane"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, log, _ := recorded(t, test.rule)
			r := kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, nil)
			r.UID = "uid-1"
			if test.ask != nil {
				test.ask(&r)
			}
			for range 3 { // the caller retries when it cannot write the refusal
				chain, err := a.Issue(t.Context(), r)
				if r.Approver != "" {
					chain, err = a.Sign(t.Context(), r)
				}
				if chain != nil || approval.Refused(err) == nil {
					t.Fatalf("got %v, want a refusal", err)
				}
			}
			if log.outcomes() != "refused" {
				t.Fatalf("got outcomes %q, want one refusal", log.outcomes())
			}
			got := log.all[0]
			if got.Reason != test.want.Reason || got.Message == "" || test.want.Message != "" && got.Message != test.want.Message || got.Rule != test.want.Rule ||
				got.Approver != test.want.Approver || got.TokenID != test.want.TokenID || !slices.Equal(got.Evidence, test.want.Evidence) ||
				got.Node != "worker-1" || got.Requester != r.User || got.SPKI == "" || got.Serial+got.Certificate != "" {
				t.Errorf("got entry %+v, want %+v", got, test.want)
			}
		})
	}
}

// Refuse records a request that the caller refused before it reached the authority, once for each requester.
func TestRefuseRecordsOncePerRequester(t *testing.T) {
	a, log, _ := recorded(t, rule{})
	r := approval.Request{SignerName: certificates.KubeletServingSignerName, UID: "uid-1", User: "jane"}
	for range 2 {
		err := a.Refuse(t.Context(), r, &approval.Error{Decision: approval.Decision{Verdict: approval.Deny, Reason: "Bad", Message: "no PEM: 8w4usg.qwertzuiopasdfgh"}})
		if approval.Refused(err) == nil {
			t.Fatal(err)
		}
	}
	if len(log.all) != 1 || log.all[0].Message != "no PEM: 8w4usg.<redacted>" || log.all[0].Requester != "jane" || log.all[0].SPKI != "" {
		t.Errorf("got entries %+v, want one refusal of jane's request", log.all)
	}
	// The same request from another requester has its own entry.
	r.User = "joe"
	if err := a.Refuse(t.Context(), r, &approval.Error{Decision: approval.Decision{Verdict: approval.Deny, Reason: "Bad", Message: "no PEM: 8w4usg.qwertzuiopasdfgh"}}); err == nil || len(log.all) != 2 {
		t.Errorf("got %v, entries %+v, want another entry for joe", err, log.all)
	}
}

// Over HTTP, a machine that retries for days has one entry an hour: it does not fill the record, and the last hour
// shows it. A CSR object (with UID) has one entry in total.
func TestRecordsRepeatedRefusalOncePerHour(t *testing.T) {
	for uid, want := range map[string]int{"": 48, "uid-1": 1} {
		a, log, _ := recorded(t, rule{Verdict: approval.Deny, Reason: "Bad", Message: "not today"})
		now := time.Now()
		a.Now = func() time.Time { return now }
		r := kubernetesRequest(t, certificates.KubeletServingSignerName, nil)
		r.UID = uid
		for range 48 * 60 {
			if _, err := a.Issue(t.Context(), r); approval.Refused(err) == nil {
				t.Fatal(err)
			}
			now = now.Add(time.Minute)
		}
		if len(log.all) != want {
			t.Errorf("UID %q: got %d entries for two days with a request each minute, want %d", uid, len(log.all), want)
		}
	}
}

// A request that waits for its Node has neither failed nor been refused.
func TestRecordsNoEntryForWaitingRequest(t *testing.T) {
	a, log, _ := recorded(t, rule{})
	there := errors.New("no answer")
	a.Nodes = &admission.Nodes{Node: func(context.Context, string) (string, error) { return "", there }}
	r := kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, nil)
	r.User, r.Groups, r.Approver = "system:node:worker-1", []string{"system:nodes"}, "jane"
	if _, err := a.Sign(t.Context(), r); errors.As(err, new(*approval.Error)) || log.outcomes() != "failed" {
		t.Errorf("got %v, outcomes %q, want one failure", err, log.outcomes())
	}
	there = tokens.ErrNotFound
	_, err := a.Sign(t.Context(), r)
	if d, _ := said(err); d.Verdict != approval.Wait || d.Reason != admission.ReasonNodeNotFound || d.Message != err.Error() || log.outcomes() != "failed" {
		t.Errorf("got %v, %+v, outcomes %q, want to wait and no new entry", err, d, log.outcomes())
	}
}

func TestRecordsFailureWhenItsMessageChanges(t *testing.T) {
	a, log, caErr := recorded(t, rule{Verdict: approval.Approve, Reason: "Good"})
	r := kubernetesRequest(t, certificates.KubeletServingSignerName, nil)
	for _, message := range []string{"no such file", "no such file", "no leave to read it", "no leave to read it", "no such file"} {
		*caErr = errors.New(message)
		if _, err := a.Issue(t.Context(), r); !errors.Is(err, *caErr) {
			t.Fatalf("%v, want %v", err, *caErr)
		}
	}
	if log.outcomes() != "failed failed failed" || !strings.Contains(log.all[1].Message, "no leave to read it") || log.all[0].Approver != "kubejoin" {
		t.Fatalf("got entries %+v, want one for each change of the message", log.all)
	}
	*caErr = nil
	if _, err := a.Issue(t.Context(), r); err != nil || log.outcomes() != "failed failed failed issued" {
		t.Fatalf("got %v and outcomes %s", err, log.outcomes())
	}
	*caErr = errors.New("no such file") // a failure after a certificate is a new outcome
	if _, err := a.Issue(t.Context(), r); err == nil || log.outcomes() != "failed failed failed issued failed" {
		t.Errorf("got %v and outcomes %s", err, log.outcomes())
	}

	// A canceled request or an unknown signer is no failure.
	n := len(log.all)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := a.Sign(ctx, r)
	r.SignerName = "example.com/x"
	_, err2 := a.Sign(t.Context(), r)
	if !errors.Is(err, context.Canceled) || !errors.Is(err2, signer.ErrUnknownSigner) || len(log.all) != n {
		t.Errorf("got %v, %v and new entries %+v, want none", err, err2, log.all[n:])
	}
}

// While the record is full, the signer returns no certificate and no final refusal. A later retry succeeds.
func TestReturnsNothingThatCannotBeRecorded(t *testing.T) {
	approve, deny := rule{Verdict: approval.Approve, Reason: "Good"}, rule{Verdict: approval.Deny, Reason: "Bad", Message: "not today"}
	broken := errors.New("no such file")
	for name, test := range map[string]struct {
		rule     rule
		approver string
		usage    certificates.KeyUsage
		ca       error
		want     string
	}{
		"issued":               {rule: approve, usage: certificates.UsageServerAuth, want: "issued"},
		"denied":               {rule: deny, usage: certificates.UsageServerAuth, want: "refused"},
		"refused when signing": {approver: "jane", usage: certificates.UsageCertSign, want: "refused"},
		"failed":               {rule: approve, usage: certificates.UsageServerAuth, ca: broken, want: "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			a, log, caErr := recorded(t, test.rule)
			*caErr, log.full = test.ca, errors.New("no space left on device")
			r := kubernetesRequest(t, certificates.KubeletServingSignerName, nil)
			r.Usages[1], r.Approver = test.usage, test.approver
			for range 2 {
				chain, err := a.Issue(t.Context(), r)
				if r.Approver != "" {
					chain, err = a.Sign(t.Context(), r)
				}
				if chain != nil || approval.Refused(err) != nil || !errors.Is(err, log.full) || test.ca != nil && !errors.Is(err, test.ca) {
					t.Fatalf("got %d bytes, %v; want only the error of the record", len(chain), err)
				}
			}
			log.full = nil
			if _, _ = a.Issue(t.Context(), r); r.Approver != "" {
				_, _ = a.Sign(t.Context(), r)
			}
			if log.outcomes() != test.want {
				t.Errorf("got outcomes %q after a retry, want %s", log.outcomes(), test.want)
			}
		})
	}
}

// The record has each signed certificate, even if its requester canceled the request.
func TestRecordsCertificateOfCanceledRequest(t *testing.T) {
	a, log, _ := recorded(t, rule{Verdict: approval.Approve, Reason: "Good"})
	ctx, leave := context.WithCancel(t.Context())
	a.Now = func() time.Time { leave(); return time.Now() } // the last call of Now comes right before signing
	r := kubernetesRequest(t, certificates.KubeletServingSignerName, nil)
	a.Nodes = &admission.Nodes{}
	_, err := a.Sign(ctx, r)
	if ctx.Err() == nil || err != nil || log.outcomes() != "issued" {
		t.Errorf("got context error %v, error %v and outcomes %q", ctx.Err(), err, log.outcomes())
	}
}

// Anybody can cause refusals. Their entries take at most 6 KiB, regardless of the request, and contain no token
// secret.
func TestBoundsSizeOfRefusalEntries(t *testing.T) {
	for name, test := range map[string]struct {
		text, address string
	}{
		"names":             {"ä", "worker-%d.example.com"},
		"of JSON":           {`"\`, `"\"\%d`},
		"of HTML":           {"<&>", "<&><&><&><&>%d"},
		"of control":        {"\n\x01", "\x01\x02\x7f%d"},
		"long":              {"ä", strings.Repeat("x", 900) + "%d"},
		"line break U+2028": {"\u2028", "worker-%d"},
		"empty":             {"", ""},
		"nothing valid":     {"\xff", "\xff%d"},
	} {
		t.Run(name, func(t *testing.T) {
			a, log, _ := recorded(t, rule{Verdict: approval.Deny, Reason: "Bad", Message: strings.Repeat(test.text, 100_000)})
			r := kubernetesRequest(t, certificates.KubeletServingSignerName, nil)
			r.User, r.Name = "8w4usg.qwertzuiopasdfgh", strings.Repeat(test.text, 500)+" 8w4usg.qwertzuiopasdfgh"
			csr := *csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("8w4usg.qwertzuiopasdfgh")}, nil)
			for i := range 2000 {
				text := strings.ReplaceAll(test.address, "%d", strconv.Itoa(i))
				csr.DNSNames, csr.EmailAddresses = append(csr.DNSNames, text), append(csr.EmailAddresses, text)
				csr.URIs, csr.IPAddresses = append(csr.URIs, &url.URL{Opaque: text}), append(csr.IPAddresses, net.IP("0123456789abcdef"))
				r.Usages = append(r.Usages, certificates.KeyUsage(text))
			}
			r.CSR = &csr
			if _, err := a.Issue(t.Context(), r); approval.Refused(err) == nil {
				t.Fatal(err)
			}
			entry, err := json.Marshal(log.all[0])
			if err != nil || len(entry) > 6<<10 {
				t.Errorf("got an entry of %d bytes, want at most 6 KiB: %.300s %v", len(entry), entry, err)
			}
			if text := string(entry); strings.Contains(text, "qwertzuiopasdf") || !strings.Contains(text, `8w4usg.\u003credacted\u003e`) || !strings.Contains(text, "more)") {
				t.Errorf("got entry %.300s, want a redacted token and a note about cut text", text)
			}
		})
	}
}

// countsOnly counts entries and keeps none.
type countsOnly struct{ n int }

func (n *countsOnly) Append(context.Context, issuance.Entry) error { n.n++; return nil }

// The authority keeps a bounded number of recorded requests in memory, but enough for a large cluster: 15,000
// requests are each recorded once.
func TestBoundsMemoryOfRecordedRequests(t *testing.T) {
	log := &countsOnly{}
	a := &signer.Authority{Record: log}
	long := strings.Repeat("x", 100)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	refuse := func(i int) {
		_ = a.Refuse(t.Context(), approval.Request{User: fmt.Sprint(long, i), UID: fmt.Sprint(i)}, &approval.Error{Decision: approval.Decision{Verdict: approval.Deny, Reason: "Bad", Message: long}})
	}
	before := heap()
	for range 3 {
		for i := range 15_000 {
			refuse(i)
		}
	}
	if log.n != 15_000 {
		t.Errorf("got %d entries, want one for each of 15,000 requests", log.n)
	}
	for i := range 100_000 {
		refuse(i)
	}
	if grown := int64(heap() - before); grown > 10<<20 {
		t.Errorf("got %d bytes more memory, want at most 10 MiB", grown)
	}
	runtime.KeepAlive(a)
}
