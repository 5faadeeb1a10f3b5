package harness

import (
	"fmt"

	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/server"
)

// answers counts the responses of kubejoin processes in the tests of this package.
var answers openapicheck.Tally

// checkAnswers compares the responses in a file with openapi.yaml.
func checkAnswers(file string) error {
	if err := answers.AddFile(file); err != nil {
		return err
	}
	fmt.Println(answers.String())
	return answers.Err()
}

// OperationsAnswered fails if there is an operation of openapi.yaml to which no kubejoin process responded. The tests of
// package server check each operation with all its responses.
func OperationsAnswered() error {
	document, err := openapicheck.Parse(server.OpenAPI())
	if err != nil {
		return err
	}
	if unseen := answers.Unseen(document, 600); len(unseen) > 0 {
		return fmt.Errorf("operations of openapi.yaml that no test requested: %q", unseen)
	}
	return nil
}
