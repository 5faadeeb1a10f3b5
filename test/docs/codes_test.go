package docs

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/deploy"
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/codes/codepage"
	"github.com/kubejoin/kubejoin/test/harness"
	"sigs.k8s.io/yaml"
)

func TestPageOfCodesIsGenerated(t *testing.T) {
	t.Parallel()
	page, err := codepage.Page()
	if err != nil {
		t.Fatal(err)
	}
	if page != read(t, "docs/codes.md") {
		t.Error("docs/codes.md is out of date: run go generate ./internal/codes/codepage")
	}
}

// To undo a revocation makes the certificates of a stolen machine valid again. So no code may advise it.
func TestNoCodeSaysToUndoARevocation(t *testing.T) {
	t.Parallel()
	all, err := codepage.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if strings.Contains(e.Meaning+e.Next, "undo") {
			t.Errorf("%s %s: %s; %s", e.Kind, e.Code, e.Meaning, e.Next)
		}
	}
}

var (
	declaredReason = regexp.MustCompile(`\bReason[A-Za-z]* *= "([A-Za-z]+)"`)
	declaredState  = regexp.MustCompile(`\bNodeState *= "([A-Za-z]+)"`)
	recordedEvent  = regexp.MustCompile(`\bcodes\.([A-Z][A-Za-z]+)`)
	typeOfEvent    = regexp.MustCompile(`\b(EventType(?:Normal|Warning))\b`)
	declaredCheck  = regexp.MustCompile(`\.check\("([a-z-]+)"`)
	declaredExit   = regexp.MustCompile(`\bexit[A-Z][A-Za-z]* +(?:exitCode )?= (\d)|\bdie (\d) |\|\| return (\d)|trap '(?:stop|exit) (\d+)'`)
	diagnoseChecks = regexp.MustCompile("(?s)\nchecks='([^']*)'")
)

// Each code in the source must have an entry, and each entry a code in the source. The entries of problem types, alerts and
// findings of doctor are generated from the source.
func TestEachCodeHasAnEntry(t *testing.T) {
	t.Parallel()
	all, err := codepage.All()
	if err != nil {
		t.Fatal(err)
	}
	explained := map[codepage.Kind]map[string]bool{}
	for _, e := range all {
		if explained[e.Kind] == nil {
			explained[e.Kind] = map[string]bool{}
		}
		explained[e.Kind][e.Code] = true
	}
	in := func(dirs []string, pattern *regexp.Regexp) map[string]bool {
		names := map[string]bool{}
		for _, dir := range dirs {
			maps.Copy(names, declaredIn(t, harness.RepositoryFile(t, dir), pattern))
		}
		return names
	}
	compareNames(t, "reason", in([]string{"signer"}, declaredReason), explained[codepage.Reason])
	states := in([]string{"server"}, declaredState)
	maps.DeleteFunc(states, func(name string, _ bool) bool { return explained[codepage.Reason][name] })
	compareNames(t, "state", states, explained[codepage.State])
	events, recorders := map[string]bool{}, []string{"clusterinfo", "cmd", "internal/caexpiry", "internal/daemon", "internal/host", "server", "signer"}
	for name := range codes.Events {
		events[name] = true
	}
	compareNames(t, "event", events, explained[codepage.Event])
	recorded := in(recorders, recordedEvent)
	maps.DeleteFunc(recorded, func(name string, _ bool) bool {
		return slices.Contains([]string{"Event", "Events", "Exits", "Refused", "Undecided"}, name)
	})
	compareNames(t, "recorded event", recorded, events)
	for name := range in(recorders, typeOfEvent) {
		t.Errorf("%s is used: take the type of an Event from package codes", name)
	}
	compareNames(t, "check of /readyz", in([]string{"internal/daemon"}, declaredCheck), explained[codepage.Readiness])
	m := diagnoseChecks.FindStringSubmatch(read(t, "clusterinfo/joinformat/diagnose.sh"))
	if m == nil {
		t.Fatal("diagnose.sh has no checks")
	}
	checks := map[string]bool{}
	for check := range strings.FieldsSeq(m[1]) {
		checks[check] = true
	}
	compareNames(t, "check of diagnose", checks, explained[codepage.Diagnose])

	exits := map[string]bool{"0": true}
	for file, command := range map[string]string{
		"cmd/kubejoin/main.go": "all commands", "cmd/kubejoin/doctor.go": "doctor", "cmd/kubejoin/explain.go": "explain",
		"cmd/kubejoin/rejoin.go": "rejoin", "cmd/kubejoin/ca_apply.go": "ca apply", "clusterinfo/joinformat/script.sh": "join.sh",
		"clusterinfo/joinformat/diagnose.sh": "join.sh --diagnose", "deploy/systemd/rejoin.sh": "rejoin.sh",
	} {
		found := declaredExit.FindAllStringSubmatch(read(t, file), -1)
		if len(found) == 0 {
			t.Errorf("%s declares no exit code", file)
		}
		for _, m := range found {
			code := strings.Join(m[1:], "")
			exits[code] = true
			if !slices.ContainsFunc(all, func(e codepage.Entry) bool {
				return e.Kind == codepage.Exit && e.Code == code && (strings.HasPrefix(e.Class, "all ") || slices.Contains(strings.Split(e.Class, ", "), command))
			}) {
				t.Errorf("%s has exit code %s, and no entry is for %s", file, code, command)
			}
		}
	}
	compareNames(t, "exit code", exits, explained[codepage.Exit])
}

