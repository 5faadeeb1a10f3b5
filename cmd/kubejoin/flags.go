package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mayBeEmpty are the flags for which an empty value has a meaning.
var mayBeEmpty = []string{"description", "groups"}

var errEmpty = errors.New("is empty; leave it out for the default")

// strict makes commands without Args refuse arguments. It also makes flags refuse an empty value, for example from an unset
// shell variable. Without this check, kubejoin would use the default: --role "" would create a token for workers. listValue
// checks the flags for lists.
func strict(commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.Flags().SortFlags = false // help shows flags in the order of registration
		if c.Args == nil {
			c.Args = noArgs
		}
		completeChoices(c)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "string" && !slices.Contains(mayBeEmpty, f.Name) {
				f.Value = strictString{f.Value}
			}
		})
		strict(c.Commands()...)
	}
	return commands
}

type strictString struct{ pflag.Value }

func (v strictString) Set(s string) error {
	if s == "" {
		return errEmpty
	}
	return v.Value.Set(s)
}

// listVar registers a flag for a list: entries separated by commas or lines, in one value or in several. Quotes keep a
// comma in an entry, as in CSV. pflag's own type reads only the first line.
func listVar(f *pflag.FlagSet, p *[]string, name string, value []string, usage string) {
	*p = value
	f.Var(&listValue{list: p, mayBeEmpty: slices.Contains(mayBeEmpty, name)}, name, usage)
}

type listValue struct {
	list              *[]string
	mayBeEmpty, given bool
}

func (v *listValue) Set(s string) error {
	list, err := parseList(s, v.mayBeEmpty)
	if err != nil {
		return err
	}
	if v.given {
		list = append(*v.list, list...)
	}
	*v.list, v.given = list, true
	return nil
}

// String returns an empty string for an empty list, so that help does not show it as a default.
func (v *listValue) String() string {
	if len(*v.list) == 0 {
		return ""
	}
	return strings.Join(*v.list, ",")
}

// Type returns the name that pflag shows as "strings", and by which cobra completes a flag more than once.
func (v *listValue) Type() string { return "stringSlice" }

// parseList reads the entries of a list and removes the space around them. An empty entry is an error.
func parseList(s string, mayBeEmpty bool) ([]string, error) {
	list := []string{}
	if s = strings.TrimSpace(s); s == "" {
		if mayBeEmpty {
			return list, nil
		}
		return nil, errEmpty
	}
	for i, line := range strings.Split(s, "\n") {
		r := csv.NewReader(strings.NewReader(line))
		r.TrimLeadingSpace = true
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			row, err = []string{""}, nil // an empty line
		}
		if err != nil {
			return nil, fmt.Errorf("line %d of the list, %.100q: want quotation marks around a whole entry, or none", i+1, safetext.Redact(line))
		}
		for _, entry := range row {
			if entry = strings.TrimSpace(entry); entry == "" {
				return nil, fmt.Errorf("number %d of the list is empty", len(list)+1)
			}
			list = append(list, entry)
		}
	}
	return list, nil
}

// parsedVar registers a flag whose value is checked when it is parsed.
func parsedVar(f *pflag.FlagSet, p *string, name, value, usage string, parse func(string) (string, error)) {
	*p = value
	f.Var(parsedValue{p, parse}, name, usage)
}

type parsedValue struct {
	value *string
	parse func(string) (string, error)
}

func (v parsedValue) Set(s string) error {
	parsed, err := v.parse(s)
	if err == nil {
		*v.value = parsed
	}
	return err
}

func (v parsedValue) String() string { return *v.value }

func (v parsedValue) Type() string { return "string" }

