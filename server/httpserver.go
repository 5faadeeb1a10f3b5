package server

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
)

// Limits of a connection.
const (
	headerTimeout  = 5 * time.Second // of the TLS handshake as well
	requestTimeout = 10 * time.Second
	answerTimeout  = 10 * time.Second // to read an answer; kubeadm gives a request 10 s in all
	idleTimeout    = time.Minute
	// restTimeout is for the rest of a body that was not read. net/http waits for it before it sends the answer, when the
	// slot of the request is free again, and closes the connection if it does not come.
	restTimeout = time.Second
	maxHeader   = 16 << 10
	maxStreams  = 64 // of HTTP/2, in flight on one connection
)

// tls12Suites are those of TLS 1.2 that RFC 9325, section 4.2, recommends, and the same with ChaCha20. TLS 1.3 has no
// others.
var tls12Suites = []uint16{
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
	config = httplimit.LimitCertificates(config)
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS13
	}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	if config.CipherSuites == nil {
		config.CipherSuites = tls12Suites
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
		ConnState: httplimit.Connections(httplimit.MaxConnections(), s.clientRate(), s.Registerer),
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what strangers do wrong in TLS
	}
}

// LimitHandshakes limits what the connections of a listener may send before their first request was read to 64 KiB. crypto/tls
// would take 256 KiB of certificates into memory before anybody can refuse them. The listener is for a server of
// [Server.HTTPServer], whose ConnState lifts the limit: without that a connection ends when it has sent so much.
func LimitHandshakes(l net.Listener) net.Listener { return httplimit.LimitHandshakes(l) }

// A Rate is how often something may happen: QPS times a second in the long run, and Burst times at once. The zero Rate stands
// for a default, and a negative QPS for no limit. A Burst of zero is QPS, at least one.
type Rate struct {
	QPS   float64
	Burst int
}

// Rates unless a Server says otherwise.
const (
	// Two racks of a thousand machines behind one address may all discover, ask for a join command
	// and for a certificate in the same second, with a new connection each time.
	DefaultClientQPS   = 1000
	DefaultClientBurst = 10_000
	// Those machines may all do so as one user, be it an operator or a bootstrap token.
	DefaultUserQPS   = 100
	DefaultUserBurst = 2000
)

func (s *Server) clientRate() httplimit.Rate {
	return httplimit.Rate(cmp.Or(s.ClientRate, Rate{DefaultClientQPS, DefaultClientBurst}))
}

func (s *Server) userRate() httplimit.Rate {
	return httplimit.Rate(cmp.Or(s.UserRate, Rate{DefaultUserQPS, DefaultUserBurst}))
}

// limitAnswer limits the time in which the client reads the answer and sends the rest of its request.
func limitAnswer(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// They fail for a writer without deadlines, which has no connection either. A server without a timeout of its own would
	// never lift that of writing from the connection.
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.WriteTimeout > 0 {
		_ = control.SetWriteDeadline(time.Now().Add(answerTimeout))
	}
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		_ = control.SetReadDeadline(time.Now().Add(restTimeout))
	}
}
