package signer

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
)

// A KeyPolicy limits which public keys get a certificate. The zero KeyPolicy allows RSA with 2048 to 8192 bits, ECDSA
// on P-256, P-384 and P-521, and Ed25519. Any other KeyPolicy allows only what it names.
type KeyPolicy struct {
	// MinRSA and MaxRSA are the minimum and the maximum size of an RSA key in bits. MaxRSA zero allows no RSA keys;
	// MinRSA zero is [pkcs10.MinRSABits].
	MinRSA, MaxRSA int
	// Curves lists the allowed curves of ECDSA keys, out of [pkcs10.Curves]. Empty allows no ECDSA keys.
	Curves []elliptic.Curve
	// Ed25519 allows Ed25519 keys.
	Ed25519 bool
}

// allKeys is the policy that the zero KeyPolicy stands for.
var allKeys = KeyPolicy{MinRSA: pkcs10.MinRSABits, MaxRSA: pkcs10.MaxRSABits, Curves: pkcs10.Curves(), Ed25519: true}

func (k KeyPolicy) withDefaults() KeyPolicy {
	if k.MinRSA == 0 && k.MaxRSA == 0 && len(k.Curves) == 0 && !k.Ed25519 {
		return allKeys
	}
	if k.MinRSA == 0 && k.MaxRSA != 0 {
		k.MinRSA = pkcs10.MinRSABits
	}
	return k
}

// Check returns an error if the policy is invalid.
func (k KeyPolicy) Check() error {
	k = k.withDefaults()
	if k.MaxRSA == 0 && k.MinRSA != 0 {
		return fmt.Errorf("minimum RSA key size is %d bits without a maximum, want both", k.MinRSA)
	}
	if k.MaxRSA != 0 && (k.MinRSA < pkcs10.MinRSABits || k.MaxRSA > pkcs10.MaxRSABits || k.MinRSA > k.MaxRSA) {
		return fmt.Errorf("RSA key sizes are %d to %d bits, want a range within %d to %d", k.MinRSA, k.MaxRSA, pkcs10.MinRSABits, pkcs10.MaxRSABits)
	}
	for _, curve := range k.Curves {
		if !slices.Contains(pkcs10.Curves(), curve) {
			return errors.New("unsupported elliptic curve, want P-256, P-384 or P-521")
		}
	}
	return nil
}

// String returns the allowed keys for people, for example "RSA 2048 to 8192 bits, ECDSA P-256, Ed25519".
func (k KeyPolicy) String() string {
	k = k.withDefaults()
	var kinds []string
	if k.MaxRSA != 0 {
		kinds = append(kinds, fmt.Sprintf("RSA %d to %d bits", k.MinRSA, k.MaxRSA))
	}
	for _, curve := range k.Curves {
		kinds = append(kinds, "ECDSA "+curve.Params().Name)
	}
	if k.Ed25519 {
		kinds = append(kinds, "Ed25519")
	}
	return strings.Join(kinds, ", ")
}

// check refuses a key that a policy with its defaults does not allow. [pkcs10.Check] has accepted the key.
func (k KeyPolicy) check(key any) error {
	switch key := key.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < k.MinRSA || bits > k.MaxRSA {
			return approval.Refuse("the RSA key has %d bits, want %s", bits, k)
		}
	case *ecdsa.PublicKey:
		if !slices.Contains(k.Curves, key.Curve) {
			return approval.Refuse("the ECDSA key is on curve %s, want %s", key.Curve.Params().Name, k)
		}
	case ed25519.PublicKey:
		if !k.Ed25519 {
			return approval.Refuse("the key is Ed25519, want %s", k)
		}
	default:
		return approval.Refuse("the key is of type %T, want %s", key, k)
	}
	return nil
}
