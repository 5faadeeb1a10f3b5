package tokens

import "fmt"

// A FieldError describes an invalid field of a [Record], of [Limits] or of a [Claim].
type FieldError struct {
	// Field is the name of the field in annotations, such as "max-nodes". It is empty if the error
	// is not about a single field.
	Field string
	Err   error
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Err.Error()
	}
	return e.Field + ": " + e.Err.Error()
}

func (e *FieldError) Unwrap() error { return e.Err }

func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{field, fmt.Errorf(format, args...)}
}

// FieldErrors returns the errors that are joined in err, in the same order. With it, callers replace
// the field names in an error of [Record.Check] or [Limits.Check] by names that their users know.
func FieldErrors(err error) []*FieldError {
	switch e := err.(type) {
	case nil:
		return nil
	case *FieldError:
		return []*FieldError{e}
	case interface{ Unwrap() []error }:
		var all []*FieldError
		for _, err := range e.Unwrap() {
			all = append(all, FieldErrors(err)...)
		}
		return all
	}
	return []*FieldError{{Err: err}}
}
