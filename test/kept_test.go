package test

import (
	"crypto/x509"
	"fmt"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func standalone(t *testing.T, dataDir string, flags ...string) *program {
	t.Helper()
	return serve(t, t.TempDir(), filepath.Join(dataDir, "ca.crt"), filepath.Join(dataDir, "curlrc"), append([]string{"--data-dir=" + dataDir}, flags...)...)
}

// issued waits for the certificate of a request.
func (s *site) issued(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	var leaf *x509.Certificate
	wait(t, "certificate of "+name, func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(r.Status.Certificate) == 0 {
			return fmt.Errorf("not issued; conditions %v", r.Status.Conditions)
		}
		leaf = parseLeaf(t, r.Status.Certificate)
		return nil
	})
	return leaf
}

const discoveryPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// mint stores a token that signs and authenticates.
func (s *site) mint(t *testing.T, limits tokens.Limits) tokens.Token {
	t.Helper()
	store, err := secretstore.Open(t.Context(), s.Client(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits = limits
	if _, err := store.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r.Token
}

// ask makes a request of a signer, for a node of the same name, as whoever may have it.
func (s *site) ask(t *testing.T, name, signerName string) {
	t.Helper()
	by := s.Client()
	if signerName == certificates.KubeAPIServerClientKubeletSignerName {
		by = machine(t, s.Cluster)
	}
	if err := request(t.Context(), by, name, signerName, name); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
