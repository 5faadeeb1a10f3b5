package docs

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/doctor"
	"github.com/kubejoin/kubejoin/test/harness"
	"sigs.k8s.io/yaml"
)

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	return string(harness.ReadFile(t, harness.RepositoryFile(t, name)))
}

var (
	declaredMetric = regexp.MustCompile(`"(kubejoin_[a-z0-9_]+)"`)
	namedMetric    = regexp.MustCompile("(?m)^\\| `(kubejoin_[a-z0-9_]+)`")
)

// docs/metrics.md has a row for each metric, and no other.
func TestMetricsPageIsComplete(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	for _, dir := range []string{"clusterinfo", "cmd", "internal", "server", "signer", "tokens"} {
		for name := range declaredIn(t, harness.RepositoryFile(t, dir), declaredMetric) {
			declared[name] = true
		}
	}
	compareNames(t, "metric", declared, namesIn(read(t, "docs/metrics.md"), namedMetric))
}

var (
	usedProblem     = regexp.MustCompile(`\bNewProblem\(http\.\w+, "([a-z-]+)",`)
	declaredProblem = regexp.MustCompile(`(?m)^\s*Problem\w+\s*= "([a-z-]+)"`)
	namedInCell     = regexp.MustCompile("(?m)^\\| `([A-Za-z-]+)`")
)

// docs/troubleshooting.md has a row for each reason of a condition, each check of /readyz and each type of a problem.
func TestTroubleshootingIsComplete(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/troubleshooting.md")
	problems := declaredIn(t, harness.RepositoryFile(t, "server/api"), declaredProblem)
	for _, dir := range []string{"server", "internal/web"} {
		maps.Copy(problems, declaredIn(t, harness.RepositoryFile(t, dir), usedProblem))
	}
	for _, part := range []struct {
		what, heading string
		declared      map[string]bool
	}{
		{"reason", "Reasons of conditions", certificateReasons(t)},
		{"type", "Types of problems", problems},
		{"check", "Checks of /readyz", declaredIn(t, harness.RepositoryFile(t, "internal/daemon"), declaredCheck)},
	} {
		_, section, found := strings.Cut(page, "\n## "+part.heading+"\n")
		if !found {
			t.Errorf("docs/troubleshooting.md has no section %q", part.heading)
			continue
		}
		section, _, _ = strings.Cut(section, "\n## ")
		compareNames(t, part.what, part.declared, namesIn(section, namedInCell))
	}
}

var findingRow = regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (error|warning) \\| [^|]+ \\| [^|]+ \\|$")

// docs/doctor.md has a row for each finding, with its severity, and no other.
func TestDoctorPageIsComplete(t *testing.T) {
	t.Parallel()
	declared, documented := map[string]bool{}, map[string]bool{}
	for id, severity := range doctor.Severities {
		declared[id+" "+string(severity)] = true
	}
	for _, m := range findingRow.FindAllStringSubmatch(read(t, "docs/doctor.md"), -1) {
		documented[m[1]+" "+m[2]] = true
	}
	compareNames(t, "finding", declared, documented)
}

var checksOfDiagnose = regexp.MustCompile("(?s)\nchecks='([^']*)'")

// docs/diagnose.md has a row for each check of sh join.sh --diagnose, and no other.
func TestDiagnosePageIsComplete(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	m := checksOfDiagnose.FindStringSubmatch(read(t, "clusterinfo/joinformat/diagnose.sh"))
	if m == nil {
		t.Fatal("diagnose.sh has no checks")
	}
	for check := range strings.FieldsSeq(m[1]) {
		declared[check] = true
	}
	compareNames(t, "check", declared, namesIn(read(t, "docs/diagnose.md"), namedInCell))
}

var (
	alertRow      = regexp.MustCompile("(?m)^\\| `(Kubejoin\\w+)` \\| (\\w+) \\| ([^|]+) \\| [^|]+ \\| (?:both|cluster) \\|$")
	runbook       = regexp.MustCompile(`^https://github\.com/kubejoin/kubejoin/blob/main/(docs/[a-z-]+\.md)#([a-z-]+)$`)
	quotedCommand = regexp.MustCompile("`[a-z]+ [^`]+`")
)

// docs/metrics.md has a row for each alert, with its severity and time. Each alert has one sentence, a next command and a
// section of the docs.
func TestAlertsAreDocumented(t *testing.T) {
	t.Parallel()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, For          string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/chart/kubejoin/files/rules.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	all := pages(t)
	declared, documented := map[string]bool{}, map[string]bool{}
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			after := "at once"
			if minutes, found := strings.CutSuffix(r.For, "m"); found {
				after = minutes + " min"
			}
			declared[r.Alert+" "+r.Labels["severity"]+" "+after] = true
			if summary := r.Annotations["summary"]; !strings.HasSuffix(summary, ".") || strings.Contains(summary, ". ") {
				t.Errorf("%s: summary %q, want one sentence", r.Alert, summary)
			}
			if !quotedCommand.MatchString(r.Annotations["description"]) {
				t.Errorf("%s: description %q, want the next command", r.Alert, r.Annotations["description"])
			}
			link := runbook.FindStringSubmatch(r.Annotations["runbook_url"])
			if link == nil || !slices.Contains(anchors(all[link[1]]), link[2]) {
				t.Errorf("%s: runbook_url %q, want a section of the docs", r.Alert, r.Annotations["runbook_url"])
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" {
				t.Errorf("%s: severity %q, want critical or warning", r.Alert, s)
			}
		}
	}
	for _, m := range alertRow.FindAllStringSubmatch(read(t, "docs/metrics.md"), -1) {
		documented[m[1]+" "+m[2]+" "+m[3]] = true
	}
	compareNames(t, "alert", declared, documented)
}

var shBlock = regexp.MustCompile("(?ms)^(?:<!--[^\n]*\n)?```(?:sh|console)\n(.*?)^```$")

// README.zh-CN.md has the commands of README.md, in the same order and with the same comments.
func TestChineseReadmeHasTheSameCommands(t *testing.T) {
	t.Parallel()
	english := shBlock.FindAllString(read(t, "README.md"), -1)
	chinese := shBlock.FindAllString(read(t, "README.zh-CN.md"), -1)
	if len(english) == 0 || len(english) != len(chinese) {
		t.Fatalf("%d blocks of commands in README.md, %d in README.zh-CN.md", len(english), len(chinese))
	}
	for i := range english {
		if english[i] != chinese[i] {
			t.Errorf("block %d differs:\n%s\n%s", i+1, english[i], chinese[i])
		}
	}
}
