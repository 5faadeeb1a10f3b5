package clusterinfo

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

const pinPrefix = "sha256:"

// Pin returns the hash of a certificate's public key in the form of kubeadm's
// --discovery-token-ca-cert-hash: "sha256:" and the lower-case hexadecimal SHA-256 of its
// SubjectPublicKeyInfo (RFC 7469). A renewed certificate with the same key has the same pin.
func Pin(ca *x509.Certificate) string {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return pinPrefix + hex.EncodeToString(sum[:])
}

// Pins returns the pins of the certificates in their order, without duplicates.
func Pins(cas []*x509.Certificate) []string {
	pins := make([]string, 0, len(cas))
	for _, ca := range cas {
		if pin := Pin(ca); !slices.Contains(pins, pin) {
			pins = append(pins, pin)
		}
	}
	return pins
}

// ParsePin returns the pin in the form of [Pin]. Like kubeadm it accepts upper case, too.
func ParsePin(s string) (string, error) {
	pin := strings.ToLower(s)
	sum, found := strings.CutPrefix(pin, pinPrefix)
	if b, err := hex.DecodeString(sum); !found || err != nil || len(b) != sha256.Size {
		return "", fmt.Errorf("CA pin %q: want sha256: and 64 hexadecimal digits", s)
	}
	return pin, nil
}

func parsePins(list []string) ([]string, error) {
	var pins []string
	for _, s := range list {
		pin, err := ParsePin(s)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(pins, pin) {
			pins = append(pins, pin)
		}
	}
	return pins, nil
}

// pinned returns the certificates that have one of the pins.
func pinned(cas []*x509.Certificate, pins []string) []*x509.Certificate {
	var keep []*x509.Certificate
	for _, ca := range cas {
		if slices.Contains(pins, Pin(ca)) {
			keep = append(keep, ca)
		}
	}
	return keep
}
