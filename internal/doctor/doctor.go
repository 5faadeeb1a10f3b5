// Package doctor finds settings of a cluster that break the promises of kubejoin, or prevent nodes from joining.
// [Read] reads [Facts] from a cluster and writes nothing. [Diagnose] derives the findings from facts alone.
package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
)

// Kind is the kind of a [Diagnosis]; its apiVersion is [api.GroupVersion].
const Kind = "DoctorReport"

// A Severity says how bad a finding is.
type Severity string

const (
	// Error: a promise of kubejoin does not hold, or nodes cannot join.
	Error Severity = "error"
	// Warning: this may become an error, or the cluster is more open than necessary.
	Warning Severity = "warning"
	// unknown: a check could not see what it needs. Diagnose converts the finding to an Unchecked.
	unknown Severity = "unknown"
)

// A Finding is one problem of the cluster.
type Finding struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	// Message is one sentence for people.
	Message string `json:"message"`
	// Command fixes the problem, or shows more if a person has to decide.
	Command string `json:"command"`
	// Machine is where Command must run, as root. Empty means anywhere.
	Machine string `json:"machine,omitempty"`
}

// An Unchecked is a check that could not be made.
type Unchecked struct {
	Check string `json:"check"`
	// Reason is the missing permission or the error.
	Reason string `json:"reason"`
}

// A Diagnosis is the result of all checks. It contains no secrets.
type Diagnosis struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Checks is the number of all checks, including unchecked ones.
	Checks    int         `json:"checks"`
	Findings  []Finding   `json:"findings"`
	Unchecked []Unchecked `json:"unchecked"`
}

// A check is one row of the table of checks.
type check struct {
	name  string
	needs []Fact
	find  func(*Facts) []Finding
}

// Diagnose makes all checks. Errors come before warnings. Findings of one severity are in the order of the checks.
func Diagnose(f *Facts) Diagnosis {
	d := Diagnosis{APIVersion: api.GroupVersion, Kind: Kind, Findings: []Finding{}, Unchecked: []Unchecked{}}
	for _, c := range checks {
		d.Checks++
		if at := slices.IndexFunc(c.needs, func(need Fact) bool { return f.Unread[need] != "" }); at >= 0 {
			d.Unchecked = append(d.Unchecked, Unchecked{c.name, safetext.Text(f.Unread[c.needs[at]], safetext.MaxMessage)})
			continue
		}
		for _, one := range capped(c.find(f)) {
			if one.Severity == unknown {
				d.Unchecked = append(d.Unchecked, Unchecked{c.name, one.Message})
			} else {
				d.Findings = append(d.Findings, one)
			}
		}
	}
	slices.SortStableFunc(d.Findings, func(a, b Finding) int { return cmp.Compare(a.Severity, b.Severity) })
	return d
}

// most is the maximum number of findings with one ID in a Diagnosis.
const most = 5

// capped keeps at most most findings of each ID. The last kept finding says how many were dropped.
func capped(all []Finding) []Finding {
	count, last := map[string]int{}, map[string]int{}
	var kept []Finding
	for _, one := range all {
		if count[one.ID]++; count[one.ID] <= most {
			kept = append(kept, one)
			last[one.ID] = len(kept) - 1
		}
	}
	for id, at := range last {
		if more := count[id] - most; more > 0 {
			kept[at].Message += fmt.Sprintf(" (and %d more)", more)
		}
	}
	return kept
}

// found returns a finding. It makes text from the cluster in args printable, and redacts token secrets.
func found(id, command, format string, args ...any) Finding {
	return Finding{ID: id, Severity: Findings[id].Severity, Command: command, Message: safetext.Text(fmt.Sprintf(format, args...), safetext.MaxMessage)}
}

// unseen returns a finding for something that a check could not see. So no finding means that the check saw all it needs.
func unseen(format string, args ...any) Finding {
	return Finding{Severity: unknown, Message: safetext.Text(fmt.Sprintf(format, args...), safetext.MaxMessage)}
}

// on sets the machine of a finding.
func (f Finding) on(machine string) Finding {
	f.Machine = machine
	return f
}

// Names returns the IDs of all findings and the names of all checks, sorted.
func Names() []string {
	names := slices.Collect(maps.Keys(Findings))
	for _, c := range checks {
		if !slices.Contains(names, c.name) {
			names = append(names, c.name)
		}
	}
	slices.Sort(names)
	return names
}

// CheckNames returns an error if [Names] lacks one of names.
func CheckNames(names []string) error {
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("%q given, want the ID of a finding or the name of a check", name)
		}
	}
	return nil
}

// Without returns the diagnosis without the findings and the unchecked checks in names.
func (d Diagnosis) Without(names []string) Diagnosis {
	d.Findings = slices.DeleteFunc(slices.Clone(d.Findings), func(f Finding) bool { return slices.Contains(names, f.ID) })
	d.Unchecked = slices.DeleteFunc(slices.Clone(d.Unchecked), func(u Unchecked) bool { return slices.Contains(names, u.Check) })
	return d
}

// Text returns the diagnosis for people. Each finding has a line for its sentence and one for its command.
func (d Diagnosis) Text() string {
	var b strings.Builder
	count := map[Severity]int{}
	for _, f := range d.Findings {
		count[f.Severity]++
		fmt.Fprintf(&b, "%-8s %s: %s\n", f.Severity, f.ID, f.Message)
		where := ""
		if f.Machine != "" {
			where = "on " + f.Machine + ", as root: "
		}
		fmt.Fprintf(&b, "  %s%s\n", where, f.Command)
	}
	for _, u := range d.Unchecked {
		fmt.Fprintf(&b, "%-8s %s: could not check: %s\n", unknown, u.Check, u.Reason)
	}
	fmt.Fprintf(&b, "checks: %d, errors: %d, warnings: %d, not checked: %d\n", d.Checks, count[Error], count[Warning], len(d.Unchecked))
	return b.String()
}

// Commands returns the commands of all findings without duplicates. A comment names the machine of a command.
func (d Diagnosis) Commands() string {
	var lines []string
	for _, f := range d.Findings {
		line := f.Command
		if f.Machine != "" {
			line += " # on " + f.Machine + ", as root"
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}
