package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// runStages runs the stages and reports the result of each. The logs of failed tests are in dist/NAME.
func runStages(ctx context.Context, name string, stages []stage) error {
	r, err := newReport(os.Stdout, filepath.Join("dist", name))
	if err != nil {
		return err
	}
	var failed []string
	for i, s := range stages {
		var left time.Duration
		var names []string
		for _, s := range stages[i:] {
			left += s.usual
			names = append(names, s.name)
		}
		began := time.Now()
		r.printf("== %d/%d %s: %s (%s so far; left on a quiet machine: about %s for %s)\n", i+1, len(stages), s.name, s.about,
			short(time.Since(r.began)), short(left), strings.Join(names, ", "))
		ok := true
		for _, step := range s.steps {
			if err := step.execute(ctx, r); err != nil {
				ok = false
				r.printf("FAIL %s: %v\n", step.line(""), err)
			}
		}
		result := "ok"
		if !ok {
			result, failed = "FAIL", append(failed, s.name)
		}
		r.printf("== %s %s after %s\n", result, s.name, short(time.Since(began)))
		if ctx.Err() != nil || !ok && s.required {
			break
		}
	}
	r.close()
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s; the logs are in %s", strings.Join(failed, ", "), r.logs)
	}
	return nil
}

// short formats a duration without fractions of a second.
func short(d time.Duration) string { return d.Round(time.Second).String() }

// line returns the command of a step for a shell in the root of the repository. If test is not empty, the command runs only
// this test.
func (s step) line(test string, packages ...string) string {
	var words []string
	if s.dir != "" {
		words = append(words, "cd", s.dir, "&&")
	}
	words = append(append(words, s.env...), s.command...)
	if test != "" {
		words = append(words, "-run", "'"+test+"'")
	}
	return strings.Join(append(words, packages...), " ")
}

func (s step) execute(ctx context.Context, r *report) error {
	args := s.command[1:]
	if len(s.packages) > 0 {
		args = append(args[:len(args):len(args)], "-json")
		if s.run != "" {
			args = append(args, "-run", s.run)
		}
		for _, pkg := range s.packages {
			args = append(args, "./"+strings.TrimPrefix(pkg, "./"))
		}
	}
	cmd := exec.CommandContext(ctx, s.command[0], args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
	// Ctrl-C reaches the tests as well. They end the programs that they started.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	if len(s.packages) == 0 {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return cmd.Run()
	}
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = r.read(events, s)
	if err != nil {
		_, _ = io.Copy(io.Discard, events) // read the rest, so that the tests can end
	}
	return errors.Join(err, cmd.Wait())
}
