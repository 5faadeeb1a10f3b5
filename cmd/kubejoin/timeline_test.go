package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/server/api"
	facts "github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/rogpeppe/go-internal/testscript"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A joinServer is a server that returns how far machines have joined.
type joinServer struct {
	*webServer
	mu      sync.Mutex
	all     []api.Join
	nodes   int    // of token abcdef
	fails   string // how the next requests fail
	queries []string
}

// newJoinServer starts a server, and writes a curlrc for it.
func newJoinServer(t *testing.T) *joinServer {
	t.Helper()
	s := &joinServer{}
	s.webServer = newWebServer(t, func(handler http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			fails := s.fails
			s.queries = append(s.queries, r.URL.RawQuery)
			s.mu.Unlock()
			switch fails {
			case "connection":
				panic(http.ErrAbortHandler)
			case "credential":
				r.Header.Set("Authorization", "Bearer expired-0123456789abcdef")
			}
			handler.ServeHTTP(w, r)
		})
	})
	s.joins = s.list
	curlrc := fmt.Sprintf("cacert = %q\nheader = \"Authorization: Bearer %s\"\n", filepath.Join(s.dir, "ca"), must.Value(os.ReadFile(filepath.Join(s.dir, "bearer")))(t))
	must.OK(t, os.WriteFile(filepath.Join(s.dir, "curlrc"), []byte(curlrc), 0o600))
	return s
}

func (s *joinServer) list(node, token string) (api.JoinList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token != "" && (s.fails == "token" || token != "abcdef") {
		return api.JoinList{}, tokens.ErrNotFound
	}
	if s.fails == "connection" {
		return api.JoinList{}, errors.New("the server stops")
	}
	var all []api.Join
	if s.fails == "credential" { // a change ends the long poll
		return facts.JoinList(all), nil
	}
	for _, j := range s.all {
		content, _ := json.Marshal(j)
		sum := sha256.Sum256(content)
		j.SortKey, j.Version = fmt.Sprint(slices.Index(api.JoinStates, j.State), j.Node), string(sum[:8])
		if (node == "" || j.Node == node) && (token == "" || j.TokenID == token) {
			all = append(all, j)
		}
	}
	list := facts.JoinList(all)
	if token != "" {
		list.Nodes = s.nodes
	}
	return list, nil
}

// set changes what the server returns.
func (s *joinServer) set(nodes int, fails string, all ...api.Join) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all, s.nodes, s.fails = all, nodes, fails
}

// machine returns a machine with a state for each step: = (done), . (waiting), x (refused), ? (unknown).
func machine(node string, state api.JoinState, steps string, reason api.NodeState) api.Join {
	j := api.Join{Node: node, State: state, Reason: reason, TokenID: "abcdef", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	names := []string{api.StepToken, api.StepRequested, api.StepClaimed, api.StepIssued, api.StepRegistered, api.StepReady}
	for i, mark := range steps {
		step := api.JoinStep{Name: names[i], State: map[rune]string{'=': api.StepDone, '.': api.StepWaiting, 'x': api.StepRefused, '?': api.StepUnknown}[mark]}
		if mark == '=' || mark == 'x' {
			step.At = j.Since
		}
		j.Steps = append(j.Steps, step)
	}
	if state == api.JoinStuck {
		j.Sentence, j.Next = node+": refused 5 s ago: token abcdef is spent", []string{"kubejoin token create --max-nodes 1 --node-name " + node}
	}
	return j
}

// TestTimeline runs kubejoin timeline with a server whose machines the script changes: machines NODES [NODE/STATE/STEPS/REASON]...
// NODES is the limit of the token. fails HOW makes requests fail. seen FILE REGEXP waits until a file matches.
func TestTimeline(t *testing.T) {
	t.Parallel()
	s := newJoinServer(t)
	testscript.Run(t, testscript.Params{
		Files: []string{"testdata/timeline.txtar"}, RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("KUBEJOIN_CURLRC", filepath.Join(s.dir, "curlrc"))
			e.Setenv("KUBEJOIN_URL", s.url)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"machines": func(ts *testscript.TestScript, _ bool, args []string) {
				var all []api.Join
				for _, arg := range args[1:] {
					parts := strings.Split(arg, "/")
					all = append(all, machine(parts[0], api.JoinState(parts[1]), parts[2], api.NodeState(parts[3])))
				}
				var nodes int
				_, err := fmt.Sscan(args[0], &nodes)
				ts.Check(err)
				s.set(nodes, "", all...)
			},
			"fails": func(_ *testscript.TestScript, _ bool, args []string) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.fails = args[0]
			},
			"seen": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(wait.Poll(wait.Most, func() error {
					content, _ := os.ReadFile(ts.MkAbs(args[0])) // the file may not exist yet
					if !regexp.MustCompile(args[1]).Match(content) {
						return fmt.Errorf("%s does not match %s:\n%s", args[0], args[1], content)
					}
					return nil
				}))
			},
		},
	})
}

