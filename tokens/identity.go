package tokens

import (
	"slices"
	"strings"
	"time"
)

// Maximum lengths of the lists of an [Identity].
const (
	// MaxCredentials is the maximum number of certificates in an Identity. It keeps the last ones.
	MaxCredentials = 4
	// MaxRejoins is the maximum number of rejoins that an Identity records, and so the maximum rejoin budget.
	MaxRejoins = 100
)

// An Identity is what kubejoin knows about the credentials of a node, with which the node can rejoin after its certificate
// has expired. It is part of the claim of the node name. The zero Identity means that nothing is known.
type Identity struct {
	// NodeUID is the UID of the Node that the certificates belong to. It is empty until kubejoin sees such a Node.
	NodeUID string `json:"nodeUID,omitempty"`
	// Credentials are the last certificates, the newest last: the certificate that the machine has used, and the
	// certificates that kubejoin has issued for the machine since. The machine may hold any of them. The list is empty if
	// the node may not rejoin.
	Credentials []Credential `json:"credentials,omitempty"`
	// NotAfter is when the newest certificate expires, in whole seconds.
	NotAfter time.Time `json:"notAfter,omitzero"`
	// Bound is a key that the node stores apart from its certificate, and the certificate that authenticated the request to
	// bind the key.
	Bound Credential `json:"bound,omitzero"`
	// Rejoins are the times of the last rejoins, the newest last.
	Rejoins []time.Time `json:"rejoins,omitempty"`
	// TokenID is the ID of the token that admitted the machine. It is empty if no token admitted the machine, or if
	// kubejoin first saw the machine in a renewal.
	TokenID string `json:"tokenID,omitempty"`
}

// A Credential is a public key and a certificate.
type Credential struct {
	// Key is the public key, as in [Claim.Keys]; empty if kubejoin has only seen the fingerprint.
	Key string `json:"key,omitempty"`
	// Fingerprint is the SHA-256 of the certificate, in 64 lower-case hexadecimal digits.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Last returns the newest certificate, or the zero Credential.
func (i Identity) Last() Credential {
	if len(i.Credentials) == 0 {
		return Credential{}
	}
	return i.Credentials[len(i.Credentials)-1]
}

// Find returns the certificate with this key or this fingerprint. An empty key or fingerprint matches nothing. Find ignores
// the bound key.
func (i Identity) Find(key, fingerprint string) (c Credential, found bool) {
	at := slices.IndexFunc(i.Credentials, func(c Credential) bool {
		return key != "" && c.Key == key || fingerprint != "" && c.Fingerprint == fingerprint
	})
	if at < 0 {
		return Credential{}, false
	}
	return i.Credentials[at], true
}

// IsZero reports whether i is the zero Identity.
func (i Identity) IsZero() bool { return i.Equal(Identity{}) }

// Equal reports whether all fields of i and j are equal. An empty slice equals nil.
func (i Identity) Equal(j Identity) bool {
	return i.NodeUID == j.NodeUID && slices.Equal(i.Credentials, j.Credentials) && i.NotAfter.Equal(j.NotAfter) && i.Bound == j.Bound &&
		slices.EqualFunc(i.Rejoins, j.Rejoins, time.Time.Equal) && i.TokenID == j.TokenID
}

func (i Identity) clone() Identity {
	i.Credentials, i.Rejoins = slices.Clone(i.Credentials), slices.Clone(i.Rejoins)
	return i
}

func (i Identity) check() error {
	words := []string{i.NodeUID, i.Bound.Key, i.Bound.Fingerprint, i.TokenID}
	for _, c := range i.Credentials {
		words = append(words, c.Key, c.Fingerprint)
	}
	switch {
	case len(i.Credentials) > MaxCredentials:
		return fieldErrorf("identity", "%d credentials given, %d allowed", len(i.Credentials), MaxCredentials)
	case len(i.Rejoins) > MaxRejoins:
		return fieldErrorf("identity", "%d rejoins given, %d allowed", len(i.Rejoins), MaxRejoins)
	case slices.Contains(i.Credentials, Credential{}), slices.ContainsFunc(words, func(w string) bool { return !isShortWord(w) || strings.ContainsAny(w, `/"\`) }):
		return fieldErrorf("identity", "want words of at most %d bytes without space, comma, slash or quotation mark", maxWord)
	case i.TokenID != "" && CheckID(i.TokenID) != nil:
		return fieldErrorf("identity", "%.100q given as token ID", i.TokenID)
	case i.NotAfter.Nanosecond() != 0:
		return fieldErrorf("identity", "want notAfter in whole seconds")
	}
	for _, at := range append([]time.Time{i.NotAfter}, i.Rejoins...) {
		if year := at.UTC().Year(); !at.IsZero() && (year < 1970 || year > 9999) {
			return fieldErrorf("identity", "year %d given, want 1970 to 9999", year)
		}
	}
	return nil
}
