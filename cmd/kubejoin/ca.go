package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/spf13/cobra"
)

func caCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "ca",
		Short: "Replace a CA in stages, while machines go on joining",
		Long: `Replace a CA of the cluster in stages, while machines go on joining. Run the commands in
this order. After each one, run 'kubejoin ca apply' on every host, or let 'kubejoin host apply
--watch' do it, and wait until 'kubejoin ca status' lists nothing that is behind. Until then,
the next command changes nothing and exits with 3.

  command   trusted afterwards   signs afterwards
  prepare   old                  old
  trust     old and new          old
  switch    old and new          new
  finish    new                  new

The second 'kubejoin ca finish' ends the rotation. 'kubejoin ca abort' goes back by one
stage each time, until the rotation has ended. All steps with their output:
` + docsURL + `ca.md`,
	}, // one per line, in the order of use
		caStatusCommand(),
		caPrepareCommand(),
		caTrustCommand(),
		caSwitchCommand(),
		caFinishCommand(),
		caAbortCommand(),
		caApplyCommand(),
	)
}

// caLooks describes what commands about rotations wait for. The observer takes at most two minutes, and then kubejoin
// writes the state.
var caLooks = waiting{"until API servers, kubelets and etcd were looked at", serverWait}

// caOptions select a CA, and the cluster or server that has it.
type caOptions struct {
	remoteOptions
	output
	ca string
}

func (o *caOptions) register(cmd *cobra.Command, formats ...string) {
	caVar(cmd, &o.ca, string(rotation.Cluster), "CA: %s")
	o.registerFormats(cmd, append([]string{"text"}, append(formats, "json", "yaml")...)...)
	o.remoteOptions.register(cmd)
}

// stepCommand returns a command that moves a rotation to another stage.
func stepCommand(use, short, long, example string) *cobra.Command {
	var o caOptions
	var asked api.StepCA
	cmd := &cobra.Command{Use: use, Short: short, Example: example, Long: long + `

While a host, a node or a token has not followed the stage before, the command changes
nothing, names what is behind, and exits with 3. The exit code is 0 if the stage has begun,
now or before.` + remoteHelp}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.waits = caLooks
		return o.run(cmd, func(ctx context.Context, r *remote) error {
			done, err := r.StepCA(ctx, o.ca, cmd.Name(), asked)
			if behind := notReady(err); behind != nil {
				return fmt.Errorf("%w\n%s", err, strings.TrimSuffix(tableText(behindRows(behind)), "\n"))
			}
			if !asked.DryRun && r.maybeApplied(err) {
				return fmt.Errorf("%w; the step may have been done: see %s", err, rotation.CA(o.ca).Command("status"))
			}
			if err != nil {
				return err
			}
			if printed, err := o.object(cmd.OutOrStdout(), done); printed {
				return err
			}
			return writeStep(cmd.OutOrStdout(), done)
		})
	}
	f := cmd.Flags()
	listVar(f, &asked.LeaveBehind, "leave-behind", nil, "node that the step does not wait for, for example because it is broken (repeatable)")
	listVar(f, &asked.LeaveBehindFiles, "leave-behind-file", nil, "NODE:PATH of a file that the step does not wait for, as 'kubejoin ca status' prints it (repeatable)")
	f.BoolVar(&asked.ExpireTokens, "expire-tokens", false, "delete the tokens whose join commands pin only the CA that stops to sign or to be trusted")
	f.BoolVar(&asked.DryRun, "dry-run", false, "say what would happen, but change nothing")
	o.register(cmd)
	o.offerFlag(cmd, "leave-behind", listNodes)
	return cmd
}

func caTrustCommand() *cobra.Command {
	return stepCommand("trust", "Begin to trust the new CA beside the old one", `Begin to trust the new CA beside the old one, which goes on signing. New join commands pin
both CAs, and kubejoin issues shorter certificates, so that kubelets renew soon after the
next stage begins.

Afterwards run 'kubejoin ca apply' on each host. Next is 'kubejoin ca switch'.`, `  kubejoin ca trust`)
}

