package caobserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer/rotation"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// An apiServer serves lists and single objects by path. It pages lists by the limit of the request, and refuses lists
// without a limit.
type apiServer struct {
	lists     map[string][]any
	objects   map[string]any
	forbidden map[string]bool
	tls       *tls.Config // nil means plain HTTP, as with 'kubectl proxy', so its address cannot be observed

	mu      sync.Mutex
	largest map[string]int // largest page by path
}

// object returns the fields of an object that the API server sends.
func object(t testing.TB, v any) map[string]any {
	t.Helper()
	var fields map[string]any
	must.OK(t, json.Unmarshal(must.Value(json.Marshal(v))(t), &fields))
	return fields
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fail := func(code int, reason metav1.StatusReason) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason})
	}
	all, found := a.lists[r.URL.Path]
	one, single := a.objects[r.URL.Path]
	w.Header().Set("Content-Type", "application/json")
	switch {
	case a.forbidden[r.URL.Path]:
		fail(http.StatusForbidden, metav1.StatusReasonForbidden)
	case single:
		_ = json.NewEncoder(w).Encode(one)
	case !found:
		fail(http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil && !strings.HasSuffix(r.URL.Path, "/pods") {
			fail(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		if name, only := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); only {
			var kept []any
			for _, o := range all {
				if o.(map[string]any)["metadata"].(map[string]any)["name"] == name {
					kept = append(kept, o)
				}
			}
			all = kept
		}
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		part, next := all[from:], ""
		if limit > 0 && len(part) > limit {
			part, next = part[:limit], strconv.Itoa(from+limit)
		}
		a.mu.Lock()
		a.largest[r.URL.Path] = max(a.largest[r.URL.Path], len(part))
		a.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"continue": next}, "items": part})
	}
}

// start returns an Observer of the API server. network redirects connections to an address.
func (a *apiServer) start(t testing.TB, network *network) *Observer {
	t.Helper()
	a.largest = map[string]int{}
	for _, path := range []string{
		"/api/v1/nodes", "/api/v1/namespaces/kube-system/pods", "/api/v1/configmaps", "/api/v1/namespaces/kube-system/secrets",
		validating, mutating, apiServices, definitions,
	} {
		if a.lists == nil {
			a.lists = map[string][]any{}
		}
		if a.lists[path] == nil {
			a.lists[path] = []any{}
		}
	}
	server := httptest.NewUnstartedServer(a)
	if server.TLS = a.tls; a.tls == nil {
		server.Start()
	} else {
		server.StartTLS()
		network.listen(server.Listener.Addr().String(), server.Listener.Addr().String())
	}
	t.Cleanup(server.Close)
	client := must.Value(kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: a.tls != nil}}))(t)
	return &Observer{Client: client, Dial: network.dial, patience: wait.Most}
}

// A network maps addresses to servers.
type network struct {
	mu     sync.Mutex
	to     map[string]string // maps a dialed address to the address of a listener
	closed string            // an address that refuses connections; all unknown addresses behave as behind a firewall
	dialed []string
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dialed = append(n.dialed, address)
	to := n.to[address]
	n.mu.Unlock()
	if address == n.closed {
		return nil, fmt.Errorf("dial %s: %w", address, syscall.ECONNREFUSED)
	} else if to == "" {
		return nil, fmt.Errorf("dial %s: no route", address)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", to)
}

func (n *network) listen(address, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.to == nil {
		n.to = map[string]string{}
	}
	n.to[address] = to
}

// serve accepts TLS connections until the test ends, and returns the address.
func serve(t testing.TB, config *tls.Config) string {
	t.Helper()
	listener := must.Value(tls.Listen("tcp", "127.0.0.1:0", config))(t)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = connection.Close() }()
				n, _ := connection.Read(make([]byte, 1))
				if n > 0 || len(connection.(*tls.Conn).ConnectionState().PeerCertificates) > 0 {
					t.Error("the client sent data or a credential")
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// tlsConfig returns the configuration of a server with a certificate of a CA. Without clientCAs, the server requests
// no client certificate.
func tlsConfig(t testing.TB, from *tls.Certificate, clientCAs ...*tls.Certificate) *tls.Config {
	t.Helper()
	c := &tls.Config{Certificates: []tls.Certificate{certtest.Serving(t, from, "127.0.0.1")}}
	if len(clientCAs) > 0 {
		c.ClientAuth, c.ClientCAs = tls.RequestClientCert, x509.NewCertPool()
	}
	for _, ca := range clientCAs {
		c.ClientCAs.AddCert(ca.Leaf)
	}
	return c
}

// begun returns a rotation that has been in a stage for an hour.
func begun(t testing.TB, stage rotation.Stage, old, fresh *tls.Certificate) rotation.Rotation {
	t.Helper()
	r := must.Value(rotation.New(rotation.Cluster, []*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, nil, time.Now()))(t)
	r.Started, r.Since, r.Stage = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour), stage
	return r
}

// bundleOf returns certificates in PEM.
func bundleOf(cas ...*tls.Certificate) string {
	var b strings.Builder
	for _, ca := range cas {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: ca.Leaf.Raw})
	}
	return b.String()
}

// node returns a Node that is Ready.
func node(name, address string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	return n
}

// reported adds a report to a Node.
func reported(t testing.TB, n *corev1.Node, r rotation.Rotation, files ...rotation.File) *corev1.Node {
	t.Helper()
	n.Annotations[rotation.Annotation(r.CA)] = string(must.Value(json.Marshal(rotation.Report{ID: r.ID, CA: r.CA, Stage: r.Stage, Since: r.Since, Files: files}))(t))
	return n
}

// line returns an observation in one line.
func line(o rotation.Observation) string {
	parts := []string{string(o.Kind), o.Name}
	if o.Node != "" {
		parts = append(parts, "@"+o.Node)
	}
	if o.Trusts != nil {
		parts = append(parts, "trusts:"+strings.TrimSuffix(map[bool]string{true: "old,"}[o.Trusts.Old]+map[bool]string{true: "new"}[o.Trusts.New], ","))
	}
	if o.From != "" {
		parts = append(parts, "from:"+string(o.From))
	}
	if o.Off {
		parts = append(parts, "off")
	}
	if o.Unseen != "" {
		parts = append(parts, "unseen:"+o.Unseen)
	}
	if o.Optional {
		parts = append(parts, "optional")
	}
	if o.Next != "" {
		parts = append(parts, "next:"+o.Next)
	}
	return strings.Join(parts, " ")
}

func lines(all []rotation.Observation) []string {
	var text []string
	for _, o := range all {
		text = append(text, line(o))
	}
	return text
}
