package api

import "github.com/kubejoin/kubejoin/signer/issuance"

// An IssuanceEntry is what became of a request for a certificate.
type IssuanceEntry struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// The certificate itself is in an entry that was asked for by serial number alone.
	issuance.Entry
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
