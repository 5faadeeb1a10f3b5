package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An Error is one thing that is wrong with a file.
type Error struct {
	File string // as it was given
	// Line counts from 1; 0 is the file as a whole.
	Line int
	// Field is such as "signers[2].duration.max"; empty where the file is no YAML.
	Field string
	// Message says what was given and what is wanted.
	Message string
}

// Error is such as `signers.yaml:14: signers[2].duration.max: "3y" given, want a duration such as 720h`.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Field != "" {
		b.WriteString(": " + e.Field)
	}
	return b.String() + ": " + e.Message
}

// Errors is all that is wrong with a file, by line, and never empty.
type Errors []*Error

// Error has one line for each.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, err := range e {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find an [*Error].
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, err := range e {
		all[i] = err
	}
	return all
}

// maxErrors is as many as anybody reads.
const maxErrors = 100

// asError is nil without errors.
func (e Errors) asError() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	if more := len(e) - maxErrors; more > 0 {
		last := e[maxErrors-1]
		e = append(e[:maxErrors:maxErrors], &Error{File: last.File, Message: fmt.Sprintf("%d more errors", more)})
	}
	return e
}
