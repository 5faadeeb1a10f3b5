package server

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"
)

// Bounds of a connection. Answers are bounded by answerTimeout, too.
const (
	headerTimeout  = 5 * time.Second // of the TLS handshake as well
	requestTimeout = 10 * time.Second
	idleTimeout    = time.Minute
	maxHeader      = 16 << 10
	maxStreams     = 64 // of HTTP/2, in flight on one connection
)

// suites12 are those of TLS 1.2 that RFC 9325, section 4.2, recommends, and the same with ChaCha20. TLS 1.3 has no
// others.
var suites12 = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// HTTPServer makes a server of the API on which no client can take much time or memory: it
// bounds headers, bodies, the times to send and to read them, and the number of connections, of
// which those without a request in flight go first. Its Handler is [Server.Handler]; whoever
// mounts that beside other things puts his own in its place. config has the certificate. TLS is
// 1.3 unless its MinVersion is less, and 1.2 at least, which has only cipher suites with forward
// secrecy and authenticated encryption unless config names others.
//
// A handshake fails if the client shows more than 4 certificates, more than 16 KiB of them, more names, usages and
// extensions than take about 32 KiB of memory, or an RSA key of more than 4096 bits. Serve it on the listener of
// [LimitHandshakes], which bounds what a client sends before that is checked. Ask for certificates with
// tls.RequestClientCert or tls.RequireAnyClientCert: crypto/tls verifies signatures before that with the stronger ones.
func (s Server) HTTPServer(config *tls.Config) *http.Server {
	if config == nil { // said by ServeTLS: it has no certificate
		config = &tls.Config{}
	}
	config = limitCertificates(config)
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
	}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	if config.CipherSuites == nil {
		config.CipherSuites = suites12
	}
	log := s.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	signTimeout := s.SignTimeout
	if signTimeout <= 0 {
		signTimeout = DefaultSignTimeout
	}
	return &http.Server{
		Handler:           s.Handler(),
		TLSConfig:         config,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		// A join command waits for its signature and then perhaps for the token's deletion.
		WriteTimeout:   max(signTimeout, MaxWait) + withdrawTimeout + 5*time.Second,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeader,
		// Else net/http answers OPTIONS * by itself, past every limit of the Handler.
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			// By default a connection may have 1 MiB of a body in memory that nobody reads.
			MaxReceiveBufferPerConnection: MaxBody,
			MaxReceiveBufferPerStream:     MaxBody,
			WriteByteTimeout:              answerTimeout,
		},
		ConnState: newConnections(maxConnections(), newBuckets(s.clientRate()), s.Registerer).changed,
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what strangers do wrong in TLS
	}
}
