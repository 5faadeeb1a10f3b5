package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
of 'kubejoin explain'. With NODE or --token, the list also has those that registered earlier.

A machine is stuck (it needs help, or takes longer than usual), joining, expected (a token or
'kubejoin machine add' names it, and no certificate request has arrived) or joined (its Node
is Ready). A refused machine leaves the list after an hour, unless a usable token or a claim
has its name.

STEPS has a character for each step: token created, certificate requested, name claimed,
certificate issued, Node registered, Node Ready. The character is = (done), . (not yet),
x (refused) or ? (unknown, for example because somebody deleted the request). With NODE, the
command prints the time of each step.

--watch follows the changes until you press Ctrl-C: on a terminal as a table, and in a pipe as
one line for each change (-o json: one object in each line). With NODE, or a --token with a
limit of nodes, it ends with exit code 0 when that machine, or all nodes of the token, have
joined. It ends with 3 if the token expires or is deleted before.

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
				if err == nil {
					err = o.show(cmd.OutOrStdout(), req.Node, list)
				}
				if err == nil && (req.Node != "" || req.Token != "") && !allJoined(list) {
					err = exitNotJoined
				}
				return err
			})
		},
		ValidArgsFunction: o.offer(1, listNodes),
	}
	f := cmd.Flags()
	parsedVar(f, &o.token, "token", "", "only machines of the token with this ID", tokenID)
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
		m.when(o.token != "" || o.state != "", "NODE: excludes --token and --state")
	}
	m.when(o.watch && (o.format == "yaml" || o.template != nil), "--output: want text, json or name with --watch")
	return req, m.first()
}

// allJoins returns all pages of the machines.
func allJoins(ctx context.Context, r *remote, req api.ListJoins) (api.JoinList, error) {
	all, err := r.ListJoins(ctx, req)
	for err == nil && all.Continue != "" {
		var page api.JoinList
		req.Continue = all.Continue
		page, err = r.ListJoins(ctx, req)
		all.Items, all.Continue = append(all.Items, page.Items...), page.Continue
	}
	return all, err
}

// total returns how many machines are to join: all nodes of a token, or else the machines so far.
func total(list api.JoinList) (sum int) {
	for _, n := range list.Counts {
		sum += n
	}
	return cmp.Or(list.Nodes, sum)
}

func allJoined(list api.JoinList) bool {
	joined := list.Counts[api.JoinJoined]
	return joined > 0 && joined >= total(list)
}

// show prints the machines once.
func (o *timelineOptions) show(w io.Writer, node string, machines api.JoinList) error {
	switch {
	case o.format != "text":
		return list(&o.output, w, machines, machines.Items, func(j api.Join) string { return j.Node }, nil, nil)
	case node == "":
		return o.text(w, nil, screen(machines, time.Now(), math.MaxInt, math.MaxInt))
	case len(machines.Items) == 0:
		return o.text(w, nil, fmt.Sprintf("%s: no machine of this name is known; see 'kubejoin explain %[1]s'\n", node))
	}
	j := machines.Items[0]
	rows := [][]string{{"STEP", "STATE", "TIME"}}
	for _, s := range j.Steps {
		rows = append(rows, []string{s.Name, s.State, stamp(s.At, "")})
	}
	title := fmt.Sprintf("%s is %s (%s) since %s, with token %s", j.Node, j.State, j.Reason, stamp(j.Since, "an unknown time"), cmp.Or(j.TokenID, "<unknown>"))
	return o.text(w, nil, oneLine(title)+"\n"+tableText(rows)+advice(j))
}

func oneLine(text string) string { return sanitize(strings.ReplaceAll(text, "\n", " ")) }

// advice returns the sentence and the commands about a machine that is stuck.
func advice(j api.Join) string {
	if j.Sentence == "" {
		return ""
	}
	return api.NodeExplanation{Sentence: j.Sentence, Next: j.Next}.Text()
}

var stepMarks = map[string]string{api.StepDone: "=", api.StepWaiting: ".", api.StepRefused: "x"}

// bar returns a character for each step of a machine.
func bar(j api.Join) (marks string) {
	for _, s := range j.Steps {
		marks += cmp.Or(stepMarks[s.State], "?")
	}
	return marks
}

// screen returns the table of the machines, the sentences of stuck ones, and the summary as the last line. It fits on a terminal.
func screen(list api.JoinList, now time.Time, width, height int) string {
	rows := [][]string{{"NODE", "STATE", "FOR", "STEPS", "TOKEN", "REASON"}}
	var notes strings.Builder
	for _, j := range list.Items[:min(len(list.Items), height)] {
		node := safetext.Text(j.Node, width/3) // so that a long name does not hide the other columns
		rows = append(rows, []string{node, string(j.State), age(j.Since, now), bar(j), cmp.Or(j.TokenID, "<unknown>"), string(j.Reason)})
		notes.WriteString(advice(j))
	}
	for _, u := range list.Unread {
		fmt.Fprintf(&notes, "%s could not be read: %s\n", u.Fact, u.Reason)
	}
	top, below := slices.Collect(strings.Lines(tableText(rows))), slices.Collect(strings.Lines(notes.String()))
	if len(list.Items) == 0 {
		top = nil
	}
	room := max(height-2, 0) // the summary, and the cursor
	below = below[:min(len(below), max(room/2, room-len(top)))]
	top = top[:min(len(top), room-len(below))]
	var text strings.Builder
	for _, line := range slices.Concat(top, below, []string{summary(list)}) {
		text.WriteString(safetext.Text(strings.TrimSuffix(line, "\n"), width) + "\n")
	}
	return text.String()
}

