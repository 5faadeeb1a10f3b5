package api

import "time"

// Kinds of the responses about rejoins; their apiVersion is Version.
const (
	KindRejoinChallenge = "RejoinChallenge"
	KindBoundKey        = "BoundKey"
)

// Text is a string that can be only in the body of a request.
type Text string

// A RejoinChallenge is what a node signs to rejoin.
type RejoinChallenge struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Challenge is the challenge itself. It is no secret.
	Challenge string `json:"challenge"`
	// Expires is when the server does not accept it any more.
	Expires time.Time `json:"expires"`
}

// Rejoin requests a bootstrap kubeconfig for a node. It has either Certificate, or Node and PublicKey.
type Rejoin struct {
	// Certificate is the client certificate of the node in PEM, with its intermediates. It may have expired.
	Certificate Text `json:"certificate,omitempty"`
	// Node and PublicKey are the node name, and the key in PEM that was bound to it with BindKey.
	Node      Text `json:"node,omitempty"`
	PublicKey Text `json:"publicKey,omitempty"`
	Challenge Text `json:"challenge,omitempty"`
	// Server is the host of the server as the node has dialled it.
	Server Text `json:"server,omitempty"`
	// Signature is the signature in base64, see package signer/rejoin/proof.
	Signature Text `json:"signature,omitempty"`
}

// BindKey binds a key to a node.
type BindKey struct {
	Rejoin
	// Key is the public key to bind, in PEM.
	Key Text `json:"key,omitempty"`
}

// A BoundKey is a key that was bound to a node.
type BoundKey struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Key is the SHA-256 of the public key in the format of a CA pin.
	Key string `json:"key"`
}
