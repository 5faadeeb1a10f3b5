package etcd_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/controlplane"
	"github.com/kubejoin/kubejoin/server/controlplane/etcd"
)

// A fakeEtcd has the JSON API of etcd. TestControlPlanesJoinAtTheSameMoment of test/kubeadm uses a real etcd.
type fakeEtcd struct {
	members []map[string]any
	// relisted changes the members before they are listed for the second time.
	relisted func(*fakeEtcd)
	lists    int
	removed  []string
	status   int
}

func (e *fakeEtcd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		ID           string
		Linearizable bool
	}
	content, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(content, &body) != nil {
		http.Error(w, "malformed", http.StatusBadRequest)
		return
	}
	if e.status != 0 {
		http.Error(w, `{"error": "no leader"}`, e.status)
		return
	}
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/v3/cluster/member/list" && body.Linearizable:
		if e.lists++; e.lists == 2 && e.relisted != nil {
			e.relisted(e)
		}
	case r.Method == http.MethodPost && r.URL.Path == "/v3/cluster/member/remove":
		e.removed = append(e.removed, body.ID)
		e.members = slices.DeleteFunc(e.members, func(m map[string]any) bool { return m["ID"] == body.ID })
	default:
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"header": map[string]string{"cluster_id": "1"}, "members": e.members})
}

func voter(id, host string) map[string]any {
	return map[string]any{"ID": id, "name": "control-" + id, "peerURLs": []string{"https://" + host}}
}

func learner(id string, peers ...string) map[string]any {
	return map[string]any{"ID": id, "peerURLs": peers, "isLearner": true}
}

