package secretstore

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cluster-bootstrap/token/api"
)

// FuzzDecode decodes Secrets with any content, as others may write them to kube-system.
func FuzzDecode(f *testing.F) {
	good := string(api.SecretTypeBootstrapToken)
	f.Add("bootstrap-token-"+id, good, id, value, "2030-01-02T03:04:05Z", "system:bootstrappers:a,system:bootstrappers:b", "text", "true", false)
	f.Add("bootstrap-token-"+id, good, id, value, "0001-01-01T00:00:00Z", "", "", "TRUE", false)
	f.Add("bootstrap-token-"+id, good, "abc124", value+"x", "soon", "system:masters,,", "two\nlines", "", true)
	f.Add("bootstrap-token-", "Opaque", "", "", "9999-12-31T23:59:60+99:99", ",", "\xff", "true", false)
	f.Fuzz(func(t *testing.T, name, kind, tokenID, secret, expires, groups, description, usage string, deleting bool) {
		object := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: "1"},
			Type:       corev1.SecretType(kind),
			Data: map[string][]byte{
				api.BootstrapTokenIDKey: []byte(tokenID), api.BootstrapTokenSecretKey: []byte(secret),
				api.BootstrapTokenExpirationKey: []byte(expires), api.BootstrapTokenExtraGroupsKey: []byte(groups),
				api.BootstrapTokenDescriptionKey: []byte(description), api.BootstrapTokenUsageSigningKey: []byte(usage),
				api.BootstrapTokenUsageAuthentication: []byte(usage),
			},
		}
		if deleting {
			object.DeletionTimestamp = &metav1.Time{Time: time.Unix(0, 0)}
		}
		fuzzing.RunWithinLimit(t, func() {
			r, err := decode(object)
			said := errors.Join(err, r.Problem)
			if said != nil && len(secret) > 8 && !strings.Contains(name+kind+tokenID+groups, secret) && strings.Contains(said.Error(), secret) {
				t.Errorf("got the secret in %q", said)
			}
			if err != nil {
				if r.Token != (tokens.Token{}) {
					t.Errorf("got error %v and a token, want no token", err)
				}
				return
			}
			if deleting && r.Token.HasSecret() {
				t.Error("got a usable token that is being deleted")
			}
			if expires != "" && r.Expires.IsZero() {
				t.Errorf("got no expiration for %q", expires)
			}
			if r.Check() != nil {
				return
			}
			// A valid record must be unchanged after encode and decode.
			again, err := decode(encode(r))
			if err != nil || again.Problem != nil || again.Token != r.Token || !again.Expires.Equal(r.Expires.Truncate(time.Second)) ||
				!again.Limits.Equal(r.Limits) || !slices.Equal(again.Nodes, r.Nodes) || again.Signing != r.Signing || again.Authentication != r.Authentication || again.Description != r.Description || !slices.Equal(again.Groups, r.Groups) {
				t.Errorf("wrote %+v, read %+v, %v", r, again, err)
			}
		})
	})
}

// FuzzDecodeLimits decodes annotations with any content.
func FuzzDecodeLimits(f *testing.F) {
	f.Add("3", "worker-*,db.example", "8h", "", "control-plane", "worker-1", "")
	f.Add("1", "*", "480m0.0s", "worker-1/4f5e", "", "worker-1,worker-2", "")
	f.Add("0", "a,,b", "-1h", "/", "worker", ",", "zone")
	f.Add("+1", "A", "8", "a/b/c", " ", "a, b", "max-nodes ")
	f.Add("9223372036854775808", strings.Repeat("a,", 40_000), "2540400h10m10s", strings.Repeat("a", 300)+"/u", "\xff", "a,a", "")
	f.Fuzz(func(t *testing.T, most, names, duration, replaces, role, nodes, unknown string) {
		object := encode(tokens.Record{Token: tokens.Generate(), Signing: true})
		for name, value := range map[string]string{
			"max-nodes": most, "node-names": names, "certificate-duration": duration, "replaces-node": replaces, "role": role, "nodes": nodes, unknown: "x",
		} {
			if name != "" && value != "" {
				annotate(object, name, value)
			}
		}
		fuzzing.RunWithinLimit(t, func() {
			r, err := decode(object)
			if err != nil || r.Problem != nil || !r.Signs(time.Now()) {
				t.Fatalf("decode gives %+v, %v, want a token that signs", r, err)
			}
			if (r.Check() == nil) != (r.Limits.Problem == nil) {
				t.Errorf("got problem %v, but Check = %v", r.Limits.Problem, r.Check())
			}
			if r.Limits.Problem != nil {
				// Every Problem must be repairable.
				repaired := r.Clone()
				repaired.Limits.Problem = nil
				if repaired.Check() != nil { // values that conflict with each other
					repaired.Limits = tokens.Limits{}
				}
				apply(object, r, repaired)
				r = repaired
			} else {
				object = encode(r)
			}
			again, err := decode(object)
			if err != nil || again.Limits.Problem != nil || !again.Limits.Equal(r.Limits) || !slices.Equal(again.Nodes, r.Nodes) {
				t.Errorf("wrote %+v, read %+v, %v", r, again, err)
			}
		})
	})
}
