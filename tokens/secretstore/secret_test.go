package secretstore

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/util/secrets"
)

const (
	id    = "abc123"
	value = "s3cr3ts3cr3ts3cr"
)

// TestDecode calls decode directly, because each case would take a second with a real API server.
func TestDecode(t *testing.T) {
	epoch := time.Unix(0, 0).UTC()
	created := metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	full := func() *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id, UID: "u", ResourceVersion: "7", CreationTimestamp: created},
			Type:       api.SecretTypeBootstrapToken,
			Data: map[string][]byte{
				"token-id": []byte(id), "token-secret": []byte(value), "expiration": []byte("2026-02-03T04:05:06Z"),
				"usage-bootstrap-signing": []byte("true"), "usage-bootstrap-authentication": []byte("true"),
				"auth-extra-groups": []byte("system:bootstrappers:b,system:bootstrappers:a"), "description": []byte("d"),
			},
		}
	}
	want := tokens.Record{
		Expires: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC), Signing: true, Authentication: true,
		Groups: []string{"system:bootstrappers:b", "system:bootstrappers:a"}, Description: "d",
		Created: created.UTC(), UID: "u", Version: "7",
	}
	data := func(key, value string) func(*corev1.Secret) {
		return func(s *corev1.Secret) { s.Data[key] = []byte(value) }
	}
	without := func(key string) func(*corev1.Secret) { return func(s *corev1.Secret) { delete(s.Data, key) } }
	for _, test := range []struct {
		name     string
		change   func(*corev1.Secret)
		want     func(*tokens.Record)
		noSecret bool
		secret   string // if it is not value
		problem  string
	}{
		{name: "full"},
		{name: "creator", change: func(s *corev1.Secret) {
			s.Annotations = map[string]string{"tokens.kubejoin.io/creator": strings.Repeat("a", 64)}
		}, want: func(r *tokens.Record) { r.Creator = strings.Repeat("a", 64) }},
		{name: "creator that kubejoin did not write", change: func(s *corev1.Secret) {
			s.Annotations = map[string]string{"tokens.kubejoin.io/creator": strings.Repeat("a", 65)}
		}},
		{name: "owner", change: func(s *corev1.Secret) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "worker-7", UID: "n"}, {APIVersion: "v1", Kind: "Node", Name: "worker-8", UID: "m"}}
		}, want: func(r *tokens.Record) {
			r.Owner = tokens.Owner{APIVersion: "v1", Kind: "Node", Name: "worker-7", UID: "n"}
		}},
		{name: "owner that kubejoin did not write", change: func(s *corev1.Secret) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "x/y/z", Kind: "a\tb", Name: "n", UID: "u"}}
		}},
		{name: "only the token", change: func(s *corev1.Secret) {
			s.Data = map[string][]byte{"token-id": []byte(id), "token-secret": []byte(value)}
		}, want: func(r *tokens.Record) {
			r.Expires, r.Signing, r.Authentication, r.Groups, r.Description = time.Time{}, false, false, nil, ""
		}},
		{name: "usage True", change: data("usage-bootstrap-signing", "True"), want: func(r *tokens.Record) { r.Signing = false }},
		{name: "usage 1", change: data("usage-bootstrap-authentication", "1"), want: func(r *tokens.Record) { r.Authentication = false }},
		{name: "usage with newline", change: data("usage-bootstrap-signing", "true\n"), want: func(r *tokens.Record) { r.Signing = false }},

		{name: "no expiration", change: without("expiration"), want: func(r *tokens.Record) { r.Expires = time.Time{} }},
		{name: "empty expiration", change: data("expiration", ""), want: func(r *tokens.Record) { r.Expires = time.Time{} }},
		{name: "another zone", change: data("expiration", "2026-02-03T05:05:06+01:00")},
		{name: "fraction", change: data("expiration", "2026-02-03T04:05:06.5Z"), want: func(r *tokens.Record) { r.Expires = r.Expires.Add(time.Second / 2) }},
		{name: "expiration in the year 1", change: data("expiration", "0001-01-01T00:00:00Z"), want: func(r *tokens.Record) { r.Expires = epoch }},
		{name: "unparseable expiration", change: data("expiration", value), want: func(r *tokens.Record) { r.Expires = epoch }, problem: "expiration is not an RFC 3339 time"},
		{name: "expiration without zone", change: data("expiration", "2026-02-03T04:05:06"), want: func(r *tokens.Record) { r.Expires = epoch }, problem: "expiration is not"},
		{name: "expiration with space", change: data("expiration", " 2026-02-03T04:05:06Z"), want: func(r *tokens.Record) { r.Expires = epoch }, problem: "expiration is not"},

		{name: "no groups", change: data("auth-extra-groups", ""), want: func(r *tokens.Record) { r.Groups = nil }},
		{name: "group twice", change: data("auth-extra-groups", "system:bootstrappers:a,system:bootstrappers:a"), want: func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:a"} }},
		{
			name: "untrimmed group", change: data("auth-extra-groups", "system:bootstrappers:a, system:bootstrappers:b"),
			want:    func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:a", " system:bootstrappers:b"} },
			problem: `auth-extra-groups: bootstrap group " system:bootstrappers:b" is invalid`,
		},
		{name: "empty group", change: data("auth-extra-groups", "system:bootstrappers:a,"), want: func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:a", ""} }, problem: "auth-extra-groups"},
		{name: "group masters", change: data("auth-extra-groups", "system:masters"), want: func(r *tokens.Record) { r.Groups = []string{"system:masters"} }, problem: `"system:masters" is invalid`},

		{name: "no token-id", change: without("token-id"), noSecret: true, problem: "token-id is missing"},
		{name: "another token-id", change: data("token-id", "abc124"), noSecret: true, problem: "token-id is not the ID in the name of the Secret, abc123"},
		{name: "whole token as token-id", change: data("token-id", id+"."+value), noSecret: true, problem: "token-id is not"},
		{name: "no token-secret", change: without("token-secret"), noSecret: true, problem: "token-secret is missing"},
		{name: "whole token as token-secret", change: data("token-secret", id+"."+value), secret: id + "." + value, problem: "malformed secret of token abc123"},
		{name: "secret with newline", change: data("token-secret", value+"\n"), secret: value + "\n", problem: "malformed secret of token abc123"},
		{name: "short secret", change: data("token-secret", "x"), secret: "x", problem: "want 16 characters of [a-z0-9], not 1"},
		{name: "long secret", change: data("token-secret", strings.Repeat("é", 50)), secret: strings.Repeat("é", 50), problem: "not 100"},
		{name: "no data", change: func(s *corev1.Secret) { s.Data = nil }, want: func(r *tokens.Record) {
			r.Expires, r.Signing, r.Authentication, r.Groups, r.Description = time.Time{}, false, false, nil, ""
		}, noSecret: true, problem: "token-id is missing"},
		{name: "being deleted", change: func(s *corev1.Secret) {
			s.DeletionTimestamp, s.Finalizers = &created, []string{"example.com/f"}
		}, noSecret: true, problem: "token is being deleted since 2026-01-02T02:04:05Z, finalizers: example.com/f"},
	} {
		t.Run(test.name, func(t *testing.T) {
			secret := full()
			if test.change != nil {
				test.change(secret)
			}
			r := must.Value(decode(secret))(t)
			want := want
			if test.want != nil {
				test.want(&want)
			}
			wantSecret := cmp.Or(test.secret, value)
			if test.noSecret {
				wantSecret = ""
			}
			if r.Token.ID() != id || r.Token.RevealSecret() != wantSecret {
				t.Errorf("token %v with secret %q, want %q", r.Token, r.Token.RevealSecret(), wantSecret)
			}
			if r.Expires != want.Expires || r.Signing != want.Signing || r.Authentication != want.Authentication || !slices.Equal(r.Groups, want.Groups) ||
				r.Description != want.Description || !r.Limits.IsZero() || r.Nodes != nil || r.Creator != want.Creator || r.Owner != want.Owner || r.Created != want.Created || r.UID != want.UID || r.Version != want.Version {
				t.Errorf("decode gives\n%+v\nwant\n%+v", r, want)
			}
			switch {
			case (test.problem == "") != (r.Problem == nil):
				t.Errorf("problem %v, want %q", r.Problem, test.problem)
			case r.Problem != nil && !strings.Contains(r.Problem.Error(), test.problem):
				t.Errorf("problem %q, want %q in it", r.Problem, test.problem)
			case r.Problem != nil && strings.Contains(r.Problem.Error(), value):
				t.Errorf("the problem %q contains the secret", r.Problem)
			}
			// Compare with the upstream functions for the two values that need parsing.
			for _, now := range []time.Time{want.Expires.Add(-1), want.Expires, want.Expires.Add(1), time.Unix(1, 0)} {
				if !now.Before(epoch) && r.Expired(now) != secrets.HasExpired(secret, now) {
					t.Errorf("got Expired at %v = %t, which differs from upstream", now, r.Expired(now))
				}
			}
			groups, err := secrets.GetGroups(secret)
			if bad := strings.Contains(test.problem, "invalid") || strings.Contains(test.problem, "auth-extra-groups"); (err != nil) != bad {
				t.Errorf("upstream returns for the groups: %v", err)
			} else if err == nil && len(groups) != len(r.Groups)+1 { // upstream adds system:bootstrappers
				t.Errorf("got groups %q, upstream has %q", r.Groups, groups)
			}
		})
	}
}

