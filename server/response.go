package server

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
)

// MaxBody is the maximum size of a request body, in bytes.
const MaxBody = 64 << 10

// An response is a complete response.
type response struct {
	status      int // zero is 200
	contentType string
	header      map[string]string
	body        []byte
	// serve writes the whole response in place of the fields above, if it is not nil.
	serve http.Handler
}

// An action handles one kind of request. It returns a [problem] as error. Any other error is an internal
// failure: its text goes to the log and not to the client.
type action func(r *call) (response, error)

// A problem is an error that the client receives as a problem document.
type problem struct {
	api.Problem

	retryAfter time.Duration
	allow      []string // methods
	cause      error    // for the log
}

func (p *problem) Error() string {
	if p.cause != nil {
		return p.Detail + ": " + p.cause.Error()
	}
	return p.Detail
}

func (p *problem) Unwrap() error { return p.cause }

// newProblem returns a problem. Clients compare its type, which is a URI made of name: do not change a name.
func newProblem(status int, name, format string, args ...any) *problem {
	safetext.Args(args) // redacts secrets before a verb truncates them
	return &problem{Problem: api.Problem{
		Type:   api.ProblemType + name,
		Title:  http.StatusText(status),
		Status: status,
		Detail: fmt.Sprintf(format, args...),
	}}
}

func badField(field, format string, args ...any) *problem {
	return badFields(api.InvalidField(field, format, args...))
}

func badFields(all api.InvalidFields) *problem {
	p := newProblem(http.StatusBadRequest, "invalid-field", "%s", all.Error())
	p.Field, p.Errors = all[0].Field, all
	return p
}

// A call is a request in progress.
type call struct {
	*http.Request
	limits *httplimit.Request
	user   auth.User   // who sent it; zero until identify is called
	attrs  []slog.Attr // for the log line of the request
}

// log adds attributes to the log line of the request.
func (c *call) log(attrs ...slog.Attr) { c.attrs = append(c.attrs, attrs...) }

// identify records the user who sent the request.
func (c *call) identify(user auth.User) {
	c.user = user
	c.log(slog.String("user", user.Name))
}

// route returns the HTTP handler of an action. It limits the request, its query, its body and the time to read the
// response. It writes the response, counts it and logs it. The log has the route and never the URL, because a secret
// may have been pasted into a URL.
func (h *handler) route(name string, kind httplimit.Kind, class httplimit.Class, act action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		r = r.WithContext(r.Context()) // a copy, because its Body is replaced
		r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
		act, c := act, &call{Request: r, limits: h.limiter.Request(class, kind, r.RemoteAddr, auth.Credential(r))}
		refusal := c.limits.Enter(func() bool { return class == httplimit.Certificates && (h.isToken(r) || h.provesMachine(r)) })
		defer c.limits.Leave()
		if refused := cmp.Or(exceeds(refusal), crossOrigin(r), longQuery(r)); refused != nil {
			act = func(*call) (response, error) { return response{}, refused }
		}
		id := rand.Text()[:16]
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// Responses hold secrets. An action may override this.
		w.Header().Set("Cache-Control", "no-store")

		a, err := recovered(act, c)
		switch {
		case errors.Is(err, auth.ErrBadCredentials):
			c.limits.Rejected()
		case c.user.Name != "":
			c.limits.Accepted(c.user.Name)
		}
		limitAnswer(w, r)
		if err != nil {
			a = h.failed(err, id, kubernetesPath(r.URL.Path))
		}
		status := cmp.Or(a.status, http.StatusOK)
		switch {
		case a.serve != nil:
			a.serve.ServeHTTP(w, r)
		default:
			for name, value := range a.header {
				w.Header().Set(name, value)
			}
			if status != http.StatusNotModified { // a 304 has no body to describe
				w.Header().Set("Content-Type", a.contentType)
				w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
			}
			w.WriteHeader(status)
			if r.Method != http.MethodHead && len(a.body) > 0 {
				// If this fails, the client has disconnected.
				_, _ = w.Write(a.body)
				if r.ProtoMajor == 2 { // otherwise a short response is sent only after the slot is released
					_ = http.NewResponseController(w).Flush()
				}
			}
		}

		took := time.Since(start)
		h.requests.WithLabelValues(name, strconv.Itoa(status)).Inc()
		h.duration.WithLabelValues(name).Observe(took.Seconds())
		h.logRequest(c, name, id, status, took, err)
	}
}

// Maximum sizes, in bytes, of text that a client chooses in a problem and in a log line.
const (
	maxDetail = 4096
	maxField  = 40
	maxMethod = 20
)

// Rate of log lines at level info for requests without a user.
const (
	unauthenticatedLogQPS   = 1
	unauthenticatedLogBurst = 100
)

