package main

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
)

// longWait is how long a command waits before it prints what it waits for. Most commands take less, so they print nothing
// on standard error that a script could take for a warning.
const longWait = 2 * time.Second

// A waiting describes a wait: what for, as in "for the API server", and its limit. With the limit 0, parts of the wait may have limits.
type waiting struct {
	what string
	most time.Duration
}

// serverWait is how long a kubejoin server may take for a response: the longest wait that it allows, and a margin.
const serverWait = api.MaxWait + time.Minute

// begin prints what a command waits for, if the command prints nothing for longWait before it calls done. It never prints
// the line within or after the result.
func (w waiting) begin(cmd *cobra.Command) (done func()) {
	limit := "; Ctrl-C ends the wait"
	if w.most > 0 {
		limit = ", for at most " + safetext.Duration(w.most)
	}
	out := &silence{Writer: cmd.OutOrStdout(), since: time.Now()}
	out.mu.Lock()
	defer out.mu.Unlock()
	out.over = time.AfterFunc(longWait, func() {
		out.mu.Lock()
		defer out.mu.Unlock()
		if !out.ended && time.Since(out.since) >= longWait { // false if a write came first
			out.ended = true // one line for each wait
			progress(cmd, "waiting %s%s", w.what, limit)
		}
	})
	cmd.SetOut(out)
	return func() {
		out.mu.Lock()
		defer out.mu.Unlock()
		out.ended = true
		out.over.Stop()
		cmd.SetOut(out.Writer)
	}
}

// A silence is the standard output of a waiting command. It measures the time since the last write.
type silence struct {
	io.Writer
	mu    sync.Mutex
	since time.Time // the end of the last write
	over  *time.Timer
	ended bool // the wait, or its silence: no line follows
}

func (s *silence) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over.Stop() // a write to a pipe may take long
	n, err := s.Writer.Write(b)
	s.since = time.Now()
	s.over.Reset(longWait)
	return n, err
}

// or returns w, with its empty fields taken from other.
func (w waiting) or(other waiting) waiting {
	return waiting{cmp.Or(w.what, other.what), cmp.Or(w.most, other.most)}
}

// progress prints a line about progress to standard error, without colors, unless --quiet is given.
func progress(cmd *cobra.Command, format string, args ...any) {
	if quiet := cmd.Flag("quiet"); quiet == nil || quiet.Value.String() != "true" {
		cmd.PrintErrln("kubejoin:", sanitize(fmt.Sprintf(format, args...)))
	}
}
