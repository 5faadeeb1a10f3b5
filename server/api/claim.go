package api

import "time"

// A Claim is a node name that a limited token, or a machine with a key of its own, holds.
type Claim struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Node string `json:"node"`
	// Token is the ID of the token. It is empty if only a machine holds the name, or if the node joined with a token without
	// limits and its identity was released.
	Token   string    `json:"token"`
	Created time.Time `json:"created,omitzero"`
	// Keys is the number of keys that have a certificate under this name.
	Keys int `json:"keys"`
	// NodeUID is the UID of the Node object, if the node has registered. In clusters without Node objects it is
	// tokens.ByCertificate once the node has sent a request with its certificate.
	NodeUID string `json:"nodeUID,omitempty"`
	// Rejoins are the times when the node rejoined, the newest last.
	Rejoins []time.Time `json:"rejoins,omitempty"`

	// Machine is the key of the machine that holds the name, or the words of the key until the machine has proven it. It is
	// empty if no machine holds the name.
	Machine string `json:"machine,omitempty"`

	// Revoked reports whether the node is revoked. It may have a valid certificate that kubejoin has issued after
	// the revocation.
	Revoked bool `json:"revoked,omitempty"`

	DryRun   bool     `json:"dryRun,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// A ClaimList holds all claims or one page of them, sorted by node name.
type ClaimList struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Items      []Claim `json:"items"`
	// Continue is the ListPage.Continue of the next page; empty on the last page.
	Continue string `json:"continue,omitempty"`
}

// ReleaseClaim releases a claim.
type ReleaseClaim struct {
	DryRun bool `json:"dryRun,omitempty"`
}
