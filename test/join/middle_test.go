package join

import (
	"bytes"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/servingcert"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
)

// An attacker is a man in the middle at the advertised address. It relays requests to kubejoin, and serves with a
// certificate from its own CA.
type attacker struct {
	address string
	// If ownCA is set, the attacker replaces the CA in cluster-info by its own CA.
	ownCA atomic.Bool

	program *harness.Program
	server  *httptest.Server
	mu      sync.Mutex
	seen    []byte // all requests
}

func newAttacker(t *testing.T, address string, between *harness.Program, ca *signer.CA) *attacker {
	t.Helper()
	m := &attacker{address: address, program: between}
	certificate := &servingcert.Source{CA: func() *signer.CA { return ca }, Names: []string{"127.0.0.1"}}
	must.Value(certificate.Step(t.Context()))(t)
	shown := must.Value(certificate.GetCertificate(nil))(t)
	kubeconfig := must.Value(clusterinfo.Kubeconfig("https://"+m.address, ca.Bundle()))(t)
	forged := must.Value(clusterinfo.MarshalConfigMap(map[string]string{clusterinfo.KubeconfigKey: string(kubeconfig)}))(t)
	relay := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: between.Endpoint})
	relay.Transport = between.HTTP.Transport
	m.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := httputil.DumpRequest(r, true)
		if err != nil {
			t.Error(err)
		}
		m.mu.Lock()
		m.seen = append(m.seen, request...)
		m.mu.Unlock()
		if m.ownCA.Load() && r.URL.Path == harness.ClusterInfoPath {
			_, _ = w.Write(forged)
			return
		}
		relay.ServeHTTP(w, r)
	}))
	m.server.Config.ErrorLog = log.New(io.Discard, "", 0) // ignore failed handshakes: the test expects them
	m.server.TLS = &tls.Config{Certificates: []tls.Certificate{*shown}}
	listener := must.Value(net.Listen("tcp", m.address))(t)
	_ = m.server.Listener.Close()
	m.server.Listener = listener
	m.server.StartTLS()
	t.Cleanup(m.server.Close)
	return m
}

// checkNoSecrets fails the test if the attacker received other requests than requests for public data.
func (m *attacker) checkNoSecrets(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !bytes.Contains(m.seen, []byte("GET "+harness.ClusterInfoPath)) {
		t.Error("precondition: the attacker got no request for cluster-info")
	}
	if tokens.Redact(string(m.seen)) != string(m.seen) || bytes.Contains(m.seen, []byte("Authorization")) || bytes.Contains(m.seen, []byte("POST")) {
		t.Error("the attacker got a token, a header Authorization or a POST, want only requests for public data")
	}
}

// forwardUnchanged forwards the bytes of later connections to kubejoin, without TLS interception.
func (m *attacker) forwardUnchanged(t *testing.T) {
	t.Helper()
	m.server.Close()
	listener := must.Value(net.Listen("tcp", m.address))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // the listener was closed
			}
			to, err := net.Dial("tcp", m.program.Endpoint)
			if err != nil {
				_ = from.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				}()
			}
		}
	}()
}
