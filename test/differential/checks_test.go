package differential

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestChecksCertificatesThatKubeadmMakes compares the expiry times in 'kubejoin certs check' and 'kubeadm certs
// check-expiration'.
func TestChecksCertificatesThatKubeadmMakes(t *testing.T) {
	harness.Parallel(t)
	h, kubeadm := newKubeadmHost(t, "ECDSA-P256")
	pki := filepath.Join(h.dir, "pki")
	type row struct {
		Name    string
		End     *time.Time `json:"notAfter"`
		Problem string
	}
	check := func() (rows map[string]row, code int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), harness.Kubejoin(), "certs", "check", h.dir, "-o", "json")
		out, _ := cmd.Output() // the test compares the exit code
		var list struct{ Certificates []row }
		if err := json.Unmarshal(out, &list); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		rows = map[string]row{}
		for _, r := range list.Certificates {
			rows[r.Name] = r
		}
		return rows, cmd.ProcessState.ExitCode()
	}
	out := must.Value(exec.CommandContext(t.Context(), kubeadm, "certs", "check-expiration", "--config", h.config, "--cert-dir", pki, "-o", "json").Output())(t)
	type theirs struct {
		Name           string
		ExpirationDate time.Time
		Missing        bool
	}
	var want struct{ Certificates, CertificateAuthorities []theirs }
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rows, code := check()
	compared := 0
	for _, w := range append(want.Certificates, want.CertificateAuthorities...) {
		if w.Missing { // kubeadm reads kubeconfigs only in /etc/kubernetes
			continue
		}
		compared++
		if got := rows[w.Name]; got.End == nil || !got.End.Equal(w.ExpirationDate) || got.Problem != "" {
			t.Errorf("%s: got %+v, want the end %s as in kubeadm", w.Name, got, w.ExpirationDate)
		}
	}
	if compared < 10 || code != 0 {
		t.Errorf("compared %d certificates, want 10 at least; code %d, want 0", compared, code)
	}
}
