package test

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
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
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{Setup: cluster.WithoutClusterInfo, ServerTLSBootstrap: true}, "--cluster-signing-duration=8h")
	s.makePublic(t)
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

// A node joins while kube-apiserver answers no anonymous request but for its health: the join
// command names kubejoin itself for discovery.
func TestJoinWithoutAnonymousAccess(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + itoa(port)
	s := newSite(t, cluster.Options{AnonymousOff: true}, "--listen="+address, "--advertise="+address)
	if status, _ := s.anonymous(t, s.Server()+discoveryPath); status != 401 {
		t.Fatalf("the API server answers anonymous discovery with %d, want 401: this test is about nothing", status)
	}
	args, _ := s.join(t, "")
	if args[0] != address {
		t.Errorf("the join command names %s, want kubejoin at %s", args[0], address)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	node, err := s.Join(ctx, "worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := node.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	checkKubeletCertificate(t, s, chain[0], node.Name, 365*24*time.Hour)
}

const discoveryPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// anonymous gets a URL of the cluster without credentials.
func (s *site) anonymous(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := s.program.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// A kubelet renews its certificate by itself and stays authenticated.
func TestRotation(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{}, "--cluster-signing-duration=3m")
	args, _ := s.join(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	node, err := s.Join(ctx, "worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	// The token's work is done: what follows is the certificate's alone.
	s.kubectl(t, "-n", "kube-system", "delete", "secrets", "--field-selector=type=bootstrap.kubernetes.io/token")
	chain, err := node.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	first := chain[0]
	checkKubeletCertificate(t, s, first, node.Name, 3*time.Minute)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for chain[0].Equal(first) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the kubelet has not renewed its certificate, which ends at %v", first.NotAfter)
		}
		if chain, err = node.ClientCertificate(); err != nil {
			t.Fatal(err)
		}
	}
	checkKubeletCertificate(t, s, chain[0], node.Name, 3*time.Minute)
	if after := time.Since(first.NotBefore.Add(5 * time.Minute)); after > 3*time.Minute {
		t.Errorf("renewed %v after it was issued, later than its end", after)
	}
	requests := s.kubectl(t, "get", "csr", "-o", `jsonpath={range .items[*]}{.spec.username} {.status.conditions[*].type} {.status.conditions[*].message}{"\n"}{end}`)
	if !strings.Contains(requests, "system:node:worker-1 Approved Auto approving self kubelet client certificate") {
		t.Errorf("no renewal was approved for the node itself:\n%s", requests)
	}
	// Past the end of the first certificate the node still tells the API server of itself.
	end := time.NewTimer(time.Until(first.NotAfter) + time.Second)
	defer end.Stop()
	select {
	case <-end.C:
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	past := metav1.NewMicroTime(time.Now())
	for {
		lease, err := s.Client().CoordinationV1().Leases("kube-node-lease").Get(ctx, node.Name, metav1.GetOptions{})
		if err == nil && lease.Spec.RenewTime != nil && past.Before(lease.Spec.RenewTime) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the node is silent since its first certificate has ended: %v", err)
		}
	}
}

// Without the binding that permits it nothing is approved by itself, and a person still can.
func TestApprovalByHand(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{})
	s.kubectl(t, "delete", "clusterrolebinding", "kubeadm:node-autoapprove-bootstrap")
	args, token := s.join(t, "")
	node, err := s.StartNode("worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	var name string
	wait(t, "the node's request", func() error {
		list, err := s.Client().CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, r := range list.Items {
			if r.Spec.Username == "system:bootstrap:"+token.ID() {
				name = r.Name
				return nil
			}
		}
		return fmt.Errorf("%d requests, none of it", len(list.Items))
	})
	// It is seen, and left alone.
	wait(t, "the decision about "+name, func() error {
		_, metrics, err := s.get(t.Context(), "/metrics", s.bearer(t))
		if err == nil && !strings.Contains(metrics, `reason="NotPermitted"`) {
			err = fmt.Errorf("no decision NotPermitted in the metrics")
		}
		return err
	})
	r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Status.Conditions) > 0 || len(r.Status.Certificate) > 0 {
		t.Fatalf("the request was decided: %v", r.Status)
	}
	s.kubectl(t, "certificate", "approve", name)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := node.WaitRegistered(ctx); err != nil {
		t.Fatal(err)
	}
}

// kubejoin has no right to make cluster-info public, and says what is missing. Discovery through
// kubejoin works without.
func TestPublicAccessIsReportedWhenMissing(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{Setup: cluster.WithoutClusterInfo})
	const missing = "anonymous users cannot read kube-public/cluster-info"
	for range 2 {
		args, token := s.join(t, "")
		if status, _ := s.anonymous(t, s.Server()+discoveryPath); status != 403 {
			t.Fatalf("the API server answers the public with %d, want 403", status)
		}
		found, err := clusterinfo.Discover(t.Context(), s.program.address, token, []string{args[len(args)-1]})
		if err != nil {
			t.Fatal(err)
		}
		if found.Server != s.Server() {
			t.Errorf("discovered %s, want %s", found.Server, s.Server())
		}
		wait(t, "the notice", func() error {
			status, text, err := s.get(t.Context(), "/readyz?verbose", "")
			if err != nil || status != 200 || !strings.Contains(text, "[+]cluster-info ok: "+missing) || !strings.Contains(text, "kubectl apply -f deploy/cluster-info-public.yaml") {
				return fmt.Errorf("%d, %v:\n%s", status, err, text)
			}
			return nil
		})
		if log := s.program.Log(); strings.Count(log, "cluster-info is not public") != 1 || !strings.Contains(log, missing) {
			t.Errorf("want one line about public access in the log:\n%s", log)
		}
		status, text, err := s.do(t.Context(), "POST", "/v1/token", s.bearer(t))
		if err != nil || status != 201 || !strings.Contains(text, missing) {
			t.Errorf("want a warning to who makes a token: %d, %v, %s", status, err, text)
		}
		// Nor is it after a restart.
		s.Stop(20 * time.Second)
		s.start(t)
	}

	s.makePublic(t)
	wait(t, "the notice to go", func() error {
		status, text, err := s.get(t.Context(), "/readyz?verbose", "")
		if err != nil || status != 200 || strings.Contains(text, missing) {
			return fmt.Errorf("%d, %v:\n%s", status, err, text)
		}
		return nil
	})
	if status, _ := s.anonymous(t, s.Server()+discoveryPath); status != 200 {
		t.Errorf("the API server answers the public with %d, want 200", status)
	}
}

// makePublic lets anybody read cluster-info at the API server, as kubeadm init does.
func (s *site) makePublic(t *testing.T) {
	t.Helper()
	s.kubectl(t, "apply", "-f", "../deploy/cluster-info-public.yaml")
}
