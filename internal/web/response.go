package web

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// A Response is a complete response.
type Response struct {
	Status      int // zero means 200
	ContentType string
	Header      map[string]string
	Body        []byte
	// If Serve is not nil, it writes the whole response, and the fields above are ignored.
	Serve http.Handler
}

// Object returns a response with v in JSON.
func Object(status int, v any) (Response, error) {
	body, err := json.Marshal(v)
	return Response{Status: status, ContentType: "application/json", Body: append(body, '\n')}, err
}

// Warn adds a Warning header as kube-apiserver sends it (RFC 7234, section 5.5), unless there are no warnings.
func (a *Response) Warn(warnings []string) {
	if len(warnings) == 0 {
		return
	}
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	list := make([]string, len(warnings))
	for i, w := range warnings {
		list[i] = `299 - "` + escape.Replace(w) + `"`
	}
	if a.Header == nil {
		a.Header = map[string]string{}
	}
	a.Header["Warning"] = strings.Join(list, ", ")
}

// Write writes the response to a request, and limits the time that the client may take to read it.
func (a Response) Write(w http.ResponseWriter, r *http.Request) {
	limitResponse(w, r)
	if a.Serve != nil {
		a.Serve.ServeHTTP(w, r)
		return
	}
	for name, value := range a.Header {
		w.Header().Set(name, value)
	}
	status := cmp.Or(a.Status, http.StatusOK)
	if status != http.StatusNotModified { // a 304 has no body to describe
		w.Header().Set("Content-Type", a.ContentType)
		w.Header().Set("Content-Length", strconv.Itoa(len(a.Body)))
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead && len(a.Body) > 0 {
		// If this fails, the client has disconnected.
		_, _ = w.Write(a.Body)
		if r.ProtoMajor == 2 { // without Flush, HTTP/2 sends a short response only after the slot is released
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// limitResponse limits the time for the client to read the response and to send the rest of its request.
func limitResponse(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// The calls fail for a writer without deadlines, which also has no connection. A server without a WriteTimeout never
	// resets the write deadline, so the deadline would apply to later requests on the connection.
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.WriteTimeout > 0 {
		_ = control.SetWriteDeadline(time.Now().Add(answerTimeout))
	}
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		_ = control.SetReadDeadline(time.Now().Add(restTimeout))
	}
}

// A Panic is the error of a function that panicked.
type Panic struct {
	Value any
	Stack []string // lines of the stack trace
}

// Error returns the value of the panic.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Recover calls f. If f panics, it returns the panic as a [Panic].
func Recover(f func() (Response, error)) (a Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{v, strings.Split(strings.TrimSpace(string(debug.Stack())), "\n")}
		}
	}()
	return f()
}
