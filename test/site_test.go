package test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// A site is a real cluster with kubejoin on it, under the identity and with nothing but the
// permissions that deploy/manifests give.
type site struct {
	*cluster.Cluster
	*program
	dir        string
	kubeconfig string // kubejoin's
	flags      []string
	known      *secrets // of all that ever ran here
}

// newSite starts a cluster and kubejoin with the flags given besides the usual ones.
func newSite(t *testing.T, o cluster.Options, flags ...string) *site {
	t.Helper()
	s := prepare(t, o, flags...)
	s.start(t)
	return s
}

// prepare is newSite without kubejoin.
func prepare(t *testing.T, o cluster.Options, flags ...string) *site {
	t.Helper()
	s := &site{Cluster: cluster.ForTest(t, o), dir: t.TempDir()}
	ctx := t.Context()
	manifests, err := filepath.Abs("../deploy/manifests")
	if err != nil {
		t.Fatal(err)
	}
	// The namespace first: the order of files in a folder is that of their names.
	for _, file := range []string{"namespace.yaml", "."} {
		if _, err := s.Kubectl(ctx, "apply", "-f", filepath.Join(manifests, file)); err != nil {
			t.Fatal(err)
		}
	}
	if s.kubeconfig, err = s.ServiceAccountKubeconfig(ctx, "kubejoin-system", "kubejoin"); err != nil {
		t.Fatal(err)
	}
	bearer := rand.Text()
	operators := filepath.Join(s.dir, "operators.csv")
	for file, content := range map[string]string{
		operators: bearer + `,ada,1,"kubejoin:admins"` + "\n",
		s.curlrc(): fmt.Sprintf("cacert = %q\nheader = \"Authorization: Bearer %s\"\nsilent\nshow-error\nfail-with-body\n",
			s.CAFile(), bearer),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.flags = append([]string{
		"--kubeconfig=" + s.kubeconfig,
		"--cluster-signing-cert-file=" + s.CAFile(), "--cluster-signing-key-file=" + s.CAKeyFile(),
		"--token-auth-file=" + operators,
	}, flags...)
	s.known = &secrets{list: map[string]string{}}
	s.known.follow(t, s.Cluster)
	s.known.add("the operator", bearer)
	return s
}

func (s *site) curlrc() string { return filepath.Join(s.dir, "curlrc") }

// start starts kubejoin; its secrets are looked for in all that it said when the test ends.
func (s *site) start(t *testing.T, more ...string) {
	t.Helper()
	s.program = serve(t, s.dir, s.CAFile(), s.curlrc(), append(s.flags, more...)...)
	p := s.program
	p.secrets = s.known
	t.Cleanup(func() {
		select {
		case <-p.Done(): // stopped by the test
			p.secrets.absent(t, "the log", p.Log())
		default:
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			status, metrics, err := p.get(ctx, "/metrics", p.bearer(t))
			if err != nil || status != 200 {
				t.Errorf("metrics: %d %v", status, err)
			}
			p.secrets.absent(t, "the metrics", metrics)
			p.secrets.absent(t, "the log", p.Log())
		}
		// Not the test's context, which has ended.
		// Names of Events, such as static.18a1c7d20f6e3b5a, have the form of a token and are none.
		events, err := s.Kubectl(context.Background(), "get", "events", "-A", "-o", `jsonpath={range .items[*]}{.involvedObject} {.reason} {.message} {.metadata.annotations} {.source}{"\n"}{end}`)
		if err != nil {
			t.Error(err)
		}
		p.secrets.absent(t, "an Event", events)
		requests, err := s.Kubectl(context.Background(), "get", "csr", "-o", "yaml")
		if err != nil {
			t.Error(err)
		}
		p.secrets.absent(t, "a CertificateSigningRequest", requests)
	})
}

// kubectl is Kubectl that must succeed.
func (s *site) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	output, err := s.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(output)
}