// hostile returns a machine with a text in each field.
func hostile(text string) api.Join {
	j := machine(text, api.JoinStuck, "==.x..", api.NodeState(text))
	j.TokenID, j.Sentence, j.Next, j.Steps[0].Name, j.Steps[0].State = text, text, []string{text}, text, text
	return j
}

// A machine or a server must not control the terminal, or add lines that look like another machine.
func TestTimelineShowsHostileTextAsText(t *testing.T) {
	t.Parallel()
	const text = "a\x1b[2J\u202eb\x9b\u009bc\nworker-1   joined\r\u2028\u200b表表"
	var out strings.Builder
	j := hostile(text)
	list := api.JoinList{Items: []api.Join{j}, Counts: map[api.JoinState]int{api.JoinStuck: 1}, Unread: []api.UnreadFact{{Fact: text, Reason: text}}}
	var o timelineOptions
	o.format = "text"
	must.OK(t, o.show(&out, "", list))
	must.OK(t, o.show(&out, "worker-1", list))
	for _, format := range []string{"text", "name"} {
		must.OK(t, (&changes{w: &out, format: format}).show(list))
	}
	if got := out.String(); strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		t.Errorf("got %q", got)
	}
	out.Reset()
	must.OK(t, (&changes{w: &out, format: "text"}).show(list))
	if got := out.String(); strings.Count(got, "\n") != 1 {
		t.Errorf("got %q, want one line", got)
	}
}

// The table must fit on each terminal, with the summary as its last line.
func TestTimelineFitsOnTerminal(t *testing.T) {
	t.Parallel()
	list := api.JoinList{Counts: map[api.JoinState]int{api.JoinStuck: 30, api.JoinJoined: 10}, Unread: []api.UnreadFact{{Fact: "claim", Reason: "forbidden"}}}
	for i := range 40 {
		j := machine(fmt.Sprintf("worker-%02d", i), api.JoinStuck, "==.x..", "TokenSpent")
		if i == 1 {
			j = hostile(strings.Repeat("表", 300))
			j.TokenID = ""
		}
		if i >= 30 {
			j = machine(j.Node, api.JoinJoined, "======", api.Joined)
		}
		list.Items = append(list.Items, j)
	}
	for _, size := range [][2]int{{80, 24}, {20, 8}, {300, 100}, {80, 3}, {80, 2}, {1, 1}, {2, 50}, {40, 200}} {
		text := screen(list, time.Now(), size[0], size[1])
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) > max(size[1]-1, 1) {
			t.Errorf("%v: got %d lines\n%s", size, len(lines), text)
		}
		for _, line := range lines {
			if len(line) > size[0] { // no character has more columns than bytes
				t.Errorf("%v: got %q", size, line)
			}
		}
		if last := lines[len(lines)-1]; size[0] >= 80 && !strings.HasPrefix(last, "10 of 40 joined, 30 wait: 29 TokenSpent, ") {
			t.Errorf("%v: got the last line %q", size, last)
		}
		if size == [2]int{80, 24} && (len(lines) != 23 || !strings.HasPrefix(lines[10], "worker-09 ") || !strings.HasSuffix(lines[10], " TokenSpent") || !strings.HasPrefix(lines[11], "worker-00: refused")) {
			t.Errorf("%v: got\n%s", size, text)
		}
	}
	if text := screen(list, time.Now(), math.MaxInt, math.MaxInt); strings.Count(text, "\n") < 100 {
		t.Errorf("without a terminal: got\n%s", text)
	}
}

