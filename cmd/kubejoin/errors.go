package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/spf13/cobra"
)

// usageError is an invalid command line. It makes kubejoin print a hint and exit with code 2.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

// usagef returns a usage error. run adds the command.
func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// usageOf adds the command to a usage error that has none.
func usageOf(cmd *cobra.Command, err error) error {
	var usage *usageError
	if errors.As(err, &usage) && usage.command == "" {
		return &usageError{command: cmd.CommandPath(), err: usage.err}
	}
	return err
}

// mistakes are the errors in a command line.
type mistakes []error

// when adds a mistake if made is true.
func (m *mistakes) when(made bool, format string, args ...any) {
	if made {
		for i, arg := range args {
			if d, ok := arg.(time.Duration); ok {
				args[i] = safetext.Duration(d)
			}
		}
		*m = append(*m, fmt.Errorf(format, args...))
	}
}

// together adds a mistake if only one of two flags has a value.
func (m *mistakes) together(flag, value, other, otherValue string) {
	m.when(value != "" && otherValue == "", "--%s: needs --%s, which is missing", flag, other)
	m.when(value == "" && otherValue != "", "--%s: needs --%s, which is missing", other, flag)
}

// in adds err, unless it is nil, under the name of a flag or an argument.
func (m *mistakes) in(name string, err error) { m.when(err != nil, "%s: %w", name, err) }

// url adds a mistake if the value of a flag is not the URL of a server. It may be empty.
func (m *mistakes) url(name, value string) {
	if _, err := clusterinfo.Endpoint(value); value != "" {
		m.in(name, err)
	}
}

// pins checks the CA pins in a list, and normalizes them.
func (m *mistakes) pins(name string, list []string) {
	for i, text := range list {
		pin, err := clusterinfo.ParsePin(text)
		m.in(name, err)
		list[i] = pin
	}
}

// excludes adds a mistake with the text why for each of the flags that is given.
func (m *mistakes) excludes(given func(flag string) bool, why string, flags ...string) {
	for _, flag := range flags {
		m.when(given(flag), "--%s: %s", flag, why)
	}
}

// err returns a usage error with all mistakes.
func (m mistakes) err() error {
	if len(m) == 0 {
		return nil
	}
	return &usageError{err: errors.Join(m...)}
}

// first returns a usage error with the first mistake, for commands where one mistake causes others.
func (m mistakes) first() error { return m[:min(len(m), 1)].err() }

// each calls do with each name and prints the line that do returns, unless it is empty. After an error of do, each
// continues with the next name. With several names, it prints each error on a line, and returns how many there were. If
// each cannot print a line, it stops.
func each(cmd *cobra.Command, names []string, do func(name string) (line string, err error)) error {
	var errs []error
	for _, name := range names {
		line, err := do(name)
		if err != nil {
			errs = append(errs, err)
		} else if line != "" {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
	}
	if len(names) == 1 || len(errs) == 0 {
		return errors.Join(errs...)
	}
	for _, err := range errs {
		cmd.PrintErrln("kubejoin:", sanitize(explain(err).Error()))
	}
	return fmt.Errorf("%d of %d failed", len(errs), len(names))
}