// choiceVar registers a flag that takes one of the choices. Its help, its error and its completion list all choices: the
// list replaces %s in usage.
func choiceVar(f *pflag.FlagSet, p *string, name, value, usage string, choices ...string) {
	*p = value
	shorthand := ""
	if name == "output" {
		shorthand = "o"
	}
	f.VarP(choiceValue{parsedValue{p, func(s string) (string, error) {
		if s != value && !slices.Contains(choices, s) {
			return "", fmt.Errorf("%.40q given, want %s", s, safetext.List(choices, "or"))
		}
		return s, nil
	}}, choices}, name, shorthand, fmt.Sprintf(usage, safetext.List(choices, "or")))
}

type choiceValue struct {
	parsedValue
	choices []string
}

// completeChoices completes the flags that choiceVar has registered.
func completeChoices(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if v, ok := f.Value.(choiceValue); ok {
			complete(cmd, f.Name, v.choices...)
		}
	})
}

// nodeVar registers a flag for the name of a node.
func nodeVar(f *pflag.FlagSet, p *string, name, usage string) {
	parsedVar(f, p, name, "", usage, func(s string) (string, error) { return s, tokens.CheckNodeName(s) })
}

// durationVar registers a flag for a duration, which may have the unit d for days.
func durationVar(f *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	f.Var((*durationValue)(p), name, usage)
}

type durationValue time.Duration

func (d *durationValue) Set(s string) error {
	v, err := api.ParseDuration(s)
	if err == nil {
		*d = durationValue(v)
	}
	return err
}

// String returns 0 for the zero duration, so that help does not show it as a default.
func (d *durationValue) String() string {
	if *d == 0 {
		return "0"
	}
	return safetext.Duration(time.Duration(*d))
}

func (d *durationValue) Type() string { return "duration" }

// flagError rewrites an error of pflag or of Go's parsers in the form of the other flag errors. For an unknown flag, it
// suggests flags with similar names.
func flagError(flags *pflag.FlagSet, err error) error {
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		names := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra suggests names of commands only, so make each flag a command
		flags.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
			}
		})
		if near := names.SuggestionsFor(unknown.GetSpecifiedName()); len(near) > 0 {
			return fmt.Errorf("%w; want %s", err, "--"+strings.Join(near, " or --"))
		}
	}
	if !errors.As(err, &invalid) {
		return err
	}
	f := invalid.GetFlag()
	var number *strconv.NumError
	switch kind := f.Value.Type(); {
	case kind == "bool":
		return fmt.Errorf("--%s: %.40q given, want true or false", f.Name, safetext.Redact(invalid.GetValue()))
	case kind == "duration":
		return fmt.Errorf("--%s: %.40q given, %w", f.Name, safetext.Redact(invalid.GetValue()), invalid.Unwrap())
	case errors.As(err, &number):
		return fmt.Errorf("--%s: %.40q given, want a number", f.Name, safetext.Redact(invalid.GetValue()))
	}
	return fmt.Errorf("--%s: %w", f.Name, invalid.Unwrap())
}

// maxWord is the longest unknown command that an error repeats. The secret of a token is longer.
const maxWord = 15

// noArgs refuses positional arguments. An argument may be a token, so the error repeats only a short word, or a word that
// is similar to the name of a command.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		cmd.SuggestionsMinimumDistance = 2
		word, nearest := "", cmd.SuggestionsFor(args[0])
		if len(nearest) > 0 || len(args[0]) <= maxWord {
			word = fmt.Sprintf(" %q", args[0])
		}
		if len(nearest) > 0 {
			names = nearest
		}
		return usagef("unknown command%s for %q; want %s", word, cmd.CommandPath(), oneOf(names))
	}
	return usagef("%q takes only flags, no arguments: %d given", cmd.CommandPath(), len(args))
}

// oneArg accepts one argument that is not empty.
func oneArg(name, want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) != 1:
			return usagef("%s: %d given, want %s", name, len(args), want)
		case args[0] == "":
			return usagef("%s: is empty, want %s", name, want)
		}
		return nil
	}
}

// oneOf lists names for an error that expects one of them.
func oneOf(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return "one of " + strings.Join(names, ", ")
}
