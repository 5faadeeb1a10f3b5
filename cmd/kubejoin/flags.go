package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mayBeEmpty are the flags for which an empty value has a meaning.
var mayBeEmpty = []string{"description", "groups"}

var errEmpty = errors.New("is empty; leave it out for the default")

// strict makes commands and their subcommands refuse flags with an empty value, for example from an unset shell
// variable. Otherwise kubejoin would use the default: --node-name="" would create a token for any node name.
func strict(commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			empty := slices.Contains(mayBeEmpty, f.Name)
			if list, ok := f.Value.(pflag.SliceValue); ok {
				f.Value = strictList{f.Value, list, empty}
				if f.DefValue == "[]" { // pflag hides this default in help only for its own list types
					f.DefValue = ""
				}
			} else if f.Value.Type() == "string" && !empty {
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

type strictList struct {
	pflag.Value
	pflag.SliceValue
	mayBeEmpty bool
}

func (v strictList) Set(s string) error {
	if s == "" && !v.mayBeEmpty {
		return errEmpty
	}
	if err := v.Value.Set(s); err != nil {
		return err
	}
	if at := slices.Index(v.GetSlice(), ""); at >= 0 {
		return fmt.Errorf("number %d of the list is empty", at+1)
	}
	return nil
}

// durationVar registers a flag for a duration, which may be in days.
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
	return time.Duration(*d).String()
}

func (d *durationValue) Type() string { return "duration" }

// flagError rewrites an error of pflag or of Go's parsers in the form of the other flag errors.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	f := invalid.GetFlag()
	var number *strconv.NumError
	switch kind := f.Value.Type(); {
	case kind == "bool":
		return fmt.Errorf("--%s: %.40q given, want true or false", f.Name, safetext.Redact(invalid.GetValue()))
	case kind == "duration":
		return fmt.Errorf("--%s: %.40q given, want a duration such as 90s, 30m, 2h or 1d", f.Name, safetext.Redact(invalid.GetValue()))
	case errors.As(err, &number):
		return fmt.Errorf("--%s: %.40q given, want a number", f.Name, safetext.Redact(invalid.GetValue()))
	}
	return fmt.Errorf("--%s: %w", f.Name, invalid.Unwrap())
}
