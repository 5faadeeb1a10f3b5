package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// timelineOptions are the flags of timeline.
type timelineOptions struct {
	remoteOutput
	token, state string
	watch        bool
}

func timelineCommand() *cobra.Command {
	var o timelineOptions
	cmd := &cobra.Command{
		Use:   "timeline [NODE]",
		Short: "Show how far machines have joined",
		Long: `Show how far machines have joined: those that have not finished, and those that registered
within the last hour. Stuck machines come first, each with the sentence and the next command
of 'kubejoin explain'. With NODE or --token, the time of joining does not matter.

A machine is stuck (it needs help, or takes longer than usual), joining, expected (a token or
a machine has the name, and nothing has come from it) or joined (its Node is Ready). STEPS has
a character for each step: token created, certificate requested, name claimed, certificate
issued, Node registered, Node Ready. It is = (done), . (not yet), x (refused) or ? (unknown,
for example because the request was deleted since). With NODE, each step is shown with its time.

--watch follows the changes until you press Ctrl-C: on a terminal as a table, and in a pipe as
one line for each change (-o json: one object in each line). With NODE or --token, it ends with
exit code 0 when that machine, or all nodes of the token, have joined. It ends with 3 if the
token expires before.

Without --watch, the exit code is 3 if the machine, or a node of the token, has not joined.` + remoteHelp,
		Example: `  kubejoin timeline
  kubejoin timeline worker-7

  # let 40 machines join, and wait for them
  kubejoin token create --max-nodes 40 --print-join-command
  kubejoin timeline --token abcdef --watch

  # what is stuck, for scripts
  kubejoin timeline --state stuck -o jsonpath='{.items[*].node}'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := o.request(args)
			if err != nil {
				return err
			}
			if o.watch {
				return o.follow(cmd, req)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				list, err := allJoins(ctx, r, req)
				if err != nil {
					return err
				}
				err = o.show(cmd.OutOrStdout(), req, list)
				if err == nil && (req.Node != "" || req.Token != "") && !allJoined(req, list) {
					err = exitNotJoined
				}
				return err
			})
		},
		ValidArgsFunction: o.offer(1, listNodes),
	}
	f := cmd.Flags()
	f.StringVar(&o.token, "token", "", "only machines of the token with this ID")
	f.StringVar(&o.state, "state", "", "only machines in this state: stuck, joining, expected or joined")
	f.BoolVarP(&o.watch, "watch", "w", false, "follow the changes")
	heading(f, "Timeline flags", "token", "state", "watch")
	o.offerFlag(cmd, "token", listTokenIDs)
	complete(cmd, "state", "stuck", "joining", "expected", "joined")
	o.output.register(cmd, "text")
	o.remoteOptions.register(cmd)
	return cmd
}

// request returns the request that the command line describes.
func (o *timelineOptions) request(args []string) (api.ListJoins, error) {
	req := api.ListJoins{Token: o.token, State: o.state}
	var m mistakes
	if len(args) > 0 {
		req.Node = args[0]
		m.in("NODE", tokens.CheckNodeName(req.Node))
	}
	if o.token != "" {
		m.in("--token", tokens.CheckID(o.token))
	}
	m.when(o.state != "" && !slices.Contains(api.JoinStates, api.JoinState(o.state)), "--state: %.40q given, want stuck, joining, expected or joined", o.state)
	m.when(o.watch && (o.format == "yaml" || o.template != nil), "--output: want text, json or name with --watch")
	return req, m.first()
}

// allJoins returns all pages of the machines.
func allJoins(ctx context.Context, r *remote, req api.ListJoins) (api.JoinList, error) {
	all, err := r.ListJoins(ctx, req)
	for next := all.Continue; err == nil && next != ""; {
		var page api.JoinList
		page, err = r.ListJoins(ctx, api.ListJoins{Node: req.Node, Token: req.Token, State: req.State, Continue: next})
		all.Items, next = append(all.Items, page.Items...), page.Continue
	}
	all.Continue = ""
	return all, err
}

// total returns how many machines are to join.
func total(list api.JoinList) int {
	sum := 0
	for _, n := range list.Counts {
		sum += n
	}
	return max(sum, list.Nodes)
}

// allJoined reports whether the machine, or all nodes of the token, have joined. A token without a limit can let in others at
// any time.
func allJoined(req api.ListJoins, list api.JoinList) bool {
	joined := list.Counts[api.JoinJoined]
	return joined > 0 && joined >= total(list) && (req.Node != "" || list.Nodes > 0)
}

// show prints the machines once.
func (o *timelineOptions) show(w io.Writer, req api.ListJoins, list api.JoinList) error {
	if done, err := o.object(w, list); done {
		return err
	}
	if o.format == "name" {
		for _, j := range list.Items {
			fmt.Fprintln(w, sanitize(j.Node))
		}
		return nil
	}
	if req.Node != "" && len(list.Items) == 0 {
		return fmt.Errorf("there is nothing about a machine %s; see 'kubejoin explain %[1]s'", req.Node)
	}
	if req.Node != "" {
		_, err := io.WriteString(w, story(list.Items[0]))
		return err
	}
	_, err := io.WriteString(w, screen(list, time.Now(), 0, 0))
	return err
}

// story returns the steps of one machine.
func story(j api.Join) string {
	rows := [][]string{{"STEP", "STATE", "TIME"}}
	for _, s := range j.Steps {
		rows = append(rows, []string{s.Name, s.State, stamp(s.At, "")})
	}
	text := fmt.Sprintf("%s is %s (%s) since %s, with token %s\n", j.Node, j.State, j.Reason, stamp(j.Since, "an unknown time"), cmp.Or(j.TokenID, "<unknown>"))
	return sanitize(text) + tableText(rows) + advice(j)
}

// advice returns the sentence and the commands about a machine that is stuck.
func advice(j api.Join) string {
	if j.Sentence == "" {
		return ""
	}
	return sanitize(api.NodeExplanation{Sentence: j.Sentence, Next: j.Next}.Text())
}

var stepMarks = map[string]string{api.StepDone: "=", api.StepWaiting: ".", api.StepRefused: "x", api.StepUnknown: "?"}

// bar returns a character for each step of a machine.
func bar(j api.Join) (marks string) {
	for _, s := range j.Steps {
		marks += cmp.Or(stepMarks[s.State], "?")
	}
	return marks
}

// maxAdvice is how many machines get their sentence under the table.
const maxAdvice = 5

// screen returns the table of the machines, the sentences of stuck ones, and the summary as the last line. With a width and a
// height, it fits on a terminal of that size.
func screen(list api.JoinList, now time.Time, width, height int) string {
	var below []string
	for _, j := range list.Items[:min(len(list.Items), maxAdvice)] {
		if j.State == api.JoinStuck {
			below = append(below, strings.Split(strings.TrimSuffix(advice(j), "\n"), "\n")...)
		}
	}
	for _, u := range list.Unread {
		below = append(below, sanitize(fmt.Sprintf("%s could not be read: %s", u.Fact, u.Reason)))
	}
	below = append(below, summary(list))
	items := list.Items
	if width > 0 {
		for i, line := range below {
			below[i] = safetext.Text(line, width)
		}
		if room := height - 2 - len(below); len(items) > room { // the heading, and the cursor
			items = items[:max(room-1, 0)]
			below = append([]string{fmt.Sprintf("... and %d more", len(list.Items)-len(items))}, below...)
		}
	}
	rows := [][]string{{"NODE", "STATE", "FOR", "STEPS", "TOKEN", "REASON"}}
	for _, j := range items {
		rows = append(rows, []string{j.Node, string(j.State), age(j.Since, now), bar(j), cmp.Or(j.TokenID, "<unknown>"), string(j.Reason)})
	}
	lines := strings.Split(strings.TrimSuffix(tableText(rows), "\n"), "\n")
	if width > 0 {
		for i, line := range lines {
			lines[i] = safetext.Text(line, width)
		}
	}
	if len(list.Items) == 0 {
		lines = nil
	}
	return strings.Join(append(lines, below...), "\n") + "\n"
}

// summary returns how many machines have joined, and why others have not.
func summary(list api.JoinList) string {
	total, joined := total(list), list.Counts[api.JoinJoined]
	if total == 0 {
		return "no machine joins, and none has registered within the last hour"
	}
	text := fmt.Sprintf("%d of %d joined", joined, total)
	wait := list.Counts[api.JoinStuck] + list.Counts[api.JoinJoining]
	if wait > 0 {
		reasons := map[string]int{}
		for _, j := range list.Items {
			if j.State == api.JoinStuck || j.State == api.JoinJoining {
				reasons[string(j.Reason)]++
			}
		}
		var words []string
		for reason, n := range reasons {
			words = append(words, fmt.Sprintf("%d %s", n, reason))
		}
		slices.Sort(words)
		text += fmt.Sprintf(", %d wait: %s", wait, strings.Join(words, ", "))
	}
	if missing := total - joined - wait; missing > 0 {
		text += fmt.Sprintf(", %d not seen", missing)
	}
	return sanitize(text)
}

const (
	// watchWait is how long one request of --watch waits for a change.
	watchWait = "30s"
	// watchRetry is the longest wait before a request that failed is sent again.
	watchRetry = 30 * time.Second
)

// follow shows the changes until all have joined or the token has ended.
func (o *timelineOptions) follow(cmd *cobra.Command, req api.ListJoins) error {
	o.running = cmd
	r, stop, err := o.connect(cmd.Context())
	if err != nil {
		return o.hint(err)
	}
	defer stop()
	return o.hint(explain(o.watchJoins(cmd, r, req)))
}

func (o *timelineOptions) watchJoins(cmd *cobra.Command, r *remote, req api.ListJoins) error {
	ctx, out, pause := cmd.Context(), newWatchOutput(cmd.OutOrStdout(), o), time.Second
	done := o.response().begin(cmd)
	list, err := allJoins(ctx, r, req)
	done()
	if err == nil && req.Token != "" && list.Nodes == 0 {
		progress(cmd, "token %s has no node limit, so the watch does not end by itself", req.Token)
	}
	for err == nil {
		if err = out.show(list); err != nil || allJoined(req, list) {
			return err
		}
		if err = change(ctx, r, req, &list); err == nil {
			pause = time.Second
			continue
		}
		if reasonOf(err) == mint.NoToken {
			progress(cmd, "%v; %s", err, summary(list))
			return exitNotJoined
		}
		if ctx.Err() == nil && mayRetry(err) {
			progress(cmd, "%v; retrying in %s", err, safetext.Duration(pause))
			out.lines = 0 // the next table begins under this line
			select {
			case <-time.After(pause):
				err = nil
			case <-ctx.Done():
			}
			pause = min(2*pause, watchRetry)
		}
	}
	return err
}

// change waits until the list has changed, for at most watchWait.
func change(ctx context.Context, r *remote, req api.ListJoins, list *api.JoinList) error {
	waits := req
	waits.After, waits.Wait = list.Cursor, watchWait
	changed, err := r.ListJoins(ctx, waits)
	if err != nil || changed.Cursor == list.Cursor {
		return err
	}
	now, err := allJoins(ctx, r, req)
	if err == nil {
		*list = now
	}
	return err
}

// mayRetry reports whether a request may succeed later.
func mayRetry(err error) bool {
	var p *api.Problem
	var refused *tokens.Refusal
	switch {
	case errors.As(err, &p):
		return p.Status >= http.StatusInternalServerError || p.Status == http.StatusTooManyRequests
	case errors.As(err, &refused):
		return refused.Retry
	}
	return true // of the network
}

// A watchOutput shows changes on a terminal or in a pipe.
type watchOutput struct {
	w        io.Writer
	options  *timelineOptions
	terminal *os.File // nil in a pipe, and with a format for programs
	lines    int      // on the terminal
	shown    map[string]api.Join
}

func newWatchOutput(w io.Writer, o *timelineOptions) *watchOutput {
	out := &watchOutput{w: w, options: o, shown: map[string]api.Join{}}
	if f, ok := w.(*os.File); ok && o.format == "text" && term.IsTerminal(int(f.Fd())) {
		out.terminal = f
	}
	return out
}

// show shows a list.
func (out *watchOutput) show(list api.JoinList) error {
	if out.terminal != nil {
		width, height, err := term.GetSize(int(out.terminal.Fd()))
		if err != nil {
			width, height = 80, 24
		}
		text := screen(list, time.Now(), width, height)
		if out.lines > 0 { // back to the first line, and clear all below
			text = fmt.Sprintf("\x1b[%dA\x1b[J", out.lines) + text
		}
		out.lines = strings.Count(text, "\n")
		_, err = io.WriteString(out.w, text)
		return err
	}
	now := map[string]api.Join{}
	for _, j := range list.Items {
		now[j.Node] = j
		if before, found := out.shown[j.Node]; found && sameJoin(before, j) {
			continue
		}
		if err := out.line(j); err != nil {
			return err
		}
	}
	out.shown = now
	return nil
}

// sameJoin reports whether nothing has happened between two views of a machine. The sentence says how long ago things happened.
func sameJoin(a, b api.Join) bool {
	a.Sentence, b.Sentence = "", ""
	return reflect.DeepEqual(a, b)
}

// line prints a machine that has changed.
func (out *watchOutput) line(j api.Join) (err error) {
	switch out.options.format {
	case "json":
		e := json.NewEncoder(out.w)
		e.SetEscapeHTML(false)
		return e.Encode(j)
	case "name":
		_, err = fmt.Fprintln(out.w, sanitize(j.Node))
		return err
	}
	text := fmt.Sprintf("%s %s %s %s %s", time.Now().UTC().Format(time.RFC3339), j.Node, j.State, bar(j), j.Reason)
	if j.Sentence != "" {
		text += " " + j.Sentence
	}
	_, err = fmt.Fprintln(out.w, sanitize(text))
	return err
}
