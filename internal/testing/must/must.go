// Package must is for the setup of tests, where an error is a defect of the test.
package must

// Get returns v. It panics if err is not nil.
func Get[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
