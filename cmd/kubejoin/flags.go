package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mayBeEmpty are flags that say something when they are empty.
var mayBeEmpty = []string{"description", "groups"}

var errEmpty = errors.New("is empty; leave it out for the default")

// strict has commands, and those below them, refuse flags that are given and say nothing, as with a
// variable that is not set. They would be taken for flags that are left out: a token for no name is
// one for any name.
func strict(commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			empty := slices.Contains(mayBeEmpty, f.Name)
			if list, ok := f.Value.(pflag.SliceValue); ok {
				f.Value = strictList{f.Value, list, empty}
				if f.DefValue == "[]" { // pflag knows for its own lists that this is none
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

// flagError says what is wrong with a flag as all errors here do, and not as Go's parsers would.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	f := invalid.GetFlag()
	var number *strconv.NumError
	switch kind := f.Value.Type(); {
	case kind == "bool":
		return fmt.Errorf("--%s: %.40q given, want true or false", f.Name, foreign.Redact(invalid.GetValue()))
	case kind == "duration":
		return fmt.Errorf("--%s: %.40q given, want a duration such as 90s, 30m or 2h", f.Name, foreign.Redact(invalid.GetValue()))
	case errors.As(err, &number):
		return fmt.Errorf("--%s: %.40q given, want a number", f.Name, foreign.Redact(invalid.GetValue()))
	}
	return fmt.Errorf("--%s: %w", f.Name, invalid.Unwrap())
}
