package main

import (
	"cmp"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

func checkKubeconfigCommand() *cobra.Command {
	var o struct {
		output
		node    string
		offline bool
	}
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Find what is wrong with a kubeconfig",
		Long: `Find what is wrong with a kubeconfig, for example /etc/kubernetes/kubelet.conf: in the file,
its certificate, its key and its CA, and at the API server, with two requests that change
nothing. The requests take the same way as kubectl's, and run the exec plugin that the file
names. Each finding is one line with a remedy.

The exit code is 0 if there is no finding. It is 1 if there are findings. It is 2 if no
finding was made but a check could not run, or if the command cannot read the file.`,
		Example: `  kubejoin kubeconfig check /etc/kubernetes/kubelet.conf --node worker-7

  kubejoin kubeconfig check jane.conf -o jsonpath='{.findings[*].id}'`,
		Args: oneArg("FILE", "one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var m mistakes
			if o.node != "" {
				m.in("--node", tokens.CheckNodeName(o.node))
			}
			if err := m.err(); err != nil {
				return err
			}
			report, err := credentials.Checker{Node: o.node, Offline: o.offline}.Check(cmd.Context(), args[0])
			if err != nil {
				cmd.PrintErrln("kubejoin:", sanitize(err.Error()))
				return exitUnchecked
			}
			return cmp.Or(o.text(cmd.OutOrStdout(), report, report.Text()), exitOf(len(report.Findings), len(report.Unchecked)))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "node that the file is for (default: any)")
	f.BoolVar(&o.offline, "offline", false, "check only the file, not the API server")
	o.registerFormats(cmd, "text", "json", "yaml")
	return cmd
}
