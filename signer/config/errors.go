package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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

// Errors are all mistakes in a file, sorted by line, and never empty.
type Errors []*Error

// Error returns one line for each mistake.
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

// maxErrors limits the number of reported mistakes.
const maxErrors = 100

// asError sorts and limits the errors. It returns nil if there are none.
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
