package tokens

import (
	"slices"
	"strings"
	"time"
)

// Maximum lengths of the lists of an [Identity].
const (
	// MaxIdentityKeys is how many of the last keys of a node an Identity has.
	MaxIdentityKeys = 2
	// MaxRejoins is how many times of rejoins an Identity has, and so the highest budget.
	MaxRejoins = 100
)

// An Identity is what a node proves that it is itself with, after its certificate has expired. It is part
// of the claim of the node name. The zero Identity means that nothing is known.
type Identity struct {
	// NodeUID is the UID of the Node that the keys belong to. It is empty until kubejoin sees such a Node.
	NodeUID string `json:"nodeUID,omitempty"`
	// Keys are the public keys of the last certificates, the newest last, as in [Claim.Keys].
	Keys []string `json:"keys,omitempty"`
	// NotAfter is when the newest of these certificates expires, in whole seconds.
	NotAfter time.Time `json:"notAfter,omitzero"`
	// Fingerprint is the SHA-256 of the newest of these certificates, in 64 lower-case hexadecimal digits.
	Fingerprint string `json:"fingerprint,omitempty"`
	// BoundKey is a public key that the node keeps in another place than its certificate, as in Keys.
	BoundKey string `json:"boundKey,omitempty"`
	// Rejoins are the times of the last rejoins, the newest last.
	Rejoins []time.Time `json:"rejoins,omitempty"`
	// TokenID is the ID of the token that admitted the machine. It is empty if another requester did, or if kubejoin
	// knows the machine only from a renewal.
	TokenID string `json:"tokenID,omitempty"`
}

// IsZero reports whether nothing is known.
func (i Identity) IsZero() bool { return i.Equal(Identity{}) }

// Equal reports whether all fields of i and j are equal. An empty slice equals nil.
func (i Identity) Equal(j Identity) bool {
	return i.NodeUID == j.NodeUID && slices.Equal(i.Keys, j.Keys) && i.NotAfter.Equal(j.NotAfter) && i.Fingerprint == j.Fingerprint && i.BoundKey == j.BoundKey &&
		slices.EqualFunc(i.Rejoins, j.Rejoins, time.Time.Equal) && i.TokenID == j.TokenID
}

// WithKey returns the identity with a newer key. If it has the key already, the key becomes the newest.
func (i Identity) WithKey(key string) Identity {
	keys := slices.DeleteFunc(slices.Clone(i.Keys), func(k string) bool { return k == key })
	keys = append(keys, key)
	i.Keys = keys[max(0, len(keys)-MaxIdentityKeys):]
	return i
}

func (i Identity) clone() Identity {
	i.Keys, i.Rejoins = slices.Clone(i.Keys), slices.Clone(i.Rejoins)
	return i
}

func (i Identity) check() error {
	words := append([]string{i.NodeUID, i.Fingerprint, i.BoundKey, i.TokenID}, i.Keys...)
	switch {
	case len(i.Keys) > MaxIdentityKeys:
		return fieldErrorf("identity", "%d keys given, %d allowed", len(i.Keys), MaxIdentityKeys)
	case len(i.Rejoins) > MaxRejoins:
		return fieldErrorf("identity", "%d rejoins given, %d allowed", len(i.Rejoins), MaxRejoins)
	case slices.Contains(i.Keys, ""), slices.ContainsFunc(words, func(w string) bool { return !isShortWord(w) || strings.ContainsAny(w, `/"\`) }):
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
