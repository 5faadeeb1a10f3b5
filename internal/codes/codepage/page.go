package codepage

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/codes"
)

//go:generate go run ./write ../../../docs/codes.md

// A section is a table of docs/codes.md.
type section struct {
	kind           Kind
	heading        string
	code, class    string // titles of columns; if class is empty, the table has no column for classes
	meaning, intro string
}

var sections = []section{
	{Problem, "Problem types", "type", "status", "meaning",
		"Errors of the [HTTPS API](http-api.md) have a type such as `https://kubejoin.io/problems/forbidden`. The table lists the\nlast part of each type. A type never changes."},
	{Reason, "Reasons", "reason", "verdict", "cause", `The same reasons appear in the condition of a CertificateSigningRequest, in Events, in problems of
` + "`POST /v1/certificate`, in the issuance record and in `kubejoin explain --csr`" + `. The verdict says what kubejoin does:

- **denied**: kubejoin never issues a certificate for this request. kubejoin sets the condition ` + "`Denied`" + `. If
  someone else has already approved the request, kubejoin sets ` + "`Failed`" + ` instead. Over HTTPS, the response is 403
  ` + "`certificate-refused`" + `.
- **denied over HTTPS**: kubejoin never issues a certificate over HTTPS. The API server makes the same check before it
  creates a CertificateSigningRequest.
- **not approved**: kubejoin leaves the request to people and other approvers. Over HTTPS, the response is 403
  ` + "`certificate-not-permitted`, or `forbidden` for a user without the permission to `sign`" + `.
- **waits**: for an hour after the creation of the request, kubejoin repeats the decision. After that time, the kubelet
  sends another request. With ` + "`FactsUnavailable`, and for an approved request with `TooManyCertificates`" + `, kubejoin
  repeats the decision for a day. Over HTTPS, the response is 503 ` + "`certificate-waits`" + `.
- **rejoin refused**: a machine that has proven a key may not [rejoin](rejoin.md). The log, an Event on the Node and
  ` + "`kubejoin_rejoins_total`" + ` have the reason.
- **no token for the machine**: a machine that has proven [its own key](machines.md) gets no token now. The response is
  403 ` + "`machine-refused`" + `. The log, an Event on the Node and ` + "`kubejoin_machine_proofs_total`" + ` have the reason.
  For ` + "`NodeIsReady`" + `, kubejoin creates the Event only after two minutes, and then counts the result ` + "`cloned`" + `.

Before you delete or reset anything, check the machine. ` + "`sh join.sh --diagnose`" + ` shows whether a machine has joined.
` + "`kubejoin explain NODE`" + ` shows whether the machine with a node name works.`},
	{State, "States of explain", "state", "", "the machine", "`kubejoin explain NODE -o jsonpath={.state}` prints one of these states, or one of the [reasons](#reasons)."},
	{Event, "Events and conditions", "event", "on, type", "cause", "`kubectl describe csr NAME` shows Events on a request. `kubectl -n kubejoin-system get events` shows Events on the\n" +
		"Lease. The same [reasons](#reasons) appear in conditions, and in Events on requests and Nodes. Such an Event has type\n" +
		codes.Refused("").Type() + " if the request was denied, has failed or is no longer retried, and " + codes.Undecided("").Type() + " if it may still be granted.\n\n" +
		"Standalone there are no Events. Any node can write an Event that looks like one of kubejoin, but no node\n" +
		"can write into kubejoin's log."},
	{Readiness, "Readiness checks", "check", "result", "cause", "`/readyz` returns 503 if a check has a failure. `/readyz?verbose` also shows notices. A kubejoin has only\n" +
		"the checks of the parts that it runs. If new files are unusable, kubejoin keeps using the last valid files."},
	{Exit, "Exit codes", "exit code", "command", "meaning", ""},
	{Alert, "Alerts", "alert", "severity", "fires when", "[rules.yaml](../deploy/chart/kubejoin/files/rules.yaml) has the rules for Prometheus. Send critical alerts to a\n" +
		"pager: they fire when machines cannot join, or when the cluster will lose nodes."},
	{Finding, "Findings of doctor", "finding", "severity", "meaning", "`kubejoin doctor` prints the command for your cluster with each finding."},
	{Diagnose, "Checks of diagnose", "check", "", "finds", "`sh join.sh --diagnose` runs these checks [on a machine](diagnose.md)."},
	{StartError, "Errors at start", "message has", "exit code", "cause", "`kubejoin serve` prints the flag and the file before the message. If the API server does not respond, kubejoin\n" +
		"starts and logs warnings, and `/readyz` fails until the API server responds."},
}

// place returns the position of a kind on the page.
func place(kind Kind) int {
	return slices.IndexFunc(sections, func(s section) bool { return s.kind == kind })
}

var pageOfDocs = regexp.MustCompile(`docs/([a-z-]+\.md)(#[a-z-]+)?`)

// Page returns docs/codes.md.
func Page() (string, error) {
	all, err := All()
	var b strings.Builder
	b.WriteString(`# Codes: problems, reasons, Events, checks, exit codes and alerts

This page explains each code that kubejoin prints, and what to do next. It is for everyone who sees such a code.

<!-- Generated from the source: go generate ./internal/codes/codepage -->

` + "`kubejoin explain CODE`" + ` prints the entry of a code, and needs no cluster or server. Codes in lower case can also be
names of nodes. For such a code, add ` + "`--code`" + `:

` + "```sh" + `
kubejoin explain TokenSpent
kubejoin explain --code token-spent
` + "```" + `

## Contents

`)
	for _, s := range sections {
		fmt.Fprintf(&b, "- [%s](#%s)\n", s.heading, strings.ReplaceAll(strings.ToLower(s.heading), " ", "-"))
	}
	for _, s := range sections {
		fmt.Fprintf(&b, "\n## %s\n\n", s.heading)
		if s.intro != "" {
			b.WriteString(s.intro + "\n\n")
		}
		row(&b, s.code, s.class, s.meaning, "what to do")
		row(&b, "---", strings.Repeat("---", min(1, len(s.class))), "---", "---")
		for _, e := range all {
			if e.Kind == s.kind {
				row(&b, "`"+e.Code+"`", e.Class, e.Meaning, cmp.Or(pageOfDocs.ReplaceAllString(e.Next, "[$1]($1$2)"), "nothing"))
			}
		}
	}
	return b.String(), err
}

// row writes a row of a table, and drops empty cells.
func row(b *strings.Builder, cells ...string) {
	cells = slices.DeleteFunc(cells, func(cell string) bool { return cell == "" })
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(cell, "|", `\|`)
	}
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}
