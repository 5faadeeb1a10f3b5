package kube_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations/kube"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// open returns a Cluster whose watches have begun.
func open(t *testing.T, client *fake.Clientset) *kube.Cluster {
	t.Helper()
	c := must.Value(kube.Open(t.Context(), client, ""))(t)
	synctest.Wait()
	return c
}

// refuse makes requests fail as if the user lacked the permission.
func refuse(client *fake.Clientset, verb, resource string) {
	client.PrependReactor(verb, resource, func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("not for ada"))
	})
}

// newToken returns a request that does not wait for a signature.
func newToken() api.CreateToken {
	return api.CreateToken{Token: api.Secret(tokens.Generate().Reveal()), Wait: "0"}
}

func TestReportsRefusedOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, fake.NewClientset())
		ctx := t.Context()
		made, err := c.CreateToken(ctx, newToken())
		if err != nil {
			t.Fatal(err)
		}
		invalid := newToken()
		invalid.ReplaceNode = "worker-9"
		_, err = c.CreateToken(ctx, invalid)
		if f := (api.InvalidFields)(nil); !errors.As(err, &f) || f[0].Field != "replaceNode" {
			t.Errorf("replace a missing Node: got %v, want an invalid field", err)
		}
		_, err = c.JoinControlPlane(ctx, api.TokenSpec{Groups: []string{"system:bootstrappers:a"}})
		if f := (api.InvalidFields)(nil); !errors.As(err, &f) || f[0].Field != "groups" {
			t.Errorf("control plane of another group: got %v, want an invalid field", err)
		}
		_, err = c.RenewToken(ctx, made.ID, api.RenewToken{TTL: "5m"})
		if e := (*mint.Error)(nil); !errors.As(err, &e) || e.Reason != mint.WouldShorten {
			t.Errorf("shorter: got %v, want %s", err, mint.WouldShorten)
		}
		_, err = c.DeleteToken(ctx, made.ID, api.DeleteToken{OnlyExpired: true})
		if e := (*mint.Error)(nil); !errors.As(err, &e) || e.Reason != mint.NotExpired {
			t.Errorf("not expired: got %v, want %s", err, mint.NotExpired)
		}
		if _, err := c.ReleaseClaim(ctx, "worker-9", api.ReleaseClaim{}); err == nil || err.Error() != "there is no claim on node name worker-9" {
			t.Errorf("release: got %v", err)
		}
		_, err = c.UndoRevocation(ctx, "worker-9", api.UndoRevocation{})
		if e := (*tokens.Refusal)(nil); !errors.As(err, &e) || e.Reason != desk.NotRevoked {
			t.Errorf("undo: got %v, want %s", err, desk.NotRevoked)
		}
		_, err = c.Revoke(ctx, api.Revoke{Fingerprint: "sha256:x"})
		if f := (api.InvalidFields)(nil); !errors.As(err, &f) || f[0].Field != "fingerprint" {
			t.Errorf("revoke: got %v, want an invalid field", err)
		}
		if _, err := c.ExplainRequest(ctx, api.ExplainRequest{CSR: "nobody"}); err == nil || err.Error() != "there is no CertificateSigningRequest nobody" {
			t.Errorf("explain: got %v", err)
		}
	})
}

// Catches a retry that creates the token again, and an error that does not name the token.
func TestNamesTokenThatExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, fake.NewClientset())
		req := newToken()
		req.Expires = time.Now().Add(time.Hour).Format(time.RFC3339)
		first, err := c.CreateToken(t.Context(), req)
		if err != nil || first.Status != api.StatusUnsigned || first.Token != req.Token {
			t.Fatalf("got %+v, %v", first, err)
		}
		if again, err := c.CreateToken(t.Context(), req); err != nil || again.ID != first.ID {
			t.Errorf("again: got %+v, %v, want the same token", again, err)
		}
		req = newToken()
		req.Wait = "10ms"
		if unsigned, err := c.CreateToken(t.Context(), req); err == nil || unsigned.ID == "" || !strings.HasPrefix(req.Token.Reveal(), unsigned.ID) {
			t.Errorf("without a signer: got ID %q, %v", unsigned.ID, err)
		}
		start := time.Now()
		_, err = c.CreateToken(t.Context(), api.CreateToken{})
		if e := (*mint.Error)(nil); !errors.As(err, &e) || e.Reason != mint.NotSigned || time.Since(start) != mint.DefaultSignTimeout {
			t.Errorf("without a signer, by default: got %v after %s, want %s after %s", err, time.Since(start), mint.NotSigned, mint.DefaultSignTimeout)
		}
	})
}

