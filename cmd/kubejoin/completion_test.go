package main

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/internal/codes/codepage"
	"github.com/spf13/cobra"
)

// A shell must not wait for a server that does not respond.
func TestCompletionGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, answer := remoteOptions{url: "https://127.0.0.1:1"}, make(chan struct{})
		defer close(answer)
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		names, directive := o.offer(1, func(context.Context, *remote) []string {
			<-answer
			return []string{"late"}
		})(cmd, nil, "")
		if len(names) > 0 || directive != cobra.ShellCompDirectiveNoFileComp {
			t.Errorf("got %q, %v", names, directive)
		}
	})
}

// Only commands that explain codes may parse openapi.yaml and the alert rules, because that takes time.
func TestCommandsReadNoCodes(t *testing.T) {
	all, read := codepage.All, false
	t.Cleanup(func() { codepage.All = all })
	codepage.All = func() ([]codepage.Entry, error) {
		read = true
		return all()
	}
	if rootCommand(); read {
		t.Error("the tree of commands reads all codes")
	}
	if names := codeNames(completable.MatchString); len(names) == 0 || !read {
		t.Errorf("codeNames returns %q, and has read codes: %t", names, read)
	}
}

// Completion must skip names from a server that a shell would interpret, such as $(…).
func TestCompletionSkipsUnsafeNames(t *testing.T) {
	o := remoteOptions{url: "https://127.0.0.1:1"}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	names, _ := o.offer(2, func(context.Context, *remote) []string {
		return []string{"worker-8", "$(reboot)", "--all", "-x", "a b", "worker-7\tx\n", "worker-7", "worker-7", "worker-9"}
	})(cmd, []string{"worker-9"}, "")
	if len(names) != 2 || names[0] != "worker-7" || names[1] != "worker-8" {
		t.Errorf("got %q, want worker-7 and worker-8", names)
	}
}
