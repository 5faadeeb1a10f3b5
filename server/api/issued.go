package api

import "time"

// An IssuanceEntry is one entry of the issuance record.
type IssuanceEntry struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Issuance
}

// An Issuance says what became of a request for a certificate. Its fields are those of a line of
// 'kubejoin serve --issuance-record FILE'.
type Issuance struct {
	Time time.Time `json:"time"`
	// Outcome is "issued", "refused" or "failed".
	Outcome string `json:"outcome"`
	Signer  string `json:"signer"`

	// Request and RequestUID name the CertificateSigningRequest object, if there is one.
	Request    string `json:"request,omitempty"`
	RequestUID string `json:"requestUID,omitempty"`
	// Requester is the user that sent the request, TokenID its bootstrap token, and From the address
	// of a client that sent the request to kubejoin itself.
	Requester string `json:"requester"`
	TokenID   string `json:"tokenID,omitempty"`
	From      string `json:"from,omitempty"`

	// What the request asks for; empty if it cannot be read. Node is the node that the subject names.
	Node           string   `json:"node,omitempty"`
	Subject        string   `json:"subject,omitempty"` // RFC 2253
	DNSNames       []string `json:"dnsNames,omitempty"`
	IPAddresses    []string `json:"ipAddresses,omitempty"`
	EmailAddresses []string `json:"emailAddresses,omitempty"`
	URIs           []string `json:"uris,omitempty"`
	Usages         []string `json:"usages,omitempty"`
	// SPKI is "sha256:" and the SHA-256 of the public key in hex, as in CA pins.
	SPKI string `json:"spki,omitempty"`

	// These describe an issued certificate. Serial is in lower-case hexadecimal digits.
	Serial    string    `json:"serial,omitempty"`
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`
	// Certificate is PEM, without the chain. Lists leave it out.
	Certificate string `json:"certificate,omitempty"`

	// Approver approved the request; Rule is kubejoin's rule, and Evidence what that rule saw.
	Approver string   `json:"approver,omitempty"`
	Rule     string   `json:"rule,omitempty"`
	Evidence []string `json:"evidence,omitempty"`

	// Reason and Message say why the request was refused or failed.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// An IssuanceEntryList is a page of the issuance record: the newest entries first, or, where it was
// asked when certificates end, those that end first.
type IssuanceEntryList struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Items      []IssuanceEntry `json:"items"`
	// Continue is the ListIssued.Continue of the next page; empty if this is the last.
	Continue string `json:"continue,omitempty"`
}

// ListIssued says which entries of the issuance record are wanted: those to which all of it applies.
type ListIssued struct {
	// TokenID is the bootstrap token that was asked with.
	TokenID string `json:"tokenID,omitempty"`
	// Node is the node that a certificate is for, or that asked for it.
	Node      string `json:"node,omitempty"`
	Requester string `json:"requester,omitempty"`
	Signer    string `json:"signer,omitempty"`
	// Outcome is "issued", "refused" or "failed".
	Outcome string `json:"outcome,omitempty"`
	// EndsWithin is certificates that are good now and end within a time such as "720h" or "30d".
	EndsWithin string `json:"endsWithin,omitempty"`
	// Since is a time of RFC 3339, or how long ago, such as "24h" or "7d".
	Since string `json:"since,omitempty"`
	// Limit is the most entries of a page, 1 to 1000; zero is 100.
	Limit int `json:"limit,omitempty"`
	// Continue goes on behind a page, with everything else as it was.
	Continue string `json:"continue,omitempty"`
}
