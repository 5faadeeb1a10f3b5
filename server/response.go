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

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
)

// MaxBody is the most bytes of a request's body.
const MaxBody = 64 << 10

// An answer is all of a response.
type response struct {
	status      int // zero is 200
	contentType string
	header      map[string]string
	body        []byte
	// serve, if set, writes the whole response in place of the above.
	serve http.Handler
}

// An action answers one kind of request. Its errors are [problem]s; any other error is the
// server's own failure, whose text goes to the log and not to the client.
type action func(r *call) (response, error)

// A problem is a problem document, and the error that leads to one.
type problem struct {
	api.Problem

	retryAfter time.Duration
	allow      []string // methods
	cause      error    // for the log, and for [Server.ShowCauses]
}

func (p *problem) Error() string {
	if p.cause != nil {
		return p.Detail + ": " + p.cause.Error()
	}
	return p.Detail
}

func (p *problem) Unwrap() error { return p.cause }

// newProblem makes a problem whose type is the URI of its name, which does not change.
func newProblem(status int, name, format string, args ...any) *problem {
	foreign.Args(args) // before a verb cuts them
	return &problem{Problem: api.Problem{
		Type:   api.ProblemType + name,
		Title:  http.StatusText(status),
		Status: status,
		Detail: fmt.Sprintf(format, args...),
	}}
}

func badField(field, format string, args ...any) *problem {
	foreign.Args(args)
	return badFields(api.FieldProblem{Field: field, Detail: fmt.Sprintf(format, args...)})
}

func badFields(all ...api.FieldProblem) *problem {
	var details []string
	for _, e := range all {
		details = append(details, e.String())
	}
	p := newProblem(http.StatusBadRequest, "invalid-field", "%s", strings.Join(details, "; "))
	p.Field, p.Errors = all[0].Field, all
	return p
}

// A call is a request while it is answered, and what becomes known of it.
type call struct {
	*http.Request
	limits *httplimit.Request
	user   auth.User   // who sent it; zero until identify is called
	attrs  []slog.Attr // for its line in the log
}

// log adds to the line that is logged of the request.
func (c *call) log(attrs ...slog.Attr) { c.attrs = append(c.attrs, attrs...) }

// identify notes who sent the request.
func (c *call) identify(user auth.User) {
	c.user = user
	c.log(slog.String("user", user.Name))
}

