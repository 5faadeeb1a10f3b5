package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// strictBuiltins has the commands that cobra adds, completion and help, refuse what they do not know
// as all others do: they would print help and end with 0.
func strictBuiltins(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args = noArgs
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		case "help":
			cmd.Args = cobra.ArbitraryArgs
			cmd.Run = nil
			cmd.RunE = func(_ *cobra.Command, args []string) error { return help(root, args) }
		}
	}
}

// help prints the help of the command that args name.
func help(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	switch {
	case err != nil:
		return &usageError{command: root.CommandPath(), err: err}
	case len(rest) == 0:
		return cmd.Help()
	case cmd.HasSubCommands():
		return noArgs(cmd, rest)
	}
	return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("%q has no commands below it, and %d more words were given", cmd.CommandPath(), len(rest))}
}
