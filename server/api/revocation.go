package api

import "time"

// A Revocation bars one certificate, or every certificate of a node except certificates that kubejoin issued
// after the revocation.
type Revocation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Node is the name of a revoked node; empty for one certificate.
	Node string `json:"node,omitempty"`
	// Fingerprint is the SHA-256 of a revoked certificate's DER: "sha256:" and hexadecimal digits. It is empty for a
	// node.
	Fingerprint string `json:"fingerprint,omitempty"`

	Since time.Time `json:"since,omitzero"`
	// Until is when the last barred certificate expires; zero if unknown.
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// By is the user who revoked.
	By string `json:"by,omitempty"`
	// TokenID is the token whose certificates were revoked together.
	TokenID string `json:"tokenID,omitempty"`
	// Allowed is the number of valid certificates that kubejoin has issued to the node after the revocation.
	Allowed int `json:"allowed,omitempty"`
	// Problem says why the stored revocation cannot be read. It bars its node or certificate nevertheless.
	Problem string `json:"problem,omitempty"`

	DryRun bool `json:"dryRun,omitempty"`
}

// A RevocationList holds revocations, sorted by node name or fingerprint.
type RevocationList struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Items      []Revocation `json:"items"`
	Warnings   []string     `json:"warnings,omitempty"`
	// Continue is the ListPage.Continue of the next page; empty on the last page.
	Continue string `json:"continue,omitempty"`
}

// Revoke revokes a node, one certificate, or everything that was issued on a token. Exactly one of Node, Serial,
// Fingerprint and TokenID is required.
type Revoke struct {
	Node string `json:"node,omitempty"`
	// Serial is the serial number of a certificate that kubejoin has issued, in hexadecimal digits.
	Serial string `json:"serial,omitempty"`
	// Fingerprint is the SHA-256 of a certificate's DER in hexadecimal digits.
	Fingerprint string `json:"fingerprint,omitempty"`
	// TokenID is a token. It becomes unusable, its nodes are revoked, and it is deleted. After an error, repeat the request.
	TokenID string `json:"tokenID,omitempty"`

	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dryRun,omitempty"`
}

// UndoRevocation removes a revocation.
type UndoRevocation struct {
	DryRun bool `json:"dryRun,omitempty"`
}
