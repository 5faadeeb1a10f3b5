package test

import (
	"crypto/x509"
	"fmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"path/filepath"
	"testing"
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
