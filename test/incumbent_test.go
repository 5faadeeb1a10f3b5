package test

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With kube-controller-manager's loops and kubejoin's on together, writes end when nothing
// changes, nodes join, and kubejoin says which certificates are not its own.
func TestBesideKubeControllerManager(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{})
	if _, err := s.StartKCM(t.Context()); err != nil {
		t.Fatal(err)
	}
	args, token := s.join(t, "")
	if _, err := s.joinCommand(t, "?ttl=5s"); err != nil { // one that expires meanwhile
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for i := range 2 {
		if _, err := s.Join(ctx, fmt.Sprintf("worker-%d", i), args); err != nil {
			t.Fatal(err)
		}
	}
	s.settles(t)
	if info := s.clusterInfo(t); !strings.Contains(info, clusterinfo.SignatureKey(token.ID())) || strings.Count(info, clusterinfo.SignaturePrefix) != 1 {
		t.Errorf("want the signature of token %s alone:\n%s", token.ID(), info)
	}
	// Each request was issued once, by whomever.
	list, err := s.Client().CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list.Items {
		approved := 0
		for _, c := range r.Status.Conditions {
			if c.Type == "Approved" {
				approved++
			} else {
				t.Errorf("%s: condition %s: %s", r.Name, c.Type, c.Message)
			}
		}
		if approved != 1 || len(r.Status.Certificate) == 0 {
			t.Errorf("%s: approved %d times, certificate of %d bytes", r.Name, approved, len(r.Status.Certificate))
		}
	}
}

// Each side does what the other has switched off, and kubejoin reports what is signed beside it.
func TestInTurnsWithKubeControllerManager(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := prepare(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	const names = "bootstrap-signer-controller,token-cleaner-controller,certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller,certificatesigningrequest-cleaner-controller"

	// kube-controller-manager signs cluster-info and approves; kubejoin signs certificates.
	s.start(t, "--controllers=*,-bootstrap-signer,-csr-approver")
	kcm, err := s.StartKCM(ctx, "--controllers="+names+",-certificatesigningrequest-signing-controller")
	if err != nil {
		t.Fatal(err)
	}
	args, _ := s.join(t, "")
	if _, err := s.Join(ctx, "worker-1", args); err != nil {
		t.Fatal(err)
	}
	kcm.Stop(0)
	s.Stop(20 * time.Second)

	// The other way round; and kubejoin, which slept through it all, sees whose certificate it is.
	if kcm, err = s.StartKCM(ctx, "--controllers=certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller"); err != nil {
		t.Fatal(err)
	}
	s.start(t, "--controllers=*,-csr-approver")
	args, _ = s.join(t, "")
	if err := s.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, joined := s.Join(ctx, "worker-2", args)
	if err := s.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if joined != nil {
		t.Fatal(joined)
	}
	wait(t, "the report of certificates by another signer", func() error {
		_, metrics, err := s.get(ctx, "/metrics", s.bearer(t))
		if err == nil && !strings.Contains(metrics, "kubejoin_csr_signed_by_other_total") {
			err = fmt.Errorf("no metric kubejoin_csr_signed_by_other_total")
		}
		if err != nil {
			return err
		}
		events := s.kubectl(t, "get", "events", "-n", "default", "-o", `jsonpath={range .items[*]}{.reason} {.message}{"\n"}{end}`)
		if !strings.Contains(events, "SignedByOther") || !strings.Contains(events, "kube-controller-manager") {
			return fmt.Errorf("no Event SignedByOther that names kube-controller-manager:\n%s", events)
		}
		status, checks, err := s.get(ctx, "/readyz?verbose", "")
		if err == nil && (status != 200 || !strings.Contains(checks, "only-signer ok: kube-controller-manager")) {
			err = fmt.Errorf("readiness %d does not name kube-controller-manager:\n%s", status, checks)
		}
		return err
	})
	kcm.Stop(0)
	s.settles(t)
}

func (s *site) clusterInfo(t *testing.T) string {
	t.Helper()
	return s.kubectl(t, "-n", "kube-public", "get", "configmap", "cluster-info", "-o", "jsonpath={.data}")
}

// settles waits until cluster-info is not written for ten seconds.
func (s *site) settles(t *testing.T) {
	t.Helper()
	version := func() string {
		return s.kubectl(t, "-n", "kube-public", "get", "configmap", "cluster-info", "-o", "jsonpath={.metadata.resourceVersion}")
	}
	last, since := version(), time.Now()
	wait(t, "an end of writes to cluster-info", func() error {
		if now := version(); now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < 10*time.Second {
			return fmt.Errorf("written %v ago", quiet)
		}
		return nil
	})
}

// When nobody signs, the answer says who should, and the token is gone again.
func TestNobodySigns(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{}, "--controllers=*,-bootstrap-signer")
	began := time.Now()
	line, err := s.joinCommand(t, "")
	if err == nil {
		t.Fatalf("a join command of %d bytes although nobody signs", len(line))
	}
	for _, want := range []string{"504", "token-not-signed", "kube-controller-manager's bootstrap-signer-controller", "was deleted again"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if took := time.Since(began); took < 30*time.Second {
		t.Errorf("gave up after %v, want 30 s", took)
	}
	if left := s.kubectl(t, "-n", "kube-system", "get", "secrets", "--field-selector=type=bootstrap.kubernetes.io/token", "-o", "name"); left != "" {
		t.Errorf("%s is left", left)
	}
}
