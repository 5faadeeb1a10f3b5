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

// status prints a rotation with the observations that are behind. With -o wide, it prints all observations.
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
	text := tableText([][]string{
		{"CA", "STAGE", "SINCE", "TRUSTED", "SIGNS", "NEXT"}, {r.CA, stage, age(since, now), orNone(trusts(r.Trusted)), r.Signs, rotation.CA(r.CA).Command(r.Next)},
	}) + "\n" + tableText(caTable(r))
	if o.format == "wide" && len(r.Observations) > 0 {
		text += "\n" + tableText(seenRows(r.Observations))
	}
	if r.Ended.IsZero() || len(r.Behind) > 0 {
		text += behindText(r)
	}
	_, err := io.WriteString(w, text)
	return err
}

// behindText lists the observations that are behind, and those that kubejoin cannot make.
func behindText(r api.CARotation) (text string) {
	if c := r.Certificates; c != nil {
		text = fmt.Sprintf("\n%d of %d live certificates are from the new CA\n", c.New, c.Old+c.New)
	}
	hidden := slices.DeleteFunc(slices.Clone(r.Observations), func(s api.CAObservation) bool { return !s.Optional })
	seen := len(r.Observations) - len(hidden)
	if len(r.Behind) > 0 {
		text += fmt.Sprintf("\n%d of %d observations are behind:\n%s", len(r.Behind), seen, tableText(behindRows(r.Behind)))
	} else {
		text += fmt.Sprintf("\nnothing is behind, of %d observations\n", seen)
	}
	if len(hidden) > 0 {
		text += "\nnot visible from here; these do not block the next step:\n" + tableText(hiddenRows(hidden))
	}
	return text
}

// hiddenRows returns a table of the observations that kubejoin can never make from here.
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
		unseen := s.Unseen
		if s.Off {
			unseen = "the node is not ready"
		}
		rows = append(rows, []string{s.Kind, s.Name, orNone(s.Node), orNone(trusts(s.Trusts)), orNone(s.From), stamp(s.Until, "<none>"), orNone(unseen)})
	}
	return rows
}

// trusts returns "old", "new", "old,new" or an empty string.
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.waits = caLooks
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
