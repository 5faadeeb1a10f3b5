package server_test

import (
	"bufio"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server"
)

// junk returns an untrusted certificate with many elements of the kind what.
func junk(t testing.TB, what string, many int) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)}
	names := func(name asn1.RawValue) {
		value := must.Get(asn1.Marshal(slices.Repeat([]asn1.RawValue{name}, many)))
		template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: value}}
	}
	switch what {
	case "bytes":
		template.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: make([]byte, many)}}
	case "usages":
		template.UnknownExtKeyUsage = slices.Repeat([]asn1.ObjectIdentifier{{1, 2}}, many)
	case "arcs of a usage":
		template.UnknownExtKeyUsage = []asn1.ObjectIdentifier{slices.Repeat([]int{1}, many)}
	case "DNS names":
		names(asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 2})
	case "addresses":
		names(asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 7, Bytes: []byte{192, 0, 2, 1}})
	case "URIs":
		names(asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte("a:")})
	case "extensions":
		for i := range many {
			template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, i + 1}})
		}
	case "units":
		template.Subject.OrganizationalUnit = slices.Repeat([]string{"a"}, many)
	}
	key := csrtest.NewKey()
	return madeBy(t, template, template, key, key)
}

// kinds are the kinds of junk, each with about the number of elements that fit into a certificate of 16 KiB.
var kinds = map[string]int{"bytes": 15_500, "usages": 5000, "arcs of a usage": 15_500, "DNS names": 7500, "addresses": 2500, "URIs": 3800, "extensions": 1700, "units": 600}

// anotherKey is a private key that makes invalid signatures.
type anotherKey struct{ public crypto.PublicKey }

func (k anotherKey) Public() crypto.PublicKey { return k.public }

func (k anotherKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return make([]byte, 1024), nil
}

// withRSA returns a certificate for an RSA key of that many bits, without the private key.
func withRSA(t testing.TB, bits int) tls.Certificate {
	t.Helper()
	n := must.Get(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), uint(bits-1))))
	n.SetBit(n, bits-1, 1).SetBit(n, 0, 1)
	issuer := junk(t, "", 0)
	public := &rsa.PublicKey{N: n, E: 65537}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, public, issuer.PrivateKey))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: anotherKey{public}}
}

// chainOf returns the first certificate with the others as its chain.
func chainOf(all ...tls.Certificate) tls.Certificate {
	chain := tls.Certificate{PrivateKey: all[0].PrivateKey}
	for _, c := range all {
		chain.Certificate = append(chain.Certificate, c.Certificate...)
	}
	return chain
}

// asks sends a request over a connection with that client certificate.
func (s *site) asks(t testing.TB, config *tls.Config, shown tls.Certificate) (*tls.Conn, error) {
	t.Helper()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
	c, err := s.dialFrom(t, "127.0.0.1", config)
	if err != nil {
		return c, err
	}
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: kubejoin\r\n\r\n"); err != nil {
		return c, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return c, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return c, errors.Join(err, answer.Body.Close())
}

