package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"sync/atomic"
)

// A newKey makes a key of one kind. From Kubernetes 1.38 on, kubelets can use keys of different kinds.
type newKey func() (crypto.Signer, error)

func keysOf(kind string) (newKey, error) {
	switch kind {
	case "P-256":
		return onCurve(elliptic.P256()), nil
	case "P-384":
		return onCurve(elliptic.P384()), nil
	case "RSA-2048":
		return reused(2048)
	case "RSA-4096":
		return reused(4096)
	}
	return nil, fmt.Errorf("invalid -keys %q: want P-256, P-384, RSA-2048 or RSA-4096, separated by commas", kind)
}

func onCurve(curve elliptic.Curve) newKey {
	return func() (crypto.Signer, error) { return ecdsa.GenerateKey(curve, rand.Reader) }
}

// reused returns a newKey that reuses a few RSA keys, because RSA keys take long to make.
func reused(bits int) (newKey, error) {
	var few [4]*rsa.PrivateKey
	for i := range few {
		var err error
		if few[i], err = rsa.GenerateKey(rand.Reader, bits); err != nil {
			return nil, err
		}
	}
	var next atomic.Int64
	return func() (crypto.Signer, error) { return few[int(next.Add(1))%len(few)], nil }, nil
}
