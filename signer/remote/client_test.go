package remote_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificates "k8s.io/api/certificates/v1"
)

// process starts a signer process that responds as handle does, and returns its URL.
func process(t testing.TB, handle http.HandlerFunc) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sock")
	listener := must.Value(net.Listen("unix", file))(t)
	server := &http.Server{Handler: handle, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // ends with the server
	t.Cleanup(func() { must.OK(t, server.Close()) })
	return "unix://" + file
}

func order(t testing.TB) signer.Order {
	t.Helper()
	return signer.Order{
		Request: approval.Request{SignerName: certificates.KubeAPIServerClientKubeletSignerName, CSR: csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("a")}, nil)},
		Made:    time.Now(), NotAfter: time.Now().Add(time.Hour),
	}
}

// The error of a signer process that is unreachable, slow or broken is not a refusal, so the request is retried.
func TestRequestsWaitForSigner(t *testing.T) {
	respond := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for _, test := range []struct {
		name   string
		handle http.HandlerFunc // nil: nobody listens
		is     error
		want   string
		result string
	}{
		{"away", nil, remote.ErrUnavailable, "no such file", "unavailable"},
		{"busy", respond(http.StatusServiceUnavailable, `{"detail":"too many orders\u0007"}`), remote.ErrUnavailable, `too many orders`, "unavailable"},
		{"over its rate", respond(http.StatusTooManyRequests, `{"detail":"rate"}`), remote.ErrUnavailable, "rate", "unavailable"},
		{"replayed", respond(http.StatusConflict, `{"detail":"sent before"}`), remote.ErrUnavailable, "sent before", "unavailable"},
		{"no problem document", respond(http.StatusInternalServerError, "<html>"), remote.ErrUnavailable, "500", "unavailable"},
		{"elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/v2", http.StatusFound) }, remote.ErrUnavailable, "302", "unavailable"},
		{"talks without end", respond(http.StatusOK, strings.Repeat("x", 1<<20)), remote.ErrUnavailable, "more than", "unavailable"},
		{"has a large header", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 64<<10))
		}, remote.ErrUnavailable, "header", "unavailable"},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, remote.ErrUnavailable, "EOF", "unavailable"},
		{"hangs up early", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, remote.ErrUnavailable, "read response", "unavailable"},
		{"refuses", respond(http.StatusForbidden, `{"detail":"policy"}`), remote.ErrRefused, "policy", "refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			url := "unix:///nowhere/sock"
			if test.handle != nil {
				url = process(t, test.handle)
			}
			registry := prometheus.NewRegistry()
			client := must.Value(remote.New(remote.Config{URL: url, Registerer: registry}))(t)
			certificate, err := client.Sign(t.Context(), order(t))
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.want) || strings.ContainsRune(err.Error(), 7) || len(certificate) > 0 {
				t.Errorf("got %q, %v, want %v and %q", certificate, err, test.is, test.want)
			}
			if errors.As(err, new(*approval.Error)) {
				t.Errorf("error %v decides about the request", err)
			}
			if _, err := client.Ping(t.Context(), nil); !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("ping: got %v", err)
			}
			want := `# HELP kubejoin_signer_process_requests_total Certificates that kubejoin has ordered from the signer process of --cluster-signing-key-url, by result: signed, refused, unavailable, or discarded: signed, but not what was ordered.
# TYPE kubejoin_signer_process_requests_total counter
`
			for _, result := range []string{"discarded", "refused", "signed", "unavailable"} {
				count := " 0\n"
				if result == test.result {
					count = " 1\n"
				}
				want += `kubejoin_signer_process_requests_total{result="` + result + `"}` + count
			}
			if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "kubejoin_signer_process_requests_total"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A slow signer process holds a request no longer than the caller allows.
func TestSlowSigner(t *testing.T) {
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	ctx, cancel := context.WithCancel(t.Context())
	client := must.Value(remote.New(remote.Config{URL: process(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		select {
		case <-end:
		case <-r.Context().Done():
		}
	})}))(t)
	if certificate, err := client.Sign(ctx, order(t)); !errors.Is(err, context.Canceled) || !errors.Is(err, remote.ErrUnavailable) || len(certificate) > 0 {
		t.Errorf("got %q, %v", certificate, err)
	}
	if limit := client.Timeout(); limit < 1 || limit > 30 {
		t.Errorf("a request without a deadline takes up to %g s", limit)
	}
	if _, err := client.Ping(ctx, nil); err == nil {
		t.Error("ping of a slow signer process: got no error")
	}
}