func TestRefusesClientCertificatesInTheHandshake(t *testing.T) {
	s := newSite(t)
	s.Logger, s.minVersion = nil, tls.VersionTLS12
	s.start(t)
	small := junk(t, "", 0)
	stapled := small
	stapled.OCSPStaple = make([]byte, 17<<10)
	type test struct {
		name    string
		shown   tls.Certificate
		refused bool
	}
	tests := []test{
		{name: "none", shown: tls.Certificate{}},
		{name: "4", shown: chainOf(small, small, small, small)},
		{name: "5", shown: chainOf(small, small, small, small, small), refused: true},
		{name: "almost 16 KiB", shown: chainOf(small, junk(t, "bytes", 7500), junk(t, "bytes", 7500))},
		{name: "more than 16 KiB", shown: chainOf(small, junk(t, "bytes", 8000), junk(t, "bytes", 8000)), refused: true},
		{name: "256 KiB", shown: junk(t, "bytes", 250_000), refused: true},
		{name: "more than 16 KiB beside it", shown: stapled, refused: true},
		{name: "a parent of RSA-4096", shown: chainOf(small, withRSA(t, 4096))},
		{name: "a parent of RSA-4104", shown: chainOf(small, withRSA(t, 4104)), refused: true},
		{name: "100 units", shown: junk(t, "units", 100)},
	}
	for what, many := range kinds {
		if what != "bytes" {
			tests = append(tests, test{what, junk(t, what, many), true})
		}
	}
	for _, test := range tests {
		for _, version := range []uint16{tls.VersionTLS13, tls.VersionTLS12} {
			if version == tls.VersionTLS12 && len(test.shown.OCSPStaple) > 0 {
				continue // a client cannot send such a certificate over TLS 1.2
			}
			t.Run(fmt.Sprintf("%s/%x", test.name, version), func(t *testing.T) {
				if _, err := s.asks(t, &tls.Config{MaxVersion: version}, test.shown); (err != nil) != test.refused {
					t.Errorf("got %v, want refused %t", err, test.refused)
				}
			})
		}
	}
	// The server refuses a large key before it verifies a signature with it.
	for bits, alert := range map[int]string{8192: "bad certificate", 4096: "error decrypting message"} {
		shown := withRSA(t, bits)
		for _, version := range []uint16{tls.VersionTLS13, tls.VersionTLS12} {
			c, err := s.dialFrom(t, "127.0.0.1", &tls.Config{MaxVersion: version, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }})
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if err == nil || !strings.Contains(err.Error(), alert) {
				t.Errorf("TLS %x: a leaf of RSA-%d without its key: %v, want alert %q", version, bits, err, alert)
			}
		}
	}
}

// A stranger must not choose a key exchange that costs the server several times as much as the usual one.
func TestRefusesCostlyKeyExchanges(t *testing.T) {
	s := newSite(t)
	s.Logger, s.minVersion = nil, tls.VersionTLS12
	s.start(t)
	for curve, refused := range map[tls.CurveID]bool{tls.X25519: false, tls.CurveP256: false, tls.CurveP384: true, tls.CurveP521: true, tls.SecP384r1MLKEM1024: true} {
		if _, err := s.asks(t, &tls.Config{CurvePreferences: []tls.CurveID{curve}}, junk(t, "", 0)); (err != nil) != refused {
			t.Errorf("%s: got %v, want refused %t", curve, err, refused)
		}
	}
}

// Catches a tls.Config of an importing program that is not called, or that disables the certificate limits.
func TestCustomTLSConfigKeepsCertificateLimits(t *testing.T) {
	own := errors.New("not here")
	var refuses error
	base := &tls.Config{VerifyConnection: func(tls.ConnectionState) error { return refuses }}
	many := tls.ConnectionState{PeerCertificates: make([]*x509.Certificate, 5)}
	check := func(config *tls.Config) {
		t.Helper()
		for _, refuses = range []error{nil, own} {
			if err := config.VerifyConnection(tls.ConnectionState{}); !errors.Is(err, refuses) {
				t.Errorf("%v, want %v", err, refuses)
			}
			if err := config.VerifyConnection(many); err == nil || errors.Is(err, own) {
				t.Errorf("five certificates: %v", err)
			}
		}
	}
	s := newSite(t)
	check(s.HTTPServer(base).TLSConfig)
	chosen := s.HTTPServer(&tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return base, nil }}).TLSConfig
	config := must.Value(chosen.GetConfigForClient(nil))(t)
	check(config)
	chosen = s.HTTPServer(&tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, own }}).TLSConfig
	if config, err := chosen.GetConfigForClient(nil); config != nil || !errors.Is(err, own) {
		t.Errorf("%v %v", config, err)
	}
}

