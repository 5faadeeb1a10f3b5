package server

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server/api"
)

// MaxBody is the maximum size of a request body, in bytes.
const MaxBody = web.MaxBody

// HTTPServer returns a server of the API that limits the time and memory that a client can use. It limits
// headers, bodies, the times to send and to read them, and the number of connections. If there are too many
// connections, it closes those without a request in flight first. The server's Handler is [Server.Handler]: to
// mount that beside other handlers, replace the field.
//
// The error is the error of [Server.Handler]. config has the certificate. Its MinVersion is the minimum version of TLS,
// but at least 1.2; zero means 1.3. For TLS 1.2, only cipher suites with forward secrecy and authenticated encryption
// are enabled, unless config names others. Key exchanges with P-384 and P-521 are disabled in the same way.
//
// A handshake fails if the client shows more than 4 certificates, certificates of more than 16 KiB, or an RSA
// key of more than 4096 bits. It also fails if their names, usages and extensions take more than about 32 KiB
// of memory. Serve it on the listener of [LimitHandshakes], which limits how much a client can send before
// these checks. Request certificates with tls.RequestClientCert or tls.RequireAnyClientCert: with the stricter
// modes, crypto/tls verifies signatures before these checks.
func (s Server) HTTPServer(config *tls.Config) (*http.Server, error) {
	ending := make(chan struct{})
	s.ending = ending
	handler, err := s.Handler()
	if err != nil {
		return nil, err
	}
	made := web.NewServer(config)
	made.Handler = handler
	made.RegisterOnShutdown(sync.OnceFunc(func() { close(ending) })) // calls that wait for a change return
	// A request for a join command waits for the signature, and then perhaps for the deletion of the token.
	made.WriteTimeout = max(s.signTimeout(), api.MaxWait) + mint.WithdrawTimeout + 5*time.Second
	made.ConnState = httplimit.Connections(httplimit.MaxConnections(), s.clientRate(), s.Registerer)
	made.ErrorLog = slog.NewLogLogger(s.logger().Handler(), slog.LevelDebug) // TLS errors that any client can cause
	return made, nil
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
	// All these machines may send their requests as one user: an operator or a bootstrap token.
	DefaultUserQPS   = 100
	DefaultUserBurst = 2000
	// Enough to install a rack within a week.
	DefaultMaxTokenTTL   = 7 * 24 * time.Hour
	DefaultMaxTokenNodes = 100
)

func (s *Server) clientRate() httplimit.Rate {
	return httplimit.Rate(cmp.Or(s.Limits.ClientRate, Rate{DefaultClientQPS, DefaultClientBurst}))
}

func (s *Server) userRate() httplimit.Rate {
	return httplimit.Rate(cmp.Or(s.Limits.UserRate, Rate{DefaultUserQPS, DefaultUserBurst}))
}
