package api

import "time"

// An IssuanceEntry is one entry of the issuance record.
type IssuanceEntry struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Issuance
}

// An Issuance is the outcome of a certificate request. It has the fields of a line of 'kubejoin serve
// --issuance-record FILE'.
type Issuance struct {
	Time time.Time `json:"time"`
	// Outcome is "issued", "refused" or "failed".
	Outcome string `json:"outcome"`
	Signer  string `json:"signer"`

	// Request and RequestUID identify the CertificateSigningRequest object, if there is one.
	Request    string `json:"request,omitempty"`
	RequestUID string `json:"requestUID,omitempty"`
	// Requester is the user that sent the request and TokenID its bootstrap token. From is the address of the client,
	// if it sent the request to kubejoin directly.
	Requester string `json:"requester"`
	TokenID   string `json:"tokenID,omitempty"`
	From      string `json:"from,omitempty"`

	// What the request asks for; empty if it cannot be parsed. Node is the node name in the subject.
	Node           string   `json:"node,omitempty"`
	Subject        string   `json:"subject,omitempty"` // RFC 2253
	DNSNames       []string `json:"dnsNames,omitempty"`
	IPAddresses    []string `json:"ipAddresses,omitempty"`
	EmailAddresses []string `json:"emailAddresses,omitempty"`
	URIs           []string `json:"uris,omitempty"`
	Usages         []string `json:"usages,omitempty"`
	// SPKI is "sha256:" and the SHA-256 of the public key in hex, as in CA pins.
	SPKI string `json:"spki,omitempty"`

	// The issued certificate. Serial is in lower-case hexadecimal digits. Fingerprint is "sha256:" and the SHA-256 of
	// the certificate in hex; entries of earlier versions lack it.
	Serial      string    `json:"serial,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	NotBefore   time.Time `json:"notBefore,omitzero"`
	NotAfter    time.Time `json:"notAfter,omitzero"`
	// Certificate is PEM without the chain. Lists omit it, and a record in etcd does not have it.
	Certificate string `json:"certificate,omitempty"`
	// CA is the pin of the CA that signed the certificate; entries of earlier versions lack it.
	CA string `json:"ca,omitempty"`

	// Approver approved the request. Rule is the rule of kubejoin that approved it, and Evidence what the rule relied
	// on.
	Approver string   `json:"approver,omitempty"`
	Rule     string   `json:"rule,omitempty"`
	Evidence []string `json:"evidence,omitempty"`

	// Reason and Message describe why the request was refused or failed.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// An IssuanceEntryList is one page of the issuance record. The newest entries come first; with ListIssued.EndsWithin,
// those that expire first.
type IssuanceEntryList struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Items      []IssuanceEntry `json:"items"`
	// Continue is the ListIssued.Continue of the next page; empty on the last page.
	Continue string `json:"continue,omitempty"`
}

// ListIssued selects the entries of the issuance record that match all of its fields.
type ListIssued struct {
	// TokenID is the bootstrap token that the request was sent with.
	TokenID string `json:"tokenID,omitempty"`
	// Node is the node that the certificate is for, or that sent the request.
	Node      string `json:"node,omitempty"`
	Requester string `json:"requester,omitempty"`
	Signer    string `json:"signer,omitempty"`
	// Outcome is "issued", "refused" or "failed".
	Outcome string `json:"outcome,omitempty"`
	// CA is the pin of the CA that signed the certificate. NotCA selects certificates of other CAs instead, and those of
	// earlier versions, whose CA is unknown.
	CA    string `json:"ca,omitempty"`
	NotCA string `json:"notCA,omitempty"`
	// EndsWithin selects certificates that are valid now and expire within a duration, for example "720h" or "30d".
	EndsWithin string `json:"endsWithin,omitempty"`
	// Since is an RFC 3339 time, or an age, for example "24h" or "7d".
	Since string `json:"since,omitempty"`
	// Limit is the page size, 1 to 1000; zero means 100.
	Limit int `json:"limit,omitempty"`
	// Continue requests the page after another one. The other fields must be the same as for that page.
	Continue string `json:"continue,omitempty"`
}
