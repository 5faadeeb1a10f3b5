package test

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
	"github.com/kubejoin/kubejoin/internal/servingcert"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
)

// A middle is a man in the middle, at the address that machines are told: it answers what a kubejoin
// answers, under a certificate of a CA of its own.
type middle struct {
	address string
	// ownCA puts its own CA into cluster-info.
	ownCA atomic.Bool

	program *program
	server  *httptest.Server
	mu      sync.Mutex
	heard   []byte
}

func newMiddle(t *testing.T, port int, between *program, ca *signer.CA) *middle {
	t.Helper()
	m := &middle{address: "127.0.0.1:" + itoa(port), program: between}
	certificate := &servingcert.Issued{CA: func() *signer.CA { return ca }, Names: []string{"127.0.0.1"}}
	if _, err := certificate.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown, err := certificate.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := clusterinfo.Kubeconfig("https://"+m.address, ca.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	forged, err := clusterinfo.MarshalConfigMap(map[string]string{clusterinfo.KubeconfigKey: string(kubeconfig)})
	if err != nil {
		t.Fatal(err)
	}
	relay := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: between.address})
	relay.Transport = between.http.Transport
	m.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard, err := httputil.DumpRequest(r, true)
		if err != nil {
			t.Error(err)
		}
		m.mu.Lock()
		m.heard = append(m.heard, heard...)
		m.mu.Unlock()
		if m.ownCA.Load() && r.URL.Path == discoveryPath {
			_, _ = w.Write(forged)
			return
		}
		relay.ServeHTTP(w, r)
	}))
	m.server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail are the point
	m.server.TLS = &tls.Config{Certificates: []tls.Certificate{*shown}}
	listener, err := net.Listen("tcp", m.address)
	if err != nil {
		t.Fatal(err)
	}
	_ = m.server.Listener.Close()
	m.server.Listener = listener
	m.server.StartTLS()
	t.Cleanup(m.server.Close)
	return m
}

// toldNothing fails if it has heard anything but questions for what is public.
func (m *middle) toldNothing(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !bytes.Contains(m.heard, []byte("GET "+discoveryPath)) {
		t.Error("nobody asked the man in the middle: this test is about nothing")
	}
	if tokens.Redact(string(m.heard)) != string(m.heard) || bytes.Contains(m.heard, []byte("Authorization")) || bytes.Contains(m.heard, []byte("POST")) {
		t.Error("the man in the middle was told more than what is public")
	}
}

// leave has what goes to its address reach the kubejoin as it is from now on.
func (m *middle) leave(t *testing.T) {
	t.Helper()
	m.server.Close()
	listener, err := net.Listen("tcp", m.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // closed
			}
			to, err := net.Dial("tcp", m.program.address)
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
