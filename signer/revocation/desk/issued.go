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
		q.Outcome, q.Limit = issuance.Issued, issuance.MaxLimit
		if q.Since.IsZero() {
			q.EndsAfter = time.Now()
		}
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

// recently is how long before a look the certificates were issued that it looks at. It is more than clocks differ and
// kubejoin takes to issue one.
const recently = time.Hour

// issuedOn returns the certificates that were issued recently to requesters with a certificate of these entries.
func (d *Revoker) issuedOn(ctx context.Context, entries []revocation.Entry) ([]revocation.Certificate, error) {
	on := map[revocation.Fingerprint]bool{}
	for _, e := range entries {
		if e.Node == "" {
			on[e.Fingerprint] = true
		}
	}
	if len(on) == 0 {
		return nil, nil
	}
	return d.known(ctx, issuance.Query{Since: time.Now().Add(-recently)}, func(c revocation.Certificate) bool {
		return slices.ContainsFunc(c.Credentials, func(f revocation.Fingerprint) bool { return on[f] })
	})
}

func (d *Revoker) requested(ctx context.Context) ([]revocation.Certificate, error) {
	if d.Requested == nil {
		return nil, nil
	}
	all, err := d.Requested(ctx)
	if err != nil {
		return nil, &tokens.Refusal{Reason: NoRequests, Message: "the certificate requests of the cluster cannot be read now; retry", Err: err, Retry: true}
	}
	return all, nil
}

func recordError(err error) error {
	return &tokens.Refusal{Reason: NoRecord, Message: "the issuance record cannot be read now; retry", Err: err, Retry: true}
}

// issuedOf returns the certificate of an entry in the issuance record. It is not ok for an entry that has neither the
// certificate nor its fingerprint.
func issuedOf(e issuance.Entry) (c revocation.Certificate, ok bool) {
	var credentials []revocation.Fingerprint
	for _, s := range e.Credentials {
		if f, err := revocation.ParseFingerprint(s); err == nil {
			credentials = append(credentials, f)
		}
	}
	if chain := pemfile.Presented([]byte(e.Certificate)); len(chain) > 0 {
		return revocation.CertificateOf(e.TokenID, credentials, chain[0]), true
	}
	fingerprint, err := revocation.ParseFingerprint(e.Fingerprint)
	if err != nil {
		return c, false
	}
	c = revocation.Certificate{TokenID: e.TokenID, Credentials: credentials, Node: e.Node, Serial: e.Serial, Fingerprint: fingerprint, NotAfter: e.NotAfter}
	if tokens.CheckNodeName(c.Node) != nil {
		c.Node = ""
	}
	return c, true
}
