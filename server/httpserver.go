package server

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/server/api"
)

// Limits of a connection.
const (
	headerTimeout  = 5 * time.Second // of the TLS handshake as well
	requestTimeout = 10 * time.Second
	answerTimeout  = 10 * time.Second // to read a response; kubeadm allows 10 s for a whole request
	idleTimeout    = time.Minute
	// restTimeout limits the wait for the unread rest of a request body. net/http waits for the rest before it sends the
	// response, after the slot of the request is free again. If the rest does not arrive, it closes the connection.
	restTimeout = time.Second
	maxHeader   = 16 << 10
	maxStreams  = 64 // of HTTP/2, in flight on one connection
)

// tls12Suites are the cipher suites for TLS 1.2: those that RFC 9325, section 4.2, recommends, and the same with
// ChaCha20. The suites of TLS 1.3 are not configurable.
var tls12Suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// curves are the key exchanges. Those with P-384 and P-521 cost a stranger's handshake several times as much. All clients
// know P-256, see RFC 8446, section 9.1.
var curves = []tls.CurveID{tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.X25519, tls.CurveP256}

// HTTPServer returns a server of the API on which no client can use much time or memory. It limits headers,
// bodies, the times to send and to read them, and the number of connections. If there are too many
// connections, it closes those without a request in flight first. The server's Handler is [Server.Handler]:
// to mount that beside other handlers, replace the field.
//
// config has the certificate. Its MinVersion is the minimum version of TLS, but at least 1.2, and 1.3 if it is
// zero. For TLS 1.2, only cipher suites with forward secrecy and authenticated encryption are enabled, unless
// config names others. Key exchanges with P-384 and P-521 are disabled in the same way.
//
// A handshake fails if the client shows more than 4 certificates, certificates of more than 16 KiB, or an RSA
// key of more than 4096 bits. It also fails if their names, usages and extensions take more than about 32 KiB
// of memory. Serve it on the listener of [LimitHandshakes], which limits what a client sends before these
// checks. Request certificates with tls.RequestClientCert or tls.RequireAnyClientCert: with the stricter
// modes, crypto/tls verifies signatures before these checks.
func (s Server) HTTPServer(config *tls.Config) *http.Server {
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
	log := s.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	signTimeout := s.Minting.SignTimeout
	if signTimeout <= 0 {
		signTimeout = mint.DefaultSignTimeout
	}
	return &http.Server{
		Handler:           s.Handler(),
		TLSConfig:         config,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		// A join command waits for its signature, and then perhaps for the deletion of the token.
		WriteTimeout:   max(signTimeout, api.MaxWait) + mint.WithdrawTimeout + 5*time.Second,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeader,
		// Otherwise net/http answers OPTIONS * itself, without the limits of the Handler.
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			// The default lets a client fill 1 MiB of memory for each connection with an unread body.
			MaxReceiveBufferPerConnection: MaxBody,
			MaxReceiveBufferPerStream:     MaxBody,
			WriteByteTimeout:              answerTimeout,
		},
		ConnState: httplimit.Connections(httplimit.MaxConnections(), s.clientRate(), s.Registerer),
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelDebug), // TLS errors that any client can cause
	}
}

// LimitHandshakes limits each connection of a listener to 64 KiB until its first request has been read.
// crypto/tls alone would read 256 KiB of certificates into memory before the server can refuse them. Use the
// listener only with [Server.HTTPServer], whose ConnState lifts the limit. With other servers a connection
// fails after 64 KiB.
func LimitHandshakes(l net.Listener) net.Listener { return httplimit.LimitHandshakes(l) }

// A Rate is a token bucket: QPS events a second on average, and at most Burst at once. The zero Rate is a
// default, and a negative QPS is unlimited. A Burst of zero is QPS rounded up, at least one.
type Rate struct {
	QPS   float64
	Burst int
}

// Defaults of [Limits].
const (
	// Two racks of a thousand machines may share one address. All of them may use discovery and request
	// a join command and a certificate in the same second, each time on a new connection.
	DefaultClientQPS   = 1000
	DefaultClientBurst = 10_000
	// All those machines may do so as one user: an operator or a bootstrap token.
	DefaultUserQPS   = 100
	DefaultUserBurst = 2000
)

func (s *Server) clientRate() httplimit.Rate {
	return httplimit.Rate(cmp.Or(s.Limits.ClientRate, Rate{DefaultClientQPS, DefaultClientBurst}))
}

func (s *Server) userRate() httplimit.Rate {
	return httplimit.Rate(cmp.Or(s.Limits.UserRate, Rate{DefaultUserQPS, DefaultUserBurst}))
}

// limitAnswer limits the time for the client to read the response and to send the rest of its request.
func limitAnswer(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// The calls fail for a writer without deadlines, which also has no connection. A server without a WriteTimeout never
	// resets the write deadline: it would apply to later requests on the connection.
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.WriteTimeout > 0 {
		_ = control.SetWriteDeadline(time.Now().Add(answerTimeout))
	}
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		_ = control.SetReadDeadline(time.Now().Add(restTimeout))
	}
}
