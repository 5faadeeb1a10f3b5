package join

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTwoNodesJoinAtOnce joins two nodes with the real kubeadm and kubelet in a cluster without
// kube-controller-manager. It catches a failing join, a serving certificate approved without configuration, and a
// signature that outlives its token.
func TestTwoNodesJoinAtOnce(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{Setup: cluster.WithoutClusterInfo, ServerTLSBootstrap: true}, "--cluster-signing-duration=8h")
	makePublic(t, s)
	args, token := s.JoinArgs(t, "?ttl=1h&description=two+nodes")
	if args[0] != s.Address && !strings.HasSuffix(s.Server(), args[0]) {
		t.Errorf("the join command names %s, want the API server at %s", args[0], s.Server())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
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
		chain := must.Value(node.ClientCertificate())(t)
		harness.CheckKubeletCertificate(t, s, chain[0], node.Name, 8*time.Hour)
	}

	// Without configuration, kubejoin does not approve serving certificates. It signs them after a person approves.
	var serving []string
	harness.Wait(t, "serving requests", func() error {
		list, err := s.Client().CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + certificates.KubeletServingSignerName})
		if err != nil {
			return err
		}
		serving = nil
		owners := map[string]bool{}
		for _, r := range list.Items {
			if len(r.Status.Conditions) > 0 || len(r.Status.Certificate) > 0 {
				t.Fatalf("serving request %s: got conditions %v, want none", r.Name, r.Status.Conditions)
			}
			serving = append(serving, r.Name)
			owners[r.Spec.Username] = true
		}
		if len(owners) < 2 {
			return fmt.Errorf("got requests of %v, want both nodes", owners)
		}
		return nil
	})
	s.RunKubectl(t, append([]string{"certificate", "approve"}, serving...)...)
	for _, name := range serving {
		leaf := s.WaitIssued(t, name)
		harness.LintCertificate(t, leaf)
	}
	metrics := s.CheckSecrets(t)
	if n := harness.Metric(t, metrics, "kubejoin_leader"); n != 1 {
		t.Errorf("got kubejoin_leader %v, want 1", n)
	}
	// kubejoin removes the signature of a token that the operator deletes.
	s.RunKubectl(t, "-n", "kube-system", "delete", "secret", "bootstrap-token-"+token.ID())
	harness.Wait(t, "removal of the signature", func() error {
		if strings.Contains(s.RunKubectl(t, "-n", "kube-public", "get", "cm", "cluster-info", "-o", "yaml"), clusterinfo.SignatureKey(token.ID())) {
			return fmt.Errorf("cluster-info still has a signature of token %s", token.ID())
		}
		return nil
	})
}

// anonymous sends a GET request without credentials.
func anonymous(t *testing.T, s *harness.Site, url string) (int, string) {
	t.Helper()
	r := must.Value(http.NewRequestWithContext(t.Context(), "GET", url, nil))(t)
	response := must.Value(s.Program.HTTP.Do(r))(t)
	defer func() { _ = response.Body.Close() }()
	body := must.Value(io.ReadAll(response.Body))(t)
	return response.StatusCode, string(body)
}

// TestLeavesRequestToPersonWithoutApprovalBinding catches an approval without the RBAC binding that permits it, and a
// request that a person cannot approve.
func TestLeavesRequestToPersonWithoutApprovalBinding(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	s.RunKubectl(t, "delete", "clusterrolebinding", "kubeadm:node-autoapprove-bootstrap")
	args, token := s.JoinArgs(t, "")
	node := must.Value(s.StartNode("worker-1", args))(t)
	var name string
	harness.Wait(t, "the node's request", func() error {
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
		return fmt.Errorf("none of %d requests is by the token", len(list.Items))
	})
	// kubejoin handles the request and leaves it unchanged.
	harness.Wait(t, "the decision about "+name, func() error {
		_, metrics, err := s.Get(t.Context(), "/metrics", s.Bearer(t))
		if err == nil && !strings.Contains(metrics, `reason="NotPermitted"`) {
			err = fmt.Errorf("no decision NotPermitted in the metrics")
		}
		return err
	})
	r := must.Value(s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{}))(t)
	if len(r.Status.Conditions) > 0 || len(r.Status.Certificate) > 0 {
		t.Fatalf("got status %v, want no decision", r.Status)
	}
	s.RunKubectl(t, "certificate", "approve", name)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	must.OK(t, node.WaitRegistered(ctx))
}

// TestReportsMissingPublicAccess catches a kubejoin that does not report, or reports repeatedly, that anonymous users
// cannot read cluster-info. Discovery through kubejoin works without it.
func TestReportsMissingPublicAccess(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{Setup: cluster.WithoutClusterInfo})
	const missing = "anonymous users cannot read ConfigMap kube-public/cluster-info"
	for range 2 {
		args, token := s.JoinArgs(t, "")
		if status, _ := anonymous(t, s, s.Server()+harness.ClusterInfoPath); status != 403 {
			t.Fatalf("got status %d for an anonymous request to the API server, want 403", status)
		}
		found := must.Value(clusterinfo.Discover(t.Context(), s.Program.Endpoint, token, []string{args[len(args)-1]}))(t)
		if found.Server != s.Server() {
			t.Errorf("discovered %s, want %s", found.Server, s.Server())
		}
		harness.Wait(t, "the note in /readyz", func() error {
			status, text, err := s.Get(t.Context(), "/readyz?verbose", "")
			if err != nil || status != 200 || !strings.Contains(text, "[+]cluster-info ok: "+missing) || !strings.Contains(text, "kubectl apply -f deploy/cluster-info-public.yaml") {
				return fmt.Errorf("%d, %v:\n%s", status, err, text)
			}
			return nil
		})
		if log := s.Program.Log(); strings.Count(log, "cluster-info is not public") != 1 || !strings.Contains(log, missing) {
			t.Errorf("want one log line about public access, got\n%s", log)
		}
		status, text, err := s.Do(t.Context(), "POST", "/v1/token", s.Bearer(t))
		if err != nil || status != 201 || !strings.Contains(text, missing) {
			t.Errorf("creating a token: got %d, %v, %s, want 201 with a warning", status, err, text)
		}
		// kubejoin has no right to make cluster-info public, even after a restart.
		s.Stop(20 * time.Second)
		s.Start(t)
	}

	makePublic(t, s)
	harness.Wait(t, "removal of the note from /readyz", func() error {
		status, text, err := s.Get(t.Context(), "/readyz?verbose", "")
		if err != nil || status != 200 || strings.Contains(text, missing) {
			return fmt.Errorf("%d, %v:\n%s", status, err, text)
		}
		return nil
	})
	if status, _ := anonymous(t, s, s.Server()+harness.ClusterInfoPath); status != 200 {
		t.Errorf("got status %d for an anonymous request to the API server, want 200", status)
	}
}

// makePublic allows anonymous users to read cluster-info at the API server, as kubeadm init does.
func makePublic(t *testing.T, s *harness.Site) {
	t.Helper()
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/cluster-info-public.yaml"))
}
