package issuance

import (
	"context"
	"slices"
	"time"
)

// An Outcome is how a request for a certificate ended.
type Outcome string

const (
	// Issued: a certificate was signed. It is recorded before it leaves, so that one which was
	// signed and then not delivered, because a write failed, is in the record as well.
	Issued Outcome = "issued"
	// Refused: it will never be signed as it is. Of a request without an object that is made again
	// and again there is an entry every hour.
	Refused Outcome = "refused"
	// Failed: it could not be signed, and is tried again. A failure that repeats itself is
	// recorded once, or every hour like a refusal.
	Failed Outcome = "failed"
)

// An Entry is one line of the record.
type Entry struct {
	Time    time.Time `json:"time"`
	Outcome Outcome   `json:"outcome"`
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

// Logs keeps every entry in each of several logs, in their order. An entry that one of them cannot
// keep has failed, and the logs before it have it: of a certificate in that case, one that did not
// leave. Nil logs are left out; none at all is nil.
func Logs(logs ...Log) Log {
	all := slices.DeleteFunc(slices.Clone(logs), func(l Log) bool { return l == nil })
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return several(all)
}

type several []Log

func (s several) Append(ctx context.Context, e Entry) error {
	for _, l := range s {
		if err := l.Append(ctx, e); err != nil {
			return err
		}
	}
	return nil
}
