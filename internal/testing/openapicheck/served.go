package openapicheck

import (
	"net/http"
	"os"
)

// Environment is the environment variable with the path of a file. A program built for tests appends its findings to this file.
const Environment = "KUBEJOIN_ANSWERS"

// Served returns a wrapper that checks a handler's responses against the description. It appends the findings to the
// file in [Environment]. If the variable is unset, the wrapper returns the handler unchanged.
func Served(description []byte) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		path := os.Getenv(Environment)
		if path == "" {
			return h
		}
		document, err := Parse(description)
		if err != nil {
			panic(err)
		}
		report, err := Append(path)
		if err != nil {
			panic(err)
		}
		return document.Handler(h, report)
	}
}
