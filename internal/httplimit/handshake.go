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

// Limits of the certificates that a client shows. crypto/tls accepts 256 KiB of them, parses them into as much as
// 10 MB and keeps that for as long as the connection is open, also if no known CA signed them.
const (
	maxChain       = 4        // certificates
	maxChainBytes  = 16 << 10 // as they are sent
	maxChainParsed = 32 << 10 // estimated
	maxRSABits     = 4096     // checking one signature of a larger key takes milliseconds
)

// maxBeforeRequest is how many bytes a connection may send before its first request was read: what is allowed of
// certificates and of a request's header, and as much again.
const maxBeforeRequest = 64 << 10

// CheckChain returns an error if certificates are not worth the memory to keep or the time to verify them. It
// verifies no signature.
func CheckChain(shown []*x509.Certificate) error {
	if len(shown) > maxChain {
		return fmt.Errorf("%d certificates shown, want %d at most", len(shown), maxChain)
	}
	size, parsed := 0, 0
	for _, cert := range shown {
		size += len(cert.Raw)
		parsed += parsedSize(reflect.ValueOf(cert))
		if key, ok := cert.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxRSABits {
			return fmt.Errorf("certificate with an RSA key of %d bits shown, want %d at most", key.N.BitLen(), maxRSABits)
		}
	}
	if size > maxChainBytes {
		return fmt.Errorf("certificates of %d bytes shown, want %d at most", size, maxChainBytes)
	}
	if parsed > maxChainParsed {
		return errors.New("certificates with too many names, usages or extensions shown")
	}
	return nil
}

// parsedSize estimates how many bytes of memory crypto/x509 has allocated for a value. A certificate has two dozen
// lists, each of which may hold thousands of entries that take three bytes to send: a walk covers all of them.
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
		if v.Type().Elem().Kind() == reflect.Uint8 { // most share the memory of Raw
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

// LimitCertificates makes handshakes fail with certificates that CheckChain refuses. crypto/tls calls
// VerifyConnection, also when it resumes a session, before it uses the client's key.
func LimitCertificates(config *tls.Config) *tls.Config {
	config = config.Clone()
	verify := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		size := len(state.OCSPResponse)
		for _, timestamp := range state.SignedCertificateTimestamps {
			size += len(timestamp)
		}
		if size > maxChainBytes {
			return fmt.Errorf("%d bytes shown beside certificates, want %d at most", size, maxChainBytes)
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

// LimitHandshakes limits what the connections of a listener may send before their first request was read to 64 KiB.
// crypto/tls would take 256 KiB of certificates into memory before anybody can refuse them. The server's ConnState must be
// [Connections], which lifts the limit: without it a connection ends when it has sent so much.
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
	left atomic.Int64 // bytes that may still be read; below zero is no limit
}

var errTooMuchHandshake = errors.New("too many bytes before the first request")

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
