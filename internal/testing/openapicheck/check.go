package openapicheck

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// An Exchange is a request and its response.
type Exchange struct {
	Method string
	URL    *url.URL
	// RequestBody is the part of the body that the server has read.
	RequestBody []byte

	Status int
	Header http.Header
	Body   []byte
	// NoBody is true if the response body was too large to keep.
	NoBody bool
}

// A Result is the result of checking an exchange.
type Result struct {
	// Operation is the operation ID, or "elsewhere" if the path and method are no operation.
	Operation string `json:"operation"`
	Status    int    `json:"status"`
	// Problem is the last part of the type URL of the problem document, if there is one.
	Problem string `json:"problem,omitempty"`
	// Wrong says how the exchange differs from the description. It is empty if it does not.
	Wrong string `json:"wrong,omitempty"`
}

// always are the headers that every response may have, including those that net/http adds.
var always = []string{"Content-Type", "Content-Length", "X-Content-Type-Options", "Date", "Connection"}

const problemMedia = "application/problem+json"

// Check compares an exchange with the description.
func (d *Document) Check(x Exchange) Result {
	op := d.find(x.Method, x.URL.EscapedPath())
	f := Result{Operation: "elsewhere", Status: x.Status}
	var candidates []*response
	if op != nil {
		f.Operation = op.ID
		if r := op.responses[x.Status]; r != nil {
			candidates = []*response{r}
		}
	}
	// If a server lacks a feature, the feature's operations return the general 404.
	if len(candidates) == 0 || x.Status == http.StatusNotFound {
		candidates = append(candidates, d.elsewhere[x.Status]...)
	}
	var problem struct {
		Type      string
		Status    int
		RequestID string
	}
	media, _, _ := mime.ParseMediaType(x.Header.Get("Content-Type"))
	if media == problemMedia && !x.NoBody && x.Method != http.MethodHead {
		_ = json.Unmarshal(x.Body, &problem) // the schema check below reports errors
		f.Problem = problem.Type[strings.LastIndex(problem.Type, "/")+1:]
	}
	if len(candidates) == 0 {
		f.Wrong = fmt.Sprintf("%s %.80q: the status is not described", x.Method, x.URL.Path)
		return f
	}
	var errs []error
	for _, r := range candidates { // at least one must match
		err := r.check(x, media)
		if err == nil {
			errs = nil
			break
		}
		errs = append(errs, err)
	}
	if f.Problem != "" {
		if problem.Status != x.Status {
			errs = append(errs, fmt.Errorf("the problem says status %d", problem.Status))
		}
		if id := x.Header.Get("X-Request-Id"); problem.RequestID != id {
			errs = append(errs, fmt.Errorf("the problem says request %s and the header %s", problem.RequestID, id))
		}
		if op != nil && f.Problem != "not-found" && !slices.Contains(op.Problems, f.Problem) {
			errs = append(errs, fmt.Errorf("problem %s is not described", f.Problem))
		}
	}
	if x.Header.Get("X-Content-Type-Options") != "nosniff" {
		errs = append(errs, errors.New("X-Content-Type-Options is missing"))
	}
	if body := string(x.Body); x.Status >= 400 && tokens.Redact(body) != body {
		errs = append(errs, errors.New("an error holds what has the form of a token"))
	}
	if op != nil && x.Status < 300 {
		errs = append(errs, op.checkRequest(x))
	}
	if err := errors.Join(errs...); err != nil {
		f.Wrong = fmt.Sprintf("%s %.80q: %v", x.Method, x.URL.Path, err)
	}
	return f
}

func (r *response) check(x Exchange, media string) error {
	var errs []error
	for name, h := range r.headers {
		value, has := x.Header[http.CanonicalHeaderKey(name)]
		switch {
		case !has && h.required:
			errs = append(errs, fmt.Errorf("header %s is missing", name))
		case has:
			var v any = strings.Join(value, ", ")
			if n, err := strconv.Atoi(value[0]); err == nil && h.number {
				v = json.Number(strconv.Itoa(n))
			}
			if err := h.schema.Validate(v); err != nil {
				errs = append(errs, fmt.Errorf("header %s: %w", name, err))
			}
		}
	}
	for name := range x.Header {
		described := slices.Contains(always, name)
		for known := range r.headers {
			described = described || http.CanonicalHeaderKey(known) == name
		}
		if !described {
			errs = append(errs, fmt.Errorf("header %s is not described", name))
		}
	}
	schema, described := r.content[media]
	switch {
	case len(r.content) == 0:
		if len(x.Body) > 0 || media != "" {
			errs = append(errs, fmt.Errorf("has a body of type %q, and none is described", media))
		}
		return errors.Join(errs...)
	case !described:
		return errors.Join(append(errs, fmt.Errorf("content type %q is not described", media))...)
	case x.NoBody || x.Method == http.MethodHead:
		return errors.Join(errs...)
	}
	body := x.Body
	if x.Header.Get("Content-Encoding") == "gzip" {
		reader, err := gzip.NewReader(bytes.NewReader(body))
		if err == nil {
			body, err = io.ReadAll(reader)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("gzip: %w", err))
		}
	}
	return errors.Join(append(errs, validate(schema, media, body))...)
}

// maxBody is the limit of a request body of kubejoin in bytes.
const maxBody = 64 << 10

// checkRequest returns an error if the server accepted a request that the description does not allow.
func (op *Operation) checkRequest(x Exchange) error {
	for name := range x.URL.Query() {
		// Kubernetes paths and probes accept unknown parameters.
		if !slices.Contains(op.Query, name) && strings.HasPrefix(op.Path, "/v1/") {
			return fmt.Errorf("query parameter %q is accepted and not described", name)
		}
	}
	schema, described := op.request["application/json"]
	if len(x.RequestBody) == 0 || len(x.RequestBody) >= maxBody || !described { // kubejoin reads no more than maxBody
		return nil
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(x.RequestBody))
	if fields, ok := v.(map[string]any); ok { // kubejoin treats an empty string as missing
		maps.DeleteFunc(fields, func(_ string, value any) bool { return value == "" })
	}
	if err == nil {
		err = schema.Validate(v)
	}
	if err != nil {
		return fmt.Errorf("a body is accepted that is not described: %w", err)
	}
	return nil
}

func validate(schema *jsonschema.Schema, media string, body []byte) error {
	if media != "application/json" && media != problemMedia {
		return schema.Validate(string(body))
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("the body is not JSON: %w", err)
	}
	if err := schema.Validate(v); err != nil {
		return fmt.Errorf("the body: %w", err)
	}
	return nil
}
