package limits

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// tokenOf returns the ID of the token in a JoinConfiguration.
func tokenOf(t *testing.T, s *harness.Site, configuration string) string {
	t.Helper()
	var c struct {
		Discovery struct {
			BootstrapToken struct {
				Token string `json:"token"`
			} `json:"bootstrapToken"`
		} `json:"discovery"`
	}
	must.OK(t, yaml.Unmarshal([]byte(configuration), &c))
	return s.ParseToken(t, c.Discovery.BootstrapToken.Token).ID()
}

// TestRackJoinsWithKeys adds a rack by CSV. All its machines prove their keys at the same moment, and request certificates as kubelets do.
// A machine gets neither the name of another one, nor does a token.
func TestRackJoinsWithKeys(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	const size = 40
	rows := []string{"node,key,certificateDuration"}
	keys := make([]harness.MachineKey, size)
	name := func(i int) string { return fmt.Sprintf("rack-%d", i) }
	for i := range keys {
		keys[i] = harness.NewMachineKey(t, s.WorkDir, name(i))
		rows = append(rows, name(i)+","+keys[i].ID+",24h")
	}
	file := filepath.Join(s.WorkDir, "rack.csv")
	must.OK(t, os.WriteFile(file, []byte(strings.Join(rows, "\n")+"\n"), 0o600))
	for _, want := range []string{api.MachineAdded, api.MachineUnchanged} {
		if out := s.CLI(t, "machine", "add", "-f", file); strings.Count(out, want) != size {
			t.Errorf("got %s, want %d machines %s", out, size, want)
		}
	}
	ids := make([]string, size)
	var joining sync.WaitGroup
	for i, key := range keys {
		joining.Go(func() {
			harness.Wait(t, name(i), func() error {
				status, body := key.Prove(t, s, name(i))
				if status != http.StatusOK {
					return fmt.Errorf("got %d %s", status, body)
				}
				ids[i] = tokenOf(t, s, body)
				return nil
			})
		})
	}
	joining.Wait()
	// The first machine tries the name of the second one, and a token without limits tries it, too.
	stranger := s.CreateToken(t, tokens.Limits{})
	for by, id := range map[string]string{"machine": ids[0], "stranger": stranger.ID()} {
		must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, id), "by-"+by, certificates.KubeAPIServerClientKubeletSignerName, name(1)))
	}
	for i, id := range ids {
		must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, id), name(i), certificates.KubeAPIServerClientKubeletSignerName, name(i)))
	}
	for i := range ids {
		harness.CheckKubeletCertificate(t, s, s.WaitIssued(t, name(i)), name(i), 24*time.Hour)
	}
	for by, reason := range map[string]string{"machine": admission.ReasonNodeNameNotAllowed, "stranger": admission.ReasonNodeNameClaimed} {
		harness.Wait(t, "the refusal by "+reason, func() error {
			r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), "by-"+by, metav1.GetOptions{})
			if err == nil && (len(r.Status.Conditions) == 0 || r.Status.Conditions[0].Reason != reason) {
				err = fmt.Errorf("got conditions %+v", r.Status.Conditions)
			}
			return err
		})
	}
	s.CheckSecrets(t)
}

// TestTenThousandMachines adds and lists many machines, and logs how long that takes.
func TestTenThousandMachines(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	const size = 10_000
	rows := make([]string, 0, size+1)
	rows = append(rows, "node,key")
	for i := range size {
		rows = append(rows, fmt.Sprintf("node-%d,sha256:%016x%048d", i, i, 0))
	}
	file := filepath.Join(s.WorkDir, "machines.csv")
	must.OK(t, os.WriteFile(file, []byte(strings.Join(rows, "\n")+"\n"), 0o600))
	began := time.Now()
	stdout, stderr, code := s.RunKubejoin(t, "machine", "add", "-f", file)
	if added := strings.Count(stdout, api.MachineAdded); code != 0 || added != size {
		t.Fatalf("exit code %d, %d machines added, want %d\n%s", code, added, size, stderr)
	}
	t.Logf("added in %s", time.Since(began).Round(100*time.Millisecond))
	for _, where := range []string{"--kubeconfig=" + s.Kubeconfig(), "--curlrc=" + s.Curlrc()} {
		began = time.Now()
		output := must.Value(exec.CommandContext(t.Context(), harness.Kubejoin(), "machine", "list", "-o", "name", where).Output())(t)
		listed := bytes.Count(output, []byte("\n"))
		if t.Logf("listed in %s with %s", time.Since(began).Round(10*time.Millisecond), where); listed != size {
			t.Errorf("%d machines listed with %s, want %d", listed, where, size)
		}
	}
}