// serve starts a fake etcd, and returns the members that use it.
func serve(t *testing.T, handler http.Handler) etcd.Members {
	t.Helper()
	ca := certtest.CA(t, "etcd-ca")
	m := etcd.Members{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	certificate := certtest.Issue(t, &x509.Certificate{DNSNames: []string{"localhost"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, ca)
	key := must.Value(x509.MarshalPKCS8PrivateKey(certificate.PrivateKey))(t)
	for name, block := range map[string]*pem.Block{
		"etcd/ca.crt":               {Type: "CERTIFICATE", Bytes: ca.Certificate[0]},
		"apiserver-etcd-client.crt": {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]},
		"apiserver-etcd-client.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		file := filepath.Join(m.Dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.OK(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.Leaf)
	s := httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	m.Port = fmt.Sprint(netip.MustParseAddrPort(s.Listener.Addr().String()).Port())
	return m
}

// closedPort returns an address at which nothing listens, and openPort returns an address that accepts connections.
// closedPort uses the address of a client connection, so that no server gets it during the test.
func closedPort(t *testing.T) string {
	_, address := openPort(t)
	c := must.Value(net.Dial("tcp", address))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().String()
}

func openPort(t *testing.T) (net.Listener, string) {
	t.Helper()
	l := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l, l.Addr().String()
}

// kubejoin may remove only the learner of the dead machine, and only if its etcd does not run or kubeadm has ended. It
// must never remove a voting member.
func TestRemovesOnlyLearnerOfMachineThatIsGone(t *testing.T) {
	closed := closedPort(t)
	_, open := openPort(t)
	gone := controlplane.Machine{Node: "control-2", Address: "127.0.0.1"}
	const first = "192.0.2.1:2380"
	for name, c := range map[string]struct {
		members []map[string]any
		gone    controlplane.Machine
		ended   bool
		// relisted changes the members before kubejoin removes one.
		relisted func(*fakeEtcd)
		stays    string
		removed  []string
	}{
		"voters only":              {members: []map[string]any{voter("1", first), voter("2", closed)}, gone: gone, ended: true},
		"learner of it":            {members: []map[string]any{voter("1", first), learner("2", "https://"+closed)}, gone: gone, removed: []string{"2"}},
		"etcd runs":                {members: []map[string]any{learner("2", "https://"+open)}, gone: gone, stays: "https://" + open},
		"etcd runs, kubeadm ended": {members: []map[string]any{learner("2", "https://"+open)}, gone: gone, ended: true, removed: []string{"2"}},
		"another learner":          {members: []map[string]any{learner("9", "https://192.0.2.9:2380")}, gone: gone, ended: true, stays: "https://192.0.2.9:2380"},
		"uncertain":                {members: []map[string]any{learner("2", "https://255.255.255.255:2380")}, gone: controlplane.Machine{Address: "255.255.255.255"}, stays: "https://255.255.255.255:2380"},
		"no machine ended":         {members: []map[string]any{learner("2", "https://"+closed)}, stays: "https://" + closed},
		"unknown address":          {members: []map[string]any{learner("2", "https://"+closed)}, gone: controlplane.Machine{Node: "control-2"}, ended: true, stays: "https://" + closed},
		"two addresses":            {members: []map[string]any{learner("2", "https://"+closed, "https://192.0.2.9:2380")}, gone: gone, ended: true, stays: "https://" + closed + ",https://192.0.2.9:2380"},
		"host name":                {members: []map[string]any{learner("2", "https://localhost:2380")}, gone: gone, ended: true, stays: "https://localhost:2380"},
		"both unknown":             {members: []map[string]any{learner("2", "https://localhost:2380")}, ended: true, stays: "https://localhost:2380"},
		"address is a prefix":      {members: []map[string]any{learner("2", "https://127.0.0.11:1")}, gone: gone, ended: true, stays: "https://127.0.0.11:1"},
		"IPv6 form of it":          {members: []map[string]any{learner("2", "https://"+closed)}, gone: controlplane.Machine{Address: "::ffff:127.0.0.1"}, removed: []string{"2"}},
		"one of two learners":      {members: []map[string]any{learner("2", "https://"+closed), learner("3", "https://192.0.2.9:2380")}, gone: gone, stays: "https://192.0.2.9:2380", removed: []string{"2"}},
		"votes by now": {members: []map[string]any{voter("1", first), learner("2", "https://"+closed)}, gone: gone,
			relisted: func(e *fakeEtcd) { e.members[1] = voter("2", closed) }},
		"removed by another replica": {members: []map[string]any{voter("1", first), learner("2", "https://"+closed)}, gone: gone,
			relisted: func(e *fakeEtcd) { e.members = e.members[:1] }},
	} {
		t.Run(name, func(t *testing.T) {
			e := &fakeEtcd{members: c.members, relisted: c.relisted}
			stays, err := serve(t, e).RemoveLearner(t.Context(), c.gone, c.ended)
			if err != nil || stays != c.stays || !slices.Equal(e.removed, c.removed) {
				t.Errorf("got learner %q, removed %q, %v, want %q and %q", stays, e.removed, err, c.stays, c.removed)
			}
		})
	}
}

// An error of etcd must not allow a machine to join, or cause the removal of a member.
func TestReturnsErrors(t *testing.T) {
	gone := controlplane.Machine{Address: "127.0.0.1"}
	dead := []map[string]any{learner("2", "https://"+closedPort(t))}
	for name, c := range map[string]struct {
		handler http.Handler
		change  func(*etcd.Members)
	}{
		"status":            {handler: &fakeEtcd{members: dead, status: http.StatusServiceUnavailable}},
		"no members":        {handler: &fakeEtcd{}},
		"not JSON":          {handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })},
		"another CA":        {handler: &fakeEtcd{members: dead}, change: func(m *etcd.Members) { m.Dir = serve(t, nil).Dir }},
		"malformed CA":      {handler: &fakeEtcd{members: dead}, change: func(m *etcd.Members) { write(t, m.Dir, "etcd/ca.crt") }},
		"malformed key":     {handler: &fakeEtcd{members: dead}, change: func(m *etcd.Members) { write(t, m.Dir, "apiserver-etcd-client.key") }},
		"fails on removing": {handler: &fakeEtcd{members: dead, relisted: func(e *fakeEtcd) { e.status = http.StatusServiceUnavailable }}},
	} {
		t.Run(name, func(t *testing.T) {
			m := serve(t, c.handler)
			if c.change != nil {
				c.change(&m)
			}
			if stays, err := m.RemoveLearner(t.Context(), gone, true); err == nil || stays != "" {
				t.Errorf("got learner %q and %v, want an error", stays, err)
			}
			if e, is := c.handler.(*fakeEtcd); is && len(e.removed) > 0 {
				t.Errorf("removed %q", e.removed)
			}
		})
	}
}

func write(t *testing.T, dir, name string) {
	t.Helper()
	must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("malformed\n"), 0o600))
}

// With an external etcd, or if kubejoin runs elsewhere, no machine waits for a learner.
func TestWithoutEtcdOnThisMachine(t *testing.T) {
	m := serve(t, &fakeEtcd{members: []map[string]any{learner("2", "https://192.0.2.9:2380")}})
	_, m.Port, _ = strings.Cut(closedPort(t), ":")
	if stays, err := m.RemoveLearner(t.Context(), controlplane.Machine{}, false); stays != "" || err != nil {
		t.Errorf("no etcd: %q, %v", stays, err)
	}
	m.Dir = t.TempDir()
	if stays, err := m.RemoveLearner(t.Context(), controlplane.Machine{}, false); stays != "" || err != nil {
		t.Errorf("no certificates: %q, %v", stays, err)
	}
}
