package issuance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// The values of [Entry.Outcome]: how a request for a certificate ended.
const (
	// Issued: the signer signed a certificate. It writes the entry before it delivers the certificate, so the
	// record may have certificates that were never delivered.
	Issued = "issued"
	// Refused: the signer will never sign the request as it is. If a client without a CSR object repeats the
	// request, the refusal is recorded once an hour.
	Refused = "refused"
	// Failed: the signer could not sign the request, and retries it. A repeated failure is recorded once or,
	// without a CSR object, once an hour.
	Failed = "failed"
)

// An Entry is one entry of the record.
type Entry struct {
	Time    time.Time `json:"time"`
	Outcome string    `json:"outcome"`
	Signer  string    `json:"signer"`

	// Request and RequestUID are the name and UID of the CertificateSigningRequest object, if there is one.
	Request    string `json:"request,omitempty"`
	RequestUID string `json:"requestUID,omitempty"`
	// Requester is the user of the request, and TokenID the bootstrap token that authenticated it.
	Requester string `json:"requester"`
	TokenID   string `json:"tokenID,omitempty"`
	// From is the client's address, if the request was made to kubejoin itself.
	From string `json:"from,omitempty"`

	// The requested names and usages. They are empty if the request cannot be parsed. Node is the node name
	// in the subject.
	Node           string   `json:"node,omitempty"`
	Subject        string   `json:"subject,omitempty"` // RFC 2253
	DNSNames       []string `json:"dnsNames,omitempty"`
	IPAddresses    []string `json:"ipAddresses,omitempty"`
	EmailAddresses []string `json:"emailAddresses,omitempty"`
	URIs           []string `json:"uris,omitempty"`
	Usages         []string `json:"usages,omitempty"`
	// SPKI is the SHA-256 of the public key (SubjectPublicKeyInfo) in the format of a CA pin: "sha256:" and
	// hexadecimal digits.
	SPKI string `json:"spki,omitempty"`

	// Fields of an issued certificate. Serial has the form that [ParseSerial] returns. Fingerprint is the SHA-256 of the
	// certificate: "sha256:" and hexadecimal digits.
	Serial      string    `json:"serial,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	NotBefore   time.Time `json:"notBefore,omitzero"`
	NotAfter    time.Time `json:"notAfter,omitzero"`
	Certificate string    `json:"certificate,omitempty"` // PEM, without the chain; not in a record in etcd
	// CA is the pin of the CA that signed the certificate: "sha256:" and the SHA-256 of its public key in hexadecimal
	// digits. Entries of earlier versions lack it.
	CA string `json:"ca,omitempty"`

	// Approver is who approved the request. If kubejoin did, Rule is the rule that approved it, and Evidence has the facts that
	// the rule found. If a machine joined with a key of its own, Evidence also has the key and who added the machine.
	Approver string   `json:"approver,omitempty"`
	Rule     string   `json:"rule,omitempty"`
	Evidence []string `json:"evidence,omitempty"`

	// Reason and Message say why the request was refused or failed.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// firstTime and lastTime limit the times by which entries can be sorted.
var firstTime, lastTime = time.Unix(0, 0), time.Unix(0, math.MaxInt64)

// Check returns an error for an entry that no query would find, or that would never expire.
func (e Entry) Check() error {
	if e.Time.Before(firstTime) || e.Time.After(lastTime) {
		return fmt.Errorf("invalid time %s: want a year from %d to %d", e.Time, firstTime.Year(), lastTime.Year())
	}
	switch e.Outcome {
	case Refused, Failed:
		return nil
	case Issued:
		if serial, err := ParseSerial(e.Serial); err != nil || serial != e.Serial {
			return fmt.Errorf("invalid serial %.60q: want lower-case hexadecimal digits", e.Serial)
		}
		if e.NotAfter.Before(firstTime) {
			return fmt.Errorf("invalid notAfter %s: want the expiration of the certificate", e.NotAfter)
		}
		return nil
	}
	return fmt.Errorf("invalid outcome %.20q: want %s, %s or %s", e.Outcome, Issued, Refused, Failed)
}

// A Log stores entries. Append returns when the entry is stored. If Append fails, the signer does not issue the
// certificate. Many goroutines may call it at the same time.
type Log interface {
	Append(ctx context.Context, e Entry) error
}

// Copies returns a Log that appends every entry to each of several logs, in their order. Append succeeds if
// at least one of them stores the entry, so that a full disk stops nothing while another log works. failed,
// if set, is called for each log that could not store an entry. Nil logs are ignored; without any log,
// Copies returns nil.
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
