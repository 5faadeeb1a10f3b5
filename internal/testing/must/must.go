// Package must ends a test if its setup fails: an error there is a defect of the test.
package must

import "testing"

// Get returns v. It panics if err is not nil.
func Get[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// OK ends the test if err is not nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value returns v, or ends the test if err is not nil: content := must.Value(os.ReadFile(file))(t).
func Value[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return v
	}
}
