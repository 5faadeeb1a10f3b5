package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
)

// A Check is one condition of readiness.
type Check struct {
	// Name is a short name, for example "tokens".
	Name string
	// Ready returns nil, a [api.Notice], or an error that says what is missing. The error is public:
	// /readyz shows it to every client. Ready must return soon after ctx ends.
	Ready func(ctx context.Context) error
}

// Failing runs all checks, and returns name and reason of each one that fails. It returns nothing if /readyz would report
// that kubejoin is ready.
func (s Status) Failing(ctx context.Context) []string {
	var failing []string
	for i, err := range s.run(ctx) {
		if fails(err) {
			failing = append(failing, s.Checks[i].Name+": "+safetext.Text(err.Error(), safetext.MaxMessage))
		}
	}
	return failing
}

// run runs all checks concurrently. It returns one error or nil for each.
func (s Status) run(ctx context.Context) []error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	errs := make([]error, len(s.Checks))
	var all sync.WaitGroup
	for i, c := range s.Checks {
		all.Go(func() { errs[i] = c.Ready(ctx) })
	}
	all.Wait()
	return errs
}

// fails reports whether the result of a check makes kubejoin not ready.
func fails(err error) bool {
	_, notice := errors.AsType[api.Notice](err)
	return err != nil && !notice
}

// checkTimeout limits a run of the checks. A request to /readyz waits for at most two runs, which
// is less than the default period of a Kubernetes probe, 10 s.
const checkTimeout = 2 * time.Second

// healthz reports that the process responds. readyz reports whether it can do its work.
func (h *handler) healthz(*call) (web.Response, error) {
	return web.Response{ContentType: "text/plain; charset=utf-8", Body: []byte("ok\n")}, nil
}

// readyz runs all checks. If one fails or ?verbose is given, it lists them in the format of kube-apiserver.
// Each check takes exactly one line, even if its message contains untrusted text.
func (h *handler) readyz(r *call) (web.Response, error) {
	errs, err := h.check(r.Context())
	if err != nil {
		return web.Response{}, err
	}
	var list bytes.Buffer
	failed := 0
	for i, c := range h.Status.Checks {
		var notice api.Notice
		switch {
		case errs[i] == nil:
			fmt.Fprintf(&list, "[+]%s ok\n", c.Name)
			continue
		case errors.As(errs[i], &notice):
			fmt.Fprintf(&list, "[+]%s ok: %s\n", c.Name, safetext.Text(string(notice), safetext.MaxMessage))
			continue
		}
		failed++
		fmt.Fprintf(&list, "[-]%s failed: %s\n", c.Name, safetext.Text(errs[i].Error(), safetext.MaxMessage))
	}
	if was := h.readiness.failing.Swap(int32(failed)); was != int32(failed) {
		h.log.Info("readiness changed", "failing", failed, "checks", strings.TrimSpace(list.String()))
	}
	if failed > 0 {
		fmt.Fprintln(&list, "readyz check failed")
		return web.Response{}, &notReady{list: list.Bytes()}
	}
	if !r.URL.Query().Has("verbose") {
		list.Reset()
	} else {
		list.WriteString("readyz check passed\n")
	}
	if list.Len() == 0 {
		list.WriteString("ok\n")
	}
	return web.Response{ContentType: "text/plain; charset=utf-8", Body: list.Bytes()}, nil
}

// notReady is the error of failed checks. The client receives the list as plain text.
type notReady struct{ list []byte }

func (n *notReady) Error() string { return string(bytes.TrimSpace(n.list)) }

func (h *handler) version(*call) (web.Response, error) {
	return web.Object(http.StatusOK, h.Status.Version)
}

// metrics runs the checks first, so that kubejoin_ready is up to date.
func (h *handler) metrics(r *call) (web.Response, error) {
	if _, err := h.check(r.Context()); err != nil {
		return web.Response{}, err
	}
	return web.Response{Serve: h.Status.Metrics}, nil
}

func (h *handler) notFound(r *call) (web.Response, error) {
	p := web.NewProblem("not-found", "there is nothing at the path %s", safetext.Text(r.URL.Path, safetext.MaxName))
	if near := h.nearest(r.URL.Path); near != "" {
		p.Detail += "; the nearest is " + near
	}
	return web.Response{}, p
}

// nearest returns the method and the path of the route that is most similar to a path: each of its parts begins with the same letters.
// The result is empty if no route is similar.
func (h *handler) nearest(path string) (near string) {
	given, best := strings.Split(path, "/"), 0
	for _, on := range h.routes() {
		parts, alike := strings.Split(on.path, "/"), 1
		for i, part := range parts {
			if strings.HasPrefix(part, "{") || part == "" || len(parts) != len(given) {
				continue
			}
			common := 0
			for common < min(len(part), len(given[i])) && part[common] == given[i][common] {
				common++
			}
			if common < min(3, len(part)) {
				alike = -len(path)
			}
			alike += common
		}
		if len(parts) == len(given) && alike > max(best, 1) {
			best, near = alike, on.method+" "+parameterPattern.ReplaceAllString(on.path, "}")
		}
	}
	return near
}

// parameterPattern is the pattern after a parameter's name in chi's syntax.
var parameterPattern = regexp.MustCompile(`:[^}]*}`)

func (h *handler) methodNotAllowed(r *call) (web.Response, error) {
	p := web.NewProblem("method-not-allowed", "this path does not support the method %q", safetext.Text(r.Method, maxMethod))
	routes := chi.RouteContext(r.Context()).Routes
	path := cmp.Or(r.URL.RawPath, r.URL.Path) // as chi matches it
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
		if routes.Match(chi.NewRouteContext(), method, path) {
			p.Allow = append(p.Allow, method)
		}
	}
	if len(p.Allow) == 0 { // for an unknown method, chi does not match the path
		return h.notFound(r)
	}
	p.Detail += ", want " + strings.Join(p.Allow, " or ")
	return web.Response{}, p
}

// check runs all checks and returns one error or nil for each. Anyone may request /readyz, and a check may be expensive, so
// concurrent requests share a run. It begins after the call of check, so that its results are never older than the
// request. It fails only if ctx ends first.
func (h *handler) check(ctx context.Context) ([]error, error) {
	var errs []error
	if err := h.readiness.checking.Do(ctx, struct{}{}, &errs, h.runChecks); err != nil {
		return nil, err
	}
	return errs, nil
}

// runChecks runs all checks, for all requests that wait. It continues if the clients disconnect, because the metric
// also needs the results.
func (h *handler) runChecks(ctx context.Context, results []*[]error) {
	errs := h.Status.run(context.WithoutCancel(ctx))
	for i, c := range h.Status.Checks {
		passes := 1.0
		if fails(errs[i]) {
			passes = 0
		}
		h.readiness.passes.WithLabelValues(c.Name).Set(passes)
	}
	for _, result := range results {
		*result = errs
	}
}
