package coexist

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRepairsEditedClusterInfo edits and deletes cluster-info. It catches an edit that kubejoin neither repairs nor
// reports, and a join command or token made from an unusable kubeconfig.
func TestRepairsEditedClusterInfo(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	args, token := s.JoinArgs(t, "")
	pin := args[len(args)-1]
	good := s.ClusterInfo(t)
	put := func(data map[string]any) {
		t.Helper()
		patch := must.Value(json.Marshal(map[string]any{"data": data}))(t)
		s.RunKubectl(t, "-n", "kube-public", "patch", "configmap", "cluster-info", "--type=merge", "-p", string(patch))
	}
	discovers := func() error {
		_, err := clusterinfo.Discover(t.Context(), s.Endpoint, token, []string{pin})
		return err
	}
	ready := func(failing string) error {
		status, body, err := s.Get(t.Context(), "/readyz?verbose", "")
		if err == nil && (status == 200) != (failing == "") || !strings.Contains(body, failing) {
			err = fmt.Errorf("/readyz returns %d %s, want %q", status, body, failing)
		}
		return err
	}
	waitRepaired := func(what string) {
		t.Helper()
		harness.Wait(t, "repair of "+what, func() error {
			if now := s.ClusterInfo(t); now["kubeconfig"] != good["kubeconfig"] || now[clusterinfo.SignatureKey(token.ID())] != good[clusterinfo.SignatureKey(token.ID())] {
				return fmt.Errorf("cluster-info has keys %q, or another kubeconfig or signature than before", slices.Sorted(maps.Keys(now)))
			}
			return ready("")
		})
		if err := discovers(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		s.JoinArgs(t, "")
	}

	put(map[string]any{"jws-kubeconfig-foreig": "e30..c29tZWJvZHkgZWxzZQ", clusterinfo.SignatureKey(token.ID()): "e30..YnkgaGFuZA"})
	waitRepaired("a foreign signature and a wrong one")
	harness.Wait(t, "removal of the foreign signature", func() error {
		if s.ClusterInfo(t)["jws-kubeconfig-foreig"] != "" {
			return fmt.Errorf("cluster-info still has it")
		}
		return nil
	})
	s.RunKubectl(t, "-n", "kube-public", "delete", "configmap", "cluster-info")
	waitRepaired("a deleted cluster-info")
	put(map[string]any{"kubeconfig": nil})
	waitRepaired("a missing kubeconfig")

	for what, edit := range map[string]string{
		"without CA":      strings.Replace(good["kubeconfig"], "certificate-authority-data", "something-else", 1),
		"with credential": strings.Replace(good["kubeconfig"], "users: null", "users: [{name: a, user: {token: kkkkkkkkkkkkkkkk}}]", 1),
	} {
		if edit == good["kubeconfig"] {
			t.Fatalf("%s: nothing was edited in\n%s", what, edit)
		}
		before := tokenSecrets(t, s)
		put(map[string]any{"kubeconfig": edit})
		harness.Wait(t, "/readyz to report a kubeconfig "+what, func() error { return ready("[-]cluster-info failed: kubeconfig: ") })
		status, body, err := s.Get(t.Context(), harness.ClusterInfoPath, "")
		if err != nil || status != 500 || !strings.Contains(body, "joining nodes cannot use the kubeconfig") || strings.Contains(body, "kkkkkkkk") {
			t.Errorf("%s: discovery returns %d %s, %v, want 500 without the credential", what, status, body, err)
		}
		if line, err := s.JoinCommand(t, ""); err == nil || !strings.Contains(err.Error(), "malformed-cluster-info") || strings.Contains(err.Error(), "was deleted") {
			t.Errorf("%s: got a join command of %d bytes, %v; want problem malformed-cluster-info", what, len(line), err)
		}
		if after := tokenSecrets(t, s); after != before {
			t.Errorf("%s: got tokens\n%s\nwant\n%s", what, after, before)
		}
		harness.Wait(t, "the log to report a kubeconfig "+what, func() error {
			if !strings.Contains(s.Log(), "kubeconfig in cluster-info is malformed") {
				return errors.New("not in the log")
			}
			return nil
		})
		put(map[string]any{"kubeconfig": good["kubeconfig"]})
		waitRepaired("a kubeconfig " + what)
	}
}

func tokenSecrets(t *testing.T, s *harness.Site) string {
	t.Helper()
	return s.RunKubectl(t, "-n", "kube-system", "get", "secrets", "--field-selector=type=bootstrap.kubernetes.io/token", "-o", "name")
}

// TestHandlesForeignTokenSecrets creates token Secrets as others do: malformed, expired, with unknown fields, replaced.
// It catches a Secret that stops kubejoin, loses fields, or signs although it must not.
func TestHandlesForeignTokenSecrets(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	args, _ := s.JoinArgs(t, "")
	pin := args[len(args)-1]
	secrets := s.Client().CoreV1().Secrets("kube-system")
	create := func(token tokens.Token, change func(*corev1.Secret)) {
		t.Helper()
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + token.ID(), Labels: map[string]string{"made-by": "hand"}},
			Type:       corev1.SecretTypeBootstrapToken,
			StringData: map[string]string{
				"token-id": token.ID(), "token-secret": token.RevealSecret(), "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
			},
		}
		if change != nil {
			change(secret)
		}
		must.Value(secrets.Create(t.Context(), secret, metav1.CreateOptions{}))(t)
		s.Secrets.Add("token "+token.ID(), token.RevealSecret())
	}
	discovers := func(token tokens.Token) {
		t.Helper()
		discovery := clusterinfo.Discovery{Endpoint: s.Endpoint, Token: token, Pins: []string{pin}, Retry: 50 * time.Millisecond}
		if _, err := discovery.Run(t.Context()); err != nil {
			t.Error(err)
		}
	}
	missing, malformed, past, foreign := tokens.Generate(), tokens.Generate(), tokens.Generate(), tokens.Generate()
	create(missing, func(s *corev1.Secret) { delete(s.StringData, "token-secret") })
	create(malformed, func(s *corev1.Secret) { s.StringData["expiration"] = "next week" })
	create(past, func(s *corev1.Secret) { s.StringData["expiration"] = "2020-01-01T00:00:00Z" })
	create(foreign, func(s *corev1.Secret) {
		s.StringData["note"] = "kept"
		s.StringData["usage-bootstrap-whatever"] = "true"
	})
	discovers(foreign)
	harness.Wait(t, "expired tokens to be deleted", func() error {
		names := tokenSecrets(t, s)
		for _, token := range []tokens.Token{malformed, past} {
			if strings.Contains(names, token.ID()) {
				return fmt.Errorf("token %s still exists", token.ID())
			}
		}
		return nil
	})
	for token, problem := range map[tokens.Token]string{missing: "token-secret is missing", malformed: "expiration is not an RFC 3339 time"} {
		if !slices.ContainsFunc(strings.Split(s.Log(), "\n"), func(line string) bool {
			return strings.Contains(line, "token="+token.ID()) && strings.Contains(line, problem)
		}) {
			t.Errorf("the log has no line about token %s with %q", token.ID(), problem)
		}
	}
	secret, err := secrets.Get(t.Context(), "bootstrap-token-"+foreign.ID(), metav1.GetOptions{})
	if err != nil || string(secret.Data["note"]) != "kept" || secret.Labels["made-by"] != "hand" {
		t.Errorf("kubejoin changed unknown fields or labels: %v, %v", slices.Sorted(maps.Keys(secret.Data)), err)
	}
	if !strings.Contains(tokenSecrets(t, s), missing.ID()) || s.ClusterInfo(t)[clusterinfo.SignatureKey(missing.ID())] != "" {
		t.Errorf("token %s without a secret was deleted or has a signature, want neither", missing.ID())
	}

	// The Secret is deleted and created again with another token secret.
	again := must.Value(tokens.New(foreign.ID(), tokens.Generate().RevealSecret()))(t)
	must.OK(t, secrets.Delete(t.Context(), "bootstrap-token-"+foreign.ID(), metav1.DeleteOptions{}))
	create(again, nil)
	harness.Wait(t, "signature with the new secret", func() error {
		data := s.ClusterInfo(t)
		return clusterinfo.Verify([]byte(data["kubeconfig"]), data[clusterinfo.SignatureKey(again.ID())], again)
	})
	discovers(again)
	if _, err := clusterinfo.Discover(t.Context(), s.Endpoint, foreign, []string{pin}); err == nil {
		t.Error("discovery succeeds with the old secret, want an error")
	}
	s.JoinArgs(t, "") // kubejoin still makes join commands
}
