package server

import (
	"cmp"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/operations"
)

// An action handles one kind of request. It returns a [web.Problem] or a [tokens.Refusal] as error. Any other error is an internal
// failure: its text goes to the log and not to the client.
type action func(r *call) (web.Response, error)

// request returns the action of a function that takes the fields of the query and the JSON body.
func request[T any](act func(r *call, req T) (web.Response, error)) action {
	return reading(web.ReadRequest, act)
}

// query returns the action of a function that takes the fields of the query.
func query[T any](act func(r *call, req T) (web.Response, error)) action {
	return reading(web.ReadQuery, act)
}

func reading[T any](read func(*http.Request, any) error, act func(*call, T) (web.Response, error)) action {
	return func(r *call) (web.Response, error) {
		var req T
		if err := read(r.Request, &req); err != nil {
			return web.Response{}, api.JoinInvalid(err, operations.Invalid(req))
		}
		return act(r, req)
	}
}

// A call is a request in progress.
type call struct {
	*http.Request
	limits *httplimit.Usage
	user   auth.User   // who sent the request; zero until identify is called
	attrs  []slog.Attr // for the log line of the request
}

// log adds attributes to the log line of the request.
func (c *call) log(attrs ...slog.Attr) { c.attrs = append(c.attrs, attrs...) }

// identify records the user who sent the request.
func (c *call) identify(user auth.User) {
	c.user = user
	c.log(slog.String("user", user.Name))
}

// serve returns the HTTP handler of a route. It limits the request, its query, its body and the time to read the
// response. It writes the response, counts it and logs it. The log has the route and never the URL, because a secret
// may have been pasted into a URL.
func (h *handler) serve(on route, limiter *httplimit.Limiter) http.HandlerFunc {
	kind := on.kind()
	return func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		r = r.WithContext(r.Context()) // a copy, because its Body is replaced
		r.Body = http.MaxBytesReader(w, r.Body, web.MaxBody)
		act, c := on.act, &call{Request: r, limits: limiter.Use(on.class, kind, r.RemoteAddr, auth.Credential(r))}
		refusal := c.limits.Enter(func() bool { return on.class == httplimit.Certificates && (h.isToken(r) || h.provesMachine(r)) })
		defer c.limits.Leave()
		if refused := cmp.Or(web.Exceeds(refusal), web.CrossOrigin(r), web.LongQuery(r)); refused != nil {
			act = func(*call) (web.Response, error) { return web.Response{}, refused }
		}
		id := rand.Text()[:16]
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// Responses hold secrets. An action may override this.
		w.Header().Set("Cache-Control", "no-store")

		a, err := web.Recover(func() (web.Response, error) { return act(c) })
		switch {
		case errors.Is(err, auth.ErrBadCredentials):
			c.limits.Rejected()
		case c.user.Name != "":
			c.limits.Accepted(c.user.Name)
		}
		if err != nil {
			a = failed(err, id, kubernetesPath(r.URL.Path))
		}
		a.Write(w, r)

		took, status := time.Since(start), cmp.Or(a.Status, http.StatusOK)
		h.results.requests.WithLabelValues(on.name, strconv.Itoa(status)).Inc()
		h.results.duration.WithLabelValues(on.name).Observe(took.Seconds())
		h.logRequest(c, on.name, id, status, took, err)
	}
}

// maxMethod is the maximum size of a method that a client chose, in bytes, in a problem and in a log line.
const maxMethod = 20

// Rate of log lines at level info for requests without a user.
const (
	unauthenticatedLogQPS   = 1
	unauthenticatedLogBurst = 100
)

// logRequest logs a request. Anyone can send any number of requests that fail before authentication, and nearly as many
// with a credential that is revoked or not current: logRequest logs a sample of those requests at level info and the
// rest at level debug. It logs every request with rejected credentials at level info, because httplimit limits their
// number.
func (h *handler) logRequest(r *call, route, id string, status int, took time.Duration, err error) {
	level := slog.LevelDebug // public paths and probes
	var p *web.Problem
	switch {
	case errors.Is(err, web.ErrRefused): // httplimit logs a warning about a flood
	case errors.As(err, &p) && p.Cause == nil && p.Named(api.ProblemCertificateWaits): // an expected state
		level = slog.LevelInfo
	case errors.Is(err, errUnknownMachine): // no limit of rejected credentials covers them
		if h.unauthenticatedLog.Allow() {
			level = slog.LevelInfo
		}
	case status >= 500:
		level = slog.LevelError
	case status < 400:
		if r.Method != http.MethodGet && r.Method != http.MethodHead && r.user.Name != "" {
			level = slog.LevelInfo
		}
	case r.user.Name != "", status == http.StatusUnauthorized && auth.Credential(r.Request) != "", errors.Is(err, auth.ErrBadCredentials), h.unauthenticatedLog.Allow():
		level = slog.LevelInfo
	}
	if route == "readyz" || (route == "tokenreview" || route == "subjectaccessreview") && status < 400 { // frequent; readyz logs changes itself
		level = slog.LevelDebug
	}
	attrs := append([]slog.Attr{
		slog.String("route", route), slog.String("method", safetext.Text(r.Method, maxMethod)), slog.Int("status", status),
		slog.String("request", id), slog.String("client", r.RemoteAddr), slog.Duration("took", took.Round(time.Microsecond)),
	}, r.attrs...)
	if err != nil && route != "unknown" { // the error of an unknown route contains the path
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	for i, a := range attrs { // any field may hold a pasted token
		if a.Value.Kind() == slog.KindString {
			attrs[i].Value = slog.StringValue(safetext.Text(a.Value.String(), safetext.MaxMessage))
		}
	}
	if panicked := (*web.Panic)(nil); errors.As(err, &panicked) {
		attrs = append(attrs, slog.Any("stack", panicked.Stack))
	}
	h.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// failed returns the response of an error. No other function maps errors to statuses. With kubernetes set, the body
// is a Kubernetes Status, which clients of Kubernetes paths expect.
func failed(err error, id string, kubernetes bool) web.Response {
	var unready *notReady
	if errors.As(err, &unready) {
		return web.Response{Status: http.StatusServiceUnavailable, ContentType: "text/plain; charset=utf-8", Body: unready.list}
	}
	return problemOf(err).Response(id, kubernetes)
}
