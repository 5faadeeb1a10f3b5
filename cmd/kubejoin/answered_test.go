package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/server"
)

// Scripts run this test binary as kubejoin. So check its responses as in a build with the tag apicheck.
func init() { wrapHandler = openapicheck.Served(server.OpenAPI()) }

// A release build must not contain the check of responses: it costs time and memory.
func TestReleaseBuildExcludesResponseCheck(t *testing.T) {
	t.Parallel()
	for tags, want := range map[string]bool{"": false, "apicheck": true} {
		out := must.Value(exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, ".").Output())(t)
		if has := strings.Contains(string(out), "/internal/testing/openapicheck\n"); has != want {
			t.Errorf("tags %q: program contains the check: got %t, want %t", tags, has, want)
		}
	}
}

// checkResponses compares the responses in all scripts with openapi.yaml.
func checkResponses(t *testing.T, file string) {
	var answers openapicheck.Tally
	err := answers.AddFile(file)
	t.Log(answers.String())
	if err = errors.Join(err, answers.Err()); err != nil {
		t.Error(err)
	}
	if answers.Len() == 0 {
		t.Error("got no responses in all scripts, so this check cannot fail")
	}
}
