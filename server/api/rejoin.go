package api

// KindBoundKey is the kind of a [BoundKey]; its apiVersion is Version.
const KindBoundKey = "BoundKey"

// Text is a string that a request may only contain in its body.
type Text string

// BindKey binds a key to the node that requests it.
type BindKey struct {
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
