package secretstore

import (
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
)

// Manifest returns the Secret that [Store.Create] would create for a record, to apply it later when there
// is an API server. The record must pass [tokens.Record.Check]. The limits are annotations of the Secret.
// The Secret contains the token in base64, not encrypted.
func Manifest(r tokens.Record) (*corev1.Secret, error) {
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("manifest of token %s: %w", r.Token.ID(), err)
	}
	secret := encode(r)
	secret.APIVersion, secret.Kind = "v1", "Secret"
	return secret, nil
}

// Decode returns the record in a Secret, as a [Store] reads it. It returns an error if the Secret is not a bootstrap
// token. Record.Problem and Record.Limits.Problem say what is invalid in a bootstrap token.
func Decode(secret *corev1.Secret) (tokens.Record, error) { return decode(secret) }