// logRequest logs a request. Anyone can send any number of requests that fail before authentication: it logs a sample
// of those at level info and the rest at level debug. It logs every request with rejected credentials at level info,
// because httplimit limits their number.
func (h *handler) logRequest(r *call, route, id string, status int, took time.Duration, err error) {
	level := slog.LevelDebug // public paths and probes
	var p *problem
	switch {
	case errors.Is(err, errRefused): // httplimit logs a warning about a flood
	case errors.As(err, &p) && p.cause == nil && p.Named(api.ProblemCertificateWaits): // an expected state
		level = slog.LevelInfo
	case status >= 500:
		level = slog.LevelError
	case status < 400:
		if r.Method != http.MethodGet && r.Method != http.MethodHead && r.user.Name != "" {
			level = slog.LevelInfo
		}
	case r.user.Name != "", status == http.StatusUnauthorized && auth.Credential(r.Request) != "", errors.Is(err, auth.ErrBadCredentials), errors.Is(err, auth.ErrForbidden), h.unauthenticatedLog.Allow():
		level = slog.LevelInfo
	}
	if route == "readyz" || (route == "tokenreview" || route == "subjectaccessreview") && status < 400 { // frequent; readyz logs changes itself
		level = slog.LevelDebug
	}
	attrs := append([]slog.Attr{
		slog.String("route", route), slog.String("method", safetext.Text(r.Method, maxMethod)), slog.Int("status", status),
		slog.String("request", id), slog.String("client", r.RemoteAddr), slog.Duration("took", took.Round(time.Microsecond)),
	}, r.attrs...)
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	for i, a := range attrs { // any field may hold a pasted token
		if a.Value.Kind() == slog.KindString {
			attrs[i].Value = slog.StringValue(safetext.Text(a.Value.String(), safetext.MaxMessage))
		}
	}
	if panicked := (*panicError)(nil); errors.As(err, &panicked) {
		attrs = append(attrs, slog.Any("stack", panicked.stack))
	}
	h.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// A panicError is the failure of a request whose action panicked.
type panicError struct {
	value any
	stack []string // lines
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// recovered calls an action and returns a panic of it as a panicError.
func recovered(act action, r *call) (a response, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, strings.Split(strings.TrimSpace(string(debug.Stack())), "\n")}
		}
	}()
	return act(r)
}

// failed returns the response of an error. No other function maps errors to statuses. With kubernetes set, the body
// is a Kubernetes Status, which the clients of those paths expect.
func (h *handler) failed(err error, id string, kubernetes bool) response {
	var unready *notReady
	if errors.As(err, &unready) {
		return response{status: http.StatusServiceUnavailable, contentType: "text/plain; charset=utf-8", body: unready.list}
	}
	var p *problem
	var invalid api.InvalidFields
	switch {
	case errors.As(err, &p):
	case errors.As(err, &invalid):
		p = badFields(invalid)
	default:
		p = newProblem(http.StatusInternalServerError, "internal", "kubejoin failed to handle this request; its log has the reason under this request ID")
	}
	named := *p
	named.Problem = *shown(p)
	named.RequestID = id
	a := response{status: p.Status, contentType: "application/problem+json", header: map[string]string{}}
	if p.retryAfter > 0 {
		a.header["Retry-After"] = strconv.Itoa(int(p.retryAfter.Seconds()))
	}
	if len(p.allow) > 0 {
		a.header["Allow"] = strings.Join(p.allow, ", ") // RFC 9110, section 15.5.6
	}
	if p.Status == http.StatusUnauthorized {
		a.header["WWW-Authenticate"] = `Bearer realm="kubejoin"` // RFC 6750, section 3
	}
	var v any = named.Problem
	if kubernetes {
		a.contentType = "application/json"
		v = named.kubernetes()
	}
	body, err := json.Marshal(v)
	if err != nil { // cannot happen: only strings and numbers
		body = []byte("{}")
	}
	a.body = append(body, '\n')
	return a
}

// shown returns the problem for the client: its texts are limited in size and contain no secret.
func shown(p *problem) *api.Problem {
	named := p.Problem
	named.Detail, named.Field = safetext.Text(named.Detail, maxDetail), fieldShown(named.Field)
	named.Errors = slices.Clone(named.Errors)
	room := maxDetail
	for i, e := range named.Errors {
		named.Errors[i] = api.FieldProblem{Field: fieldShown(e.Field), Detail: safetext.Text(e.Detail, room)}
		room -= len(named.Errors[i].Detail)
	}
	return &named
}

// fieldShown returns the name of a field for a response. The client may have chosen the name.
func fieldShown(name string) string {
	return fmt.Sprintf("%.40s", safetext.Printable(safetext.Redact(name)))
}

// object returns a response with v in JSON.
func object(status int, v any) (response, error) {
	body, err := json.Marshal(v)
	return response{status: status, contentType: "application/json", body: append(body, '\n')}, err
}

// errRefused is the cause of every problem of a request that exceeds a limit. Such requests may come in floods.
var errRefused = errors.New("too many requests")

// exceeds returns the problem of a request that exceeds a limit, or nil.
func exceeds(r *httplimit.Refusal) *problem {
	switch {
	case r == nil:
		return nil
	case r.Reason != httplimit.Overloaded:
		return tooMany("%v", r)
	}
	p := newProblem(http.StatusServiceUnavailable, "overloaded", "%v", r)
	p.cause, p.retryAfter = errRefused, time.Second
	return p
}

// tooMany returns the problem of a client or user that sends too many requests. Its Retry-After is random, so that
// clients that were refused at the same time do not all retry at the same time.
func tooMany(format string, args ...any) *problem {
	p := newProblem(http.StatusTooManyRequests, api.ProblemTooManyRequests, format, args...)
	p.cause, p.retryAfter = errRefused, time.Duration(1+mathrand.IntN(4))*time.Second
	return p
}

// crossOrigin returns a problem if a browser sent the request for a page of another site. Such a page could otherwise
// use the client certificate in the browser. It returns nil for other clients: only browsers send the origin.
func crossOrigin(r *http.Request) *problem {
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		p := newProblem(http.StatusForbidden, "forbidden", "a browser sent this request for a page of another site (see the headers Sec-Fetch-Site and Origin)")
		p.cause = err
		return p
	}
	return nil
}
