package api

import "github.com/kubejoin/kubejoin/signer/issuance"

// An IssuanceEntry is one entry of the issuance record. Its fields are the fields of a line in the file of 'kubejoin
// serve --issuance-record FILE'. Lists omit the certificate.
type IssuanceEntry struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	issuance.Entry
}

// An IssuanceEntryList is one page of the issuance record. The newest entries come first. With ListIssued.EndsWithin,
// the entries are sorted by expiration.
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
	// CA is the pin of the CA that signed the certificate. NotCA selects certificates of other CAs instead, and
	// certificates that earlier versions recorded without a CA.
	CA    string `json:"ca,omitempty"`
	NotCA string `json:"notCA,omitempty"`
	// EndsWithin selects certificates that are valid now and expire within a duration, for example "720h" or "30d".
	EndsWithin string `json:"endsWithin,omitempty"`
	// Since is an RFC 3339 time, or an age, for example "24h" or "7d".
	Since string `json:"since,omitempty"`
	// Limit is the page size, 1 to 1000; zero means 100.
	Limit int `json:"limit,omitempty" zero:"want 1 to 1000; leave it out for the default"`
	// Continue requests the page after another page. The other fields must be the same as for that page.
	Continue string `json:"continue,omitempty"`
}
