package api

import "time"

// A CARotation is the last rotation of a CA, with what kubejoin saw of it.
type CARotation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// CA is "cluster", "front-proxy" or "etcd".
	CA string `json:"ca"`
	// ID tells the rotation from earlier ones; empty if there has been none. Then the following fields are zero.
	ID string `json:"id,omitempty"`
	// Stage is "prepare", "trust", "switch" or "finish".
	Stage string `json:"stage,omitempty"`
	// Aborting is true after an abort. The stages are then left in reverse order.
	Aborting bool `json:"aborting,omitempty"`
	// Trusted are the CAs that hosts should trust now, and Signs the one that signs: "old" or "new".
	Trusted *CATrust `json:"trusted,omitempty"`
	Signs   string   `json:"signs,omitempty"`
	// Old are the certificates of the old CA, and New those of the new one. The first one of New signs.
	Old []CA `json:"old,omitempty"`
	New []CA `json:"new,omitempty"`
	// Cross is the cross certificate in PEM, which the old CA signed for the key of the new CA; empty without one.
	Cross string `json:"cross,omitempty"`
	// HasKey is true if kubejoin keeps the new key until the rotation ends.
	HasKey  bool      `json:"hasKey,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// Since is when the stage began, and Ended when the rotation ended.
	Since time.Time `json:"since,omitzero"`
	Ended time.Time `json:"ended,omitzero"`
	// LeftBehind are the nodes, and LeftFiles the files as NODE:PATH, that need not take part.
	LeftBehind []string `json:"leftBehind,omitempty"`
	LeftFiles  []string `json:"leftFiles,omitempty"`

	// Next is the next step: "prepare", "trust", "switch", "finish" or "abort". Behind is what keeps it from success.
	// After the end, Behind is the hosts that still have a backup.
	Next         string          `json:"next"`
	Behind       []CABehind      `json:"behind,omitempty"`
	Observations []CAObservation `json:"observations,omitempty"`
	// Certificates counts the live certificates in the issuance record. It is nil if none was seen: see Observations.
	Certificates *CACertificates `json:"certificates,omitempty"`

	// CertificateKey decrypts the key of the new CA. Only the response to PrepareCA has it, and only if the key is
	// stored encrypted.
	CertificateKey Secret `json:"certificateKey,omitempty"`
	DryRun         bool   `json:"dryRun,omitempty"`
	// Warnings are messages for the person who sent the request. Only the response to PrepareCA has them.
	Warnings []string `json:"warnings,omitempty"`
}

// A CATrust says which of the two CAs of a rotation something trusts, and whether it trusts one that an earlier rotation
// replaced.
type CATrust struct {
	Old      bool `json:"old"`
	New      bool `json:"new"`
	Replaced bool `json:"replaced,omitempty"`
}

// CACertificates counts live certificates by the CA of a rotation that they are from.
type CACertificates struct {
	Old int `json:"old"`
	New int `json:"new"`
}

// A CAObservation is what kubejoin saw of one thing that a rotation has to change.
type CAObservation struct {
	// Kind is the kind of the thing, for example "kubelet", and Name its name.
	Kind string `json:"kind"`
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// File is the path of a file on the node.
	File string `json:"file,omitempty"`
	// Trusts are the CAs that it trusts; nil if that does not apply or was not seen.
	Trusts *CATrust `json:"trusts,omitempty"`
	// From is the CA that its certificates are from: "old", "new" or "other"; empty like Trusts.
	From string `json:"from,omitempty"`
	// Until is when the last certificate from the old CA expires; zero if unknown.
	Until time.Time `json:"until,omitzero"`
	// Unseen says why it could not be seen, and Next the command that shows or mends it.
	Unseen string `json:"unseen,omitempty"`
	Next   string `json:"next,omitempty"`
	// Off is true if the node is not ready, so that it cannot be seen now.
	Off bool `json:"off,omitempty"`
	// Optional is true if it holds up no stage, because it can never be seen from here. Next shows it.
	Optional bool `json:"optional,omitempty"`
}

// A CABehind is something that keeps a stage from beginning.
type CABehind struct {
	CAObservation

	// Why is a sentence without a full stop.
	Why string `json:"why"`
}

// PrepareCA begins the rotation of a CA. kubejoin makes the new CA, unless NewCA gives it.
type PrepareCA struct {
	// NewCA holds the certificates of the new CA in PEM. The first one will sign.
	NewCA string `json:"newCA,omitempty"`
	// NewKey is the key of the first certificate in PEM. Without it, kubejoin does not keep the key.
	NewKey Secret `json:"newKey,omitempty"`
	// Lifetime is the lifetime of a CA that kubejoin makes, in the form of [ParseDuration].
	Lifetime string `json:"lifetime,omitempty"`
	// NoCrossSign leaves the new CA without a certificate by the old one.
	NoCrossSign bool `json:"noCrossSign,omitempty"`
	DryRun      bool `json:"dryRun,omitempty"`
}

// StepCA takes a rotation to another stage.
type StepCA struct {
	// LeaveBehind are nodes, and LeaveBehindFiles files as NODE:PATH, that need not take part. They stay in the rotation.
	LeaveBehind      []string `json:"leaveBehind,omitempty"`
	LeaveBehindFiles []string `json:"leaveBehindFiles,omitempty"`
	// ExpireTokens ends the life of tokens whose join commands pin only the CA that the step takes out of use.
	ExpireTokens bool `json:"expireTokens,omitempty"`
	DryRun       bool `json:"dryRun,omitempty"`
}
