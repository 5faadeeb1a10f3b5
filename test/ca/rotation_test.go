package ca

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFollowsRotationOnCluster writes the stages of a rotation as 'kubejoin ca' does. It catches a stage in which
// cluster-info, new join commands, the serving certificate or certificates of kubelets are not those of the stage, and an
// edit of cluster-info that stays.
func TestFollowsRotationOnCluster(t *testing.T) {
	harness.Parallel(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	s := harness.PrepareSite(t, cluster.Options{})
	oldCA := must.Value(signer.LoadCA(s.CAFile(), s.CAKeyFile()))(t)
	newCA := must.Value(signer.GenerateCA("kubernetes-2", time.Now(), 365*24*time.Hour))(t)
	old, fresh := oldCA.Certificate(), newCA.Certificate()
	oldCert, oldKey := encodeCA(t, oldCA)
	newCert, newKey := encodeCA(t, newCA)
	files := func(cert, key []byte) {
		t.Helper()
		harness.ReplaceFile(t, certFile, cert)
		harness.ReplaceFile(t, keyFile, key)
	}
	files(oldCert, oldKey)
	s.Start(t, "--cluster-signing-cert-file="+certFile, "--cluster-signing-key-file="+keyFile, "--ca-rotation-qps=1")
	s.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // checked below
	before := s.CreateToken(t, tokens.Limits{})

	store := clusterstore.New(s.Client())
	r := must.Value(rotation.New(rotation.Cluster, []*x509.Certificate{old}, []*x509.Certificate{fresh}, must.Value(oldCA.CrossSign(fresh))(t), time.Now()))(t)
	put := func(stage rotation.Stage) {
		t.Helper()
		r.Stage, r.Since = stage, time.Now().UTC()
		_, version, err := store.Get(t.Context(), rotation.Cluster)
		must.OK(t, err)
		must.OK(t, store.Put(t.Context(), r, version))
	}
	// reached waits until cluster-info has the CAs, with the signature of a token from before the rotation.
	reached := func(what string, want ...*x509.Certificate) {
		t.Helper()
		harness.Wait(t, what, func() error {
			info := s.ClusterInfo(t)
			kubeconfig := []byte(info[clusterinfo.KubeconfigKey])
			_, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
			if err != nil {
				return err
			}
			if got, want := clusterinfo.Pins(cas), clusterinfo.Pins(want); !slices.Equal(got, want) {
				return fmt.Errorf("cluster-info has pins %q, want %q", got, want)
			}
			return clusterinfo.Verify(kubeconfig, info[clusterinfo.SignatureKey(before.ID())], before)
		})
		harness.Wait(t, what+" in /v1/ca", func() error {
			if _, body, err := s.Get(t.Context(), "/v1/ca", ""); err != nil || strings.Count(body, "BEGIN CERTIFICATE") != len(want) {
				return fmt.Errorf("%s, %v, want %d certificates", body, err, len(want))
			}
			return nil
		})
		if args, _ := s.JoinArgs(t, ""); !slices.Equal(pins(args), clusterinfo.Pins(want)) {
			t.Errorf("%s: a new join command pins %q", what, pins(args))
		}
	}
	// serves waits until kubejoin serves a certificate of a CA, to clients that know only one of the CAs.
	serves := func(what string, from, only *x509.Certificate, chain int) {
		t.Helper()
		roots := x509.NewCertPool()
		roots.AddCert(only)
		harness.Wait(t, what, func() error {
			c, err := tls.Dial("tcp", s.Endpoint, &tls.Config{RootCAs: roots})
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			if served := c.ConnectionState().PeerCertificates; len(served) != chain || served[0].CheckSignatureFrom(from) != nil {
				return fmt.Errorf("%d certificates, the first from %s", len(served), served[0].Issuer)
			}
			return nil
		})
	}
	issues := func(name string, from *x509.Certificate, short bool) {
		t.Helper()
		s.RequestCertificate(t, name, certificates.KubeAPIServerClientKubeletSignerName)
		leaf := s.WaitIssued(t, name)
		if err := leaf.CheckSignatureFrom(from); err != nil {
			t.Errorf("%s: from %s, %v", name, leaf.Issuer, err)
		}
		if left := time.Until(leaf.NotAfter); (left < 2*time.Hour) != short || left < 59*time.Minute {
			t.Errorf("%s: a certificate of %s, short %t", name, left, short)
		}
	}

	// A user who may create ConfigMaps in kube-public claims that a rotation has ended with a CA of the user. An older kubejoin
	// would put this CA into cluster-info, and join commands would pin it alone.
	strange := must.Value(signer.GenerateCA("strange", time.Now(), 24*time.Hour))(t)
	forged := must.Value(rotation.New(rotation.Cluster, []*x509.Certificate{old}, []*x509.Certificate{strange.Certificate()}, nil, time.Now()))(t)
	forged.Stage = rotation.Finish
	copies := s.Client().CoreV1().ConfigMaps(clusterstore.Namespace)
	forge := func() {
		t.Helper()
		state := map[string]string{"cluster": string(must.Value(rotation.Encode(forged))(t))}
		m, err := copies.Get(t.Context(), clusterstore.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			must.Value(copies.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: clusterstore.Name}, Data: state}, metav1.CreateOptions{}))(t)
		} else {
			must.OK(t, err)
			m.Data = state
			must.Value(copies.Update(t.Context(), m, metav1.UpdateOptions{}))(t)
		}
	}
	forge()
	harness.Wait(t, "/readyz to show the copy", func() error {
		status, body, err := s.Get(t.Context(), "/readyz?verbose", "")
		if err != nil || status != http.StatusOK || !strings.Contains(body, "Secret kube-system/kubejoin-ca-key has none") {
			return fmt.Errorf("%d %s, %v", status, body, err)
		}
		return nil
	})
	reached("a forged rotation", old)
	issues("worker-0", old, false)
	if shown := s.RunKubectl(t, "-n", "kube-public", "get", "configmap", "kubejoin-ca", "-o", "yaml", "--show-managed-fields"); !strings.Contains(shown, "manager:") {
		t.Errorf("got %s, want who wrote it", shown)
	}
	s.RunKubectl(t, "-n", "kube-public", "delete", "configmap", "kubejoin-ca")
	must.OK(t, store.Check(t.Context()))

	put(rotation.Prepare)
	forge()
	harness.Wait(t, "the copy to be corrected", func() error { return store.Check(t.Context()) })
	harness.Wait(t, "Event CARotationEdited", func() error {
		if events := s.RunKubectl(t, "get", "events", "-A", "--field-selector=reason=CARotationEdited", "-o", "name"); events == "" {
			return fmt.Errorf("none")
		}
		return nil
	})
	reached("stage prepare", old)
	issues("worker-1", old, false)

	put(rotation.Trust)
	reached("stage trust", old, fresh)
	files(slices.Concat(oldCert, newCert), oldKey)
	issues("worker-2", old, true)
	serves("in stage trust", old, old, 1)

	// Somebody restores the cluster-info from before.
	maps := s.Client().CoreV1().ConfigMaps(clusterinfo.Namespace)
	edited := must.Value(maps.Get(t.Context(), clusterinfo.Name, metav1.GetOptions{}))(t)
	edited.Data[clusterinfo.KubeconfigKey] = string(must.Value(clusterinfo.WithCAs([]byte(edited.Data[clusterinfo.KubeconfigKey]), []*x509.Certificate{old}))(t))
	must.Value(maps.Update(t.Context(), edited, metav1.UpdateOptions{}))(t)
	reached("an edit is corrected", old, fresh)
	harness.Wait(t, "Event ClusterInfoEdited", func() error {
		if events := s.RunKubectl(t, "get", "events", "-A", "--field-selector=reason=ClusterInfoEdited", "-o", "name"); events == "" {
			return fmt.Errorf("none")
		}
		return nil
	})

	put(rotation.Switch)
	issues("worker-3", old, true) // the files of this host have not changed yet
	files(slices.Concat(oldCert, newCert), newKey)
	serves("in stage switch, a client of the old CA", fresh, old, 2)
	serves("in stage switch, a client of the new CA", fresh, fresh, 2)
	reached("stage switch", old, fresh)
	issues("worker-4", fresh, false)

	// The operator's curl, which knows the old CA alone, has worked so far.
	must.OK(t, os.WriteFile(s.Curlrc(), []byte(strings.ReplaceAll(string(harness.ReadFile(t, s.Curlrc())), s.CAFile(), certFile)), 0o600))
	put(rotation.Finish)
	files(newCert, newKey)
	reached("stage finish", fresh)
	serves("in stage finish", fresh, fresh, 1)
	issues("worker-5", fresh, false)
	harness.Wait(t, "Event CARotation", func() error {
		events := s.RunKubectl(t, "-n", "kubejoin-system", "get", "events", "--field-selector=reason=CARotation", "-o", "jsonpath={.items[*].message}")
		if strings.Count(events, "The rotation of the cluster CA began stage finish") != 1 {
			return fmt.Errorf("got %q, want one of stage finish", events)
		}
		return nil
	})
}
