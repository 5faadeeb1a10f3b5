package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/servingcert"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	adminBearer  = "admin-bearer-0123456789"
	viewerBearer = "viewer-bearer-0123456789"
	commandPath  = "/v1/token/print-join-command"
	infoPath     = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
)

// patience is how long tests wait for a condition, which a slow machine reaches late.
const patience = 2 * time.Minute

// site is a server with the file store, served over TLS.
type site struct {
	server.Server
	store *boltstore.Store
	ca    *signer.CA
	logs  *logs.Buffer
	url   string
	http  *http.Client

	measured   bool          // do not check the responses
	strict     bool          // keep the timeouts of HTTPServer; otherwise long or none, for stalled machines
	idle       time.Duration // if set, replaces the idle timeout of HTTPServer
	connState  func(net.Conn, http.ConnState)
	minVersion uint16 // minimum TLS version
}

func newSite(t testing.TB) *site {
	t.Helper()
	store := must.Get(boltstore.Open(filepath.Join(t.TempDir(), "kubejoin.db")))
	t.Cleanup(func() { _ = store.Close() })
	ca := must.Get(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))
	kubeconfig := must.Get(clusterinfo.Kubeconfig("https://api.example.com:6443", ca.Bundle()))
	operators := must.Get(auth.ParseTokenFile([]byte(adminBearer + `,ada,1,"kubejoin:admins,others"` + "\n" + viewerBearer + ",vic,2\n")))
	s := &site{store: store, ca: ca, logs: &logs.Buffer{}}
	s.Server = server.Server{
		Tokens:      store,
		ClusterInfo: &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig},
		Callers:     server.Callers{Authenticate: operators.Authenticate, Authorize: auth.AllowGroup("kubejoin:admins")},
		Status:      server.Status{Version: api.Version{Version: "v0.0.0"}},
		Logger:      slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registerer:  prometheus.NewPedanticRegistry(),
		// Only the tests of rates set limits. In other tests a refusal could hide a defect.
		Limits: server.Limits{ClientRate: server.Rate{QPS: -1}, UserRate: server.Rate{QPS: -1}},
	}
	return s
}

// start serves s with its current fields.
func (s *site) start(t testing.TB) {
	t.Helper()
	certificate := &servingcert.Source{CA: func() *signer.CA { return s.ca }, Names: []string{"127.0.0.1"}}
	must.Get(certificate.Step(t.Context()))
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))
	if s.Minting.Advertise == "" {
		s.Minting.Advertise = listener.Addr().String()
	}
	web := s.HTTPServer(&tls.Config{GetCertificate: certificate.GetCertificate, ClientAuth: tls.RequestClientCert, MinVersion: s.minVersion})
	if !s.strict {
		web.ReadHeaderTimeout, web.ReadTimeout, web.WriteTimeout = patience, patience, 0
	}
	if s.idle > 0 {
		web.IdleTimeout = s.idle
	}
	limited := server.LimitHandshakes(listener)
	if s.connState != nil { // this ConnState does not lift the limit of LimitHandshakes
		web.ConnState, limited = s.connState, listener
	}
	go func() { _ = web.ServeTLS(limited, "", "") }()
	t.Cleanup(func() { _ = web.Close() })
	s.url = "https://" + listener.Addr().String()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots()}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	s.http = &http.Client{Transport: transport}
}

// roots returns a pool with the CA of the site.
func (s *site) roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(s.ca.Certificate())
	return roots
}

func (s *site) registry() *prometheus.Registry { return s.Registerer.(*prometheus.Registry) }

// gauge returns the value of a metric without labels, or of the series whose first label has that value.
func (s *site) gauge(t testing.TB, name, label string) float64 {
	t.Helper()
	families := must.Get(s.registry().Gather())
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s of %q", name, label)
	return 0
}

func (s *site) inFlight(t testing.TB, class string) float64 {
	return s.gauge(t, "kubejoin_http_requests_in_flight", class)
}

type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request. An empty bearer sends no Authorization header.
func (s *site) do(t testing.TB, method, path, bearer, contentType, body string) reply {
	t.Helper()
	return s.send(t, s.http, method, path, bearer, contentType, body)
}

func (s *site) send(t testing.TB, c *http.Client, method, path, bearer, contentType, body string) reply {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body)))
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	response := must.Value(c.Do(r))(t)
	defer func() { _ = response.Body.Close() }()
	content := must.Get(io.ReadAll(response.Body))
	return reply{response.StatusCode, response.Header, string(content)}
}

// parseLine parses a join command as kubeadm would.
func parseLine(t testing.TB, line string) (endpoint string, token tokens.Token, pins []string) {
	t.Helper()
	if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
		t.Fatalf("not one line: %q", line)
	}
	words := strings.Fields(line)
	if len(words) < 7 || words[0] != "kubeadm" || words[1] != "join" || words[3] != "--token" {
		t.Fatalf("not a join command of known form: %d words", len(words))
	}
	token = must.Value(tokens.Parse(words[4]))(t)
	rest := words[5:]
	if n := len(rest); n > 3 && rest[n-3] == "--control-plane" && rest[n-2] == "--certificate-key" && len(rest[n-1]) == 64 {
		rest = rest[:n-3]
	}
	for ; len(rest) > 0; rest = rest[2:] {
		if rest[0] != "--discovery-token-ca-cert-hash" {
			t.Fatalf("flag %s", rest[0])
		}
		pins = append(pins, rest[1])
	}
	return words[2], token, pins
}

func (s *site) ids(t *testing.T) []string {
	t.Helper()
	var ids []string
	for _, r := range must.Get(s.store.List(t.Context())) {
		ids = append(ids, r.Token.ID())
	}
	return ids
}

// fill stores n tokens. The writers run concurrently so that they share fsyncs.
func (s *site) fill(tb testing.TB, n int) {
	tb.Helper()
	var writers sync.WaitGroup
	todo := make(chan struct{})
	for range 200 {
		writers.Go(func() {
			for range todo {
				// With 12,000 random IDs, two are equal in one of thirty runs.
				if _, err := s.store.Create(tb.Context(), tokens.Record{Token: tokens.Generate(), Signing: true, Expires: time.Now().Add(time.Hour)}); err != nil && !errors.Is(err, tokens.ErrExists) {
					tb.Error(err)
				}
			}
		})
	}
	for range n {
		todo <- struct{}{}
	}
	close(todo)
	writers.Wait()
}
