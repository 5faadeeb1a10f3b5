package test

import (
	"flag"
	"fmt"

	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/server"
)

// checkAnswers holds what all kubejoins have answered in all the tests against openapi.yaml. Each
// of its operations has to have been asked; package server's own tests have each done.
func checkAnswers(file string) error {
	document, err := openapicheck.Parse(server.OpenAPI())
	if err != nil {
		return err
	}
	var answers openapicheck.Tally
	if err := answers.AddFile(file); err != nil {
		return err
	}
	fmt.Println(answers.String())
	if err := answers.Err(); err != nil {
		return err
	}
	if unseen := answers.Unseen(document, 600); len(unseen) > 0 && flag.Lookup("test.run").Value.String() == "" {
		return fmt.Errorf("operations of openapi.yaml that no kubejoin has answered: %q", unseen)
	}
	return nil
}
