// Package codepage explains each code that kubejoin prints: what it means, and what to do next. 'kubejoin explain CODE' and
// docs/codes.md show the same entries. If other code already contains a text, the package reads the text from there instead
// of repeating it.
package codepage

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kubejoin/kubejoin/deploy"
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/doctor"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"sigs.k8s.io/yaml"
)

// A Kind groups codes. A code may have several entries of one kind, which differ in their class.
type Kind string

// The kinds, in the order of docs/codes.md.
const (
	Problem    Kind = "problem type"
	Reason     Kind = "reason"
	State      Kind = "state"
	Event      Kind = "event"
	Readiness  Kind = "readiness check"
	Exit       Kind = "exit code"
	Alert      Kind = "alert"
	Finding    Kind = "finding of doctor"
	Diagnose   Kind = "check of diagnose"
	StartError Kind = "error at start"
)

// An Entry explains one code of one kind.
type Entry struct {
	Kind Kind   `json:"kind"`
	Code string `json:"code"`
	// Class describes a code further. Depending on Kind, it is an HTTP status, a severity, a verdict, an object and the type of
	// its Event, or a command.
	Class   string `json:"class,omitempty"`
	Meaning string `json:"meaning"`
	// Next says what to do, if possible with a command. It is empty if there is nothing to do.
	Next string `json:"next,omitempty"`
}

// All returns the entries of all kinds, in the order of docs/codes.md.
var All = sync.OnceValues(func() ([]Entry, error) {
	problems, err := problems()
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	alerts, err := alerts()
	if err != nil {
		return nil, fmt.Errorf("alert rules: %w", err)
	}
	all := slices.Concat(problems, reasons, states, events, readiness, exits, alerts, findings(), diagnose, startErrors)
	slices.SortFunc(all, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(place(a.Kind), place(b.Kind)), cmp.Compare(number(a.Code), number(b.Code)), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Class, b.Class))
	})
	return all, nil
})

// number returns an exit code as a number. It returns 0 for codes that are not numbers.
func number(code string) int {
	n, _ := strconv.Atoi(code)
	return n
}

// problems reads the problem types from the description of the API.
func problems() ([]Entry, error) {
	var described struct {
		Components struct {
			Schemas struct {
				ProblemType struct {
					OneOf []struct {
						Const       string
						Status      int `json:"x-status"`
						Description string
						Next        string `json:"x-next"`
					}
				}
			}
		}
	}
	err := yaml.Unmarshal(server.OpenAPI(), &described)
	var all []Entry
	for _, one := range described.Components.Schemas.ProblemType.OneOf {
		name, class := strings.TrimPrefix(one.Const, api.ProblemType), fmt.Sprint(one.Status)
		if exit := codes.Exits[name]; exit != 1 {
			class += fmt.Sprintf(", exit code %d", exit)
		}
		all = append(all, Entry{Problem, name, class, one.Description, one.Next})
	}
	return all, err
}

// alerts reads the alerts from the rules for Prometheus. Next is the description of the alert.
func alerts() ([]Entry, error) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, For          string
				Labels, Annotations map[string]string
			}
		}
	}
	err := yaml.Unmarshal(deploy.AlertRules, &rules)
	var all []Entry
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			class := r.Labels["severity"]
			if r.For != "" {
				class += " after " + r.For
			}
			all = append(all, Entry{Alert, r.Alert, class, plain(r.Annotations["summary"]), plain(r.Annotations["description"])})
		}
	}
	return all, err
}

// plain replaces the templates of Prometheus by words in capitals: {{ $labels.check }} by CHECK.
func plain(text string) string {
	for {
		before, rest, found := strings.Cut(text, "{{ ")
		if !found {
			return text
		}
		template, after, _ := strings.Cut(rest, " }}")
		name, _, _ := strings.Cut(template, " ")
		text = before + strings.ToUpper(name[strings.LastIndexAny(name, ".$")+1:]) + after
	}
}

func findings() (all []Entry) {
	for id, known := range doctor.Findings {
		all = append(all, Entry{Finding, id, string(known.Severity), known.Meaning, known.Next})
	}
	return all
}

// Find returns the entries of a code, without the marks of Markdown. It ignores the case of code. A problem type may
// be a whole URI.
func Find(code string) (found []Entry, err error) {
	all, err := All()
	code = strings.TrimPrefix(code, api.ProblemType)
	for _, e := range all {
		if strings.EqualFold(e.Code, code) {
			e.Meaning, e.Next = unmarked(e.Meaning), unmarked(e.Next)
			found = append(found, e)
		}
	}
	return found, err
}

// unmarked converts Markdown to text for a terminal. It drops the backticks around a text that is only a command.
// Otherwise, it replaces them by single quotes.
func unmarked(text string) string {
	if command, found := strings.CutPrefix(text, "`"); found && strings.Index(command, "`") == len(command)-1 {
		return command[:len(command)-1]
	}
	return strings.ReplaceAll(text, "`", "'")
}

// Nearest returns at most five codes that are similar to a misspelt code, the nearest first.
func Nearest(code string) []string {
	all, _ := All()
	code = strings.ToLower(strings.TrimPrefix(code, api.ProblemType))
	far := map[string]int{}
	var near []string
	for _, e := range all {
		known := strings.ToLower(e.Code)
		d := distance(code, known)
		if len(code) > 3 && strings.Contains(known, code) {
			d = 0
		}
		if _, seen := far[e.Code]; !seen && d <= len(known)/3 && e.Kind != Exit {
			near = append(near, e.Code)
		}
		far[e.Code] = d
	}
	slices.SortStableFunc(near, func(a, b string) int { return far[a] - far[b] })
	return near[:min(len(near), 5)]
}

// distance returns how many characters to add, remove or replace to change a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for i := range row {
		row[i] = i
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}
