package web

import (
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Problem is an error that the client receives as a problem document.
type Problem struct {
	api.Problem

	RetryAfter time.Duration
	Allow      []string // methods
	Cause      error    // for the log
}

// Error returns the detail and the cause.
func (p *Problem) Error() string {
	if p.Cause != nil {
		return p.Detail + ": " + p.Cause.Error()
	}
	return p.Detail
}

func (p *Problem) Unwrap() error { return p.Cause }

// CausedBy returns p with a cause.
func (p *Problem) CausedBy(err error) *Problem {
	p.Cause = err
	return p
}

// Unavailable returns p with a temporary cause, and sets RetryAfter, so that the client may retry.
func (p *Problem) Unavailable(err error) *Problem {
	p.RetryAfter = RetryAfter
	return p.CausedBy(err)
}

// NewProblem returns a problem. Clients compare its type, which is a URI made of name: do not change a name. Package codes
// defines its status.
func NewProblem(name, format string, args ...any) *Problem {
	safetext.Args(args) // redact secrets before a verb truncates them
	status := codes.Statuses[name]
	return &Problem{Problem: api.Problem{
		Type:   api.ProblemType + name,
		Title:  http.StatusText(status),
		Status: status,
		Detail: fmt.Sprintf(format, args...),
	}}
}

// BadField returns the problem of an invalid field of a request.
func BadField(field, format string, args ...any) *Problem {
	return BadFields(api.InvalidField(field, format, args...))
}

// BadFields returns the problem of several invalid fields.
func BadFields(all api.InvalidFields) *Problem {
	p := NewProblem("invalid-field", "%s", all.Error())
	p.Field, p.Errors = all[0].Field, all
	return p
}

// ProblemOf returns the problem in an error. For any error except a Problem, [api.InvalidFields] or a [tokens.Refusal], it
// returns an internal failure without the text of the error.
func ProblemOf(err error) *Problem {
	var p *Problem
	var invalid api.InvalidFields
	var refused *tokens.Refusal
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &invalid):
		return BadFields(invalid)
	case errors.As(err, &refused):
		p := NewProblem(refused.Reason, "%s", refused.Message)
		// A retry does not help: only an operator can solve this problem.
		if !refused.Retry && (p.Status == http.StatusServiceUnavailable || refused.Reason == "internal") {
			p.Detail += "; the log of kubejoin has the reason under this request ID"
		}
		if p.Field, p.Cause = refused.Field, refused.Err; refused.Retry {
			p.RetryAfter = RetryAfter
		}
		return p
	}
	return NewProblem("internal", "kubejoin failed to handle this request; its log has the reason under this request ID")
}

// RetryAfter is the value of Retry-After if something is temporarily unavailable.
const RetryAfter = 5 * time.Second

// maxDetail is the maximum size of the detail of a problem, in bytes.
const maxDetail = 4096

// MaxField is the maximum size of a field that a client chose, in bytes, in a problem.
const MaxField = 40

// Response returns the problem as a response to the request with this ID. If kubernetes is true, the body is a
// Kubernetes Status, which the clients of some paths expect.
func (p *Problem) Response(id string, kubernetes bool) Response {
	named := *p
	named.Problem = *shown(p)
	named.RequestID = id
	a := Response{Status: p.Status, ContentType: "application/problem+json", Header: map[string]string{}}
	if p.RetryAfter > 0 {
		a.Header["Retry-After"] = strconv.Itoa(int(p.RetryAfter.Seconds()))
	}
	if len(p.Allow) > 0 {
		a.Header["Allow"] = strings.Join(p.Allow, ", ") // RFC 9110, section 15.5.6
	}
	if p.Status == http.StatusUnauthorized {
		a.Header["WWW-Authenticate"] = `Bearer realm="kubejoin"` // RFC 6750, section 3
	}
	var v any = named.Problem
	if kubernetes {
		a.ContentType = "application/json"
		v = named.kubernetes()
	}
	body, err := json.Marshal(v)
	if err != nil { // cannot happen: only strings and numbers
		body = []byte("{}")
	}
	a.Body = append(body, '\n')
	return a
}

// kubernetes returns the problem as a Kubernetes Status.
func (p Problem) kubernetes() metav1.Status {
	reasons := map[int]metav1.StatusReason{
		http.StatusBadRequest:            metav1.StatusReasonBadRequest,
		http.StatusUnauthorized:          metav1.StatusReasonUnauthorized,
		http.StatusForbidden:             metav1.StatusReasonForbidden,
		http.StatusNotFound:              metav1.StatusReasonNotFound,
		http.StatusMethodNotAllowed:      metav1.StatusReasonMethodNotAllowed,
		http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
		http.StatusUnsupportedMediaType:  metav1.StatusReasonUnsupportedMediaType,
		http.StatusTooManyRequests:       metav1.StatusReasonTooManyRequests,
		http.StatusServiceUnavailable:    metav1.StatusReasonServiceUnavailable,
		http.StatusInternalServerError:   metav1.StatusReasonInternalError,
	}
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure,
		Message:  p.Detail,
		Reason:   reasons[p.Status],
		Details: &metav1.StatusDetails{
			UID:               "",
			RetryAfterSeconds: int32(p.RetryAfter.Seconds()),
		},
		Code: int32(p.Status),
	}
}

// shown returns the problem for the client: its texts are limited in size and contain no secret.
func shown(p *Problem) *api.Problem {
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

// ErrRefused is the cause of every problem about a request that exceeds a limit. Such requests may come in floods.
var ErrRefused = errors.New("too many requests")

// Exceeds returns the problem of a request that exceeds a limit, or nil.
func Exceeds(r *httplimit.Exceeded) *Problem {
	switch {
	case r == nil:
		return nil
	case r.Reason != httplimit.Overloaded:
		return TooMany("%v", r)
	}
	p := NewProblem("overloaded", "%v", r)
	p.Cause, p.RetryAfter = ErrRefused, time.Second
	return p
}

// TooMany returns the problem of a client or user that sends too many requests. Its Retry-After is random, so that
// clients that were refused at the same time do not all retry at the same time.
func TooMany(format string, args ...any) *Problem {
	p := NewProblem(api.ProblemTooManyRequests, format, args...)
	p.Cause, p.RetryAfter = ErrRefused, time.Duration(1+mathrand.IntN(4))*time.Second
	return p
}

// CrossOrigin returns a problem if a browser sent the request for a page of another site. Such a page could otherwise
// use the client certificate in the browser. It returns nil for other clients, because only browsers send the origin.
func CrossOrigin(r *http.Request) *Problem {
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		p := NewProblem("forbidden", "a browser sent this request for a page of another site (see the headers Sec-Fetch-Site and Origin)")
		p.Cause = err
		return p
	}
	return nil
}
