package desk

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// bySerial returns the certificate with a serial number, from the issuance record or from the recently issued
// certificates.
func (d *Revoker) bySerial(ctx context.Context, serial string) (revocation.Fingerprint, error) {
	if d.IssuanceRecord != nil {
		e, err := d.IssuanceRecord.Get(ctx, serial)
		if err == nil {
			if c, ok := issuedOf(e); ok {
				return c.Fingerprint, nil
			}
		} else if !errors.Is(err, issuance.ErrNotFound) {
			return "", recordError(err)
		}
	}
	recent, err := d.requested(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range recent {
		if c.Serial == serial {
			return c.Fingerprint, nil
		}
	}
	return "", &tokens.Refusal{Reason: NotIssued, Message: "kubejoin knows no certificate with serial number " + serial + "; give its fingerprint, which 'openssl x509 -noout -fingerprint -sha256 -in FILE' prints, or revoke its node"}
}

// known returns the certificates that match and have not expired, from the issuance record and from the recently
// issued certificates.
func (d *Revoker) known(ctx context.Context, q issuance.Query, match func(revocation.Certificate) bool) ([]revocation.Certificate, error) {
	all, err := d.requested(ctx)
	if err != nil {
		return nil, err
	}
	if d.IssuanceRecord != nil {
		q.Outcome, q.EndsAfter, q.Limit = issuance.Issued, time.Now(), issuance.MaxLimit
		for {
			page, err := d.IssuanceRecord.List(ctx, q)
			if err != nil {
				return nil, recordError(err)
			}
			for _, e := range page.Entries {
				if c, ok := issuedOf(e); ok {
					all = append(all, c)
				}
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
	}
	return slices.DeleteFunc(all, func(c revocation.Certificate) bool { return time.Now().After(c.NotAfter) || !match(c) }), nil
}

// barredBy returns a function that reports whether one of these entries bars a subject.
func barredBy(entries []revocation.Entry) func(revocation.Subject) bool {
	byKey := map[revocation.Key]revocation.Entry{}
	for _, e := range entries {
		byKey[e.Key()] = e
	}
	return func(s revocation.Subject) bool {
		return slices.ContainsFunc(s.Keys(), func(key revocation.Key) bool {
			e, found := byKey[key]
			return found && e.Bars(s, time.Now())
		})
	}
}

// requestedBy returns recently issued certificates that these entries do not bar, although they bar the requester of
// the certificate.
func (d *Revoker) requestedBy(ctx context.Context, entries []revocation.Entry) ([]revocation.Certificate, error) {
	all, err := d.requested(ctx)
	return notBarred(all, entries), err
}

// notBarred returns the certificates that these entries do not bar, although they bar the requester of the
// certificate.
func notBarred(all []revocation.Certificate, entries []revocation.Entry) (free []revocation.Certificate) {
	bars := barredBy(entries)
	for _, c := range all {
		if bars(c.Requester) && !bars(revocation.Subject{Node: c.Node, Fingerprints: []revocation.Fingerprint{c.Fingerprint}}) {
			free = append(free, c)
		}
	}
	return free
}

func (d *Revoker) requested(ctx context.Context) ([]revocation.Certificate, error) {
	if d.Requested == nil {
		return nil, nil
	}
	all, err := d.Requested(ctx)
	return all, requestsError("read", err)
}

func (d *Revoker) withdraw(ctx context.Context, revoked func(revocation.Certificate) bool) error {
	if d.Withdraw == nil {
		return nil
	}
	return requestsError("withdrawn", d.Withdraw(ctx, revoked))
}

func requestsError(done string, err error) error {
	if err == nil {
		return nil
	}
	if mint.StoreError(err).Reason == mint.Refused {
		return &tokens.Refusal{Reason: Refused, Message: "the API server does not let kubejoin read or withdraw the certificate requests of the cluster", Err: err}
	}
	return &tokens.Refusal{Reason: NoRequests, Message: "the certificate requests of the cluster cannot be " + done + " now; retry", Err: err, Retry: true}
}

func recordError(err error) error {
	return &tokens.Refusal{Reason: NoRecord, Message: "the issuance record cannot be read now; retry", Err: err, Retry: true}
}

// issuedOf returns the certificate of an entry in the issuance record. ok is false if the entry has neither the
// certificate nor its fingerprint.
func issuedOf(e issuance.Entry) (c revocation.Certificate, ok bool) {
	if chain := pemfile.Presented([]byte(e.Certificate)); len(chain) > 0 {
		return revocation.CertificateOf(e.TokenID, revocation.Subject{}, chain[0]), true
	}
	fingerprint, err := revocation.ParseFingerprint(e.Fingerprint)
	if err != nil {
		return c, false
	}
	c = revocation.Certificate{TokenID: e.TokenID, Node: e.Node, Serial: e.Serial, Fingerprint: fingerprint, NotAfter: e.NotAfter}
	if tokens.CheckNodeName(c.Node) != nil {
		c.Node = ""
	}
	return c, true
}
