package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/foreign"
)

// A Check is one condition of being ready.
type Check struct {
	// Name is short, as in "tokens".
	Name string
	// Ready returns nil, or what is missing, in words that may be shown to anybody who can
	// reach the server, or a [Notice]. It returns soon after ctx ends.
	Ready func(ctx context.Context) error
}

// A Notice that a Check's Ready returns is no failure: something holds, and an operator should
// know more of it. /readyz?verbose shows it.
type Notice string

func (n Notice) Error() string { return string(n) }

// checkTimeout bounds a round of checks. A request to /readyz waits for two of them at most,
// which is below the usual probe's 10 s.
const checkTimeout = 2 * time.Second

// retryAfter is what a client is told to wait when something is away for the moment.
const retryAfter = 5 * time.Second

// Version is what this server was built from.
type Version struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// healthz says that the process answers; whether it is of any use is readyz's.
func (h *handler) healthz(*call) (response, error) {
	return response{contentType: "text/plain; charset=utf-8", body: []byte("ok\n")}, nil
}

// readyz asks all checks and, in the form of kube-apiserver's, lists them if one fails or
// ?verbose is given: one line for each, whatever names of objects it repeats.
func (h *handler) readyz(r *call) (response, error) {
	errs, err := h.check(r.Context())
	if err != nil {
		return response{}, err
	}
	var list bytes.Buffer
	failed := 0
	for i, c := range h.Checks {
		var notice Notice
		switch {
		case errs[i] == nil:
			fmt.Fprintf(&list, "[+]%s ok\n", c.Name)
			continue
		case errors.As(errs[i], &notice):
			fmt.Fprintf(&list, "[+]%s ok: %s\n", c.Name, foreign.Text(string(notice), foreign.MaxMessage))
			continue
		}
		failed++
		fmt.Fprintf(&list, "[-]%s failed: %s\n", c.Name, foreign.Text(errs[i].Error(), foreign.MaxMessage))
	}
	if was := h.failing.Swap(int32(failed)); was != int32(failed) {
		h.log.Info("readiness changed", "failing", failed, "checks", strings.TrimSpace(list.String()))
	}
	if failed > 0 {
		fmt.Fprintln(&list, "readyz check failed")
		return response{}, &notReady{list: list.Bytes()}
	}
	if !r.URL.Query().Has("verbose") {
		list.Reset()
	} else {
		list.WriteString("readyz check passed\n")
	}
	if list.Len() == 0 {
		list.WriteString("ok\n")
	}
	return response{contentType: "text/plain; charset=utf-8", body: list.Bytes()}, nil
}

// notReady carries the list of checks to the client as plain text.
type notReady struct{ list []byte }

func (n *notReady) Error() string { return string(bytes.TrimSpace(n.list)) }

func (h *handler) version(*call) (response, error) {
	return object(http.StatusOK, h.Version)
}

func (h *handler) metrics(*call) (response, error) {
	return response{serve: h.Metrics}, nil
}

func (h *handler) notFound(*call) (response, error) {
	return response{}, newProblem(http.StatusNotFound, "not-found", "there is nothing at this path")
}

func (h *handler) methodNotAllowed(r *call) (response, error) {
	p := newProblem(http.StatusMethodNotAllowed, "method-not-allowed", "this path does not answer the method %q", foreign.Text(r.Method, maxMethod))
	routes := chi.RouteContext(r.Context()).Routes
	path := cmp.Or(r.URL.RawPath, r.URL.Path) // as chi has it
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
		if routes.Match(chi.NewRouteContext(), method, path) {
			p.allow = append(p.allow, method)
		}
	}
	if len(p.allow) == 0 { // the method is unknown, and chi has not looked at the path
		return h.notFound(r)
	}
	return response{}, p
}

// rounds lets all who ask at the same time share one run of the checks: anybody may ask, and a
// check may cost something.
type rounds struct {
	mu   sync.Mutex
	next *round        // has not begun
	turn chan struct{} // holds a value while one runs
}

// A round is one run of all checks.
type round struct {
	done chan struct{}
	errs []error // one for each check, once done is closed
}

// check runs all checks side by side and gives one error or nil for each. What it tells is never
// older than the question. It fails only if ctx ends before.
func (h *handler) check(ctx context.Context) ([]error, error) {
	h.rounds.mu.Lock()
	mine := h.rounds.next
	if mine == nil {
		mine = &round{done: make(chan struct{}), errs: make([]error, len(h.Checks))}
		h.rounds.next = mine
		go h.run(context.WithoutCancel(ctx), mine) // the others need it, too, if this client leaves
	}
	h.rounds.mu.Unlock()
	select {
	case <-mine.done:
		return mine.errs, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (h *handler) run(ctx context.Context, r *round) {
	h.rounds.turn <- struct{}{}
	defer func() { <-h.rounds.turn }()
	h.rounds.mu.Lock()
	h.rounds.next = nil
	h.rounds.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var all sync.WaitGroup
	for i, c := range h.Checks {
		all.Go(func() { r.errs[i] = c.Ready(ctx) })
	}
	all.Wait()
	close(r.done)
}
