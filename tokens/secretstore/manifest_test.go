package secretstore_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The manifest must contain the same Secret that Create stores.
func TestManifestEqualsCreatedSecret(t *testing.T) {
	c := cluster.Shared(t)
	store, err := secretstore.Open(t.Context(), c.Client(), nil)
	if err != nil {
		t.Fatal(err)
	}
	record := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	record.Description = "for the rack in the cellar"
	record.Limits = tokens.Limits{MaxNodes: 2, NodeNames: []string{"worker-*"}, CertificateDuration: time.Hour}
	secret, err := secretstore.Manifest(record)
	if err != nil {
		t.Fatal(err)
	}
	if secret.Kind != "Secret" || secret.APIVersion != "v1" || secret.Namespace != "kube-system" {
		t.Errorf("%s %s in %s", secret.APIVersion, secret.Kind, secret.Namespace)
	}
	if _, err := c.Client().CoreV1().Secrets(secret.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := store.Get(t.Context(), record.Token.ID())
	if err != nil {
		t.Fatal(err)
	}
	got.Created, got.UID, got.Version = time.Time{}, "", ""
	if !reflect.DeepEqual(got, record) {
		t.Errorf("read back %+v, want %+v", got, record)
	}

	record.Groups = []string{"system:masters"}
	if secret, err := secretstore.Manifest(record); err == nil {
		t.Errorf("got manifest %v for an invalid record, want an error", secret)
	}
}