// Everybody knows a published secret, so kubejoin must not sign with it.
func TestDecodeRefusesPublishedExample(t *testing.T) {
	r, err := decode(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
		Type:       api.SecretTypeBootstrapToken,
		Data:       map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-signing": []byte("true")},
	})
	if err != nil || r.Token.HasSecret() || r.Signs(time.Now()) || !errors.Is(r.Problem, tokens.ErrPublicExample) {
		t.Errorf("got a secret: %t, problem %v, error %v", r.Token.HasSecret(), r.Problem, err)
	}
}

func TestDecodeProblemsAreJoined(t *testing.T) {
	r, err := decode(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"},
		Type:       api.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "expiration": []byte("soon"), "auth-extra-groups": []byte("x"),
		},
	})
	if err != nil || !errors.Is(r.Problem, tokens.ErrPublicExample) || r.Token.HasSecret() {
		t.Fatalf("decode = %+v, %v, want ErrPublicExample", r, err)
	}
	for _, part := range []string{"expiration", "auth-extra-groups"} {
		if !strings.Contains(r.Problem.Error(), part) {
			t.Errorf("problem %q, want %q too", r.Problem, part)
		}
	}
}

func TestDecodeRefusesOtherSecrets(t *testing.T) {
	for name, secret := range map[string]*corev1.Secret{
		"prefix":    {ObjectMeta: metav1.ObjectMeta{Name: "token-abc123"}, Type: api.SecretTypeBootstrapToken},
		"short ID":  {ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abc12"}, Type: api.SecretTypeBootstrapToken},
		"more":      {ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abc123.x"}, Type: api.SecretTypeBootstrapToken},
		"type":      {ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abc123"}, Type: "Opaque"},
		"zero":      {},
		"no prefix": {ObjectMeta: metav1.ObjectMeta{Name: "abc123"}, Type: api.SecretTypeBootstrapToken},
	} {
		if r, err := decode(secret); err == nil {
			t.Errorf("%s: decode = %+v, want an error", name, r)
		}
	}
}

// Kubernetes needs more rights for an owner with blockOwnerDeletion, and has one controller of each object.
func TestWritesOwner(t *testing.T) {
	r := tokens.NewRecord(must.Value(tokens.New(id, value))(t), 0, time.Now())
	r.Owner = tokens.Owner{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "default-abc", UID: "n"}
	secret := encode(r)
	want := metav1.OwnerReference{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "default-abc", UID: "n"}
	if refs := secret.OwnerReferences; len(refs) != 1 || refs[0] != want {
		t.Errorf("got %+v, want %+v", refs, want)
	}
	secret.OwnerReferences = append(secret.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "of others", UID: "p"})
	before := must.Value(decode(secret))(t)
	after := before.Clone()
	after.Owner = tokens.Owner{}
	if apply(secret, before, after); len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].UID != "p" {
		t.Errorf("got %+v, want only the owner of others", secret.OwnerReferences)
	}
}
