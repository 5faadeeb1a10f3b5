package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of kubejoin",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildVersion()
			switch output {
			case "text":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "kubejoin %s (%s, %s)\n", v.Version, v.GoVersion, v.Platform)
				return err
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("--output: %q given, want text or json", output)}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output format: text or json")
	heading(cmd.Flags(), "Output flags", "output")
	return cmd
}

// release is set by the Makefile from git: -ldflags "-X main.release=v1.2.3 -X main.commit=…".
var release, commit string

func buildVersion() api.Version {
	v := api.Version{Version: release, Commit: commit, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if v.Version == "" {
		v.Version = "devel"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
			v.Version = info.Main.Version // go install …@version
		}
	}
	return v
}
