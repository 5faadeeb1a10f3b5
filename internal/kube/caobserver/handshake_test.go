package caobserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// atPipes returns a look whose servers are functions, by address. Each function gets one end of a pipe, so that synctest
// controls the clock.
func atPipes(t *testing.T, servers map[string]func(net.Conn)) *look {
	t.Helper()
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	l := newLook(t, nil, certtest.CA(t, "old"), certtest.CA(t, "new"))
	l.Observer = &Observer{Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		client, server := net.Pipe()
		serving.Go(func() { servers[address](server) })
		return client, nil
	}}
	return l
}

// newLook returns a look at a rotation in stage trust.
func newLook(t testing.TB, network *network, old, fresh *tls.Certificate) *look {
	t.Helper()
	return &look{
		Observer: &Observer{Dial: network.dial, patience: wait.Most}, Rotation: begun(t, rotation.Trust, old, fresh), now: time.Now(),
	}
}

func TestProbe(t *testing.T) {
	old, fresh, other := certtest.CA(t, "kubernetes"), certtest.CA(t, "kubernetes 2"), certtest.CA(t, "front-proxy-ca")
	twin := certtest.CA(t, "kubernetes") // a CA with the same subject as old
	nameless := tlsConfig(t, old)
	nameless.ClientAuth = tls.RequestClientCert
	strict := tlsConfig(t, old, old, fresh)
	strict.ClientAuth = tls.RequireAndVerifyClientCert // like etcd
	many := []*tls.Certificate{old}
	for i := range 300 {
		many = append(many, certtest.CA(t, fmt.Sprint("many-", i, strings.Repeat("x", 100))))
	}
	tooMany := many
	for i := range 300 {
		tooMany = append(tooMany, certtest.CA(t, fmt.Sprint("too-many-", i, strings.Repeat("x", 100))))
	}
	both := &rotation.Trusted{Old: true, New: true}
	applied := func(trusts *rotation.Trusted) *host {
		return &host{ready: true, files: []rotation.File{{Name: "pki/ca.crt", Trusts: trusts}, {Name: "pki/apiserver.crt", From: rotation.FromOld}}}
	}
	long := tlsConfig(t, old, old)
	long.Certificates[0].Certificate = slices.Concat(long.Certificates[0].Certificate[:1], slices.Repeat([][]byte{old.Leaf.Raw}, 10))
	for name, test := range map[string]struct {
		server *tls.Config      // nil if nothing listens
		also   *tls.Certificate // a further new CA
		host   *host
		want   string
	}{
		"old":                    {tlsConfig(t, old, old, other), nil, nil, "trusts:old from:old"},
		"both":                   {tlsConfig(t, old, old, fresh, other), nil, nil, "trusts:old,new from:old"},
		"new":                    {tlsConfig(t, fresh, fresh), nil, nil, "trusts:new from:new"},
		"neither":                {tlsConfig(t, other, other), nil, nil, "trusts: from:other"},
		"requires a certificate": {strict, nil, nil, "trusts:old,new from:old"},
		"requests none":          {tlsConfig(t, old), nil, nil, "from:old"},
		"names none":             {nameless, nil, nil, "from:old unseen:its handshake names no CA of client certificates"},
		"many names":             {tlsConfig(t, old, many...), nil, nil, "trusts:old from:old"},
		"more names than TLS":    {tlsConfig(t, old, tooMany...), nil, nil, "unseen:"},
		"long chain":             {long, nil, nil, "unseen:its chain has 11 certificates, want 1 to 10"},
		"nothing listens":        {nil, nil, nil, "unseen:dial 192.0.2.1:6443: no route"},
		"nothing, but reported":  {nil, nil, applied(both), "trusts:old,new from:old"},
		"nothing reported":       {nil, nil, &host{ready: true}, "unseen:dial 192.0.2.1:6443: no route"},
		"handshake over report":  {tlsConfig(t, old, old), nil, applied(both), "trusts:old from:old"},
		"off":                    {nil, nil, &host{}, "off"},
		"one subject":            {tlsConfig(t, old, fresh, old), twin, nil, "from:old unseen:certificates of the old and of the new CA have one subject, so its handshake does not show which of them it trusts"},
		"one subject, reported":  {tlsConfig(t, old, fresh, old), twin, applied(both), "trusts:old,new from:old"},
		"one subject, neither":   {tlsConfig(t, old, other), twin, nil, "trusts: from:old"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &network{}
			if test.server != nil {
				n.listen("192.0.2.1:6443", serve(t, test.server))
			}
			l := newLook(t, n, old, fresh)
			if test.also != nil {
				l.New = append(l.New, test.also.Leaf)
			}
			got := l.probe(t.Context(), target{address: "192.0.2.1:6443", host: test.host, caFile: "pki/ca.crt", certFile: "pki/apiserver.crt"})
			if text := strings.TrimSpace(line(got)); text != test.want && !(test.want == "unseen:" && strings.HasPrefix(text, test.want)) {
				t.Errorf("got %q, want %q", text, test.want)
			}
		})
	}
}

