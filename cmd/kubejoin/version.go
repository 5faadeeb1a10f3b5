package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of kubejoin",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildVersion()
			return o.text(cmd.OutOrStdout(), v, "kubejoin "+versionText(v)+"\n")
		},
	}
	o.registerFormats(cmd, "text", "json", "yaml")
	return cmd
}

// release is set by the Makefile from git: -ldflags "-X main.release=v1.2.3 -X main.commit=…".
var release, commit string

func versionText(v api.Version) string {
	return fmt.Sprintf("%s (%s, %s)", v.Version, v.GoVersion, v.Platform)
}

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
