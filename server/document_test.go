package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/tokens"
)

// fixedClusterInfo returns the values that the test sets.
type fixedClusterInfo struct {
	json, config []byte
	signed       []byte // result of WaitSigned; nil: config
	err          error
}

func (s *fixedClusterInfo) JSON(context.Context) ([]byte, error)   { return s.json, s.err }
func (s *fixedClusterInfo) Config(context.Context) ([]byte, error) { return s.config, s.err }
func (s *fixedClusterInfo) WaitSigned(context.Context, tokens.Token) ([]byte, error) {
	if s.signed != nil {
		return s.signed, nil
	}
	return s.config, s.err
}

func get(t *testing.T, h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func unzip(t *testing.T, body []byte) []byte {
	t.Helper()
	return must.Get(io.ReadAll(must.Get(gzip.NewReader(bytes.NewReader(body)))))
}

// signatures returns n bytes that compress like the signatures of a large cluster-info: each has the same header.
// gzip of Go 1.27 does not shrink purely random base64.
func signatures(n int) []byte {
	var b bytes.Buffer
	for b.Len() < n {
		b.WriteString("eyJhbGciOiJIUzI1NiJ9.." + rand.Text() + "\n")
	}
	return b.Bytes()[:n]
}

// Compression runs in the background, once per content and at most once a second. Catches clients that can cause
// more compressions.
func TestCompressesOncePerContentAndSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		info := &fixedClusterInfo{json: signatures(1 << 20)}
		h := must.Get(server.Server{Tokens: struct{ tokens.Store }{}, ClusterInfo: info}.Handler())
		ask := func() *httptest.ResponseRecorder {
			t.Helper()
			w := get(t, h, infoPath, "Accept-Encoding", "gzip")
			body := w.Body.Bytes()
			if w.Header().Get("Content-Encoding") == "gzip" {
				body = unzip(t, body)
			}
			if w.Code != 200 || !bytes.Equal(body, info.json) {
				t.Fatalf("%d with %d bytes that differ", w.Code, len(body))
			}
			return w
		}
		packed := func() bool { t.Helper(); return ask().Header().Get("Content-Encoding") == "gzip" }
		if packed() {
			t.Error("the first response is compressed: its client waited for that")
		}
		synctest.Wait()
		if !packed() {
			t.Error("got an uncompressed response after the compression, want gzip")
		}
		for range 10 { // content that changes ten times in a second is sent uncompressed
			info.json = signatures(1 << 20)
			if packed() {
				t.Error("got a compressed response for new content, want it uncompressed")
			}
			synctest.Wait()
			if packed() {
				t.Error("got a second compression within a second")
			}
			time.Sleep(90 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		packed()
		synctest.Wait()
		if !packed() {
			t.Error("got an uncompressed response after a second, want gzip")
		}

		// A copy of the same content keeps its ETag and its compression.
		tag := ask().Header().Get("ETag")
		info.json = bytes.Clone(info.json)
		if w := ask(); w.Header().Get("ETag") != tag || !packed() {
			t.Errorf("the same content is %s, was %s", w.Header().Get("ETag"), tag)
		}
	})
}

func TestConditionalRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		info := &fixedClusterInfo{json: bytes.Repeat([]byte("x"), 4<<10)}
		h := must.Get(server.Server{Tokens: struct{ tokens.Store }{}, ClusterInfo: info}.Handler())
		first := get(t, h, infoPath, "Accept-Encoding", "gzip")
		synctest.Wait()
		plain, packed := first.Header().Get("ETag"), get(t, h, infoPath, "Accept-Encoding", "gzip").Header().Get("ETag")
		if plain == packed || !strings.HasPrefix(plain, `"`) || !strings.HasSuffix(packed, `"`) {
			t.Fatalf("tags %s and %s", plain, packed)
		}
		for _, test := range []struct {
			encoding, has string
			status        int
			tag           string
		}{
			{"", "", 200, plain},
			{"gzip", "", 200, packed},
			{"deflate, GZIP;q=0.5, *;q=0", "", 200, packed},
			{"x-gzip", "", 200, packed},
			{"*", "", 200, packed},
			{"*;q=0", "", 200, plain},
			{"gzip;q=0, *", "", 200, plain},
			{"gzip;q=no", "", 200, plain},
			{"", plain, 304, plain},
			{"", "W/" + plain, 304, plain},
			{"", `"a", ` + plain, 304, plain},
			{"", packed, 200, plain}, // the client could not read the gzip form
			{"", "*", 304, plain},
			{"gzip", packed, 304, packed},
			{"gzip", plain, 304, plain},
			{"gzip", `"` + strings.Trim(plain, `"`), 200, packed},
			{"gzip", `"a"`, 200, packed},
		} {
			var header []string
			for name, value := range map[string]string{"Accept-Encoding": test.encoding, "If-None-Match": test.has} {
				if value != "" {
					header = append(header, name, value)
				}
			}
			w := get(t, h, infoPath, header...)
			encoding := ""
			if test.status == 200 && test.tag == packed {
				encoding = "gzip"
			}
			if got := w.Header(); w.Code != test.status || got.Get("ETag") != test.tag || got.Get("Content-Encoding") != encoding ||
				got.Get("Cache-Control") != "no-cache" || got.Get("Vary") != "Accept-Encoding" || (w.Body.Len() == 0) != (test.status == 304) ||
				(got.Get("Content-Type") == "") != (test.status == 304) {
				t.Errorf("%q, %q: %d %v with %d bytes, want %d and tag %s", test.encoding, test.has, w.Code, got, w.Body.Len(), test.status, test.tag)
			}
		}
		info.json = append(bytes.Repeat([]byte("x"), 4<<10-1), 'y')
		if w := get(t, h, infoPath, "If-None-Match", plain); w.Code != 200 || w.Header().Get("ETag") == plain {
			t.Errorf("another content: %d %s", w.Code, w.Header().Get("ETag"))
		}
		if w := get(t, h, infoPath, "If-None-Match", plain); w.Header().Get("Content-Length") != "4096" {
			t.Errorf("Content-Length %s", w.Header().Get("Content-Length"))
		}
	})
}

// nowhere discards the response.
type nowhere struct{ header http.Header }

func (w nowhere) Header() http.Header         { return w.header }
func (w nowhere) WriteHeader(int)             {}
func (w nowhere) Write(b []byte) (int, error) { return len(b), nil }

// Catches an unauthenticated request whose memory grows with the size of cluster-info.
func TestPublicPathsCostConstantMemory(t *testing.T) {
	s := newSite(t)
	s.Logger = slog.New(slog.DiscardHandler)
	h := must.Get(s.Server.Handler()) // without the check against openapi.yaml, which keeps responses in memory
	cost := func(path string, header ...string) (bytes int64) {
		r := httptest.NewRequest("GET", path, nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		const times = 500
		bytes = math.MaxInt64
		for range 5 { // use the minimum: a compression may run during one of these requests
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range times {
				h.ServeHTTP(nowhere{http.Header{}}, r)
			}
			runtime.ReadMemStats(&after)
			bytes = min(bytes, int64(after.TotalAlloc-before.TotalAlloc)/times)
		}
		return bytes
	}
	few := cost(infoPath)
	s.fill(t, 2000)
	wait.Until(t, "cluster-info is compressed", func() bool {
		return get(t, h, infoPath, "Accept-Encoding", "gzip").Header().Get("Content-Encoding") == "gzip"
	})
	tag := get(t, h, infoPath).Header().Get("ETag")
	if n := get(t, h, infoPath).Body.Len(); n < 200<<10 {
		t.Fatalf("got %d bytes of cluster-info, want more than 200 KiB for this test", n)
	}
	for what, got := range map[string]int64{
		"as it is":       cost(infoPath),
		"compressed":     cost(infoPath, "Accept-Encoding", "gzip"),
		"not changed":    cost(infoPath, "If-None-Match", tag),
		"the kubeconfig": cost("/v1/cluster-info", "Accept-Encoding", "gzip"),
		"the CAs":        cost("/v1/ca", "Accept", "application/json"),
	} {
		if got > few+2048 {
			t.Errorf("%s: got %d bytes a request, want at most 2048 more than the %d with one token", what, got, few)
		}
	}
}
