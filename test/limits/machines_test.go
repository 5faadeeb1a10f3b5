package limits

import (
	"fmt"
	"net/http"
	"os"
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

// TestRackJoinsWithKeys adds the machines of a rack from CSV. All machines prove their keys at the same moment, and request certificates
// as kubelets do. Neither another machine nor a token can take the name of a machine.
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
	// The first machine and a token without limits try to take the name of the second machine.
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
