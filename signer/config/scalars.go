package config

import (
	"fmt"
	"math"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"go.yaml.in/yaml/v3"
)

// A Lifetime is a lifetime of certificates.
type Lifetime time.Duration

// UnmarshalYAML parses a text such as 720h.
func (l *Lifetime) UnmarshalYAML(n *yaml.Node) error {
	d, _ := time.ParseDuration(n.Value) // zero after an error
	if n.ShortTag() != "!!str" || d < signer.MinDuration {
		return fmt.Errorf("%s given, want a duration such as 720h, from %s to %dh", describe(n), safetext.Duration(signer.MinDuration), math.MaxInt64/time.Hour)
	}
	*l = Lifetime(d)
	return nil
}

// Bits is the size of an RSA key.
type Bits int

// UnmarshalYAML reads a number.
func (b *Bits) UnmarshalYAML(n *yaml.Node) error {
	return whole(n, (*int)(b), pkcs10.MinRSABits, pkcs10.MaxRSABits, fmt.Sprintf("a number of bits from %d to %d", pkcs10.MinRSABits, pkcs10.MaxRSABits))
}

// A uid is a user ID.
type uid int

func (u *uid) UnmarshalYAML(n *yaml.Node) error {
	err := whole(n, (*int)(u), 0, math.MaxUint32-1, "the number of a user, such as 998")
	if err == nil && *u == OverflowUID {
		err = fmt.Errorf("%d given, want another user: Linux reports this one for every user of another user namespace", *u)
	}
	return err
}

// A qps is a rate of certificates per second.
type qps float64

func (q *qps) UnmarshalYAML(n *yaml.Node) error {
	_ = n.Decode((*float64)(q)) // zero after an error
	if !(*q > 0 && *q <= maxQPS) {
		return fmt.Errorf("%s given, want a number of certificates a second, more than 0 and at most %d", describe(n), maxQPS)
	}
	return nil
}

// A burst is the maximum number of certificates at once.
type burst int

func (b *burst) UnmarshalYAML(n *yaml.Node) error {
	return whole(n, (*int)(b), 1, maxBurst, fmt.Sprintf("1 to %d certificates at once", maxBurst))
}

// whole decodes an integer.
func whole(n *yaml.Node, to *int, least, most int, want string) error {
	if n.ShortTag() != "!!int" || n.Decode(to) != nil || *to < least || *to > most {
		return fmt.Errorf("%s given, want %s", describe(n), want)
	}
	return nil
}
