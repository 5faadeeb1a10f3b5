package test

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Whoever holds kubejoin's identity writes no Secrets but bootstrap tokens, although RBAC alone
// would let it make a service account token of cluster-admin's.
func TestSecretsAreHeldToBootstrapTokens(t *testing.T) {
	t.Parallel()
	s := prepare(t, cluster.Options{})
	config, err := s.Config(s.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "clusterrole-aggregation-controller"}},
			Type:       kind,
			StringData: map[string]string{"token-id": strings.TrimPrefix(name, "bootstrap-token-"), "token-secret": tokens.Generate().RevealSecret()},
		}
	}
	// The policy is in force some moments after it was made.
	wait(t, "the policy", func() error {
		_, err := secrets.Create(ctx, secret("probe", corev1.SecretTypeOpaque), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errAllowed
		}
		return nil
	})
	other := secret("other", corev1.SecretTypeOpaque)
	if _, err := s.Client().CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"create a service account token": func() error {
			_, err := secrets.Create(ctx, secret("stolen", corev1.SecretTypeServiceAccountToken), metav1.CreateOptions{})
			return err
		},
		"create one that is named as a bootstrap token": func() error {
			_, err := secrets.Create(ctx, secret("bootstrap-token-abcabc", corev1.SecretTypeServiceAccountToken), metav1.CreateOptions{})
			return err
		},
		"create a bootstrap token of another name": func() error {
			_, err := secrets.Create(ctx, secret("abcabc", corev1.SecretTypeBootstrapToken), metav1.CreateOptions{})
			return err
		},
		"update another Secret": func() error {
			_, err := secrets.Update(ctx, secret("other", corev1.SecretTypeOpaque), metav1.UpdateOptions{})
			return err
		},
		"delete another Secret": func() error { return secrets.Delete(ctx, "other", metav1.DeleteOptions{}) },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "kubejoin writes no Secrets but") {
			t.Errorf("%s: %v, want the policy's refusal", what, err)
		}
	}
	if _, err := secrets.Create(ctx, secret("bootstrap-token-abcabc", corev1.SecretTypeBootstrapToken), metav1.CreateOptions{}); err != nil {
		t.Errorf("create a bootstrap token: %v", err)
	}
	if err := secrets.Delete(ctx, "bootstrap-token-abcabc", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete it: %v", err)
	}
	if _, err := client.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("kubejoin can list Secrets in another namespace")
	}
}
