package caobserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// Limits of handshakes: the number at a time, and the time for each.
const (
	atATime          = 128
	handshakeTimeout = 3 * time.Second
)

// A handshake contains what a TLS server shows to a client without a credential.
type handshake struct {
	chain []*x509.Certificate
	// asks is true if the server requests a client certificate. named counts, by subject, how often the server's
	// certificate request names a certificate of the rotation. others counts all other subjects.
	asks   bool
	named  map[string]int
	others int
}

// shake connects to a TLS server, and sends only a handshake without a credential. It deliberately verifies no certificate,
// because it must also work with an unknown CA. crypto/tls still verifies that the server has the key of that certificate.
// crypto/tls limits the certificates to 256 KiB, and the names of CAs to 64 KiB.
func (l *look) shake(ctx context.Context, address string) (handshake, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(l.patience, handshakeTimeout))
	defer cancel()
	dial := l.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return handshake{}, err
	}
	defer func() { _ = raw.Close() }()
	h := handshake{named: map[string]int{}}
	for _, c := range slices.Concat(l.Old, l.New) {
		h.named[string(c.RawSubject)] = 0
	}
	connection := tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12,
		GetClientCertificate: func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			h.asks = true
			for _, subject := range request.AcceptableCAs {
				if _, ours := h.named[string(subject)]; ours {
					h.named[string(subject)]++
				} else {
					h.others++
				}
			}
			return &tls.Certificate{}, nil // no certificate
		},
	})
	if err := connection.HandshakeContext(ctx); err != nil {
		return handshake{}, err
	}
	h.chain = connection.ConnectionState().PeerCertificates
	return h, nil
}

// trusts returns the CAs whose client certificates the server accepts; nil if the server requests no client
// certificate. A handshake names only subjects. If an old and a new CA have the same subject, the name does not show
// which CA the server trusts.
func (l *look) trusts(h handshake) (*rotation.Trusted, error) {
	names := func(c *x509.Certificate) bool { return h.named[string(c.RawSubject)] > 0 }
	unnamed := func(c *x509.Certificate) bool { return !names(c) }
	shared := func(c *x509.Certificate) bool {
		return slices.ContainsFunc(l.Old, func(o *x509.Certificate) bool { return string(o.RawSubject) == string(c.RawSubject) })
	}
	switch {
	case !h.asks:
		return nil, nil
	case h.others == 0 && !slices.ContainsFunc(slices.Concat(l.Old, l.New), names):
		return nil, errors.New("its handshake names no CA of client certificates")
	case slices.ContainsFunc(l.New, func(c *x509.Certificate) bool { return shared(c) && names(c) }):
		return nil, errors.New("certificates of the old and of the new CA have one subject, so its handshake does not show which of them it trusts")
	}
	return &rotation.Trusted{Old: slices.ContainsFunc(l.Old, names), New: !slices.ContainsFunc(l.New, unnamed)}, nil
}

// A target is a server to connect to. host is the host of the server. caFile and certFile are the server's files in the
// report of that host.
type target struct {
	rotation.Observation
	address          string
	host             *host
	caFile, certFile string
	// refused is the reason why kubejoin does not connect to the address; empty if it does.
	refused string
	// clientOnly is true if the CA issues only client certificates. Then the server's own certificate does not matter.
	clientOnly bool
	// own is true for the API server of the kubeconfig, where a proxy may answer. spare is true if other API servers are known.
	// Then the stage need not wait for this API server.
	own, spare bool
}

// probe observes a server. If the handshake does not show which CAs the server trusts, probe uses the report of the host,
// provided that the host has applied the present stage. So a network policy cannot block a rotation. Without a report, the
// server is unseen.
func (l *look) probe(ctx context.Context, t target) rotation.Observation {
	o := t.Observation
	why := errors.New(t.refused)
	if t.refused == "" {
		var h handshake
		h, why = l.shake(ctx, t.address)
		if why == nil {
			if !t.clientOnly {
				if o.From = l.Find(h.chain); o.From == "" {
					o.Unseen = fmt.Sprintf("its chain has %d certificates, want 1 to 10", len(h.chain))
					return o
				}
			}
			o.Trusts, why = l.trusts(h)
		}
	}
	if t.own && why == nil && (o.Trusts == nil || *o.Trusts == rotation.Trusted{}) {
		o.Trusts, o.From, why = nil, "", errors.New("its handshake names no CA of this rotation: a proxy may have answered")
	}
	if why == nil {
		return o
	}
	if t.host != nil && !t.host.ready {
		o.Off = true
		return o
	}
	// A refused connection means that the server is down. Exception: a kubelet whose Node is ready runs, and listens
	// on another address.
	down := errors.Is(why, syscall.ECONNREFUSED) && t.Kind != rotation.KindKubelet
	if reported := t.host.file(t.caFile).Trusts; reported != nil && !down {
		o.Trusts, o.From = reported, cmp.Or(o.From, t.host.file(t.certFile).From)
		return o
	}
	o.Unseen, o.Optional = safetext.Text(why.Error(), maxWhy), t.spare
	return o
}

// probeAll observes servers, at most atATime at once.
func (l *look) probeAll(ctx context.Context, all []target) {
	free := make(chan struct{}, atATime)
	seen := make([]rotation.Observation, len(all))
	var looking sync.WaitGroup
	for i, t := range all {
		free <- struct{}{}
		looking.Go(func() {
			defer func() { <-free }()
			seen[i] = l.probe(ctx, t)
		})
	}
	looking.Wait()
	l.add(seen...)
}
