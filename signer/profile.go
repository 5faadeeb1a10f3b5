package signer

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

const (
	// backdate is how long before the issuance the validity of a certificate begins, for machines whose clock
	// is slow.
	backdate = 5 * time.Minute
	// A certificate with a lifetime of at least shortLived expires earlier by backdate; a shorter one does not.
	// Five minutes are one percent of 8 hours.
	shortLived = 8 * time.Hour

	// DefaultDuration is the default of [ProfileConfig.Default], as in kube-controller-manager.
	DefaultDuration = 365 * 24 * time.Hour
	// DefaultMin is the default of [ProfileConfig.Min], as in kube-controller-manager.
	DefaultMin = 10 * time.Minute
	// MinDuration is the shortest lifetime that a profile may have. A kubelet renews after 70 to 90 percent of a
	// certificate's validity, which begins five minutes before its issuance. With a lifetime below three minutes, a
	// kubelet could renew at once, in a loop.
	MinDuration = 3 * time.Minute
)

// ErrExpiredCA is wrapped if the CA has expired: nothing can be issued until it is replaced.
var ErrExpiredCA = errors.New("the CA has expired")

// A ProfileConfig describes a [Profile].
type ProfileConfig struct {
	// Usages are the allowed usages, at least one. A request need not ask for all of them.
	Usages []certificates.KeyUsage
	// Min is the shortest lifetime; a request for less gets Min. Zero means [DefaultMin].
	Min time.Duration
	// Default is the lifetime if the request asks for none. Zero means [DefaultDuration].
	Default time.Duration
	// Max is the longest lifetime; a request for more gets Max. Zero means Default.
	Max time.Duration
	// Keys limits the public keys. The zero KeyPolicy allows all keys that are strong enough.
	Keys KeyPolicy
}

// A Profile sets the usages, lifetimes and keys of one signer's certificates. [NewProfile] makes one. The zero Profile
// issues nothing, because it allows no usages.
type Profile struct{ config ProfileConfig } // with the defaults filled in

// NewProfile returns the profile of a valid configuration.
func NewProfile(c ProfileConfig) (Profile, error) {
	if len(c.Usages) == 0 {
		return Profile{}, errors.New("profile without usages: want at least one")
	}
	if _, _, err := approval.X509Usages(c.Usages); err != nil {
		return Profile{}, fmt.Errorf("profile: %w", err)
	}
	if err := c.Keys.Check(); err != nil {
		return Profile{}, fmt.Errorf("profile: %w", err)
	}
	given := c.Min
	c.Usages, c.Keys = slices.Clone(c.Usages), c.Keys.withDefaults()
	c.Min, c.Default = cmp.Or(c.Min, DefaultMin), cmp.Or(c.Default, DefaultDuration)
	c.Max = cmp.Or(c.Max, c.Default)
	for _, d := range []struct {
		what  string
		value time.Duration
	}{{"shortest", c.Min}, {"default", c.Default}, {"longest", c.Max}} {
		if d.value < MinDuration {
			return Profile{}, fmt.Errorf("%s duration of certificates is %s, want at least %s: a certificate begins %s before it is issued, "+
				"so a kubelet would renew a shorter one at once", d.what, d.value, MinDuration, backdate)
		}
	}
	if c.Default > c.Max {
		return Profile{}, fmt.Errorf("default duration of certificates is %s, want at most the longest duration %s", safetext.Duration(c.Default), safetext.Duration(c.Max))
	}
	if given > c.Max {
		return Profile{}, fmt.Errorf("shortest duration of certificates is %s, want at most the longest duration %s", safetext.Duration(given), safetext.Duration(c.Max))
	}
	if given > c.Default { // a Default below DefaultMin is allowed, and used as it is
		return Profile{}, fmt.Errorf("default duration of certificates is %s, want at least the shortest duration %s", safetext.Duration(c.Default), safetext.Duration(given))
	}
	return Profile{c}, nil
}

// refuses returns an [*approval.Error] if the profile does not allow a request. [admission.Check] has accepted the
// request before.
func (p Profile) refuses(r approval.Request) error {
	if err := p.config.Keys.check(r.CSR.PublicKey); err != nil {
		return err
	}
	if len(r.Usages) == 0 {
		return approval.Refuse("the request has no usages, want at least one")
	}
	for _, u := range r.Usages {
		if !slices.Contains(p.config.Usages, u) {
			return approval.Refuse("usage %q is not allowed, want some of %s", u, safetext.List(p.config.Usages, "and"))
		}
	}
	if r.Expiration < 0 {
		return approval.Refuse("requested lifetime of %s, want a positive duration", r.Expiration)
	}
	return nil
}

// Validity is [Validity] for a requested lifetime, which it limits to the range from Min to Max; zero means Default.
func (p Profile) Validity(caNotAfter time.Time, requested time.Duration, now time.Time) (notBefore, notAfter time.Time, err error) {
	d := p.config.Default
	switch {
	case requested == 0:
	case requested > p.config.Max: // check before the minimum, which may be larger
		d = p.config.Max
	case requested < p.config.Min:
		d = p.config.Min
	default:
		d = requested
	}
	return Validity(caNotAfter, d, now)
}

// Validity returns the start and end of the validity of a certificate that is issued now, in whole seconds. As in
// kube-controller-manager, the certificate is valid from five minutes before now. It expires after the lifetime, less
// five minutes if the lifetime is 8 hours or more, and never after caNotAfter. The error wraps [ErrExpiredCA].
func Validity(caNotAfter time.Time, lifetime time.Duration, now time.Time) (notBefore, notAfter time.Time, err error) {
	if !now.Before(caNotAfter) {
		return time.Time{}, time.Time{}, fmt.Errorf("%w: it expired at %s, the time is %s", ErrExpiredCA,
			caNotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	notBefore = now.Add(-backdate)
	notAfter = now.Add(lifetime)
	if lifetime >= shortLived {
		notAfter = notAfter.Add(-backdate)
	}
	if notAfter.After(caNotAfter) {
		notAfter = caNotAfter
	}
	// X.509 has no fractions of seconds. After truncation, the times can be compared with the times in the
	// certificate.
	return notBefore.UTC().Truncate(time.Second), notAfter.UTC().Truncate(time.Second), nil
}

// A KeyPolicy limits which public keys get a certificate. The zero KeyPolicy allows RSA with 2048 to 8192 bits, ECDSA
// on P-256, P-384 and P-521, and Ed25519. Any other KeyPolicy allows only the keys that it names.
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