// TestProbeEnds catches a probe that hangs if a server is silent, slow or does not use TLS.
func TestProbeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := atPipes(t, map[string]func(net.Conn){
			"silent": func(net.Conn) {},
			"slow": func(c net.Conn) {
				go func() { _, _ = io.Copy(io.Discard, c) }()
				record := []byte{22, 3, 3, 0x40, 0} // a handshake record of 16 KiB
				for {
					if _, err := c.Write(record); err != nil {
						return
					}
					record = []byte{2}
					time.Sleep(50 * time.Millisecond)
				}
			},
			"http": func(c net.Conn) {
				go func() { _, _ = io.Copy(io.Discard, c) }()
				_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"+strings.Repeat("\x1b[31m", 1000))
			},
		})
		began := time.Now()
		l.probeAll(t.Context(), []target{{address: "silent"}, {address: "slow"}, {address: "http"}})
		if took := time.Since(began); took != handshakeTimeout {
			t.Errorf("took %s, want %s", took, handshakeTimeout)
		}
		for i, want := range []string{"deadline exceeded", "deadline exceeded", "does not look like a TLS handshake"} {
			if o := l.seen[i]; !strings.Contains(o.Unseen, want) || len(o.Unseen) > maxWhy {
				t.Errorf("got %q, want %q", line(o), want)
			}
		}
	})
}

// TestProbesLimitConnections catches an observer that connects to all kubelets at once.
func TestProbesLimitConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var connections atomic.Int32
		l := atPipes(t, map[string]func(net.Conn){"silent": func(net.Conn) { connections.Add(1) }})
		ctx, cancel := context.WithCancel(t.Context())
		var observing sync.WaitGroup
		observing.Go(func() { l.probeAll(ctx, make200("silent")) })
		synctest.Wait()
		if n := connections.Load(); n != atATime {
			t.Errorf("got %d connections at a time, want %d", n, atATime)
		}
		cancel()
		observing.Wait()
	})
}

// make200 returns more targets than may be probed at a time.
func make200(address string) []target {
	all := make([]target, 200)
	for i := range all {
		all[i].address = address
	}
	return all
}

// TestReportDoesNotDenyThatAServerIsDown catches a rotation that continues while an API server does not start.
func TestReportDoesNotDenyThatAServerIsDown(t *testing.T) {
	const address = "192.0.2.1:6443"
	n := &network{closed: address}
	l := newLook(t, n, certtest.CA(t, "old"), certtest.CA(t, "new"))
	h := &host{ready: true, files: []rotation.File{{Name: "pki/ca.crt", Trusts: &rotation.Trusted{Old: true, New: true}}}}
	for kind, want := range map[rotation.Kind]string{rotation.KindAPIServer: "unseen:dial 192.0.2.1:6443: connection refused", rotation.KindKubelet: "trusts:old,new"} {
		got := l.probe(t.Context(), target{Observation: rotation.Observation{Kind: kind}, address: address, host: h, caFile: "pki/ca.crt"})
		if text := line(got); text != string(kind)+"  "+want {
			t.Errorf("got %q, want %q", text, want)
		}
	}
}

func TestConnectable(t *testing.T) {
	for address, want := range map[string]bool{
		"192.0.2.1": true, "10.1.2.3": true, "2001:db8::1": true, "fd00::1": true,
		"": false, "host.example.com": false, "127.0.0.1": false, "::1": false, "169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false,
		"2001:db8::1%eth0": false, "0.0.0.0": false, "::": false, "224.0.0.1": false, "ff02::1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false,
	} {
		if got := connectable(address); got != want {
			t.Errorf("connectable(%q) is %t, want %t", address, got, want)
		}
	}
}
