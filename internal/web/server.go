// Package web has the HTTP mechanics of the API: servers and TLS, fields of requests, responses and problem documents.
// Package server has the routes.
package web

import (
	"crypto/tls"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/internal/web/httplimit"
)

// MaxBody is the maximum size of a request body, in bytes.
const MaxBody = 64 << 10

// Limits of a connection.
const (
	headerTimeout  = 5 * time.Second // also limits the TLS handshake
	requestTimeout = 10 * time.Second
	answerTimeout  = 10 * time.Second // to read a response; kubeadm allows 10 s for a whole request
	idleTimeout    = time.Minute
	// restTimeout limits the wait for the unread rest of a request body. net/http waits for the rest before it sends the
	// response, after the slot of the request is free again. If the rest does not arrive, net/http closes the connection.
	restTimeout = time.Second
	maxHeader   = 16 << 10
	maxStreams  = 64 // HTTP/2 streams in flight on one connection
)

// tls12Suites are the cipher suites for TLS 1.2: the suites that RFC 9325, section 4.2, recommends, and their
// ChaCha20 variants. The suites of TLS 1.3 are not configurable.
var tls12Suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// curves are the key exchanges. P-384 and P-521 are missing, because a handshake with them costs several times as much.
// All clients support P-256, see RFC 8446, section 9.1.
var curves = []tls.CurveID{tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.X25519, tls.CurveP256}

// NewServer returns a server that limits the time and memory that a client can use: the size of headers and bodies, and
// the time to send them. The caller sets Handler, ConnState, ErrorLog and WriteTimeout.
//
// It completes config. The minimum version of TLS is at least 1.2, and 1.3 if config sets none. Unless config lists
// cipher suites, it enables for TLS 1.2 only suites with forward secrecy and authenticated encryption. Unless config
// lists curves, it disables key exchanges with P-384 and P-521. A handshake fails if the client shows certificates beyond
// [httplimit.LimitCertificates].
func NewServer(config *tls.Config) *http.Server {
	if config == nil { // ServeTLS reports the missing certificate
		config = &tls.Config{}
	}
	config = httplimit.LimitCertificates(config)
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
	}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	if config.CipherSuites == nil {
		config.CipherSuites = tls12Suites
	}
	if config.CurvePreferences == nil {
		config.CurvePreferences = curves
	}
	return &http.Server{
		TLSConfig:         config,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		// Without this, net/http responds to OPTIONS * itself, without the limits of the Handler.
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			// With the default, an unread body may fill 1 MiB of memory for each connection.
			MaxReceiveBufferPerConnection: MaxBody,
			MaxReceiveBufferPerStream:     MaxBody,
			WriteByteTimeout:              answerTimeout,
		},
	}
}
