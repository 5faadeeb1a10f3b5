package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// headingKey is the annotation of a flag with its heading in the help.
const headingKey = "kubejoin.io/heading"

// helpWidth is the number of columns of the help.
const helpWidth = 100

// heading lists flags under a heading in the help of their command. Without names, it lists all flags that have no heading yet.
func heading(f *pflag.FlagSet, title string, names ...string) {
	f.VisitAll(func(flag *pflag.Flag) {
		if slices.Contains(names, flag.Name) || len(names) == 0 && flag.Annotations[headingKey] == nil {
			_ = f.SetAnnotation(flag.Name, headingKey, []string{title}) // fails only for an unknown flag
		}
	})
}

// noun adds subcommands to a command that does nothing by itself.
func noun(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(commands...)
	return cmd
}

// usage prints how to use a command, with its flags and subcommands in groups. cobra's usage templates would make the
// program half as large again.
func usage(cmd *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s [command]\n", cmd.CommandPath())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	groups := cmd.Groups()
	if len(groups) == 0 {
		groups = []*cobra.Group{{Title: "Commands:"}}
	}
	for _, group := range groups {
		title := "\n" + group.Title + "\n"
		for _, sub := range cmd.Commands() {
			if sub.GroupID == group.ID && (sub.IsAvailableCommand() || sub.Name() == "help") {
				fmt.Fprintf(&b, "%s  %-*s %s\n", title, sub.NamePadding(), sub.Name(), sub.Short)
				title = ""
			}
		}
	}
	cmd.InitDefaultHelpFlag() // cobra adds it only before it parses flags
	flags := cmd.LocalFlags()
	if quiet := cmd.InheritedFlags().Lookup("quiet"); quiet != nil && cmd.Name() != "serve" {
		flags.AddFlag(quiet)
	}
	writeFlags(&b, flags)
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\nUse \"%s [command] --help\" for more information about a command.\n", cmd.CommandPath())
	}
	_, err := cmd.OutOrStderr().Write([]byte(b.String()))
	return err
}

// writeFlags writes flags by heading, in the order of registration: first the flags without a heading, and --help last.
func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	titles, groups := []string{""}, map[string]*pflag.FlagSet{}
	add := func(title string, flag *pflag.Flag) {
		if groups[title] == nil {
			groups[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
			groups[title].SortFlags = false
			if title != "" {
				titles = append(titles, title)
			}
		}
		groups[title].AddFlag(flag)
	}
	flags.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && flag.Name != "help" {
			shown := *flag
			if !slices.Contains([]string{"", "0", "false"}, flag.DefValue) {
				shown.Usage += " (default: " + flag.DefValue + ")"
			}
			shown.DefValue, shown.Value = "", struct{ pflag.Value }{flag.Value} // pflag would quote it
			add(strings.Join(flag.Annotations[headingKey], ""), &shown)
		}
	})
	add("Help flags", flags.Lookup("help"))
	for _, title := range titles {
		if groups[title] != nil {
			fmt.Fprintf(b, "\n%s\n%s", cmp.Or(title, "Flags")+":", groups[title].FlagUsagesWrapped(helpWidth))
		}
	}
}

// strictBuiltins makes cobra's commands completion and help refuse unknown arguments. By default they print help and
// exit with code 0.
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
		return usageOf(cmd, noArgs(cmd, rest))
	}
	return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("%q has no subcommands: %d more arguments given", cmd.CommandPath(), len(rest))}
}