// Catches a user who gets no tokens without the permission to read Leases, and a warning without its cause.
func TestListsTokensOfUserWithFewPermissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		refuse(client, "*", "leases")
		refuse(client, "*", "configmaps")
		c := open(t, client)
		must.Value(c.CreateToken(t.Context(), api.CreateToken{Token: newToken().Token, TokenSpec: api.TokenSpec{Usages: []string{api.UsageAuthentication}}}))(t)
		synctest.Wait() // until the cache has the token
		list, err := c.ListTokens(t.Context())
		if err != nil || len(list.Items) != 1 || len(list.Warnings) != 1 || !strings.HasPrefix(list.Warnings[0], "cannot read cluster-info") || !strings.Contains(list.Warnings[0], "not for ada") {
			t.Errorf("got %+v, %v", list, err)
		}
		for name, f := range map[string]func() error{
			"list claims":  func() error { _, err := c.ListClaims(t.Context()); return err },
			"release":      func() error { _, err := c.ReleaseClaim(t.Context(), "worker-1", api.ReleaseClaim{}); return err },
			"revoke token": func() error { _, err := c.Revoke(t.Context(), api.Revoke{TokenID: "abcdef"}); return err },
		} {
			if err := f(); !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "the token store refused this request: ") {
				t.Errorf("%s: got %v, want the refusal of the API server", name, err)
			}
		}
		refuse(client, "list", "secrets")
		if _, err := c.ListTokens(t.Context()); !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "the token store refused this request: ") {
			t.Errorf("got %v, want the refusal of the API server", err)
		}
		refuse(client, "get", "nodes")
		replace := newToken()
		replace.ReplaceNode = "worker-1"
		if _, err := c.CreateToken(t.Context(), replace); err == nil || !strings.HasPrefix(err.Error(), "Node worker-1 cannot be read now; retry: ") {
			t.Errorf("replace a Node: got %v, want the refusal of the API server", err)
		}
	})
}

// Catches a warning about a revocation without end that does not say why.
func TestRevokeSaysWhyTheEndIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		refuse(client, "list", "certificatesigningrequests")
		list, err := open(t, client).Revoke(t.Context(), api.Revoke{Node: "worker-1"})
		if err != nil || len(list.Items) != 1 || !strings.Contains(list.Warnings[0], "'kubejoin revoke undo'; the API server does not let kubejoin read or withdraw the certificate requests of the cluster: ") {
			t.Errorf("got %+v, %v, want worker-1 and the reason", list, err)
		}
	})
}

// Catches a revoked machine that joins again with its key, because the user may not read the claims.
func TestRevokeReportsUnreadClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		refuse(client, "*", "leases")
		c := open(t, client)
		if _, err := c.Revoke(t.Context(), api.Revoke{Node: "worker-1"}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the key of the machine") {
			t.Errorf("got %v, want the refusal of the API server", err)
		}
		if list, err := c.ListRevocations(t.Context()); err != nil || len(list.Items) != 1 {
			t.Errorf("got %+v, %v, want the revocation", list, err)
		}
		if _, err := c.UndoRevocation(t.Context(), "worker-1", api.UndoRevocation{}); !apierrors.IsForbidden(err) {
			t.Errorf("undo: got %v, want the refusal of the API server", err)
		}
	})
}

// Catches a refused write whose error asks for a retry.
func TestRevokeReportsRefusedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		for _, verb := range []string{"create", "update"} {
			refuse(client, verb, "configmaps")
		}
		if _, err := open(t, client).Revoke(t.Context(), api.Revoke{Node: "worker-1"}); err == nil || !strings.HasPrefix(err.Error(), "the store of revocations refused this request: ") {
			t.Errorf("got %v, want the refusal of the API server", err)
		}
	})
}

// Catches a command that checks a permission again for each name.
func TestReleaseChecksPermissionOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		checks := 0
		client.PrependReactor("list", "leases", func(a kubetesting.Action) (bool, runtime.Object, error) {
			if l, ok := a.(kubetesting.ListActionImpl); ok && l.ListOptions.Limit == 1 {
				checks++
			}
			return false, nil, nil
		})
		c := open(t, client)
		for _, node := range []string{"worker-1", "worker-2"} {
			var refused *tokens.Refusal
			if _, err := c.ReleaseClaim(t.Context(), node, api.ReleaseClaim{}); !errors.As(err, &refused) || refused.Reason != "no-claim" {
				t.Errorf("%s: got %v, want no claim", node, err)
			}
		}
		if checks != 1 {
			t.Errorf("got %d checks, want 1", checks)
		}
	})
}

// Catches a token from a command with a kubeconfig that uses up the quota of a user of the HTTPS API.
func TestTokenHasNoCreator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, fake.NewClientset())
		must.Value(c.CreateToken(t.Context(), newToken()))(t)
		synctest.Wait() // until the cache has the token
		if all := must.Value(c.Records(t.Context()))(t); len(all) != 1 || all[0].Creator != "" {
			t.Errorf("got %+v, want a token without a creator", all)
		}
	})
}
