package api

import "time"

// A Claim is a node name that was taken with a limited token.
type Claim struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Node string `json:"node"`
	// Token is the ID of the token that took it.
	Token   string    `json:"token"`
	Created time.Time `json:"created,omitzero"`
	// Keys is how many keys have been certified under it.
	Keys int `json:"keys"`
	// NodeUID is that of the Node that has registered, if one has; tokens.ByCertificate where there
	// are no Nodes and the node has asked with its certificate.
	NodeUID string `json:"nodeUID,omitempty"`

	DryRun   bool     `json:"dryRun,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// A ClaimList is all claims, or a page of them, in the order of their names.
type ClaimList struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Items      []Claim `json:"items"`
	// Continue is the ListPage.Continue of the next page; empty if this is the last.
	Continue string `json:"continue,omitempty"`
}

// ReleaseClaim asks for a name to be free again.
type ReleaseClaim struct {
	DryRun bool `json:"dryRun,omitempty"`
}
