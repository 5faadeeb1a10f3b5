package signer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// self is the approver in entries of requests that the rules have approved.
const self = "kubejoin"

// recordTimeout is the timeout for storing an entry.
const recordTimeout = 10 * time.Second

// record stores the outcome of signing a request. Its error is never a refusal, because a refusal that is not recorded is not reported
// to the requester, and the request is retried.
func (a *Authority) record(ctx context.Context, r approval.Request, d approval.Decision, done issued, err error) error {
	if a.Record == nil {
		return nil
	}
	no, found := errors.AsType[*approval.Error](err)
	if found && no.Verdict != approval.Deny {
		return nil // the request waits: it is not refused and has not failed
	}
	e := a.entry(r, d)
	switch {
	case err == nil:
		return a.recordIssued(ctx, e, done)
	case found:
		return a.recordRefusal(ctx, r, e, no)
	}
	e.Outcome, e.Message = issuance.Failed, err.Error()
	if recordErr := a.recordOnce(ctx, r, e); recordErr != nil && !errors.As(recordErr, new(*approval.Error)) { // over the rate, the failure is not recorded: the request is retried anyway
		return errors.Join(err, recordErr)
	}
	return nil
}

func (a *Authority) recordIssued(ctx context.Context, e issuance.Entry, done issued) error {
	e.Outcome = issuance.Issued
	e.Serial, e.NotBefore, e.NotAfter = done.cert.SerialNumber.Text(16), done.cert.NotBefore, done.cert.NotAfter
	e.Certificate, e.Fingerprint = string(done.chain[:done.own]), revocation.FingerprintOf(done.cert).String()
	e.CA, e.Evidence = pkcs10.IDOfKey(done.ca.RawSubjectPublicKeyInfo), slices.Concat(e.Evidence, done.evidence)
	if err := a.append(ctx, e); err != nil {
		return err
	}
	a.lastRecorded.forget(key(e))
	return nil
}

// recordRefusal records a refusal, unless the same refusal is the last recorded outcome of the request. The same
// refusal may come again, because writing it to the CertificateSigningRequest failed.
func (a *Authority) recordRefusal(ctx context.Context, r approval.Request, e issuance.Entry, refused *approval.Error) error {
	e.Outcome, e.Reason, e.Message = issuance.Refused, refused.Reason, refused.Message
	return a.recordOnce(ctx, r, e)
}

// A repeated outcome of a request over HTTP is recorded again only after repeatAfter. So a search for refusals of the
// last day also finds a machine that has retried for a week.
const repeatAfter = time.Hour

// recordOnce records an outcome, unless it is the last recorded outcome of the request. It fails with
// [ReasonTooManyCertificates] if the requester has used up its rate of such entries.
func (a *Authority) recordOnce(ctx context.Context, r approval.Request, e issuance.Entry) error {
	if a.Record == nil {
		return nil
	}
	request, what := key(e), sha256.Sum256([]byte(e.Outcome+" "+e.Message))
	oldest := time.Time{}
	if e.RequestUID == "" { // a request over HTTP has no object, and its client retries it
		oldest = e.Time.Add(-repeatAfter)
	}
	if a.lastRecorded.has(request, what, oldest) {
		return nil
	}
	if err := a.rates.take(r.User, a.allowances(r, &e, false), a.now()); err != nil {
		return err
	}
	if err := a.append(ctx, e); err != nil {
		return err
	}
	a.lastRecorded.note(request, recordedRefusal{what, e.Time})
	return nil
}

// append stores an entry, even if the client has disconnected: a certificate that was signed must be recorded.
func (a *Authority) append(ctx context.Context, e issuance.Entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := a.Record.Append(ctx, bounded(e)); err != nil {
		return fmt.Errorf("issuance record: %w", err)
	}
	return nil
}

// Refuse records a refusal that was decided before the authority was called, and returns it.
func (a *Authority) Refuse(ctx context.Context, r approval.Request, refused *approval.Error) error {
	if err := a.recordRefusal(ctx, r, a.entry(r, approval.Decision{}), refused); err != nil {
		return err
	}
	return refused
}

