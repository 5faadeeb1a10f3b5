package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/spf13/cobra"
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

func caStatusCommand() *cobra.Command {
	var o caOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the stage of a CA rotation, and what is behind",
		Long: `Show the stage of the rotation of a CA, what keeps the next stage from beginning, and the
next command. The command looks at everything that the rotation has to change, and names
what it cannot see. -o wide lists all of it.` + remoteHelp,
		Example: `  kubejoin ca status

  # everything that the rotation has to change
  kubejoin ca status -o wide

  # the nodes that are behind
  kubejoin ca status -o jsonpath='{.behind[*].node}'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				status, err := r.CARotation(ctx, o.ca)
				if err != nil {
					return err
				}
				return o.status(cmd.OutOrStdout(), status)
			})
		},
	}
	o.register(cmd, "wide")
	return cmd
}
