package harness

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A Site is a real cluster with kubejoin beside it. kubejoin has only the identity and the permissions of deploy/manifests.
type Site struct {
	*cluster.Cluster
	*Program
	WorkDir       string   // holds the files of the test
	OwnKubeconfig string   // kubeconfig of kubejoin
	Flags         []string // flags for each start of kubejoin
	Secrets       *Secrets // secrets of all programs of this site
}

// NewSite starts a cluster, and kubejoin with the usual flags and those given.
func NewSite(t *testing.T, o cluster.Options, flags ...string) *Site {
	t.Helper()
	s := PrepareSite(t, o, flags...)
	s.Start(t)
	return s
}

// PrepareSite is like [NewSite], but does not start kubejoin.
func PrepareSite(t *testing.T, o cluster.Options, flags ...string) *Site {
	t.Helper()
	s := &Site{Cluster: cluster.ForTest(t, o), WorkDir: t.TempDir()}

	s.OwnKubeconfig = must.Value(s.InstallRights(t.Context()))(t)
	bearer := rand.Text()
	operators := filepath.Join(s.WorkDir, "operators.csv")
	for file, content := range map[string]string{
		operators: bearer + `,ada,1,"kubejoin:admins"` + "\n",
		s.Curlrc(): fmt.Sprintf("cacert = %q\nheader = \"Authorization: Bearer %s\"\nsilent\nshow-error\nfail-with-body\n",
			s.CAFile(), bearer),
	} {
		must.OK(t, os.WriteFile(file, []byte(content), 0o600))
	}
	s.Flags = append([]string{
		"--kubeconfig=" + s.OwnKubeconfig,
		"--cluster-signing-cert-file=" + s.CAFile(), "--cluster-signing-key-file=" + s.CAKeyFile(),
		"--token-auth-file=" + operators,
	}, flags...)
	s.Secrets = NewSecrets()
	s.Secrets.follow(t, s.Cluster)
	s.Secrets.Add("the operator", bearer)
	return s
}

// Curlrc is the path of the curl configuration of an operator in group kubejoin:admins.
func (s *Site) Curlrc() string { return filepath.Join(s.WorkDir, "curlrc") }

// Start starts kubejoin. When the test ends, Start looks for secrets in the logs and files of kubejoin.
func (s *Site) Start(t *testing.T, more ...string) {
	t.Helper()
	s.Program = Serve(t, s.WorkDir, s.CAFile(), s.Curlrc(), append(s.Flags, more...)...)
	p := s.Program
	p.Secrets = s.Secrets
	t.Cleanup(func() {
		select {
		case <-p.Done(): // the test has stopped it
			p.Secrets.CheckAbsent(t, "the log", p.Log())
		default:
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			status, metrics, err := p.Get(ctx, "/metrics", p.Bearer(t))
			if err != nil || status != 200 {
				t.Errorf("metrics: %d %v", status, err)
			}
			p.Secrets.CheckAbsent(t, "the metrics", metrics)
			p.Secrets.CheckAbsent(t, "the log", p.Log())
		}
		// The test's context has ended. The names of Events, for example static.18a1c7d20f6e3b5a, look like tokens.
		events, err := s.Kubectl(context.Background(), "get", "events", "-A", "-o", `jsonpath={range .items[*]}{.involvedObject} {.reason} {.message} {.metadata.annotations} {.source}{"\n"}{end}`)
		if err != nil {
			t.Error(err)
		}
		p.Secrets.CheckAbsent(t, "an Event", events)
		others, err := s.Client().CoordinationV1().Leases(secretstore.ClaimNamespace).List(context.Background(), metav1.ListOptions{LabelSelector: "!kubejoin.io/claim"})
		if err != nil {
			t.Error(err)
		} else {
			for _, lease := range others.Items {
				if !tokens.IsOwnName(lease.Name) {
					t.Errorf("kubejoin keeps the Lease %s, and a node could take this name: begin it with tokens.OwnName", lease.Name)
				}
			}
		}
		requests, err := s.Kubectl(context.Background(), "get", "csr", "-o", "yaml")
		if err != nil {
			t.Error(err)
		}
		p.Secrets.CheckAbsent(t, "a CertificateSigningRequest", requests)
	})
}

// RunKubectl is [cluster.Cluster.Kubectl], but fails the test on an error. It trims the output.
func (s *Site) RunKubectl(t *testing.T, args ...string) string {
	t.Helper()
	output := must.Value(s.Kubectl(t.Context(), args...))(t)
	return strings.TrimSpace(output)
}

// WaitIssued waits for the certificate of a CSR object and returns it.
func (s *Site) WaitIssued(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	var leaf *x509.Certificate
	Wait(t, "certificate of "+name, func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(r.Status.Certificate) == 0 {
			return fmt.Errorf("not issued; conditions %v", r.Status.Conditions)
		}
		leaf = ParseLeaf(t, r.Status.Certificate)
		return nil
	})
	return leaf
}

// As returns a client that impersonates a user.
func (s *Site) As(t *testing.T, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	config := s.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	return must.Value(kubernetes.NewForConfig(config))(t)
}

// WaitApproved waits for the approval of a CSR object.
func (s *Site) WaitApproved(t *testing.T, name string) {
	t.Helper()
	Wait(t, "approval of "+name, func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(r.Status.Conditions, func(c certificates.CertificateSigningRequestCondition) bool {
			return c.Type == certificates.CertificateApproved
		}) {
			err = fmt.Errorf("not approved; conditions %v", r.Status.Conditions)
		}
		return err
	})
}

// RequestCertificate creates a CSR object for a node of the same name, as a user who may have the certificate.
func (s *Site) RequestCertificate(t *testing.T, name, signerName string) {
	t.Helper()
	by := s.Client()
	if signerName == certificates.KubeAPIServerClientKubeletSignerName {
		by = AsMachine(t, s.Cluster)
	}
	must.OK(t, CreateRequest(t.Context(), by, name, signerName, name))
}

// CreateToken stores a token that signs cluster-info and authenticates.
func (s *Site) CreateToken(t *testing.T, limits tokens.Limits) tokens.Token {
	t.Helper()
	store := must.Value(secretstore.Open(t.Context(), s.Client(), nil))(t)
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits = limits
	must.Value(store.Create(t.Context(), r))(t)
	return r.Token
}

// ClusterInfo returns the data of the ConfigMap cluster-info, or nil if there is none.
func (s *Site) ClusterInfo(t *testing.T) map[string]string {
	t.Helper()
	object, err := s.Client().CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return object.Data
}

// WaitClusterInfoUnchanged waits until cluster-info had no write for ten seconds.
func (s *Site) WaitClusterInfoUnchanged(t *testing.T) {
	t.Helper()
	version := func() string {
		return s.RunKubectl(t, "-n", "kube-public", "get", "configmap", "cluster-info", "-o", "jsonpath={.metadata.resourceVersion}")
	}
	last, since := version(), time.Now()
	Wait(t, "ten seconds without writes to cluster-info", func() error {
		if now := version(); now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < 10*time.Second {
			return fmt.Errorf("last written %v ago", quiet)
		}
		return nil
	})
}
