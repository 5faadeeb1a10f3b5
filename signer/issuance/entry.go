package issuance

import (
	"context"
	"errors"
	"slices"
	"time"
)

// How a request for a certificate ended: the values of [Entry.Outcome].
const (
	// Issued: the signer signed a certificate. It records that before the certificate leaves, so that
	// the record also has a certificate that was never delivered because a write failed.
	Issued = "issued"
	// Refused: the signer will never sign the request as it is. A request without an object that
	// is repeated is recorded once an hour.
	Refused = "refused"
	// Failed: the signer could not sign the request, and retries it. A failure that repeats itself is
	// recorded once, or once an hour like a refusal.
	Failed = "failed"
)

// An Entry is one line of the record.
type Entry struct {
	Time    time.Time `json:"time"`
	Outcome string    `json:"outcome"`
	Signer  string    `json:"signer"`

	// Request and RequestUID are those of the CertificateSigningRequest object, if there is one.
	Request    string `json:"request,omitempty"`
	RequestUID string `json:"requestUID,omitempty"`
	// Requester is the user that asked, TokenID the bootstrap token that it asked with.
	Requester string `json:"requester"`
	TokenID   string `json:"tokenID,omitempty"`
	// From is the address that it asked from, where it asked kubejoin itself.
	From string `json:"from,omitempty"`

	// What was asked for. They are empty if the request cannot be read. Node is the node that the
	// subject names.
	Node           string   `json:"node,omitempty"`
	Subject        string   `json:"subject,omitempty"` // RFC 2253
	DNSNames       []string `json:"dnsNames,omitempty"`
	IPAddresses    []string `json:"ipAddresses,omitempty"`
	EmailAddresses []string `json:"emailAddresses,omitempty"`
	URIs           []string `json:"uris,omitempty"`
	Usages         []string `json:"usages,omitempty"`
	// SPKI is the SHA-256 of the public key (SubjectPublicKeyInfo), "sha256:" and hex, as CA
	// pins have it.
	SPKI string `json:"spki,omitempty"`

	// Of a certificate that was issued. Serial is as [ParseSerial] gives it.
	Serial      string    `json:"serial,omitempty"`
	NotBefore   time.Time `json:"notBefore,omitzero"`
	NotAfter    time.Time `json:"notAfter,omitzero"`
	Certificate string    `json:"certificate,omitempty"` // PEM, without the chain

	// Approver is who approved it, Rule the rule by which if it was kubejoin, and Evidence what
	// that rule saw.
	Approver string   `json:"approver,omitempty"`
	Rule     string   `json:"rule,omitempty"`
	Evidence []string `json:"evidence,omitempty"`

	// Reason and Message say why it was refused or failed.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// A Log keeps entries. Append returns once an entry is kept: what cannot be recorded is not
// issued. It is called from many goroutines.
type Log interface {
	Append(ctx context.Context, e Entry) error
}

// Copies keeps every entry in each of several logs, in their order. An entry is kept when one of them has
// it: a disk that is full stops nothing while another log has room. failed is called for each log that
// could not keep an entry; nil is nobody. Nil logs are left out; none at all is nil.
func Copies(failed func(Log, error), logs ...Log) Log {
	all := slices.DeleteFunc(slices.Clone(logs), func(l Log) bool { return l == nil })
	if len(all) == 0 {
		return nil
	}
	return copies{failed, all}
}

type copies struct {
	failed func(Log, error)
	logs   []Log
}

func (c copies) Append(ctx context.Context, e Entry) error {
	var errs []error
	for _, l := range c.logs {
		if err := l.Append(ctx, e); err != nil {
			errs = append(errs, err)
			if c.failed != nil {
				c.failed(l, err)
			}
		}
	}
	if len(errs) < len(c.logs) {
		return nil
	}
	return errors.Join(errs...)
}
