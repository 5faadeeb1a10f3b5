package boltstore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// FuzzDecodeRow decodes rows of damaged or edited files.
func FuzzDecodeRow(f *testing.F) {
	const good = `{"secret":"` + secret + `","signing":true,"authentication":true,"created":"2026-01-02T03:04:05Z","uid":"u"}`
	f.Add([]byte("abc123"), versioned(good))
	f.Add([]byte("abc123"), versioned(good+good))
	f.Add([]byte("abc12"), versioned(`{"secret":"`+secret+`x","expires":"`+secret+`"}`))
	f.Add([]byte("abc123"), versioned(`{"secret":"`+secret+`","SECRET":"`+secret+`","groups":[["`+secret+`"]]}`))
	f.Add([]byte("abc123"), versioned(strings.Replace(good, "{", `{"limits":{"maxNodes":2,"role":"`+secret+`","nodeNames":["`+secret+`"],"replaces":{"name":"`+secret+`","uid":""}},"nodes":["a","A"],`, 1)))
	f.Add([]byte{0xff, 0}, versioned(`[[[[`))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		fuzzing.RunWithinLimit(t, func() {
			r, err := boltstore.DecodeRow(key, value)
			switch {
			case err == nil:
				if r.Token.ID() != string(key) || !r.Token.HasSecret() || r.UID == "" || r.Created.IsZero() {
					t.Errorf("row %q is read as %+v", key, r)
				}
			case !errors.Is(err, boltstore.ErrDamaged):
				t.Errorf("%v is not ErrDamaged", err)
			case strings.Contains(err.Error(), secret) && !strings.Contains(string(key), secret):
				t.Errorf("the secret is in %v", err)
			}
		})
	})
}

// FuzzDecodeClaim decodes claims of damaged or edited files.
func FuzzDecodeClaim(f *testing.F) {
	f.Add([]byte("worker-1"), versioned(`{"tokenID":"abc123","tokenUID":"u","limits":{"maxNodes":1,"certificateDuration":28800,"nodeNames":["w*"]},`+
		`"keys":["k"],"requests":["r"],"nodeUID":"n","created":"2026-01-02T03:04:05Z","uid":"u"}`))
	f.Add([]byte("Worker"), versioned(`{"tokenID":"abc","keys":["",","],"limits":{"certificateDuration":9223372036854775807,"replaces":{}}}`))
	f.Add([]byte{0xff, 0}, versioned(`{{`))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		fuzzing.RunWithinLimit(t, func() {
			c, err := boltstore.DecodeClaim(key, value)
			switch {
			case err == nil:
				if c.Node != string(key) || tokens.CheckNodeName(c.Node) != nil || tokens.CheckID(c.TokenID) != nil || c.Limits.Check() != nil ||
					len(c.Keys) > tokens.MaxKeys || c.UID == "" || c.Created.IsZero() {
					t.Errorf("row %q is read as %+v", key, c)
				}
			case !errors.Is(err, boltstore.ErrDamaged):
				t.Errorf("%v is not ErrDamaged", err)
			}
		})
	})
}