// A signer process that accepts connections but never responds must not use connection slots for long.
func TestSilentSigner(t *testing.T) {
	t.Parallel() // takes as long as the handshake timeout
	dir := t.TempDir()
	ca := certtest.CA(t, "ca")
	write := func(name, kind string, content []byte) string {
		file := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
		return file
	}
	cert, key := write("crt", "CERTIFICATE", ca.Certificate[0]), write("key", "PRIVATE KEY", must.Value(x509.MarshalPKCS8PrivateKey(ca.PrivateKey))(t))
	listener := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	client := must.Value(remote.New(remote.Config{URL: "https://" + listener.Addr().String(), CAFile: cert, CertFile: cert, KeyFile: key}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := client.Sign(ctx, order(t))
		done <- err
	}()
	conn := must.Value(listener.Accept())(t)
	cancel()
	if err := <-done; !errors.Is(err, remote.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil { // ends when the client closes the connection
		t.Error(err)
	}
	must.OK(t, conn.Close())
}

func TestParseOrder(t *testing.T) {
	csr := order(t).Request.CSR
	good := remote.Order{ID: make([]byte, 16), SignerName: "example.com/a", CSR: csr.Raw, User: "jane", Request: "csr-1"}
	if o, err := good.Parse("kubejoin"); err != nil || o.Request.Approver != "kubejoin" || o.Request.User != "jane" || o.Request.Name != "csr-1" || !bytes.Equal(o.Request.CSR.Raw, csr.Raw) {
		t.Errorf("got %+v, %v", o, err)
	}
	for _, bad := range []remote.Order{{CSR: csr.Raw}, {ID: make([]byte, 15), CSR: csr.Raw}, {ID: good.ID}, {ID: good.ID, CSR: csr.Raw[1:]}} {
		if _, err := bad.Parse("kubejoin"); approval.Refused(err) == nil {
			t.Errorf("ID of %d bytes and CSR of %d: got %v, want a refusal", len(bad.ID), len(bad.CSR), err)
		}
	}
}

func TestCheckConfig(t *testing.T) {
	files := remote.Config{CAFile: "ca", CertFile: "crt", KeyFile: "key"}
	for _, test := range []struct {
		url   string
		files bool
		want  string
	}{
		{"https://10.0.0.1:9444", true, ""},
		{"https://signer.example.com:9444/", true, ""},
		{"unix:///run/sock", false, ""},
		{"https://10.0.0.1:9444", false, "needs a file with the"},
		{"unix:///run/sock", true, "needs no file with the"},
		{"", false, "invalid URL"},
		{"http://10.0.0.1:9444", true, "invalid URL"},
		{"https://10.0.0.1", true, "invalid URL"},
		{"https://user:pass@10.0.0.1:9444", true, "invalid URL"},
		{"https://10.0.0.1:9444/path", true, "invalid URL"},
		{"https://10.0.0.1:9444?a=b", true, "invalid URL"},
		{"unix://run/sock", false, "invalid URL"},
		{"unix:///run/../sock", false, "invalid URL"},
		{"unix:run/sock", false, "invalid URL"},
	} {
		c := remote.Config{}
		if test.files {
			c = files
		}
		c.URL = test.url
		_, err := remote.New(c)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q with files %t: got %v, want %q", test.url, test.files, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "pass") {
			t.Errorf("error shows the password: %v", err)
		}
	}
}

// Files that cannot be read make requests wait, and the error names the file.
func TestUnusableFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		file := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(file, content, 0o600))
		return file
	}
	bad, worse := write("bad", []byte("no certificate")), write("worse", []byte("no certificate"))
	good := write("good", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certtest.CA(t, "ca").Certificate[0]}))
	for _, test := range []struct {
		c    remote.Config
		want string
	}{
		{remote.Config{CAFile: filepath.Join(dir, "missing"), CertFile: worse, KeyFile: worse}, "open " + filepath.Join(dir, "missing")},
		{remote.Config{CAFile: bad, CertFile: worse, KeyFile: worse}, bad + ": "},
		{remote.Config{CAFile: good, CertFile: worse, KeyFile: worse}, worse + " and " + worse},
	} {
		test.c.URL = "https://127.0.0.1:9444"
		if _, err := must.Value(remote.New(test.c))(t).Sign(t.Context(), order(t)); !errors.Is(err, remote.ErrUnavailable) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an error with %s", err, test.want)
		}
	}
	ca := certtest.CA(t, "ca")
	other := must.Value(remote.New(remote.Config{URL: process(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate[0]})
	})}))(t)
	if _, err := other.Ping(t.Context(), []*x509.Certificate{certtest.CA(t, "ca").Leaf}); err == nil || !strings.Contains(err.Error(), "add it to --cluster-signing-cert-file") {
		t.Errorf("ping of a signer process with another CA: got %v", err)
	}
	if signs := must.Value(other.Ping(t.Context(), []*x509.Certificate{ca.Leaf}))(t); !signs.Equal(ca.Leaf) {
		t.Errorf("the signer process signs with %q, want its CA", signs.Subject)
	}
	broken := must.Value(remote.New(remote.Config{URL: process(t, func(http.ResponseWriter, *http.Request) {})}))(t)
	if _, err := broken.Ping(t.Context(), nil); !errors.Is(err, remote.ErrUnavailable) || !strings.Contains(err.Error(), "its CA") {
		t.Errorf("ping of a signer process without a CA: got %v", err)
	}
}
