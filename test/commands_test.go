package test

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
)

// command runs kubejoin on the cluster as its administrator does.
func (s *site) command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, append(args, "--kubeconfig="+s.Kubeconfig())...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// cli is command that must succeed, without a warning; it returns the output.
func (s *site) cli(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := s.command(t, args...)
	if code != 0 || stderr != "" {
		t.Fatalf("kubejoin %q: exit code %d\n%s", args, code, stderr)
	}
	return stdout
}

// joinBy makes a token with these flags, and returns the arguments after kubeadm join.
func (s *site) joinBy(t *testing.T, flags ...string) ([]string, tokens.Token) {
	t.Helper()
	s.leads(t) // or there is a warning
	args, err := cluster.JoinArgs(s.cli(t, append([]string{"token", "create", "--print-join-command"}, flags...)...))
	if err != nil {
		t.Fatal(err)
	}
	return args, s.created(t, args[slices.Index(args, "--token")+1])
}

// created is a token that was printed.
func (s *site) created(t *testing.T, printed string) tokens.Token {
	t.Helper()
	token, err := tokens.Parse(strings.TrimSpace(printed))
	if err != nil {
		t.Fatal(err)
	}
	s.known.add("token "+token.ID(), token.RevealSecret())
	return token
}

// explains waits until kubejoin explain says all of the texts in one line, and ends with that
// exit code.
func (s *site) explains(t *testing.T, node string, want int, texts ...string) {
	t.Helper()
	wait(t, "explain "+node, func() error {
		stdout, stderr, code := s.command(t, "explain", node)
		sentence, _, _ := strings.Cut(stdout, "\n")
		if code != want || stderr != "" || !containsAll(sentence, texts) {
			return fmt.Errorf("exit code %d, want %d and %q\n%s%s", code, want, texts, stdout, stderr)
		}
		return nil
	})
}

// tells waits for a line of a command's output with all of the texts.
func (s *site) tells(t *testing.T, args []string, texts ...string) {
	t.Helper()
	wait(t, strings.Join(args, " "), func() error {
		stdout, stderr, code := s.command(t, args...)
		for line := range strings.Lines(stdout) {
			if code == 0 && containsAll(line, texts) {
				return nil
			}
		}
		return fmt.Errorf("exit code %d, no line with %q in\n%s%s", code, texts, stdout, stderr)
	})
}

func containsAll(s string, texts []string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(s, text) })
}
