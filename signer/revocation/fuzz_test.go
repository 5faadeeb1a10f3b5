package revocation_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/revocation"
)

// FuzzDecode decodes arbitrary values, which anybody may have written to a ConfigMap. Catches a malformed entry
// that bars nobody, and an entry that differs after it was stored again.
func FuzzDecode(f *testing.F) {
	f.Add("worker-1", []byte(`{"since":"2026-11-23T08:00:00Z","allowed":{"`+string(fingerprint(1).Key())+`":"2026-11-23T09:00:00Z"}}`))
	f.Add(string(fingerprint(2).Key()), []byte(`{"since":"2026-11-23T08:00:00+01:00","until":"2026-11-23T09:00:00Z","reason":"abcdef.0123456789abcdef"}`))
	f.Add("X509SHA256.", []byte(`null`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		e, err := revocation.Decode(key, value)
		if err != nil {
			return
		}
		if string(e.Key()) != key {
			t.Fatalf("key %q became %q", key, e.Key())
		}
		if parsed, err := revocation.ParseKey(e.Key().String()); err != nil || parsed != e.Key() {
			t.Fatalf("%s: got %s, %v after ParseKey", e.Key(), parsed, err)
		}
		who := revocation.Subject{Node: e.Node, Fingerprints: []revocation.Fingerprint{e.Fingerprint}}
		if e.Malformed != nil {
			if !e.Bars(who, now) || e.Ended(now) {
				t.Fatalf("%q: a malformed entry bars nobody", value)
			}
			return
		}
		stored, err := revocation.Encode(e)
		if err != nil {
			return // a time that JSON cannot hold
		}
		again, err := revocation.Decode(key, stored)
		if err != nil || again.Malformed != nil || again.Reason != e.Reason || !reflect.DeepEqual(keysOf(again.Allowed), keysOf(e.Allowed)) {
			t.Fatalf("%q became %+v, %v, want %+v", value, again, err, e)
		}
	})
}

func keysOf(allowed map[revocation.Fingerprint]time.Time) map[revocation.Fingerprint]bool {
	keys := map[revocation.Fingerprint]bool{}
	for f := range allowed {
		keys[f] = true
	}
	return keys
}
