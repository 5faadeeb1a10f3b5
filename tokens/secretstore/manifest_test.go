package secretstore_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The manifest must contain the same Secret that Create stores.
func TestManifestEqualsCreatedSecret(t *testing.T) {
	c := cluster.Shared(t)
	store := must.Value(secretstore.Open(t.Context(), c.Client(), nil))(t)
	record := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	record.Description = "for the rack in the cellar"
	record.Limits = tokens.Limits{MaxNodes: 2, NodeNames: []string{"worker-*"}, CertificateDuration: time.Hour}
	secret := must.Value(secretstore.Manifest(record))(t)
	if secret.Kind != "Secret" || secret.APIVersion != "v1" || secret.Namespace != "kube-system" {
		t.Errorf("%s %s in %s", secret.APIVersion, secret.Kind, secret.Namespace)
	}
	must.Value(c.Client().CoreV1().Secrets(secret.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	got := must.Value(store.Get(t.Context(), record.Token.ID(), tokens.Live))(t)
	got.Created, got.UID, got.Version = time.Time{}, "", ""
	if !reflect.DeepEqual(got, record) {
		t.Errorf("read back %+v, want %+v", got, record)
	}

	record.Groups = []string{"system:masters"}
	if secret, err := secretstore.Manifest(record); err == nil {
		t.Errorf("got manifest %v for an invalid record, want an error", secret)
	}
}