// A list has at most 200 machines. The command must read all pages, with the filter on each.
func TestTimelineReadsAllPages(t *testing.T) {
	t.Parallel()
	s := newJoinServer(t)
	var all []api.Join
	for i := range 450 {
		all = append(all, machine(fmt.Sprintf("worker-%03d", i), api.JoinJoined, "======", api.Joined))
	}
	s.set(450, "", all...)
	for _, flags := range [][]string{{}, {"--watch"}} {
		out, err := s.run(t, "", append([]string{"timeline", "--token", "abcdef.q4sfk29dls0w8fj2", "-o", "name"}, flags...)...)
		names := strings.Fields(out)
		if err != nil || len(names) != 450 || !slices.IsSorted(names) {
			t.Errorf("%v: got %d names (%v), want 450", flags, len(names), err)
		}
	}
	for _, q := range s.queries {
		if !strings.Contains(q, "token=abcdef") || strings.Contains(q, "q4s") {
			t.Errorf("got query %s, want the ID of the token", q)
		}
	}
}

// In a pipe, a change must be printed once. With a kubeconfig, a list has fields that change each minute.
func TestTimelinePrintsEachChangeOnce(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c, j := changes{w: &out, format: "text"}, machine("worker-1", api.JoinStuck, "==.x..", "TokenSpent")
	for _, change := range []func(){
		func() {},
		func() {}, func() { j.Version, j.Sentence = "2", "worker-1: refused 6 s ago: token abcdef is spent" },
		func() { j.Since = j.Since.Add(time.Hour) },
		func() { j = machine("worker-1", api.JoinJoined, "======", api.Joined) },
	} {
		change()
		must.OK(t, c.show(api.JoinList{Items: []api.Join{j}}))
	}
	if got := out.String(); strings.Count(got, "\n") != 3 || strings.Count(got, " ==.x.. TokenSpent worker-1: refused ") != 2 || !strings.HasSuffix(got, " worker-1 joined ====== Joined\n") {
		t.Errorf("got\n%s", got)
	}
}

// --watch must not hide behind retries that a credential has ended, or that the caller lost a permission.
func TestTimelineRetriesWhatMaySucceed(t *testing.T) {
	t.Parallel()
	unavailable := func(err error) error { return &tokens.Refusal{Reason: "cluster-unavailable", Err: err, Retry: true} }
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"no connection":          {&net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		"server restarts":        {&api.Problem{Status: 503}, true},
		"too many requests":      {&api.Problem{Status: 429}, true},
		"credential has ended":   {&api.Problem{Status: 401}, false},
		"permission has ended":   {&api.Problem{Status: 403}, false},
		"API server restarts":    {unavailable(&net.OpError{Op: "dial", Err: errors.New("refused")}), true},
		"kubeconfig has ended":   {unavailable(fmt.Errorf("the Node: %w", apierrors.NewUnauthorized("expired"))), false},
		"refused by the library": {&tokens.Refusal{Reason: "forbidden"}, false},
	} {
		if got := mayRetry(test.err); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// After Ctrl-C, the command must end at once, also while it waits for a retry.
func TestTimelineEndsAfterInterrupt(t *testing.T) {
	t.Parallel()
	for _, fails := range []string{"", "connection"} {
		s := newJoinServer(t)
		s.set(2, "", machine("worker-1", api.JoinJoining, "===...", "NotSigned"))
		ctx, interrupt := context.WithCancel(t.Context())
		var out, errs lines
		ended := make(chan error)
		go func() { ended <- run(ctx, s.args("", "timeline", "--watch"), &out, &errs) }()
		wait.OK(t, "the machine", func() error {
			if !strings.Contains(out.String(), "worker-1") {
				return fmt.Errorf("got %q", out.String())
			}
			return nil
		})
		if fails != "" {
			s.set(2, fails)
			wait.OK(t, "a retry", func() error {
				if !strings.Contains(errs.String(), "retrying in 2s") {
					return fmt.Errorf("got %q", errs.String())
				}
				return nil
			})
		}
		interrupt()
		if err := <-ended; err == nil {
			t.Errorf("%s: got no error", fails)
		}
	}
}
