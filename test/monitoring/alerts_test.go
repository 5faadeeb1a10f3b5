package monitoring

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/harness"
	"sigs.k8s.io/yaml"
)

const rulesFile = "deploy/chart/kubejoin/files/rules.yaml"

// A rule is an alert rule of Prometheus.
type rule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	must.OK(t, yaml.Unmarshal(harness.ReadFile(t, harness.RepositoryFile(t, rulesFile)), &file))
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) == 0 {
		t.Fatalf("%s has no group of rules", rulesFile)
	}
	return file.Groups[0].Rules
}

var (
	usedLabel  = regexp.MustCompile(`\$labels\.(\w+)`)
	givenLabel = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// TestAlertRules runs rules_test.yaml. It catches a rule that fires too early, too late, never, or without cause. It also
// catches a rule without a test case in which it fires, and an annotation with a label that the alert does not have.
func TestAlertRules(t *testing.T) {
	harness.Parallel(t)
	need.Programs(t, "promtool")
	dir := t.TempDir()
	harness.ReplaceFile(t, filepath.Join(dir, "rules.yaml"), harness.ReadFile(t, harness.RepositoryFile(t, rulesFile)))
	cases := harness.ReadFile(t, "rules_test.yaml")
	harness.ReplaceFile(t, filepath.Join(dir, "rules_test.yaml"), cases)
	if out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", filepath.Join(dir, "rules_test.yaml")).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}

	var file struct {
		Tests []struct {
			Queries []struct {
				Samples []struct{ Labels string } `json:"exp_samples"`
			} `json:"promql_expr_test"`
		}
	}
	must.OK(t, yaml.Unmarshal(cases, &file))
	fired := map[string]map[string]bool{} // labels by alert
	for _, test := range file.Tests {
		for _, query := range test.Queries {
			for _, sample := range query.Samples {
				labels := map[string]bool{}
				alert, firing := "", false
				for _, m := range givenLabel.FindAllStringSubmatch(sample.Labels, -1) {
					labels[m[1]] = true
					firing = firing || m[2] == "firing"
					if m[1] == "alertname" {
						alert = m[2]
					}
				}
				if firing {
					fired[alert] = labels
				}
			}
		}
	}
	for _, r := range rules(t) {
		if fired[r.Alert] == nil {
			t.Errorf("%s fires in no case of rules_test.yaml", r.Alert)
		}
		for name, text := range r.Annotations {
			for _, m := range usedLabel.FindAllStringSubmatch(text, -1) {
				if !fired[r.Alert][m[1]] {
					t.Errorf("%s: %s has the label %s, which the alert lacks", r.Alert, name, m[1])
				}
			}
		}
	}
}