// entry returns the facts about a request, regardless of its outcome. d is the decision of the rules that approved
// the request; zero if someone else approved it.
func (a *Authority) entry(r approval.Request, d approval.Decision) issuance.Entry {
	e := issuance.Entry{
		Time: a.now().UTC(), Signer: r.SignerName, Request: r.Name, RequestUID: r.UID, Requester: r.User, Approver: r.Approver,
	}
	e.TokenID = tokens.IDOfUser(r.User)
	if r.From.IsValid() {
		e.From = r.From.String()
	}
	if d.Verdict == approval.Approve {
		e.Approver, e.Rule, e.Evidence = self, d.Rule, d.Evidence
	}
	for _, u := range r.Usages {
		e.Usages = append(e.Usages, string(u))
	}
	if r.CSR == nil {
		return e
	}
	e.Subject, e.SPKI = r.CSR.Subject.String(), pkcs10.KeyID(r.CSR)
	if node, found := strings.CutPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix); found {
		e.Node = node
	}
	e.DNSNames, e.EmailAddresses = r.CSR.DNSNames, r.CSR.EmailAddresses
	for _, ip := range r.CSR.IPAddresses {
		e.IPAddresses = append(e.IPAddresses, ip.String())
	}
	for _, u := range r.CSR.URIs {
		e.URIs = append(e.URIs, u.String())
	}
	return e
}

// Bounds of an entry, in bytes of its JSON. Anybody can send a request that is refused, with up to ten thousand
// names. An issued certificate contains the full values itself.
const (
	maxText  = 1024
	maxList  = 100
	maxLists = 6 * maxList * maxText

	maxRefusedText  = 512
	maxRefusedLists = 1024
)

// bounded returns an entry of limited size, because anybody can cause one. It removes the secrets of tokens, which
// people paste anywhere, and control characters.
func bounded(e issuance.Entry) issuance.Entry {
	most, left := maxText, maxLists
	if e.Outcome != issuance.Issued {
		most, left = maxRefusedText, maxRefusedLists
	}
	for _, text := range []*string{&e.Signer, &e.Request, &e.Requester, &e.Node, &e.Subject, &e.Approver, &e.Message} {
		*text, _ = short(*text, most)
	}
	for _, list := range []*[]string{&e.Evidence, &e.Usages, &e.DNSNames, &e.IPAddresses, &e.EmailAddresses, &e.URIs} {
		var kept []string
		for i, text := range *list {
			if i == maxList || left <= 0 {
				kept = append(kept, fmt.Sprintf("(%d more)", len(*list)-i))
				break
			}
			text, size := short(text, min(most, left))
			kept = append(kept, text)
			left -= size + len(`"",`)
		}
		*list = kept
	}
	return e
}

// short truncates text to at most most bytes of JSON, before the ellipsis, and returns its size in JSON.
func short(text string, most int) (cut string, size int) {
	text = safetext.Text(text, most)
	for i, r := range text {
		n := utf8.RuneLen(r)
		switch r {
		case '"', '\\':
			n = 2
		case '<', '>', '&':
			n = len(`\u0000`)
		}
		if size+n > most {
			return text[:i] + "…", size
		}
		size += n
	}
	return text, size
}

// key identifies a request. A machine makes a new key pair for each request.
func key(e issuance.Entry) digest { return digestOf(e.Signer, e.RequestUID, e.Requester, e.SPKI) }

// lastRecorded caches the last recorded outcome of requests that were not signed. If it has dropped an outcome, the
// outcome is recorded twice, which does no harm.
type lastRecorded struct{ twoGenCache[recordedRefusal] }

// recordedRefusal is the digest of a recorded outcome, and when it was recorded.
type recordedRefusal struct {
	what digest
	at   time.Time
}

// has reports whether what is the last outcome stored under key, and was stored after oldest.
func (t *lastRecorded) has(key, what digest, oldest time.Time) bool {
	t.Lock()
	defer t.Unlock()
	last, _ := t.get(key)
	return last.what == what && last.at.After(oldest)
}

func (t *lastRecorded) note(key digest, what recordedRefusal) {
	t.Lock()
	defer t.Unlock()
	t.put(key, what)
}

func (t *lastRecorded) forget(key digest) {
	t.Lock()
	defer t.Unlock()
	delete(t.last, key)
	delete(t.earlier, key)
}
