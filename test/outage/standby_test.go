package outage

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
)

// watchesOfKubejoin are audit rules that record the watches of kubejoin.
const watchesOfKubejoin = `- level: Metadata
  users: ["system:serviceaccount:kubejoin-system:kubejoin"]
  verbs: [watch]
- level: None
`

// TestStandbyWatchesOnlyWhatItServes hands leadership over to a standby replica. It catches a standby with watches that
// only a leader needs, and a new leader that starts these watches late.
func TestStandbyWatchesOnlyWhatItServes(t *testing.T) {
	harness.Parallel(t)
	audit := harness.NewAuditLog(t, watchesOfKubejoin)
	s := harness.NewSite(t, cluster.Options{APIServerFlags: audit.Flags()})
	served := []string{"configmaps kube-public/cluster-info", "configmaps kube-public/kubejoin-ca", "configmaps kubejoin-system/", "leases kubejoin-system/", "secrets kube-system/", "secrets kube-system/kubejoin-ca-key"}
	leading := slices.Sorted(slices.Values(slices.Concat(served, []string{"certificatesigningrequests /", "nodes /"})))
	first := s.Program
	waitWatches(t, audit, 0, leading)
	before := 0
	for range audit.Calls() {
		before++
	}

	s.Start(t)
	second := s.Program
	created := time.Now()
	s.RequestCertificate(t, "before", certificates.KubeAPIServerClientKubeletSignerName)
	s.WaitIssued(t, "before")
	usual := time.Since(created)
	waitWatches(t, audit, before, served)

	first.Stop(20 * time.Second)
	s.RequestCertificate(t, "after", certificates.KubeAPIServerClientKubeletSignerName)
	second.WaitLeader(t)
	led := time.Now()
	s.WaitIssued(t, "after")
	if took, most := time.Since(led), 5*time.Second+5*usual; took > most { // allows for a busy machine
		t.Errorf("the new leader issued a certificate after %s, want at most %s", took, most)
	}
	waitWatches(t, audit, before, leading)
}

// waitWatches waits until kubejoin watches exactly these resources. It skips the first calls of the audit log.
func waitWatches(t *testing.T, audit cluster.AuditLog, first int, want []string) {
	t.Helper()
	harness.Wait(t, "watches", func() error {
		seen, n := map[string]bool{}, 0
		for c, err := range audit.Calls() {
			if err != nil {
				return err
			}
			if n++; n <= first {
				continue
			}
			seen[fmt.Sprintf("%s %s/%s", c.ObjectRef.Resource, c.ObjectRef.Namespace, c.ObjectRef.Name)] = true
		}
		if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
}
