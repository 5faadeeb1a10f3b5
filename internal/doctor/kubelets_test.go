package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serve accepts TLS connections as a kubelet whose certificate has this common name, and counts the certificates and
// bytes that clients send.
func serve(t *testing.T, commonName string) (port int32, sent *atomic.Int64) {
	t.Helper()
	own := certtest.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: commonName}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, nil)
	listener := must.Value(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{own.Leaf.Raw}, PrivateKey: own.PrivateKey}}, ClientAuth: tls.RequestClientCert,
	}))(t)
	t.Cleanup(func() { _ = listener.Close() })
	sent = new(atomic.Int64)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			n, _ := connection.Read(make([]byte, 1))
			sent.Add(int64(n + len(connection.(*tls.Conn).ConnectionState().PeerCertificates)))
			_ = connection.Close()
		}
	}()
	return int32(listener.Addr().(*net.TCPAddr).Port), sent
}

// kubeletNode returns a Node that is Ready, with a kubelet at 127.0.0.1.
func kubeletNode(name string, port int32) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "127.0.0.2"}, {Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	return n
}

func TestKubeletsReadsCommonNamesWithoutCredential(t *testing.T) {
	good, sentGood := serve(t, "system:node:good")
	own, sentOwn := serve(t, "own@1790000000")
	closed := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	refused := int32(closed.Addr().(*net.TCPAddr).Port)
	_ = closed.Close()
	nameless := kubeletNode("nameless", good)
	nameless.Status.Addresses[1].Address = "host.example.com"
	gone := kubeletNode("gone", good)
	gone.Status.Conditions[0].Status = corev1.ConditionUnknown
	got := kubelets(t.Context(), []corev1.Node{
		kubeletNode("good", good), gone, kubeletNode("own", own), kubeletNode("closed", refused), kubeletNode("silent", 0), nameless,
	})
	want := []Kubelet{
		{"good", "system:node:good", ""}, {"own", "own@1790000000", ""}, {"closed", "", "connection refused"},
		{"silent", "", "no InternalIP"}, {"nameless", "", "no InternalIP"},
	}
	if !slices.EqualFunc(got, want, func(g, w Kubelet) bool {
		return g.Node == w.Node && g.CommonName == w.CommonName && (g.Unread != "") == (w.Unread != "") && strings.Contains(g.Unread, w.Unread)
	}) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if n := sentGood.Load() + sentOwn.Load(); n != 0 {
		t.Errorf("kubelets got %d certificates and bytes, want none", n)
	}
	if got := checkServingNames(&Facts{Kubelets: got}); len(got) == 0 || !strings.HasPrefix(got[0].Message, "3 of 5 kubelets: closed: ") {
		t.Errorf("unread: %+v", got)
	}
}

func TestKubeletsReadsFirst200(t *testing.T) {
	port, _ := serve(t, "system:node:x")
	var nodes []corev1.Node
	for i := range maxKubelets + 1 {
		nodes = append(nodes, kubeletNode(fmt.Sprint("n-", i), port))
	}
	got := kubelets(t.Context(), nodes)
	if last := got[maxKubelets]; last.CommonName != "" || last.Unread != "only 200 are read" {
		t.Errorf("got %+v", last)
	}
	if last := got[maxKubelets-1]; last.CommonName != "system:node:x" {
		t.Errorf("got %+v", last)
	}
}

// TestKubeletsLimitsConnectionsAndTime catches a doctor that hangs at kubelets that accept connections and do not respond,
// or that connects to all of them at once.
func TestKubeletsLimitsConnectionsAndTime(t *testing.T) {
	t.Parallel()
	listener := must.Value(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer func() { _ = listener.Close() }()
	var nodes []corev1.Node
	for i := range kubeletsAtATime + 1 {
		nodes = append(nodes, kubeletNode(fmt.Sprint("n-", i), int32(listener.Addr().(*net.TCPAddr).Port)))
	}
	result := make(chan []Kubelet, 1)
	go func() { result <- kubelets(context.Background(), nodes) }()
	for range kubeletsAtATime {
		connection := must.Value(listener.Accept())(t)
		defer func() { _ = connection.Close() }()
	}
	must.OK(t, listener.SetDeadline(time.Now().Add(200*time.Millisecond)))
	if _, err := listener.Accept(); err == nil {
		t.Errorf("more than %d connections at a time", kubeletsAtATime)
	}
	select {
	case got := <-result:
		if !strings.Contains(got[0].Unread, "deadline exceeded") {
			t.Errorf("got %+v", got[0])
		}
	case <-time.After(4 * kubeletTimeout):
		t.Fatal("doctor waits for a kubelet that does not respond")
	}
}

// TestRemovedGatesHaveOneMinor catches a gate in two rows of the table, or under a malformed name.
func TestRemovedGatesHaveOneMinor(t *testing.T) {
	seen := map[string]uint{}
	for minor := uint(OldestMinor); minor <= NewestMinor; minor++ {
		if len(removedGates[minor]) == 0 || !slices.IsSorted(removedGates[minor]) {
			t.Errorf("1.%d: want sorted gates, got %q", minor, removedGates[minor])
		}
		for _, gate := range removedGates[minor] {
			if seen[gate] != 0 {
				t.Errorf("%s is in 1.%d and 1.%d", gate, seen[gate], minor)
			}
			if seen[gate] = minor; !plain.MatchString(gate) {
				t.Errorf("malformed gate %q", gate)
			}
		}
	}
	if len(removedGates) != NewestMinor-OldestMinor+1 {
		t.Errorf("removedGates has %d minor versions, want those that kubejoin supports", len(removedGates))
	}
}
