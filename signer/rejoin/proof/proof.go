// Package proof makes and verifies the signatures with which a node proves that it has a key: what exactly is signed,
// and how. It needs only the standard library, so that clients can use it.
package proof

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
)

// MaxSignature is the maximum size of a signature in bytes: that of an RSA key with 8192 bits.
const MaxSignature = 1024

// The first lines of the signed texts. No other protocol signs a text that begins so, and none of the two texts is
// valid as the other.
const (
	rejoinContext = "kubejoin rejoin v1"
	bindContext   = "kubejoin bind key v1"
)

// Rejoin returns the text that a node signs to rejoin: four lines, each with a newline. They are a fixed text, the
// challenge of the server, the node name, and the host of the server as the node has dialled it, in lower case.
func Rejoin(challenge, node, server string) []byte {
	return text(rejoinContext, challenge, node, server)
}

// Bind returns the text that a node signs to bind another key: five lines. The last one is the ID of that key, in the
// format of CA pins.
func Bind(challenge, node, server, key string) []byte {
	return text(bindContext, challenge, node, server, key)
}

func text(lines ...string) []byte { return []byte(strings.Join(lines, "\n") + "\n") }

// Sign signs a text: with ECDSA or RSA (PKCS #1 v1.5) over its SHA-256, or with Ed25519.
func Sign(key crypto.Signer, text []byte) ([]byte, error) {
	switch key.Public().(type) {
	case ed25519.PublicKey:
		return key.Sign(rand.Reader, text, crypto.Hash(0))
	case *ecdsa.PublicKey, *rsa.PublicKey:
		sum := sha256.Sum256(text)
		return key.Sign(rand.Reader, sum[:], crypto.SHA256)
	}
	return nil, fmt.Errorf("key of type %T, want RSA, ECDSA or Ed25519", key.Public())
}

// ErrSignature means that a signature is not of this key and text.
var ErrSignature = errors.New("the signature is not of this key and text")

// Verify verifies a signature of [Sign]. The caller must have checked the type and size of the key.
func Verify(key crypto.PublicKey, text, signature []byte) error {
	if len(signature) > MaxSignature {
		return fmt.Errorf("%w: %d bytes, want at most %d", ErrSignature, len(signature), MaxSignature)
	}
	sum, valid := sha256.Sum256(text), false
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		valid = ecdsa.VerifyASN1(k, sum[:], signature)
	case *rsa.PublicKey:
		valid = rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], signature) == nil
	case ed25519.PublicKey:
		valid = len(k) == ed25519.PublicKeySize && ed25519.Verify(k, text, signature)
	}
	if !valid {
		return ErrSignature
	}
	return nil
}
