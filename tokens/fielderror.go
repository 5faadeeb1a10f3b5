package tokens

import "fmt"

// A FieldError says what is wrong with one field of a [Record], of [Limits] or of a [Claim].
type FieldError struct {
	// Field names the field as annotations do, such as "max-nodes". It is empty for an error that is
	// about no field.
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

// FieldErrors returns the errors that are joined in err, in their order: callers use it to give the
// fields in an error of [Record.Check] or [Limits.Check] the names that their own users know.
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
