package rowstore_test

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// FuzzDecodeRecord decodes rows of damaged or edited databases.
func FuzzDecodeRecord(f *testing.F) {
	const secret = "s3cr3ts3cr3ts3cr"
	const good = `{"secret":"` + secret + `","signing":true,"authentication":true,"created":"2026-01-02T03:04:05Z","uid":"u"}`
	f.Add("abc123", []byte(good))
	f.Add("abc123", []byte(good+good))
	f.Add("abc12", []byte(`{"secret":"`+secret+`x","expires":"`+secret+`"}`))
	f.Add("abc123", []byte(`{"secret":"`+secret+`","SECRET":"`+secret+`","groups":[["`+secret+`"]]}`))
	f.Add("abc123", []byte(strings.Replace(good, "{", `{"limits":{"maxNodes":2,"role":"`+secret+`","nodeNames":["`+secret+`"],"replaces":{"name":"`+secret+`","uid":""}},"nodes":["a","A"],`, 1)))
	f.Add("\xff\x00", []byte(`[[[[`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		fuzzing.RunWithinLimit(t, func() {
			r, err := rowstore.DecodeRecord(key, value)
			switch {
			case err == nil:
				if r.Token.ID() != key || !r.Token.HasSecret() || r.UID == "" || r.Created.IsZero() {
					t.Errorf("row %q is read as %+v", key, r)
				}
			case strings.Contains(err.Error(), secret) && !strings.Contains(key, secret):
				t.Errorf("the secret is in %v", err)
			}
		})
	})
}

// FuzzDecodeClaim decodes claims of damaged or edited databases.
func FuzzDecodeClaim(f *testing.F) {
	f.Add("worker-1", []byte(`{"tokenID":"abc123","tokenUID":"u","limits":{"maxNodes":1,"certificateDuration":28800,"nodeNames":["w*"]},`+
		`"keys":["k"],"requests":["r"],"nodeUID":"n","created":"2026-01-02T03:04:05Z","uid":"u"}`))
	f.Add("Worker", []byte(`{"tokenID":"abc","keys":["",","],"limits":{"certificateDuration":9223372036854775807,"replaces":{}}}`))
	f.Add("\xff\x00", []byte(`{{`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		fuzzing.RunWithinLimit(t, func() {
			c, err := rowstore.DecodeClaim(key, value)
			if err == nil && (c.Node != key || tokens.CheckNodeName(c.Node) != nil || tokens.CheckID(c.TokenID) != nil || c.Limits.Check() != nil ||
				len(c.Keys) > tokens.MaxKeys || c.UID == "" || c.Created.IsZero()) {
				t.Errorf("row %q is read as %+v", key, c)
			}
		})
	})
}
