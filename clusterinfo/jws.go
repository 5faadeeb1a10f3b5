package clusterinfo

import (
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/kubejoin/kubejoin/tokens"
)

// ErrSignature is wrapped when a signature is not the one that the token makes.
var ErrSignature = errors.New("signature does not verify")

// Sign makes the detached compact JWS (RFC 7515, appendix F) of the kubeconfig's bytes that
// kubeadm expects from a token: HS256 with the secret part as the key and the ID as kid. The
// same input gives the same 85 characters. It fails when the token's secret is not known.
func Sign(kubeconfig []byte, t tokens.Token) (string, error) {
	secret := t.RevealSecret()
	if secret == "" {
		return "", fmt.Errorf("sign with token %s: its secret is not known", t)
	}
	// go-jose refuses HMAC keys that are shorter than the hash (RFC 7518, section 3.2), a
	// token's secret is half of that. HMAC itself pads keys with zeros up to its block of 64
	// bytes (RFC 2104), so that these zeros change nothing.
	var key [32]byte
	copy(key[:], secret)
	// kid is a header by name: go-jose does not take it from a symmetric key.
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: key[:]}, (&jose.SignerOptions{}).WithHeader("kid", t.ID()))
	if err != nil {
		return "", fmt.Errorf("sign with token %s: %w", t, err)
	}
	signed, err := signer.Sign(kubeconfig)
	if err != nil {
		return "", fmt.Errorf("sign with token %s: %w", t, err)
	}
	jws, err := signed.DetachedCompactSerialize()
	if err != nil {
		return "", fmt.Errorf("sign with token %s: %w", t, err)
	}
	return jws, nil
}

// Verify says whether jws is the token's signature of the kubeconfig's bytes; if not, the error
// wraps [ErrSignature]. Only the very characters that [Sign] makes pass, as with kubeadm.
func Verify(kubeconfig []byte, jws string, t tokens.Token) error {
	want, err := Sign(kubeconfig, t)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(jws), []byte(want)) != 1 {
		return fmt.Errorf("cluster-info as token %s sees it: %w", t, ErrSignature)
	}
	return nil
}
