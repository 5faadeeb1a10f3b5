package clusterinfo

import (
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/kubejoin/kubejoin/tokens"
)

// ErrSignature means that a signature was not made with the token.
var ErrSignature = errors.New("signature does not verify")

// Sign returns the detached compact JWS (RFC 7515, appendix F) of the kubeconfig that kubeadm expects from
// a token: HS256 with the token secret as the key and the token ID as kid. The same input gives the same 85
// characters. Sign fails if the token secret is unknown.
func Sign(kubeconfig []byte, t tokens.Token) (string, error) {
	secret := t.RevealSecret()
	if secret == "" {
		return "", fmt.Errorf("sign with token %s: its secret is not known", t)
	}
	// go-jose rejects HMAC keys that are shorter than the hash (RFC 7518, section 3.2), and a token secret is
	// half as long as the hash. HMAC pads keys with zeros to its block size of 64 bytes (RFC 2104), so these
	// zeros change nothing.
	key := make([]byte, max(32, len(secret)))
	copy(key, secret)
	// kid is set as a header because go-jose does not take it from a symmetric key.
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", t.ID()))
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

// Verify returns nil if jws is the token's signature of the kubeconfig. If not, the error wraps
// [ErrSignature]. Like kubeadm it accepts exactly the characters that [Sign] returns.
func Verify(kubeconfig []byte, jws string, t tokens.Token) error {
	want, err := Sign(kubeconfig, t)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(jws), []byte(want)) != 1 {
		return fmt.Errorf("cluster-info for token %s: %w", t, ErrSignature)
	}
	return nil
}
