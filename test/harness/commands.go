package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
)

// RunKubejoin runs a kubejoin command on the cluster as its administrator.
func (s *Site) RunKubejoin(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), Kubejoin(), append(args, "--kubeconfig="+s.Kubeconfig())...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

var progress = regexp.MustCompile(`(?m)^kubejoin: (waiting .*|the list is empty|warning: no other machine can join with this command: .*)\n`)

// CLI is [Site.RunKubejoin], but fails the test on an error or a warning. On a busy machine, the command may print that it
// waits. CLI returns the output.
func (s *Site) CLI(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := s.RunKubejoin(t, args...)
	if code != 0 || progress.ReplaceAllString(stderr, "") != "" {
		t.Fatalf("kubejoin %q: exit code %d\n%s", args, code, stderr)
	}
	return stdout
}

// JoinArgsByCLI creates a token with 'kubejoin token create', and returns the arguments after kubeadm join.
func (s *Site) JoinArgsByCLI(t *testing.T, flags ...string) ([]string, tokens.Token) {
	t.Helper()
	s.WaitLeader(t) // without a leader, the command prints a warning
	args := must.Value(cluster.JoinArgs(s.CLI(t, append([]string{"token", "create", "--print-join-command"}, flags...)...)))(t)
	return args, s.ParseToken(t, args[slices.Index(args, "--token")+1])
}

// ParseToken parses a token that a command printed, and adds it to the secrets.
func (s *Site) ParseToken(t *testing.T, printed string) tokens.Token {
	t.Helper()
	token := must.Value(tokens.Parse(strings.TrimSpace(printed)))(t)
	s.Secrets.Add("token "+token.ID(), token.RevealSecret())
	return token
}

// WaitExplain waits until the first line of kubejoin explain contains all texts and its exit code is want.
func (s *Site) WaitExplain(t *testing.T, node string, want int, texts ...string) {
	t.Helper()
	Wait(t, "explain "+node, func() error {
		stdout, stderr, code := s.RunKubejoin(t, "explain", node)
		sentence, _, _ := strings.Cut(stdout, "\n")
		if code != want || stderr != "" || !containsAll(sentence, texts) {
			return fmt.Errorf("exit code %d, want %d and %q\n%s%s", code, want, texts, stdout, stderr)
		}
		return nil
	})
}

// WaitOutput waits until a line of a command's output contains all texts.
func (s *Site) WaitOutput(t *testing.T, args []string, texts ...string) {
	t.Helper()
	Wait(t, strings.Join(args, " "), func() error {
		stdout, stderr, code := s.RunKubejoin(t, args...)
		for line := range strings.Lines(stdout) {
			if code == 0 && containsAll(line, texts) {
				return nil
			}
		}
		return fmt.Errorf("exit code %d, no line with %q in\n%s%s", code, texts, stdout, stderr)
	})
}

// WaitUnclaimed waits until no token holds a node name.
func (s *Site) WaitUnclaimed(t *testing.T, node string) {
	t.Helper()
	Wait(t, "the end of the claim of "+node, func() error {
		if claims := strings.Fields(s.CLI(t, "claim", "list", "-o", "name")); slices.Contains(claims, node) {
			return fmt.Errorf("got claims %q", claims)
		}
		return nil
	})
}

func containsAll(s string, texts []string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(s, text) })
}
