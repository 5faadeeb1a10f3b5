package server_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/servingcert"
	"github.com/kubejoin/kubejoin/signer"
)

func TestTLSVersions(t *testing.T) {
	for _, test := range []struct {
		least   uint16 // of the server
		client  *tls.Config
		version uint16 // zero: want the handshake refused
	}{
		{0, &tls.Config{}, tls.VersionTLS13},
		{0, &tls.Config{MaxVersion: tls.VersionTLS12}, 0},
		{tls.VersionTLS12, &tls.Config{}, tls.VersionTLS13},
		{tls.VersionTLS12, &tls.Config{MaxVersion: tls.VersionTLS12}, tls.VersionTLS12},
		{tls.VersionTLS10, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, 0},
		// The site has a P-256 certificate.
		{tls.VersionTLS12, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_RSA_WITH_AES_128_GCM_SHA256}}, 0},
		{tls.VersionTLS12, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}}, tls.VersionTLS12},
	} {
		t.Run(fmt.Sprintf("%x %x %x", test.least, test.client.MaxVersion, test.client.CipherSuites), func(t *testing.T) {
			s := newSite(t)
			s.Logger = nil
			certificate := &servingcert.Source{CA: func() *signer.CA { return s.ca }, Names: []string{"127.0.0.1"}}
			if _, err := certificate.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
			web := s.HTTPServer(&tls.Config{GetCertificate: certificate.GetCertificate, MinVersion: test.least})
			if least := web.TLSConfig.MinVersion; least < tls.VersionTLS12 {
				t.Errorf("got minimum version %x, want at least TLS 1.2", least)
			}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = web.ServeTLS(listener, "", "") }()
			defer func() { _ = web.Close() }()
			s.url = "https://" + listener.Addr().String()
			test.client.NextProtos = []string{"h2"}
			c, err := s.dialFrom(t, "127.0.0.1", test.client)
			if state := c.ConnectionState(); test.version == 0 && err == nil || test.version != 0 && (err != nil || state.Version != test.version || state.NegotiatedProtocol != "h2") {
				t.Errorf("%v, version %x, protocol %q", err, state.Version, state.NegotiatedProtocol)
			}
		})
	}
}

// Catches "OPTIONS *" (RFC 9110, section 7.1), which net/http answers itself, without the handler's limits.
func TestLimitsServerWideOptionsRequests(t *testing.T) {
	s := newSite(t)
	s.Logger, s.Limits.ClientRate = nil, atFirst(3)
	s.start(t)
	first := s.http.Transport.(*http.Transport)
	older := &http.Transport{TLSClientConfig: first.TLSClientConfig.Clone()}
	t.Cleanup(older.CloseIdleConnections)
	older.TLSClientConfig.NextProtos = []string{"http/1.1"}
	for i, want := range []int{404, 404, 404, 429} {
		transport := []*http.Transport{older, first}[i%2]
		r := &http.Request{Method: "OPTIONS", URL: &url.URL{Scheme: "https", Host: strings.TrimPrefix(s.url, "https://"), Opaque: "*"}, Header: http.Header{}}
		answer, err := transport.RoundTrip(r.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want || answer.ProtoMajor != 1+i%2 || answer.Header.Get("X-Request-Id") == "" {
			t.Errorf("over %s: %s %v, want %d", answer.Proto, answer.Status, answer.Header, want)
		}
	}
	if n := s.refused(t, "client-rate"); n != 1 {
		t.Errorf("got %v counted refusals, want 1", n)
	}
}
