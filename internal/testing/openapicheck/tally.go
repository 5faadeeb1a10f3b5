package openapicheck

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A Tally counts findings by operation, status and problem. The zero Tally is empty.
type Tally struct {
	mu    sync.Mutex
	seen  map[string]map[string]int // by operation, then by status and problem
	wrong []string
	more  int
}

// mostWrong is how many wrong findings a Tally keeps as text. It only counts the others.
const mostWrong = 30

// Add counts a finding.
func (t *Tally) Add(f Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen == nil {
		t.seen = map[string]map[string]int{}
	}
	if t.seen[f.Operation] == nil {
		t.seen[f.Operation] = map[string]int{}
	}
	t.seen[f.Operation][strings.TrimSpace(fmt.Sprint(f.Status, " ", f.Problem))]++
	if f.Wrong == "" {
		return
	}
	if text := fmt.Sprintf("%s %d %s: %s", f.Operation, f.Status, f.Problem, f.Wrong); len(t.wrong) < mostWrong {
		t.wrong = append(t.wrong, text)
	} else {
		t.more++
	}
}

// AddFile adds the findings that processes appended to a file. It treats a missing file as empty.
func (t *Tally) AddFile(path string) error {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var f Result
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		t.Add(f)
	}
	return lines.Err()
}

// Append returns a function that appends findings to a file. It writes each line in one call, so that many processes
// can append to the same file.
func Append(path string) (func(Result), error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	return func(f Result) {
		line, err := json.Marshal(f)
		if err == nil {
			_, err = file.Write(append(line, '\n'))
		}
		if err != nil {
			panic(err) // a lost finding would look like success
		}
	}, nil
}

// Len returns the number of exchanges.
func (t *Tally) Len() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, outcomes := range t.seen {
		for _, count := range outcomes {
			n += count
		}
	}
	return n
}

// Unseen returns the IDs of the operations without a response of a status less than below.
func (t *Tally) Unseen(d *Document, below int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var unseen []string
	for _, op := range d.Operations {
		good := false
		for outcome := range t.seen[op.ID] {
			good = good || outcome < strconv.Itoa(below)
		}
		if !good {
			unseen = append(unseen, op.ID)
		}
	}
	return unseen
}

// UnseenProblems returns the problems that operations describe but no response had.
func (t *Tally) UnseenProblems(d *Document) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	unseen := map[string]bool{}
	for _, op := range d.Operations {
		for _, problem := range op.Problems {
			unseen[problem] = true
		}
	}
	for _, outcomes := range t.seen {
		for outcome := range outcomes {
			if _, problem, found := strings.Cut(outcome, " "); found {
				delete(unseen, problem)
			}
		}
	}
	return slices.Sorted(maps.Keys(unseen))
}

// Err returns an error with the exchanges that differ from the description, or nil.
func (t *Tally) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.wrong) == 0 {
		return nil
	}
	text := strings.Join(t.wrong, "\n")
	if t.more > 0 {
		text += fmt.Sprintf("\nand %d more", t.more)
	}
	return fmt.Errorf("answers that are not as openapi.yaml describes them:\n%s", text)
}

// String returns the number of responses by operation and status.
func (t *Tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	total, byOperation := 0, []string{}
	for _, id := range slices.Sorted(maps.Keys(t.seen)) {
		n, byStatus := 0, map[string]int{}
		for outcome, count := range t.seen[id] {
			n += count
			byStatus[outcome[:3]] += count
		}
		var statuses []string
		for _, status := range slices.Sorted(maps.Keys(byStatus)) {
			statuses = append(statuses, fmt.Sprintf("%d of %s", byStatus[status], status))
		}
		byOperation = append(byOperation, fmt.Sprintf("  %s: %s", id, strings.Join(statuses, ", ")))
		total += n
	}
	return fmt.Sprintf("%d responses held against openapi.yaml:\n%s", total, strings.Join(byOperation, "\n"))
}
