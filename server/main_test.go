package server_test

import (
	"crypto/tls"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/server"
)

// described parses openapi.yaml. answered collects the responses of all handlers in the tests.
var (
	described = sync.OnceValues(func() (*openapicheck.Document, error) { return openapicheck.Parse(server.OpenAPI()) })
	answered  openapicheck.Tally
)

// TestMain checks every response of all tests against openapi.yaml.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := checkAnswered(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func checkAnswered() error {
	if len(flag.Args()) > 0 || flag.Lookup("test.fuzz").Value.String() != "" || flag.Lookup("test.list").Value.String() != "" {
		return nil
	}
	document, err := described()
	if err != nil {
		return err
	}
	fmt.Println(answered.String())
	if err := answered.Err(); err != nil {
		return err
	}
	if flag.Lookup("test.run").Value.String() != "" {
		return nil
	}
	if unseen := answered.Unseen(document, http.StatusBadRequest); len(unseen) > 0 {
		return fmt.Errorf("operations of openapi.yaml that no test got a response of: %q", unseen)
	}
	if unseen := answered.UnseenProblems(document); len(unseen) > 0 {
		return fmt.Errorf("problems of openapi.yaml that no test got: %q", unseen)
	}
	return nil
}

// checked returns a handler that checks the responses of h against openapi.yaml.
func checked(h http.Handler) http.Handler {
	document, err := described()
	if err != nil {
		panic(err)
	}
	return document.Handler(h, answered.Add)
}

// Handler returns the handler of the Server, checked against openapi.yaml.
func (s *site) Handler() http.Handler { return checked(must.Get(s.Server.Handler())) }

// HTTPServer returns the HTTP server of the Server, checked against openapi.yaml unless s is measured.
func (s *site) HTTPServer(config *tls.Config) *http.Server {
	web := must.Get(s.Server.HTTPServer(config))
	if !s.measured {
		web.Handler = checked(web.Handler)
	}
	return web
}
