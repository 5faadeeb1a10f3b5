package main

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
)

func TestStateOfCA(t *testing.T) {
	const year = 365 * 24 * time.Hour
	end := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name     string
		lifetime time.Duration
		left     time.Duration
		state    caState
		next     time.Duration // before the end; negative: never
	}{
		{"long", year, 10 * year, caGood, year - 5*time.Minute}, // of 8 h and more 5 min are past
		{"just enough", year, year, caGood, year - 5*time.Minute},
		{"enough by a second", year, year - 5*time.Minute + time.Second, caGood, year - 5*time.Minute},
		{"to the end", year, year - 5*time.Minute, caShortens, 0},
		{"short", year, time.Hour, caShortens, 0},
		{"short-lived certificates", time.Hour, time.Hour + time.Second, caGood, time.Hour},
		{"short-lived certificates to the end", time.Hour, time.Hour, caShortens, 0},
		{"last moment", time.Hour, 1, caShortens, 0},
		{"expired", year, 0, caExpired, -1},
		{"long expired", year, -year, caExpired, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			state, next := stateOfCA(end, test.lifetime, end.Add(-test.left))
			want := end.Add(-test.next)
			if test.next < 0 {
				want = time.Time{}
			}
			if state != test.state || !next.Equal(want) {
				t.Errorf("state %d until %s, want %d until %s", state, next, test.state, want)
			}
			// At that time it is so, and not for ever the same step.
			if !next.IsZero() {
				if then, _ := stateOfCA(end, test.lifetime, next); then <= state {
					t.Errorf("state %d at %s, want a worse one than %d", then, next, state)
				}
			}
		})
	}
}

// Whether discovery at kubejoin can work: its serving certificate has to lead to a CA that
// cluster-info names.
func TestTrusted(t *testing.T) {
	newCA := func() *signer.CA {
		ca, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	ca, other := newCA(), newCA() // of the same name
	for _, test := range []struct {
		name string
		cas  []*x509.Certificate
		want bool
	}{
		{"the same", ca.Bundle(), true},
		{"in a rotation", append(other.Bundle(), ca.Bundle()...), true},
		{"another", other.Bundle(), false},
		{"none", nil, false},
	} {
		if got := trusted(ca, test.cas); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}
