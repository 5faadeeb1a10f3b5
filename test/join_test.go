package test

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Two nodes join at once, with the real kubeadm and kubelet, by the line that curl gets, in a
// cluster without kube-controller-manager, where cluster-info is kubejoin's to make.
func TestNodesJoin(t *testing.T) {
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{Setup: cluster.WithoutClusterInfo, ServerTLSBootstrap: true}, "--cluster-signing-duration=8h")
	args, token := s.join(t, "?ttl=1h&description=two+nodes")
	if args[0] != s.Address && !strings.HasSuffix(s.Server(), args[0]) {
		t.Errorf("the join command names %s, want the API server at %s", args[0], s.Server())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var joins sync.WaitGroup
	nodes := make([]*cluster.Node, 2)
	for i := range nodes {
		joins.Go(func() {
			var err error
			if nodes[i], err = s.Join(ctx, fmt.Sprintf("worker-%d", i+1), args); err != nil {
				t.Error(err)
			}
		})
	}
	joins.Wait()
	if t.Failed() {
		return
	}
	for _, node := range nodes {
		if _, err := s.Client().CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		chain, err := node.ClientCertificate()
		if err != nil {
			t.Fatal(err)
		}
		checkKubeletCertificate(t, s, chain[0], node.Name, 8*time.Hour)
	}

	// The kubelets' serving certificates are not approved by themselves, and signed when a
	// person approves.
	var serving []string
	wait(t, "serving requests", func() error {
		list, err := s.Client().CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + certificates.KubeletServingSignerName})
		if err != nil {
			return err
		}
		serving = nil
		owners := map[string]bool{}
		for _, r := range list.Items {
			if len(r.Status.Conditions) > 0 || len(r.Status.Certificate) > 0 {
				t.Fatalf("serving request %s was decided: %v", r.Name, r.Status.Conditions)
			}
			serving = append(serving, r.Name)
			owners[r.Spec.Username] = true
		}
		if len(owners) < 2 {
			return fmt.Errorf("requests of %v, want both nodes", owners)
		}
		return nil
	})
	s.kubectl(t, append([]string{"certificate", "approve"}, serving...)...)
	for _, name := range serving {
		leaf := s.issued(t, name)
		lintCertificate(t, leaf)
	}
	metrics := s.checkSecrets(t)
	if n := metric(t, metrics, "kubejoin_leader"); n != 1 {
		t.Errorf("kubejoin_leader %v", n)
	}
	// The token cleaner ends what the operator does: the signature goes with the token.
	s.kubectl(t, "-n", "kube-system", "delete", "secret", "bootstrap-token-"+token.ID())
	wait(t, "unsigning", func() error {
		if strings.Contains(s.kubectl(t, "-n", "kube-public", "get", "cm", "cluster-info", "-o", "yaml"), clusterinfo.SignatureKey(token.ID())) {
			return fmt.Errorf("token %s still signs", token.ID())
		}
		return nil
	})
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
