// Package faults injects failures into a client's connection to an API server, for tests. A write fails before it is
// sent, or after it took effect. Reads and watches do not fail.
package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Kind is one way to fail.
type Kind int

const (
	// Conflict is a 409 response to a write that was not sent.
	Conflict Kind = iota
	// TooManyRequests is a 429 response with Retry-After: 1 (a second) to a write that was not sent.
	TooManyRequests
	// InternalError is a 500 response to a write that was not sent.
	InternalError
	// Timeout is a timeout error after 100 ms, for a write that was not sent.
	Timeout
	// Reset is a connection that breaks before the request is sent.
	Reset
	// LostAnswer is a connection that breaks after the write took effect, before the response.
	LostAnswer
	kinds
)

// Kinds iterates over all kinds.
func Kinds() iter.Seq[Kind] {
	return func(yield func(Kind) bool) {
		for k := range kinds {
			if !yield(k) {
				return
			}
		}
	}
}

func (k Kind) String() string {
	return [...]string{"conflict", "too many requests", "internal error", "timeout", "reset", "lost answer"}[k]
}

// A Transport forwards requests and makes some of the writes fail. Whether and how the nth write to a path fails
// depends only on Seed, the method, the path and n.
type Transport struct {
	// Seed makes the failures of a run reproducible.
	Seed uint64
	// Rate is the fraction of writes that fail, from 0 to 1.
	Rate float64
	// Kinds are the ways to fail, with equal probability. Empty means all of them.
	Kinds []Kind

	mu     sync.Mutex
	writes map[string]uint64 // by method and path
	failed [kinds]int
	passed int
}

// Wrap is the argument for rest.Config.Wrap.
func (t *Transport) Wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) { return t.roundTrip(next, r) })
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Failed returns the number of failed writes by kind.
func (t *Transport) Failed() map[Kind]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[Kind]int{}
	for kind, n := range t.failed {
		if n > 0 {
			all[Kind(kind)] = n
		}
	}
	return all
}

// Passed returns the number of writes that were forwarded without a failure.
func (t *Transport) Passed() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.passed
}

// draw decides whether and how a write fails.
func (t *Transport) draw(r *http.Request) (Kind, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := r.Method + " " + r.URL.Path
	if t.writes == nil {
		t.writes = map[string]uint64{}
	}
	t.writes[key]++
	hash := fnv.New64a()
	_, _ = io.WriteString(hash, key) // never fails
	random := rand.New(rand.NewPCG(t.Seed+t.writes[key], hash.Sum64()))
	if random.Float64() >= t.Rate {
		t.passed++
		return 0, false
	}
	kind := Kind(random.IntN(int(kinds)))
	if len(t.Kinds) > 0 {
		kind = t.Kinds[random.IntN(len(t.Kinds))]
	}
	t.failed[kind]++
	return kind, true
}

func (t *Transport) roundTrip(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return next.RoundTrip(r)
	}
	kind, fails := t.draw(r)
	if !fails {
		return next.RoundTrip(r)
	}
	if kind == LostAnswer {
		answer, err := next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		_, _ = io.Copy(io.Discard, answer.Body) // the API server has processed the write, with any status
		_ = answer.Body.Close()
		return nil, fmt.Errorf("injected, answer lost: %w", syscall.ECONNRESET)
	}
	if r.Body != nil {
		_ = r.Body.Close() // http.RoundTripper requires it
	}
	switch kind {
	case Conflict:
		return status(r, http.StatusConflict, metav1.StatusReasonConflict, nil), nil
	case TooManyRequests:
		return status(r, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, http.Header{"Retry-After": {"1"}}), nil
	case InternalError:
		return status(r, http.StatusInternalServerError, metav1.StatusReasonInternalError, nil), nil
	case Timeout:
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(100 * time.Millisecond):
			return nil, timeout{}
		}
	default:
		return nil, fmt.Errorf("injected, nothing sent: %w", syscall.ECONNRESET)
	}
}

type timeout struct{}

func (timeout) Error() string   { return "injected: timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }

// status returns an error response in the form of an API server.
func status(r *http.Request, code int32, reason metav1.StatusReason, header http.Header) *http.Response {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: "injected",
	})
	if err != nil { // cannot happen: only strings and numbers
		body = nil
	}
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json")
	return &http.Response{
		StatusCode: int(code), Status: fmt.Sprintf("%d %s", code, http.StatusText(int(code))),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: r,
	}
}
