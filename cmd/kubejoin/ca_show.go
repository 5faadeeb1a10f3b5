package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// status prints a rotation with what is behind, and with -o wide everything that was seen.
func (o *output) status(w io.Writer, r api.CARotation) error {
	if done, err := o.object(w, r); done {
		return err
	}
	if r.ID == "" {
		_, err := fmt.Fprintf(w, "the %s CA has not been rotated; next: %s\n", r.CA, rotation.CA(r.CA).Command(r.Next))
		return err
	}
	stage, now := r.Stage, time.Now()
	switch {
	case !r.Ended.IsZero() && r.Aborting:
		stage = "aborted"
	case !r.Ended.IsZero():
		stage = "ended"
	case r.Aborting:
		stage += " (aborting)"
	}
	since := r.Since
	if !r.Ended.IsZero() {
		since = r.Ended
	}
	tables := [][][]string{
		{{"CA", "STAGE", "SINCE", "TRUSTED", "SIGNS", "NEXT"}, {r.CA, stage, age(since, now), orNone(trusts(r.Trusted)), r.Signs, rotation.CA(r.CA).Command(r.Next)}},
		caTable(r),
	}
	if o.format == "wide" && len(r.Observations) > 0 {
		tables = append(tables, seenRows(r.Observations))
	}
	for i, rows := range tables {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := table(w, rows); err != nil {
			return err
		}
	}
	if !r.Ended.IsZero() && len(r.Behind) == 0 {
		return nil
	}
	if c := r.Certificates; c != nil {
		if _, err := fmt.Fprintf(w, "\n%d of %d live certificates are from the new CA\n", c.New, c.Old+c.New); err != nil {
			return err
		}
	}
	hidden := slices.DeleteFunc(slices.Clone(r.Observations), func(s api.CAObservation) bool { return !s.Optional })
	says, rows := fmt.Sprintf("nothing is behind, of %d observations", len(r.Observations)-len(hidden)), [][]string(nil)
	if len(r.Behind) > 0 {
		says, rows = fmt.Sprintf("%d of %d observations are behind:", len(r.Behind), len(r.Observations)-len(hidden)), behindRows(r.Behind)
	}
	if _, err := fmt.Fprintf(w, "\n%s\n", says); err != nil {
		return err
	}
	if err := table(w, rows); err != nil || len(hidden) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w, "\nnot seen from here, which holds up nothing:"); err != nil {
		return err
	}
	return table(w, hiddenRows(hidden))
}

// hiddenRows returns a table of what can never be seen from here.
func hiddenRows(hidden []api.CAObservation) [][]string {
	rows := [][]string{{"KIND", "NAME", "WHY", "NEXT"}}
	for _, s := range hidden {
		rows = append(rows, []string{s.Kind, s.Name, s.Unseen, s.Next})
	}
	return rows
}

// caTable returns a table of the certificates of both CAs.
func caTable(r api.CARotation) [][]string {
	rows := [][]string{{"SIDE", "SUBJECT", "ENDS", "PIN"}}
	for i, c := range slices.Concat(r.Old, r.New) {
		side := "old"
		if i >= len(r.Old) {
			side = "new"
		}
		rows = append(rows, []string{side, c.Subject, c.NotAfter.UTC().Format(time.RFC3339), c.Pin})
	}
	return rows
}

func seenRows(seen []api.CAObservation) [][]string {
	rows := [][]string{{"KIND", "NAME", "NODE", "TRUSTS", "FROM", "UNTIL", "NOT SEEN"}}
	for _, s := range seen {
		until, unseen := "", s.Unseen
		if !s.Until.IsZero() {
			until = s.Until.UTC().Format(time.RFC3339)
		}
		if s.Off {
			unseen = "the node is not ready"
		}
		rows = append(rows, []string{s.Kind, s.Name, orNone(s.Node), orNone(trusts(s.Trusts)), orNone(s.From), orNone(until), orNone(unseen)})
	}
	return rows
}

func behindRows(behind []api.CABehind) [][]string {
	rows := [][]string{{"NODE", "WHY", "NEXT"}}
	for _, b := range behind {
		rows = append(rows, []string{orNone(b.Node), b.Why, orNone(b.Next)})
	}
	return rows
}

// trusts returns "old", "new", "old,new" or nothing.
func trusts(t *api.CATrust) string {
	var names []string
	if t != nil && t.Old {
		names = append(names, "old")
	}
	if t != nil && t.New {
		names = append(names, "new")
	}
	return strings.Join(names, ",")
}

// stageMeaning says what is true in the stage of a rotation.
func stageMeaning(r api.CARotation) string {
	switch {
	case !r.Ended.IsZero() && r.Aborting:
		return "the rotation was aborted, and the old CA stays"
	case !r.Ended.IsZero():
		return "the rotation has ended, and the new CA has replaced the old one"
	}
	return map[string]string{
		string(rotation.Prepare): "the new CA exists, and nothing trusts it",
		string(rotation.Trust):   "both CAs are trusted, and the old one signs",
		string(rotation.Switch):  "both CAs are trusted, and the new one signs",
		string(rotation.Finish):  "the new CA alone is trusted",
	}[r.Stage]
}

// writeStep prints what a step has done and what comes next.
func writeStep(w io.Writer, r api.CARotation) error {
	dry := ""
	if r.DryRun {
		dry = " (dry run: nothing has changed)"
	}
	if _, err := fmt.Fprintf(w, "%s CA, stage %s: %s%s\n", r.CA, r.Stage, stageMeaning(r), dry); err != nil || r.DryRun {
		return err
	}
	rows := [][]string{{"next:"}}
	apply := "  " + rotation.CA(r.CA).Command("apply")
	switch {
	case !r.Ended.IsZero():
		rows = append(rows, []string{apply, "on each host of a cluster: it removes its backup"}, []string{"  " + rotation.CA(r.CA).Command("status"), "names the hosts that still have one"})
		return table(w, rows)
	case hasHosts(r) && r.Stage == string(rotation.Prepare) && !r.Aborting:
		rows = append(rows, []string{apply, "on each control plane"})
	case hasHosts(r) && (r.Stage != string(rotation.Prepare) || r.Aborting):
		rows = append(rows, []string{apply, "on each host, the control planes one after the other"})
	}
	return table(w, append(rows, []string{"  " + rotation.CA(r.CA).Command("status"), "until nothing is behind"}, []string{"  " + rotation.CA(r.CA).Command(r.Next)}))
}

// hasHosts reports whether a rotation has to change files of hosts. A standalone kubejoin changes its own files.
func hasHosts(r api.CARotation) bool {
	return slices.ContainsFunc(r.Observations, func(o api.CAObservation) bool {
		return o.Kind == string(rotation.KindAPIServer) || o.Kind == string(rotation.KindEtcd)
	})
}