// summary returns how many machines have joined, and why others have not.
func summary(list api.JoinList) string {
	total, joined := total(list), list.Counts[api.JoinJoined]
	if total == 0 {
		return "no machine is joining"
	}
	text := fmt.Sprintf("%d of %d joined", joined, total)
	waiting := list.Counts[api.JoinStuck] + list.Counts[api.JoinJoining]
	if waiting > 0 {
		var reasons []string
		count := map[string]int{}
		for _, j := range list.Items {
			if reason := string(j.Reason); j.State == api.JoinStuck || j.State == api.JoinJoining {
				if count[reason]++; count[reason] == 1 {
					reasons = append(reasons, reason)
				}
			}
		}
		for i, reason := range reasons {
			reasons[i] = fmt.Sprintf("%d %s", count[reason], reason)
		}
		text += fmt.Sprintf(", %d wait: %s", waiting, strings.Join(reasons, ", "))
	}
	if missing := total - joined - waiting; missing > 0 {
		text += fmt.Sprintf(", %d not seen", missing)
	}
	return text
}

// watchWait is how long one request of --watch waits for a change, and the longest pause before a retry.
const watchWait = 30 * time.Second

// follow shows the changes until all have joined or the token has ended.
func (o *timelineOptions) follow(cmd *cobra.Command, req api.ListJoins) (err error) {
	defer func() { err = o.hint(explain(err)) }()
	o.running = cmd
	ctx, out := cmd.Context(), changes{w: cmd.OutOrStdout(), format: o.format}
	r, stop, err := o.connect(ctx)
	if err != nil {
		return err
	}
	defer stop()
	done := o.response().begin(cmd)
	list, err := allJoins(ctx, r, req)
	done()
	if err != nil {
		return err
	}
	limited := req.Node != "" || list.Nodes > 0
	if req.Token != "" && !limited {
		progress(cmd, "token %s has no node limit, so the watch does not end by itself", req.Token)
	}
	for pause := time.Second; ; {
		if err := out.show(list); err != nil || limited && allJoined(list) {
			return err
		}
		wait := req
		wait.After, wait.Wait = list.Cursor, watchWait.String()
		next, err := r.ListJoins(ctx, wait)
		if err == nil {
			next, err = allJoins(ctx, r, req)
		}
		switch {
		case err == nil:
			list, pause = next, time.Second
			continue
		case reasonOf(err) == mint.NoToken:
			return fmt.Errorf("%w; %s (%w)", err, summary(list), exitNotJoined)
		case ctx.Err() != nil || !mayRetry(err):
			return err
		}
		progress(cmd, "%v; retrying in %s", err, safetext.Duration(pause))
		if loop.Sleep(ctx, pause) != nil {
			return err
		}
		pause = min(2*pause, watchWait)
	}
}

// mayRetry reports whether a request may succeed later.
func mayRetry(err error) bool {
	var p *api.Problem
	var refused *tokens.Refusal
	if errors.As(err, &refused) {
		return refused.Retry && !apierrors.IsUnauthorized(err)
	}
	return !errors.As(err, &p) || p.Status >= http.StatusInternalServerError || p.Status == http.StatusTooManyRequests
}

// changes shows lists of machines on a terminal, or in a pipe what differs from the last list.
type changes struct {
	w      io.Writer
	format string
	height int               // of the terminal
	shown  map[string]string // in a pipe, by machine
}

func (c *changes) show(list api.JoinList) error {
	if f, ok := c.w.(*os.File); ok && c.format == "text" && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		width, height, _ := term.GetSize(int(f.Fd()))
		if width <= 0 || height <= 0 { // a serial console, or an error
			width, height = 80, 24
		}
		text := "\x1b[H\x1b[J" + screen(list, time.Now(), width, height)
		if height > c.height { // scroll what the terminal shows away before the table takes its place
			text = strings.Repeat("\n", height) + text
		}
		c.height = height
		_, err := io.WriteString(c.w, text)
		return err
	}
	before := c.shown
	c.shown = map[string]string{}
	for _, j := range list.Items {
		now := fmt.Sprint(j.State, j.Since, j.Reason, j.TokenID, j.Steps)
		if c.shown[j.Node] = now; before[j.Node] == now {
			continue
		}
		if err := c.line(j); err != nil {
			return err
		}
	}
	return nil
}

// line prints a machine that has changed.
func (c *changes) line(j api.Join) error {
	text := fmt.Sprintf("%s %s %s %s %s %s", time.Now().UTC().Format(time.RFC3339), j.Node, j.State, bar(j), j.Reason, j.Sentence)
	switch c.format {
	case "json":
		e := json.NewEncoder(c.w)
		e.SetEscapeHTML(false)
		return e.Encode(j)
	case "name":
		text = j.Node
	}
	_, err := fmt.Fprintln(c.w, strings.TrimSpace(oneLine(text)))
	return err
}
