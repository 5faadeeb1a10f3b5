package secretstore

import (
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
)

// Manifest is the Secret that [Store.Create] would make of a record that passes
// [tokens.Record.Check], with its limits as annotations: for whoever applies it later, where
// there is no API server yet. It holds the token in clear text, in base64.
func Manifest(r tokens.Record) (*corev1.Secret, error) {
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("manifest of token %s: %w", r.Token.ID(), err)
	}
	secret := encode(r)
	secret.APIVersion, secret.Kind = "v1", "Secret"
	return secret, nil
}
