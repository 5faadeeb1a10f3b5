package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// An Error is one mistake in a file.
type Error struct {
	File string // as the caller gave it
	// Line counts from 1; 0 means the whole file.
	Line int
	// Field is a path such as "signers[2].duration.max"; empty if the file is not YAML.
	Field string
	// Message says what was given and what is expected.
	Message string
}

// Error returns text such as `signers.yaml:14: signers[2].duration.max: "3y" given, want a duration such as
// 720h`.
func (e *Error) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", where, e.Line)
	}
	if e.Field != "" {
		where += ": " + e.Field
	}
	return where + ": " + e.Message
}

// Errors are all mistakes in a file, sorted by line, and never empty.
type Errors []*Error

// Error returns one line for each mistake.
func (e Errors) Error() string { return errors.Join(e.Unwrap()...).Error() }

// With Unwrap, errors.As can find an [*Error].
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, err := range e {
		all[i] = err
	}
	return all
}

// maxErrors limits the number of reported mistakes.
const maxErrors = 100

// result returns a value that has no mistakes, or sorts and limits the mistakes.
func result[T any](value T, errs Errors) (T, error) {
	if len(errs) == 0 {
		return value, nil
	}
	slices.SortStableFunc(errs, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors:maxErrors], &Error{File: errs[0].File, Message: fmt.Sprintf("%d more errors", more)})
	}
	return *new(T), errs
}