// route makes an action the handler of a route. It limits the request, its query, its body and the time to read the
// answer, and answers, counts and logs. The log names the route and never the URL, into which anything may have been pasted.
func (h *handler) route(name string, kind httplimit.Kind, class httplimit.Class, act action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		r = r.WithContext(r.Context()) // a copy, which has another body
		r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
		act, c := act, &call{Request: r, limits: h.limiter.Request(class, kind, r.RemoteAddr, auth.Credential(r))}
		refusal := c.limits.Enter(func() bool { return class == httplimit.Certificates && h.isToken(r) })
		defer c.limits.Leave()
		if refused := cmp.Or(exceeds(refusal), crossOrigin(r), longQuery(r)); refused != nil {
			act = func(*call) (response, error) { return response{}, refused }
		}
		id := rand.Text()[:16]
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// Kept by nobody unless an action says otherwise: answers hold secrets.
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
			if status != http.StatusNotModified { // which would describe what is not there
				w.Header().Set("Content-Type", a.contentType)
				w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
			}
			w.WriteHeader(status)
			if r.Method != http.MethodHead && len(a.body) > 0 {
				// The client has gone if this fails: there is nobody to tell.
				_, _ = w.Write(a.body)
				if r.ProtoMajor == 2 { // else a short answer waits for its client when its place is given back
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

// Bounds, in bytes, of what a client chooses of a problem and of a line of the log.
const (
	maxDetail = 4096
	maxField  = 40
	maxMethod = 20
)

// How many requests of strangers the log has at the level that operators see.
const (
	unauthenticatedLogQPS   = 1
	unauthenticatedLogBurst = 100
)

// logRequest logs a request. Anybody can send any number of requests that are refused for anything but
// their credentials, whose number is limited: operators see a sample of those, and the others are logged for
// debugging.
func (h *handler) logRequest(r *call, route, id string, status int, took time.Duration, err error) {
	level := slog.LevelDebug // public paths and probes
	var p *problem
	switch {
	case errors.Is(err, errRefused): // a flood, of which the log has been told
	case errors.As(err, &p) && p.cause == nil && p.Named(api.ProblemCertificateWaits): // nothing is amiss
		level = slog.LevelInfo
	case status >= 500:
		level = slog.LevelError
	case status < 400:
		if r.Method == http.MethodPost {
			level = slog.LevelInfo
		}
	case r.user.Name != "", status == http.StatusUnauthorized && auth.Credential(r.Request) != "", errors.Is(err, auth.ErrBadCredentials), errors.Is(err, auth.ErrForbidden), h.unauthenticatedLog.Allow():
		level = slog.LevelInfo
	}
	if route == "readyz" || route == "tokenreview" && status < 400 { // asked without end; readyz logs changes by itself
		level = slog.LevelDebug
	}
	attrs := append([]slog.Attr{
		slog.String("route", route), slog.String("method", foreign.Text(r.Method, maxMethod)), slog.Int("status", status),
		slog.String("request", id), slog.String("client", r.RemoteAddr), slog.Duration("took", took.Round(time.Microsecond)),
	}, r.attrs...)
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	for i, a := range attrs { // into any field a token may have been pasted
		if a.Value.Kind() == slog.KindString {
			attrs[i].Value = slog.StringValue(foreign.Text(a.Value.String(), foreign.MaxMessage))
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

// recovered turns a panic of one request into that request's failure.
func recovered(act action, r *call) (a response, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, strings.Split(strings.TrimSpace(string(debug.Stack())), "\n")}
		}
	}()
	return act(r)
}

// failed is the one place where an error becomes a status. Kubernetes paths answer a Status, as
// their clients read it.
func (h *handler) failed(err error, id string, kubernetes bool) response {
	var unready *notReady
	if errors.As(err, &unready) {
		return response{status: http.StatusServiceUnavailable, contentType: "text/plain; charset=utf-8", body: unready.list}
	}
	var p *problem
	if !errors.As(err, &p) {
		p = newProblem(http.StatusInternalServerError, "internal", "kubejoin could not answer; its log has the reason under this request ID")
		if h.ShowCauses {
			p.Detail = err.Error()
		}
	} else if h.ShowCauses {
		p = &problem{Problem: p.Problem, retryAfter: p.retryAfter, allow: p.allow, cause: p.cause}
		p.Detail = p.Error()
	}
	named := *p
	named.RequestID, named.Detail = id, foreign.Text(named.Detail, maxDetail)
	named.Field = fieldShown(named.Field)
	named.Errors = slices.Clone(named.Errors)
	room := maxDetail
	for i, e := range named.Errors {
		named.Errors[i] = api.FieldProblem{Field: fieldShown(e.Field), Detail: foreign.Text(e.Detail, room)}
		room -= len(named.Errors[i].Detail)
	}
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
	if err != nil { // strings and numbers alone: cannot happen
		body = []byte("{}")
	}
	a.body = append(body, '\n')
	return a
}

// fieldShown returns the name of a field, which the client may have chosen.
func fieldShown(name string) string {
	return fmt.Sprintf("%.40s", foreign.Printable(foreign.Redact(name)))
}

// object is the answer of an object in JSON.
func object(status int, v any) (response, error) {
	body, err := json.Marshal(v)
	return response{status: status, contentType: "application/json", body: append(body, '\n')}, err
}

// errRefused is the cause of problems of requests that exceed a limit, of which a flood is expected.
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

// tooMany returns the problem of a client or user that sends too many requests. Its time to wait is random, so that those
// who are refused together do not come back together.
func tooMany(format string, args ...any) *problem {
	p := newProblem(http.StatusTooManyRequests, api.ProblemTooManyRequests, format, args...)
	p.cause, p.retryAfter = errRefused, time.Duration(1+mathrand.IntN(4))*time.Second
	return p
}

// crossOrigin returns the problem of a request by which a page of another site would use the client certificate in a
// browser, or nil. Only browsers send where a request comes from.
func crossOrigin(r *http.Request) *problem {
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		p := newProblem(http.StatusForbidden, "forbidden", "a browser sent this for a page of another site, by the header Sec-Fetch-Site or Origin")
		p.cause = err
		return p
	}
	return nil
}
