package desk

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// bySerial returns the certificate of a serial number, from the issuance record or from those that were issued recently.
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

// known returns the certificates that match and have not ended, from the issuance record and from those that were
// issued recently.
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

// barredBy returns whether one of these entries bars a subject.
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

// requestedBy returns the certificates that were issued recently to requesters that these entries bar. Those that the
// entries bar as well are not among them.
func (d *Revoker) requestedBy(ctx context.Context, entries []revocation.Entry) ([]revocation.Certificate, error) {
	all, err := d.requested(ctx)
	bars := barredBy(entries)
	return slices.DeleteFunc(all, func(c revocation.Certificate) bool {
		return !bars(c.Requester) || bars(revocation.Subject{Node: c.Node, Fingerprints: []revocation.Fingerprint{c.Fingerprint}})
	}), err
}

// requested returns the certificates that were issued recently.
func (d *Revoker) requested(ctx context.Context) ([]revocation.Certificate, error) {
	all, err := d.requests(ctx)
	return slices.DeleteFunc(all, unwritten), err
}

// unwritten reports whether a request is approved and has no certificate.
func unwritten(c revocation.Certificate) bool { return c.Fingerprint == "" }

func (d *Revoker) requests(ctx context.Context) ([]revocation.Certificate, error) {
	if d.Requested == nil {
		return nil, nil
	}
	all, err := d.Requested(ctx)
	if err != nil {
		return nil, &tokens.Refusal{Reason: NoRequests, Message: "the certificate requests of the cluster cannot be read now; retry", Err: err, Retry: true}
	}
	return all, nil
}

// maxWrite limits how long written waits. kubejoin refuses an approved request of a revoked requester at its next try, so one
// that has no outcome for longer has no signer, or the write of its certificate hangs.
const maxWrite = 15 * time.Second

// written waits until no request that matches is approved and without a certificate: a replica that has looked for
// revocations before these were stored may be writing it.
func (d *Revoker) written(ctx context.Context, match func(revocation.Certificate) bool) error {
	for waited := time.Duration(0); ; waited += views {
		all, err := d.requests(ctx)
		if err != nil || !slices.ContainsFunc(all, func(c revocation.Certificate) bool { return unwritten(c) && match(c) }) {
			return err
		}
		if waited >= maxWrite {
			return &tokens.Refusal{Reason: NoRequests, Retry: true,
				Message: "an approved certificate request has neither a certificate nor condition Failed; find out why with 'kubectl get csr', or deny it with 'kubectl delete csr NAME'"}
		}
		if err := sleep(ctx, views); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func recordError(err error) error {
	return &tokens.Refusal{Reason: NoRecord, Message: "the issuance record cannot be read now; retry", Err: err, Retry: true}
}

// issuedOf returns the certificate of an entry in the issuance record. It is not ok for an entry that has neither the
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
