package main

import (
	"errors"
	"fmt"

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

// each combines the errors of n operations. With several operations it prints each error on a line and returns a count.
func each(cmd *cobra.Command, n int, errs []error) error {
	if n == 1 && len(errs) == 1 || len(errs) == 0 {
		return errors.Join(errs...)
	}
	for _, err := range errs {
		cmd.PrintErrln("kubejoin:", sanitize(explain(err).Error()))
	}
	return fmt.Errorf("%d of %d failed", len(errs), n)
}
