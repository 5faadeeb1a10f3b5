package api

import "time"

// A CARotation is the last rotation of a CA, with kubejoin's observations.
type CARotation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// CA is "cluster", "front-proxy" or "etcd".
	CA string `json:"ca"`
	// ID distinguishes the rotation from earlier ones. If there has been no rotation, ID and the following
	// fields are empty.
	ID string `json:"id,omitempty"`
	// Stage is "prepare", "trust", "switch" or "finish".
	Stage string `json:"stage,omitempty"`
	// Aborting is true after an abort. The rotation then goes back through its stages.
	Aborting bool `json:"aborting,omitempty"`
	// Trusted are the CAs that hosts should trust now, and Signs is the CA that signs: "old" or "new".
	Trusted *CATrust `json:"trusted,omitempty"`
	Signs   string   `json:"signs,omitempty"`
	// Old are the certificates of the old CA, and New are the certificates of the new CA. The first certificate
	// of New signs.
	Old []CA `json:"old,omitempty"`
	New []CA `json:"new,omitempty"`
	// Cross is the cross certificate in PEM, which the old CA signed for the key of the new CA; empty if there is
	// none.
	Cross string `json:"cross,omitempty"`
	// HasKey is true if kubejoin keeps the new key until the rotation ends.
	HasKey  bool      `json:"hasKey,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// Since is when the stage began, and Ended when the rotation ended.
	Since time.Time `json:"since,omitzero"`
	Ended time.Time `json:"ended,omitzero"`
	// LeftBehind are nodes, and LeftFiles are files as NODE:PATH, that the rotation does not wait for.
	LeftBehind []string `json:"leftBehind,omitempty"`
	LeftFiles  []string `json:"leftFiles,omitempty"`

	// Next is the next step: "prepare", "trust", "switch", "finish" or "abort". Behind lists what blocks this step.
	// After the end of the rotation, Behind lists the hosts that still have a backup.
	Next         string          `json:"next"`
	Behind       []CABehind      `json:"behind,omitempty"`
	Observations []CAObservation `json:"observations,omitempty"`
	// Certificates counts the live certificates in the issuance record. It is nil if the record was not read: see
	// Observations.
	Certificates *CACertificates `json:"certificates,omitempty"`

	// CertificateKey decrypts the key of the new CA. Only the response to PrepareCA contains it, and only if the
	// key is stored encrypted.
	CertificateKey Secret `json:"certificateKey,omitempty"`
	DryRun         bool   `json:"dryRun,omitempty"`
	// Warnings are messages for the person who sent the request. Only the response to PrepareCA has them.
	Warnings []string `json:"warnings,omitempty"`
}

// A CATrust says which of the two CAs of a rotation a thing trusts, and whether it trusts a CA that an earlier rotation
// replaced.
type CATrust struct {
	Old      bool `json:"old"`
	New      bool `json:"new"`
	Replaced bool `json:"replaced,omitempty"`
}

// CACertificates counts live certificates by the CA of a rotation that issued them.
type CACertificates struct {
	Old int `json:"old"`
	New int `json:"new"`
}

// A CAObservation is what kubejoin observed about one thing that a rotation has to change.
type CAObservation struct {
	// Kind is the kind of the thing, for example "kubelet", and Name its name.
	Kind string `json:"kind"`
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// File is the path of a file on the node.
	File string `json:"file,omitempty"`
	// Trusts are the CAs that the thing trusts; nil if that does not apply or was not observed.
	Trusts *CATrust `json:"trusts,omitempty"`
	// From is the CA that issued its certificates: "old", "new" or "other"; empty if that does not apply or was
	// not observed.
	From string `json:"from,omitempty"`
	// Until is when the last certificate from the old CA expires; zero if unknown.
	Until time.Time `json:"until,omitzero"`
	// Unseen says why the thing could not be observed. Next is the command that shows or corrects it.
	Unseen string `json:"unseen,omitempty"`
	Next   string `json:"next,omitempty"`
	// Off is true if the node is not ready, so that it cannot be observed now.
	Off bool `json:"off,omitempty"`
	// Optional is true if the observation blocks no stage, because kubejoin can never make it from here. Next
	// shows the state.
	Optional bool `json:"optional,omitempty"`
}

// A CABehind is a thing that blocks a stage.
type CABehind struct {
	CAObservation

	// Why is a sentence without a full stop.
	Why string `json:"why"`
}

// PrepareCA begins the rotation of a CA. kubejoin makes the new CA, unless NewCA is set.
type PrepareCA struct {
	// NewCA holds the certificates of the new CA in PEM. The first one will sign.
	NewCA string `json:"newCA,omitempty"`
	// NewKey is the key of the first certificate in PEM. Without it, kubejoin does not keep the key.
	NewKey Secret `json:"newKey,omitempty"`
	// Lifetime is the lifetime of a CA that kubejoin makes, in the form of [ParseDuration].
	Lifetime string `json:"lifetime,omitempty"`
	// NoCrossSign disables the cross certificate, which the old CA signs for the key of the new CA.
	NoCrossSign bool `json:"noCrossSign,omitempty"`
	DryRun      bool `json:"dryRun,omitempty"`
}

// StepCA takes a rotation to another stage.
type StepCA struct {
	// LeaveBehind are nodes, and LeaveBehindFiles are files as NODE:PATH, that no step of this rotation waits for.
	LeaveBehind      []string `json:"leaveBehind,omitempty"`
	LeaveBehindFiles []string `json:"leaveBehindFiles,omitempty"`
	// ExpireTokens expires the tokens whose join commands pin only the CA that the step takes out of use.
	ExpireTokens bool `json:"expireTokens,omitempty"`
	DryRun       bool `json:"dryRun,omitempty"`
}
