package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
)

// longWait is how long a command waits before it says so. Scripts take a line on standard error for a warning, and most
// commands take less.
const longWait = 2 * time.Second

// A waiting describes a wait: what for, as in "for the API server", and its limit. The limit 0 means that the command waits until
// the other side responds.
type waiting struct {
	what string
	most time.Duration
}

// serverWait is how long a kubejoin server may take for a response: the longest wait that it allows, and a margin.
const serverWait = api.MaxWait + time.Minute

// begin prints what a command waits for, if it has not called done after longWait.
func (w waiting) begin(cmd *cobra.Command) (done func()) {
	limit := "until it responds or you press Ctrl-C"
	if w.most > 0 {
		limit = "for at most " + safetext.Duration(w.most)
	}
	slow := time.AfterFunc(longWait, func() { progress(cmd, "waiting %s, %s", w.what, limit) })
	return func() { slow.Stop() }
}

// or returns w with the fields of another one where it has none.
func (w waiting) or(other waiting) waiting {
	return waiting{cmp.Or(w.what, other.what), cmp.Or(w.most, other.most)}
}

// progress prints a line about progress to standard error, without colors, unless --quiet is given.
func progress(cmd *cobra.Command, format string, args ...any) {
	if quiet := cmd.Flag("quiet"); quiet == nil || quiet.Value.String() != "true" {
		cmd.PrintErrln("kubejoin:", sanitize(fmt.Sprintf(format, args...)))
	}
}