// Catches client certificates that keep more memory per idle connection than docs/abuse.md says.
func TestCertificatesOfIdleConnectionsTakeLittleMemory(t *testing.T) {
	s := newSite(t)
	s.Logger = nil
	s.start(t)
	const connections = 30
	held := func(shown tls.Certificate) int {
		t.Helper()
		s.waitFor(t, "connections are left", func() int { return int(s.gauge(t, "kubejoin_http_connections", "")) })
		before := inUse()
		for range connections {
			c := must.Value(s.asks(t, &tls.Config{}, shown))(t)
			defer func() { _ = c.Close() }()
		}
		return (int(inUse()) - int(before)) / connections / 1024
	}
	held(tls.Certificate{}) // warm-up: memory that is allocated once
	tries := []int{held(tls.Certificate{}), held(tls.Certificate{}), held(tls.Certificate{})}
	slices.Sort(tries)
	without := tries[1] // memory of an earlier test may be freed during one of the runs
	for what, most := range kinds {
		for many := most; ; many = many * 9 / 10 { // find the largest accepted number
			shown := junk(t, what, many)
			if cert, err := x509.ParseCertificate(shown.Certificate[0]); err != nil || httplimit.CheckChain([]*x509.Certificate{cert}) != nil {
				continue
			}
			extra := held(shown) - without
			t.Logf("%d %s in %d bytes: %d KiB a connection, %d KiB without a certificate, both including the client side", many, what, len(shown.Certificate[0]), extra+without, without)
			if extra > 80 {
				t.Errorf("%d %s: got %d KiB a connection more than without a certificate, want at most 80", many, what, extra)
			}
			break
		}
	}
}

func inUse() uint64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// Catches a handshake that may send more than 64 KiB, and a limit that still applies after the handshake.
func TestLimitsBytesBeforeTheFirstRequest(t *testing.T) {
	s := newSite(t)
	s.Logger = nil
	s.start(t)
	// This client stops in the middle of its certificates, for which crypto/tls would read 256 KiB.
	conn := must.Value(net.Dial("tcp", strings.TrimPrefix(s.url, "https://")))(t)
	defer func() { _ = conn.Close() }()
	shown := junk(t, "bytes", 250_000)
	stopped := tls.Client(&stopping{Conn: conn, after: 80 << 10}, &tls.Config{
		InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
	})
	must.OK(t, stopped.HandshakeContext(t.Context()))
	_ = stopped.SetReadDeadline(time.Now().Add(patience / 2)) // before the handshake timeout of the server
	if _, err := stopped.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after 80 KiB of a handshake: got %v, want the connection closed", err)
	}
	// Requests may exceed the limit. Each HTTP version uses one connection.
	for _, protocol := range []string{"http/1.1", "h2"} {
		transport := s.http.Transport.(*http.Transport).Clone()
		transport.TLSClientConfig.NextProtos = []string{protocol}
		transport.ForceAttemptHTTP2 = protocol == "h2"
		client := &http.Client{Transport: transport}
		for range 5 {
			r := must.Value(http.NewRequestWithContext(t.Context(), "POST", s.url+commandPath, strings.NewReader(strings.Repeat(" ", server.MaxBody)+"{}")))(t)
			r.Header.Set("Authorization", "Bearer "+adminBearer)
			answer, err := client.Do(r)
			if err != nil {
				t.Fatalf("%s: %v", protocol, err)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		transport.CloseIdleConnections()
	}
}

// stopping is a connection that sends only the next after bytes and discards the rest.
type stopping struct {
	net.Conn
	after int
}

func (c *stopping) Write(p []byte) (int, error) {
	n := min(len(p), c.after)
	c.after -= n
	_, err := c.Conn.Write(p[:n])
	return len(p), err
}

func TestTLSVersions(t *testing.T) {
	for _, test := range []struct {
		least   uint16 // minimum version of the server
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
			s.minVersion = test.least
			s.start(t)
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
		answer := must.Value(transport.RoundTrip(r.WithContext(t.Context())))(t)
		_ = answer.Body.Close()
		if answer.StatusCode != want || answer.ProtoMajor != 1+i%2 || answer.Header.Get("X-Request-Id") == "" {
			t.Errorf("over %s: %s %v, want %d", answer.Proto, answer.Status, answer.Header, want)
		}
	}
	if n := s.refused(t, "client-rate", ""); n != 1 {
		t.Errorf("got %v counted refusals, want 1", n)
	}
}
