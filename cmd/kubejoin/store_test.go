package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/storecopy"
	"github.com/spf13/cobra"
)

// Catches a copy that prints nothing for minutes, for example while it compares the issuance record.
func TestReportsProgressOfCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		cmd := &cobra.Command{}
		cmd.SetErr(&out)
		report := copied(cmd)
		for _, step := range []struct {
			after    time.Duration
			compared int
			want     string
		}{
			{longWait - 1, 0, ""},
			{1, 0, "kubejoin: copied 1 tokens, 2 claims, 3 revocations and 4 entries of the issuance record\n"},
			{longWait - 1, 3, ""},
			{1, 3, "kubejoin: copied 1 tokens, 2 claims, 3 revocations and 4 entries of the issuance record; compared 3 of 4 entries\n"},
		} {
			out.Reset()
			time.Sleep(step.after) // sleeps on the fake clock
			if report(storecopy.Counts{Tokens: 1, Claims: 2, Revocations: 3, IssuanceEntries: 4}, step.compared); out.String() != step.want {
				t.Errorf("after %s: got %q, want %q", step.after, out.String(), step.want)
			}
		}
	})
}