// Catches an entry whose message no longer exists in the source.
func TestErrorsAtStartAreInTheSource(t *testing.T) {
	t.Parallel()
	all, err := codepage.All()
	if err != nil {
		t.Fatal(err)
	}
	explained, there := map[string]bool{}, map[string]bool{}
	var messages []string
	for _, e := range all {
		if e.Kind == codepage.StartError {
			explained[e.Code] = true
			messages = append(messages, regexp.QuoteMeta(e.Code))
		}
	}
	for _, of := range []syscall.Errno{syscall.EADDRINUSE, syscall.ENOENT, syscall.EACCES} {
		there[of.Error()] = true
	}
	for _, dir := range []string{"cmd/kubejoin", "internal/daemon", "internal/host/datadir", "internal/pemfile", "internal/host/trustedpath", "signer", "tokens"} {
		maps.Copy(there, declaredIn(t, harness.RepositoryFile(t, dir), regexp.MustCompile("("+strings.Join(messages, "|")+")")))
	}
	compareNames(t, "message", there, explained)
}

var (
	runbook       = regexp.MustCompile(`^https://github\.com/kubejoin/kubejoin/blob/main/(docs/[a-z-]+\.md)#([a-z-]+)$`)
	templates     = regexp.MustCompile(`\{\{ [^}]* \}\}`)
	quotedCommand = regexp.MustCompile("`[a-z]+ [^`]+`")
)

// Each alert must have one sentence, a next command and a section of the docs.
func TestAlertsLeadSomewhere(t *testing.T) {
	t.Parallel()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert               string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(deploy.AlertRules, &rules); err != nil {
		t.Fatal(err)
	}
	all, alerts := pages(t), 0
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			alerts++
			if summary := r.Annotations["summary"]; !strings.HasSuffix(summary, ".") || strings.Contains(summary, ". ") {
				t.Errorf("%s: summary %q, want one sentence", r.Alert, summary)
			}
			found, err := codepage.Find(r.Alert)
			if err != nil || len(found) != 1 || strings.Count(found[0].Next, " ") != strings.Count(templates.ReplaceAllString(r.Annotations["description"], "X"), " ") {
				t.Errorf("%s: explained as %v, %v; want its description", r.Alert, found, err)
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
	if alerts == 0 {
		t.Error("there are no alerts: this test could not fail")
	}
}
