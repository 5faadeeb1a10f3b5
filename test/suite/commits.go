package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxSubject is the maximum length of the first line of a commit message, in characters.
const maxSubject = 72

var subject = regexp.MustCompile(`^[a-z0-9/.,_-]+: \S`)

// checkCommit returns what is wrong with a commit message, or "".
func checkCommit(message string) string {
	first, body, _ := strings.Cut(strings.TrimSpace(message), "\n")
	switch {
	case utf8.RuneCountInString(first) > maxSubject:
		return fmt.Sprintf("the subject has %d characters, want at most %d", utf8.RuneCountInString(first), maxSubject)
	case !subject.MatchString(first):
		return "want a subject such as 'signer: count a claim once'"
	case strings.Contains(first, "; "):
		return "the subject names two changes: want one"
	case strings.TrimSpace(body) == "":
		return "there is no body: want an empty line, and then why the change is made"
	}
	return ""
}

// checkCommits checks the messages of the commits that the main branch does not have. If there are none, it checks the last
// commit.
func checkCommits(ctx context.Context, out io.Writer) error {
	git := func(args ...string) (string, error) {
		output, err := exec.CommandContext(ctx, "git", args...).Output()
		return strings.TrimSpace(string(output)), err
	}
	if _, err := git("rev-parse", "HEAD"); err != nil {
		_, err := fmt.Fprintln(out, "commits: not checked, this is not a git clone")
		return err
	}
	commits := "-1"
	for _, base := range []string{"origin/main", "main"} {
		if ahead, err := git("rev-list", "--count", base+"..HEAD"); err == nil && ahead != "0" {
			commits = base + "..HEAD"
			break
		}
	}
	if commits == "-1" {
		if _, err := fmt.Fprintln(out, "commits: the main branch has all of them, so only the last one is checked"); err != nil {
			return err
		}
	}
	log, err := git("log", "--no-merges", "--format=%h%n%B%x00", commits)
	if err != nil {
		return fmt.Errorf("git log %s: %w", commits, err)
	}
	var errs []error
	for commit := range strings.SplitSeq(log, "\x00") {
		hash, message, _ := strings.Cut(strings.TrimSpace(commit), "\n")
		if wrong := checkCommit(message); hash != "" && wrong != "" {
			first, _, _ := strings.Cut(message, "\n")
			errs = append(errs, fmt.Errorf("commit %s %q: %s", hash, first, wrong))
		}
	}
	return errors.Join(errs...)
}
