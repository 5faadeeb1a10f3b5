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

// HTTPServer makes a server of the API on which no client can take much time or memory: it
// bounds headers, bodies, the times to send and to read them, and the number of connections, of
// which those without a request in flight go first. Its Handler is [Server.Handler]; whoever
// mounts that beside other things puts his own in its place. config has the certificate; TLS is
// 1.3 unless it allows less.
func (s Server) HTTPServer(config *tls.Config) *http.Server {
	if config == nil { // said by ServeTLS: it has no certificate
		config = &tls.Config{}
	}
	config = config.Clone()
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
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
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			// By default a connection may have 1 MiB of a body in memory that nobody reads.
			MaxReceiveBufferPerConnection: MaxBody,
			MaxReceiveBufferPerStream:     MaxBody,
			WriteByteTimeout:              answerTimeout,
		},
		ConnState: newConnections(maxConnections(), s.Registerer).changed,
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what strangers do wrong in TLS
	}
}
