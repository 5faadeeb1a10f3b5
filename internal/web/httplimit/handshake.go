package httplimit

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"reflect"
	"sync/atomic"
)

// Limits of the certificates that a client sends. crypto/tls accepts 256 KiB of certificates and parses them into up to 10 MB.
// It keeps the parsed certificates in memory while the connection is open, even if no trusted CA signed them.
const (
	maxChain       = 4        // certificates
	maxChainBytes  = 16 << 10 // DER
	maxChainParsed = 32 << 10 // estimated
	maxRSABits     = 4096     // for larger keys, checking one signature takes milliseconds
)

// maxBeforeRequest is the maximum number of bytes that a connection may send until its first request has been read.
// It is twice the limits of certificates and of a request header.
const maxBeforeRequest = 64 << 10

// CheckChain returns an error if certificates would take too much memory to keep or too much time to verify. It
// verifies no signature.
func CheckChain(shown []*x509.Certificate) error {
	if err := CheckTime(shown); err != nil {
		return err
	}
	parsed := 0
	for _, cert := range shown {
		parsed += parsedSize(reflect.ValueOf(cert))
	}
	if parsed > maxChainParsed {
		return errors.New("client sent a certificate with too many names, usages or extensions")
	}
	return nil
}

// CheckTime returns an error if certificates would take too much time to verify. It costs much less than CheckChain.
func CheckTime(shown []*x509.Certificate) error {
	if len(shown) > maxChain {
		return fmt.Errorf("client sent %d certificates, want at most %d", len(shown), maxChain)
	}
	size := 0
	for _, cert := range shown {
		size += len(cert.Raw)
		if key, ok := cert.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxRSABits {
			return fmt.Errorf("client sent a certificate with an RSA key of %d bits, want at most %d", key.N.BitLen(), maxRSABits)
		}
	}
	if size > maxChainBytes {
		return fmt.Errorf("client sent certificates of %d bytes, want at most %d", size, maxChainBytes)
	}
	return nil
}

// parsedSize estimates how many bytes of memory crypto/x509 has allocated for a value. A certificate has two dozen
// lists, and each may hold thousands of entries of three encoded bytes. So parsedSize walks all of them.
func parsedSize(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			n = int(v.Type().Elem().Size()) + parsedSize(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += parsedSize(v.Field(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 { // most byte slices share the memory of Raw
			return 0
		}
		n = v.Cap() * int(v.Type().Elem().Size())
		for i := range v.Len() {
			n += parsedSize(v.Index(i))
		}
	case reflect.String:
		n = v.Len()
	}
	return n
}

// LimitCertificates makes handshakes fail if CheckChain refuses the client's certificates. It uses VerifyConnection.
// crypto/tls calls this function before it uses the client's key, and also for resumed sessions.
func LimitCertificates(config *tls.Config) *tls.Config {
	config = config.Clone()
	verify := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		size := len(state.OCSPResponse)
		for _, timestamp := range state.SignedCertificateTimestamps {
			size += len(timestamp)
		}
		if size > maxChainBytes {
			return fmt.Errorf("client sent %d bytes besides certificates, want at most %d", size, maxChainBytes)
		}
		if err := CheckChain(state.PeerCertificates); err != nil {
			return err
		}
		if verify != nil {
			return verify(state)
		}
		return nil
	}
	if choose := config.GetConfigForClient; choose != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if chosen != nil {
				chosen = LimitCertificates(chosen)
			}
			return chosen, err
		}
	}
	return config
}

// LimitHandshakes limits connections of a listener to 64 KiB until their first request has been read. crypto/tls
// would read 256 KiB of certificates into memory before any check. The server's ConnState must be [Connections],
// which lifts the limit. Without this ConnState, a connection fails after 64 KiB.
func LimitHandshakes(l net.Listener) net.Listener { return limitedListener{l} }

type limitedListener struct{ net.Listener }

func (l limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	limited := &limitedConn{Conn: conn}
	limited.left.Store(maxBeforeRequest)
	return limited, nil
}

type limitedConn struct {
	net.Conn
	left atomic.Int64 // bytes that may still be read; negative means unlimited
}

var errTooMuchHandshake = errors.New("client sent too many bytes before the first request")

func (c *limitedConn) Read(p []byte) (int, error) {
	left := c.left.Load()
	switch {
	case left < 0:
		return c.Conn.Read(p)
	case left == 0:
		return 0, errTooMuchHandshake
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	c.left.CompareAndSwap(left, left-int64(n)) // fails if the limit was lifted meanwhile
	return n, err
}
