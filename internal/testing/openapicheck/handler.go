package openapicheck

import (
	"bytes"
	"io"
	"net/http"
	"sync"
)

// The handler checks only some responses of more than large bytes, for example a cluster-info of megabytes: the first
// largeFirst responses of each path, and then every largeEvery-th.
const (
	large      = 256 << 10
	largeFirst = 3
	largeEvery = 50
)

// Handler wraps next and checks every exchange against the description after the response. It calls report from many
// goroutines at once.
func (d *Document) Handler(next http.Handler, report func(Result)) http.Handler {
	var mu sync.Mutex
	largeSeen := map[string]int{}
	keep := func(path string) bool {
		mu.Lock()
		defer mu.Unlock()
		largeSeen[path]++
		n := largeSeen[path]
		return n <= largeFirst || n%largeEvery == 0
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &recorder{ResponseWriter: w, keepLarge: func() bool { return keep(r.URL.Path) }}
		x := Exchange{Method: r.Method, URL: r.URL}
		var sent bytes.Buffer
		if r.Body != nil && r.Body != http.NoBody {
			r = r.WithContext(r.Context()) // a copy: the caller's request keeps its body
			r.Body = reading{io.TeeReader(r.Body, &sent), r.Body}
		}
		next.ServeHTTP(seen, r)
		if seen.status == 0 {
			seen.WriteHeader(http.StatusOK)
		}
		x.RequestBody, x.Status, x.Header, x.Body, x.NoBody = sent.Bytes(), seen.status, seen.header, seen.body.Bytes(), seen.dropped
		report(d.Check(x))
	})
}

type reading struct {
	io.Reader
	io.Closer
}

// recorder forwards a response and keeps a copy of it.
type recorder struct {
	http.ResponseWriter
	keepLarge func() bool

	status  int
	header  http.Header
	body    bytes.Buffer
	dropped bool
	asked   bool // keepLarge was called
}

// Unwrap lets http.ResponseController find the original writer.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status, w.header = status, w.Header().Clone()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.asked && w.body.Len()+len(b) > large {
		w.asked = true
		if w.dropped = !w.keepLarge(); w.dropped {
			w.body = bytes.Buffer{}
		}
	}
	if !w.dropped {
		w.body.Write(b)
	}
	return w.ResponseWriter.Write(b)
}
