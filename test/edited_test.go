package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What docs/protocol.md says of a cluster-info that others have edited or deleted.
func TestEditedClusterInfo(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{})
	args, token := s.join(t, "")
	pin := args[len(args)-1]
	good := s.data(t)
	put := func(data map[string]any) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"data": data})
		if err != nil {
			t.Fatal(err)
		}
		s.kubectl(t, "-n", "kube-public", "patch", "configmap", "cluster-info", "--type=merge", "-p", string(patch))
	}
	discovers := func() error {
		_, err := clusterinfo.Discover(t.Context(), s.address, token, []string{pin})
		return err
	}
	ready := func(failing string) error {
		status, body, err := s.get(t.Context(), "/readyz?verbose", "")
		if err == nil && (status == 200) != (failing == "") || !strings.Contains(body, failing) {
			err = fmt.Errorf("/readyz answers %d %s, want %q", status, body, failing)
		}
		return err
	}
	heals := func(what string) {
		t.Helper()
		wait(t, what+" to be put right", func() error {
			if now := s.data(t); now["kubeconfig"] != good["kubeconfig"] || now[clusterinfo.SignatureKey(token.ID())] != good[clusterinfo.SignatureKey(token.ID())] {
				return fmt.Errorf("cluster-info has %q", slices.Sorted(maps.Keys(now)))
			}
			return ready("")
		})
		if err := discovers(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		s.join(t, "")
	}

	put(map[string]any{"jws-kubeconfig-foreig": "e30..c29tZWJvZHkgZWxzZQ", clusterinfo.SignatureKey(token.ID()): "e30..YnkgaGFuZA"})
	heals("a foreign signature and a wrong one")
	wait(t, "the foreign signature to go", func() error {
		if s.data(t)["jws-kubeconfig-foreig"] != "" {
			return fmt.Errorf("it is there")
		}
		return nil
	})
	s.kubectl(t, "-n", "kube-public", "delete", "configmap", "cluster-info")
	heals("a deleted cluster-info")
	put(map[string]any{"kubeconfig": nil})
	heals("a missing kubeconfig")

	for what, edit := range map[string]string{
		"without CA":      strings.Replace(good["kubeconfig"], "certificate-authority-data", "something-else", 1),
		"with credential": strings.Replace(good["kubeconfig"], "users: null", "users: [{name: a, user: {token: kkkkkkkkkkkkkkkk}}]", 1),
	} {
		if edit == good["kubeconfig"] {
			t.Fatalf("%s: nothing was edited in\n%s", what, edit)
		}
		before := s.tokenSecrets(t)
		put(map[string]any{"kubeconfig": edit})
		wait(t, "a kubeconfig "+what+" to be noticed", func() error { return ready("[-]cluster-info failed: kubeconfig: ") })
		status, body, err := s.get(t.Context(), discoveryPath, "")
		if err != nil || status != 500 || !strings.Contains(body, "of no use to a joining node") || strings.Contains(body, "kkkkkkkk") {
			t.Errorf("%s: discovery answers %d %s, %v", what, status, body, err)
		}
		if line, err := s.joinCommand(t, ""); err == nil || !strings.Contains(err.Error(), "malformed-cluster-info") || !strings.Contains(err.Error(), "was deleted again") {
			t.Errorf("%s: a join command of %d bytes, %v; want the problem malformed-cluster-info", what, len(line), err)
		}
		if after := s.tokenSecrets(t); after != before {
			t.Errorf("%s: tokens\n%s\nwere\n%s", what, after, before)
		}
		if !strings.Contains(s.Log(), "of no use to joining nodes") {
			t.Errorf("%s: the log does not say so", what)
		}
		put(map[string]any{"kubeconfig": good["kubeconfig"]})
		heals("a kubeconfig " + what)
	}
}

func (s *site) data(t *testing.T) map[string]string {
	t.Helper()
	// As administrator, who sees what there is.
	object, err := s.Client().CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
	if err != nil {
		return nil // deleted, and not made again yet
	}
	return object.Data
}

func (s *site) tokenSecrets(t *testing.T) string {
	t.Helper()
	return s.kubectl(t, "-n", "kube-system", "get", "secrets", "--field-selector=type=bootstrap.kubernetes.io/token", "-o", "name")
}

// What docs/protocol.md says of Secrets that others have made.
func TestForeignSecrets(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{})
	args, _ := s.join(t, "")
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
		if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.known.add("token "+token.ID(), token.RevealSecret())
	}
	discovers := func(token tokens.Token) {
		t.Helper()
		discovery := clusterinfo.Discovery{Endpoint: s.address, Token: token, Pins: []string{pin}, Retry: 50 * time.Millisecond}
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
	wait(t, "expired tokens to be deleted", func() error {
		names := s.tokenSecrets(t)
		for _, token := range []tokens.Token{malformed, past} {
			if strings.Contains(names, token.ID()) {
				return fmt.Errorf("%s is there", token.ID())
			}
		}
		return nil
	})
	for token, problem := range map[tokens.Token]string{missing: "token-secret is missing", malformed: "expiration is not a time of RFC 3339"} {
		if !slices.ContainsFunc(strings.Split(s.Log(), "\n"), func(line string) bool {
			return strings.Contains(line, "token="+token.ID()) && strings.Contains(line, problem)
		}) {
			t.Errorf("the log does not say of token %s that %s", token.ID(), problem)
		}
	}
	secret, err := secrets.Get(t.Context(), "bootstrap-token-"+foreign.ID(), metav1.GetOptions{})
	if err != nil || string(secret.Data["note"]) != "kept" || secret.Labels["made-by"] != "hand" {
		t.Errorf("what kubejoin does not know was not kept: %v, %v", slices.Sorted(maps.Keys(secret.Data)), err)
	}
	if !strings.Contains(s.tokenSecrets(t), missing.ID()) || strings.Contains(s.clusterInfo(t), missing.ID()) {
		t.Errorf("token %s without a secret is gone, or signs", missing.ID())
	}

	// One that is made anew under the same name with another secret.
	again, err := tokens.New(foreign.ID(), tokens.Generate().RevealSecret())
	if err != nil {
		t.Fatal(err)
	}
	if err := secrets.Delete(t.Context(), "bootstrap-token-"+foreign.ID(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	create(again, nil)
	wait(t, "the new secret's signature", func() error {
		data := s.data(t)
		return clusterinfo.Verify([]byte(data["kubeconfig"]), data[clusterinfo.SignatureKey(again.ID())], again)
	})
	discovers(again)
	if _, err := clusterinfo.Discover(t.Context(), s.address, foreign, []string{pin}); err == nil {
		t.Error("discovery passes with the old secret")
	}
	s.join(t, "") // everything else goes on
}
