package server_test

import (
	"crypto/tls"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/server"
)

// described is openapi.yaml, and answered what handlers of tests have answered.
var (
	described = sync.OnceValues(func() (*openapicheck.Document, error) { return openapicheck.Parse(server.OpenAPI()) })
	answered  openapicheck.Tally
)

// TestMain holds every answer that is given in all the tests against openapi.yaml.
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
		return fmt.Errorf("operations of openapi.yaml that no test has had an answer of: %q", unseen)
	}
	if unseen := answered.UnseenProblems(document); len(unseen) > 0 {
		return fmt.Errorf("problems that openapi.yaml describes and no test has come upon: %q", unseen)
	}
	return nil
}

// checked is a handler whose answers are held against openapi.yaml.
func checked(h http.Handler) http.Handler {
	document, err := described()
	if err != nil {
		panic(err)
	}
	return document.Handler(h, answered.Add)
}

// Handler is that of the Server, checked.
func (s *site) Handler() http.Handler { return checked(s.Server.Handler()) }

// HTTPServer is that of the Server, checked.
func (s *site) HTTPServer(config *tls.Config) *http.Server {
	web := s.Server.HTTPServer(config)
	web.Handler = checked(web.Handler)
	return web
}
