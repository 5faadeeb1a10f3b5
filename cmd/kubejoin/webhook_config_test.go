package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
)

// The kubeconfig must reference a CA that kubeadm mounts in kube-apiserver by path, so that kube-apiserver trusts the new
// CA after a rotation.
func TestReviewerNamesCAOfKubeadm(t *testing.T) {
	pki := t.TempDir()
	content, _, err := must.Value(signer.GenerateCA("x", time.Now(), 24*time.Hour))(t).PEM()
	must.OK(t, err)
	inside, outside := filepath.Join(pki, "ca.crt"), filepath.Join(t.TempDir(), "ca.crt")
	must.OK(t, errors.Join(os.WriteFile(inside, content, 0o600), os.WriteFile(outside, content, 0o600)))
	if c := must.Value(reviewer("https://x:9443/", "/y", inside, pki))(t); c.CertificateAuthority != inside || c.CertificateAuthorityData != nil || c.Server != "https://x:9443/y" {
		t.Errorf("got %+v", c)
	}
	if c := must.Value(reviewer("https://x:9443", "/y", outside, pki))(t); c.CertificateAuthority != "" || !bytes.Equal(c.CertificateAuthorityData, content) {
		t.Errorf("got %+v", c)
	}
}
