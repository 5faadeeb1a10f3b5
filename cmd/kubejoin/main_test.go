package main

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
)

// A refusal must have the same exit code in all commands, whether it comes from a server or from the library.
func TestExitCodeOfRefusal(t *testing.T) {
	problem := func(name string) error { return &api.Problem{Type: api.ProblemType + name} }
	for name, test := range map[string]struct {
		err  error
		want int
	}{
		"credential":          {problem("unauthorized"), 3},
		"permission":          {problem("forbidden"), 3},
		"certificate waits":   {problem("certificate-waits"), 3},
		"overloaded":          {problem("overloaded"), 1},
		"token exists":        {problem("token-exists"), 1},
		"of a newer server":   {problem("unheard-of"), 1},
		"rule":                {approval.Refuse("no"), 3},
		"rotation":            {&rotation.NotReady{}, 3},
		"no rotation":         {rotation.ErrNone, 1},
		"library":             {&tokens.Refusal{Reason: "store-unavailable"}, 1},
		"command line":        {&usageError{err: problem("forbidden")}, 2},
		"timeout of rejoin":   {fmt.Errorf("no decision in time (%w): %w", exitRejoinTimeout, problem("certificate-waits")), 4},
		"another error":       {errors.New("no"), 1},
		"refusal with a hint": {fmt.Errorf("token create: %w; see the log", problem("revoked")), 3},
	} {
		if got := fail(io.Discard, test.err); got != test.want {
			t.Errorf("%s: got exit code %d, want %d", name, got, test.want)
		}
	}
}
