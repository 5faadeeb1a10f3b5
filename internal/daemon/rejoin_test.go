package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	corev1 "k8s.io/api/core/v1"
)

// A machine signs the host that it has dialled. Only hosts of this server may pass: otherwise another server could use
// the signature.
func TestIsServerKnowsOnlyItsOwnHosts(t *testing.T) {
	s := &service{}
	if s.isServer("") || s.isServer("join.example.com") {
		t.Error("knows a host before it serves")
	}
	s.options.Advertise, s.options.TLS.SANs = "Join.example.com:9443", []string{"192.0.2.7", "lb.example.com"}
	served := certtest.Issue(t, &x509.Certificate{DNSNames: []string{"host-1", "*.pool.example.com"}, IPAddresses: []net.IP{net.ParseIP("192.0.2.1"), net.ParseIP("2001:db8::1")}}, nil)
	s.certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return served, nil }
	for host, want := range map[string]bool{
		"join.example.com": true, "192.0.2.7": true, "lb.example.com": true, "host-1": true, "192.0.2.1": true, "2001:db8::1": true, "a.pool.example.com": true,
		"": false, "example.com": false, "evil.example.com": false, "host-2": false, "192.0.2.2": false, "2001:db8::2": false, "pool.example.com": false, "join.example.com.": false,
	} {
		if got := s.isServer(host); got != want {
			t.Errorf("host %q: got %t, want %t", host, got, want)
		}
	}
}

// kubectl describe node shows an Event only if it has the name of the Node as UID, or the Node's own.
func TestRejoinEventIsOnTheNode(t *testing.T) {
	var on *corev1.ObjectReference
	var kinds, messages []string
	s := &service{eventOn: func(object *corev1.ObjectReference, kind, _, message string) {
		on, kinds, messages = object, append(kinds, kind), append(messages, message)
	}}
	s.rejoinEvent("worker-1", false, "Rejoined", "it is back")
	s.rejoinEvent("worker-1", true, "KeyNotCurrent", "it is old")
	if on.Kind != "Node" || on.Name != "worker-1" || on.UID != "worker-1" || kinds[0] != "Normal" || kinds[1] != "Warning" ||
		messages[0] != "it is back" || !strings.HasSuffix(messages[1], "may not rejoin: it is old") {
		t.Errorf("got Events on %+v: %q %q", on, kinds, messages)
	}
}
