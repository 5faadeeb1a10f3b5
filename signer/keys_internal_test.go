package signer

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// Catches a policy that allows a new key type of a newer Go because no case handles it.
func TestKeyPolicyRefusesUnknownKeyTypes(t *testing.T) {
	x25519 := must.Value(ecdh.X25519().GenerateKey(rand.Reader))(t)
	for want, key := range map[string]any{"*ecdh.PublicKey": x25519.PublicKey(), "<nil>": nil} {
		for _, policy := range []KeyPolicy{{}, {Ed25519: true}} {
			err := policy.withDefaults().check(key)
			if approval.Refused(err) == nil || !strings.Contains(err.Error(), "the key is of type "+want+", want "+policy.String()) {
				t.Errorf("%s with %s: got %v, want a refusal of the type", want, policy, err)
			}
		}
	}
	if err := allKeys.check(ed25519.PublicKey{}); err != nil {
		t.Errorf("got %v, want no error", err)
	}
}