func caSwitchCommand() *cobra.Command {
	return stepCommand("switch", "Sign with the new CA; both stay trusted", `Sign with the new CA. Both CAs stay trusted, so certificates of the old CA go on working
until they are renewed. Without a cross certificate, no live join command may pin the old CA
alone: --expire-tokens deletes such tokens.

Afterwards run 'kubejoin ca apply' on each host. Once 'kubejoin ca status' lists nothing that
is behind, run 'kubejoin ca finish'.`, `  kubejoin ca switch`)
}

func caFinishCommand() *cobra.Command {
	return stepCommand("finish", "Stop trusting the old CA, and end the rotation", `Stop trusting the old CA. No live certificate may be from it any more, and no live join
command may pin it alone: --expire-tokens deletes such tokens.

Afterwards run 'kubejoin ca apply' on each host. Then run 'kubejoin ca finish' again: it
ends the rotation once nothing trusts the old CA.`, `  # first: stop trusting the old CA, without a node that is broken
  kubejoin ca finish --expire-tokens --leave-behind worker-4

  # last: end the rotation
  kubejoin ca finish`)
}

func caAbortCommand() *cobra.Command {
	return stepCommand("abort", "Go back by one stage", `Go back by one stage: from finish to switch, trust and prepare. In stage prepare, the
command ends the rotation and deletes the key of the new CA. After the first abort, only
further aborts are possible.

Afterwards run 'kubejoin ca apply' on each host. If 'kubejoin ca status' still shows a
rotation, run 'kubejoin ca abort' again.`, `  kubejoin ca abort`)
}

// notReady returns the observations that block a stage; nil if err has another cause.
func notReady(err error) []api.CABehind {
	var behind *rotation.NotReady
	var p *api.Problem
	switch {
	case errors.As(err, &behind):
		return operations.Behind(behind.Behind)
	case errors.As(err, &p) && p.Named(api.ProblemNotReady):
		return p.Behind
	}
	return nil
}

func behindRows(behind []api.CABehind) [][]string {
	rows := [][]string{{"NODE", "WHY", "NEXT"}}
	for _, b := range behind {
		rows = append(rows, []string{orNone(b.Node), b.Why, orNone(b.Next)})
	}
	return rows
}

// stageMeaning returns a sentence about the old and the new CA in the stage of a rotation.
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
		string(rotation.Finish):  "only the new CA is trusted",
	}[r.Stage]
}

// writeStep prints the result of a step and the next commands.
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
	case !r.Ended.IsZero() && (hasHosts(r) || len(r.Observations) == 0): // a repeated step looks at nothing
		where := "on each host"
		if len(r.Observations) == 0 {
			where += " of a cluster"
		}
		rows = append(rows, []string{apply, where + ": it removes its backup"}, []string{"  " + rotation.CA(r.CA).Command("status"), "names the hosts that still have one"})
		return table(w, rows)
	case !r.Ended.IsZero():
		return table(w, append(rows, []string{"  " + rotation.CA(r.CA).Command("status")}))
	case hasHosts(r) && r.Stage == string(rotation.Prepare) && !r.Aborting:
		rows = append(rows, []string{apply, "on each control plane"})
	case hasHosts(r) && (r.Stage != string(rotation.Prepare) || r.Aborting):
		rows = append(rows, []string{apply, "on each host, the control planes one after the other"})
	}
	return table(w, append(rows, []string{"  " + rotation.CA(r.CA).Command("status"), "until nothing is behind"}, []string{"  " + rotation.CA(r.CA).Command(r.Next)}))
}

// hasHosts reports whether a rotation changes files on hosts. It is false for a standalone kubejoin, which changes only its
// own files.
func hasHosts(r api.CARotation) bool {
	return slices.ContainsFunc(r.Observations, func(o api.CAObservation) bool {
		return o.Kind == string(rotation.KindAPIServer) || o.Kind == string(rotation.KindEtcd)
	})
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

// caVar registers --ca.
func caVar(cmd *cobra.Command, p *string, value, usage string) {
	names := make([]string, len(rotation.CAs))
	for i, ca := range rotation.CAs {
		names[i] = string(ca)
	}
	choiceVar(cmd.Flags(), p, "ca", value, usage, names...)
}
