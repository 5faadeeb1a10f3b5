// Package apitest creates clients of an API server that a test implements. Unlike the fake clientset of client-go, these
// clients encode, send, retry and decode as in production. There is no network.
package apitest

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Client returns a client whose requests are handled by api.
func Client(t testing.TB, api http.HandlerFunc) kubernetes.Interface {
	t.Helper()
	return must.Value(kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: transport(api)}))(t)
}

// Reviews returns a client whose SubjectAccessReviews get this status, encoded as JSON.
func Reviews(t testing.TB, status func() any) kubernetes.Interface {
	t.Helper()
	return Client(t, func(w http.ResponseWriter, _ *http.Request) {
		Write(w, http.StatusCreated, map[string]any{"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "status": status()})
	})
}

// Write writes a response in JSON.
func Write(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(object); err != nil {
		panic(err)
	}
}

type transport http.HandlerFunc

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	t(w, r)
	response := w.Result()
	response.Request = r
	return response, nil
}

// Tunnel returns a proxy that connects each client to address, whatever host the client requested.
func Tunnel(address string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		to, err := net.Dial("tcp", address)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		from, received, err := http.NewResponseController(w).Hijack()
		if err != nil {
			_ = to.Close()
			return
		}
		// Use the buffered reader: the server may have read the first bytes.
		go func() { _, _ = io.Copy(to, received); _ = to.Close() }()
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}
}
