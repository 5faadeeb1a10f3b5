package signerd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

const kubelet = certificates.KubeAPIServerClientKubeletSignerName

// policyOf returns a policy that allows node certificates to the requester kubejoin, identified by a client
// certificate or by the user ID uid.
func policyOf(uid int) string {
	return fmt.Sprintf(`
apiVersion: kubejoin.io/v1alpha1
kind: SignerPolicy
requesters:
- name: kubejoin
  uid: %d
  rate: {qps: 1000, burst: 100000}
  signers: [{name: kubernetes.io/kube-apiserver-client-kubelet, duration: {max: 24h}}]
`, uid)
}

// A world is a signer process with its files, and clients with certificates.
type world struct {
	*service
	h       *handler
	server  *http.Server
	t       testing.TB
	dir     string
	clients *tls.Certificate // the CA of clients
	made    int              // number of client certificates so far
	address string
	// policy replaces the policy in the file, unless it is nil.
	policy atomic.Pointer[config.Policy]
}

// newWorld starts a signer process on a TCP port or, with socket set, on a Unix socket.
func newWorld(t testing.TB, socket bool, uid int) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), clients: certtest.CA(t, "clients")}
	w.service = &service{log: slog.New(slog.DiscardHandler), registry: prometheus.NewRegistry(), Options: Options{
		Listen: "127.0.0.1:0", Policy: w.write("policy.yaml", []byte(policyOf(uid))), Record: filepath.Join(w.dir, "record"),
	}}
	certs, key, err := must.Value(signer.GenerateCA("ca", time.Now(), 240*time.Hour))(t).PEM()
	must.OK(t, err)
	w.CertFile, w.KeyFile = w.write("ca.crt", certs), w.write("ca.key", key)
	if socket {
		w.Listen = unixScheme + filepath.Join(w.dir, "sock")
	} else {
		servers := certtest.CA(t, "servers")
		serving := certtest.Serving(t, servers, "127.0.0.1")
		w.TLSCertFile, w.TLSKeyFile = w.pair("serving", &serving)
		w.ClientCAFile, _ = w.pair("clients", w.clients)
		w.pair("servers", servers)
	}
	record := must.Value(issuance.OpenFile(w.Record))(t)
	w.h = must.Value(w.handler(record))(t)
	inFile := w.h.policy
	w.h.policy = func() *config.Policy { return cmp.Or(w.policy.Load(), inFile()) }
	server, listener, err := w.listen(t.Context(), w.h)
	must.OK(t, err)
	w.server = server
	w.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.serve(ctx, server, listener) }()
	t.Cleanup(func() {
		cancel()
		must.OK(t, <-done)
		must.OK(t, record.Close())
	})
	return w
}

func (w *world) write(name string, content []byte) string {
	w.t.Helper()
	file := filepath.Join(w.dir, name)
	must.OK(w.t, os.WriteFile(file, content, 0o600))
	return file
}

// pair writes a certificate and its key to files.
func (w *world) pair(name string, c *tls.Certificate) (certFile, keyFile string) {
	w.t.Helper()
	key := must.Value(x509.MarshalPKCS8PrivateKey(c.PrivateKey))(w.t)
	return w.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})),
		w.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
}

// clientOf returns a client whose certificate has this name and CA.
func (w *world) clientOf(name string, ca *tls.Certificate) *remote.Client {
	w.t.Helper()
	c := remote.Config{URL: w.Listen}
	if w.Socket() == "" {
		c.URL, c.CAFile = "https://"+w.address, filepath.Join(w.dir, "servers.crt")
		w.made++
		c.CertFile, c.KeyFile = w.pair(fmt.Sprint("client-", w.made), certtest.Issue(w.t, &x509.Certificate{
			Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, ca))
	}
	return must.Value(remote.New(c))(w.t)
}

// authorityOf returns an authority as in kubejoin. It signs through client, which has the key of certs.
func authorityOf(t testing.TB, client signer.Remote, certs []*x509.Certificate) *signer.Authority {
	t.Helper()
	ca := must.Value(signer.NewRemoteCA(certs, client))(t)
	signers := must.Value(signer.KubernetesSigners(signer.Fixed(ca), 240*time.Hour))(t)
	return &signer.Authority{Signers: signer.FixedSigners(signers), Unthrottled: true}
}

func nodeRequest(t testing.TB, node string) approval.Request {
	t.Helper()
	return approval.Request{
		SignerName: kubelet, User: "system:node:" + node, Groups: []string{"system:nodes"}, CSR: csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, nil),
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
	}
}

func (w *world) entries() (all []issuance.Entry) {
	w.t.Helper()
	for line := range bytes.Lines(must.Value(os.ReadFile(w.Record))(w.t)) {
		var e issuance.Entry
		must.OK(w.t, json.Unmarshal(line, &e))
		all = append(all, e)
	}
	return all
}

func TestSigns(t *testing.T) {
	for _, socket := range []bool{false, true} {
		t.Run(fmt.Sprint("socket ", socket), func(t *testing.T) {
			w := newWorld(t, socket, os.Getuid())
			client := w.clientOf("kubejoin", w.clients)
			chain, err := authorityOf(t, client, w.h.ca().Bundle()).Sign(t.Context(), nodeRequest(t, "worker-1"))
			must.OK(t, err)
			block, _ := pem.Decode(chain)
			cert := must.Value(x509.ParseCertificate(block.Bytes))(t)
			if lasts := cert.NotAfter.Sub(cert.NotBefore); lasts > 24*time.Hour {
				t.Errorf("the certificate is valid for %s, want at most 24h as in the policy", lasts)
			}
			entries := w.entries()
			if len(entries) != 1 || entries[0].Outcome != issuance.Issued || entries[0].Approver != "kubejoin" || entries[0].Requester != "system:node:worker-1" || entries[0].Serial != cert.SerialNumber.Text(16) {
				t.Errorf("record %+v, want one entry of this certificate", entries)
			}
			must.Value(client.Ping(t.Context(), w.h.ca().Bundle()))(t)
			other := must.Value(signer.GenerateCA("other", time.Now(), time.Hour*24))(t)
			if _, err := client.Ping(t.Context(), other.Bundle()); err == nil || !strings.Contains(err.Error(), "not among the 1 CAs here") {
				t.Errorf("ping with another CA: got %v", err)
			}
		})
	}
}

// The signer process must refuse a client certificate of another CA, a name that is not in the policy, and another user.
func TestRefusesUnknownRequesters(t *testing.T) {
	w := newWorld(t, false, 1)
	for name, client := range map[string]*remote.Client{
		"another name": w.clientOf("jane", w.clients),
		"no name":      w.clientOf("", w.clients),
		"another CA":   w.clientOf("kubejoin", certtest.CA(t, "clients")),
	} {
		chain, err := authorityOf(t, client, w.h.ca().Bundle()).Sign(t.Context(), nodeRequest(t, "worker-1"))
		if !errors.Is(err, remote.ErrRefused) || len(chain) > 0 || len(w.entries()) > 0 {
			t.Errorf("%s: got %q, %v and %d entries, want no certificate", name, chain, err, len(w.entries()))
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must.Value(os.ReadFile(filepath.Join(w.dir, "servers.crt")))(t))
	bare := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	if r, err := bare.Get("https://" + w.address + remote.CAPath); err == nil {
		t.Errorf("without a certificate: got %s", r.Status)
	}
	other := newWorld(t, true, os.Getuid()+1)
	if _, err := authorityOf(t, other.clientOf("", nil), other.h.ca().Bundle()).Sign(t.Context(), nodeRequest(t, "worker-1")); !errors.Is(err, remote.ErrUnavailable) {
		t.Errorf("another user: got %v, want a closed connection", err)
	}
}

// post sends a body as the requester of the socket and returns the status and the detail.
func (w *world) post(body []byte) (int, string) {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", w.Socket())
	}}}
	defer client.CloseIdleConnections()
	r := must.Value(client.Post("http://signer"+remote.SignPath, "application/json", bytes.NewReader(body)))(w.t)
	defer func() { must.OK(w.t, r.Body.Close()) }()
	return r.StatusCode, string(must.Value(io.ReadAll(r.Body))(w.t))
}

// Whatever a compromised kubejoin sends, it must get only what the policy allows.
func TestRefusesHostileOrders(t *testing.T) {
	w := newWorld(t, true, os.Getuid())
	now := time.Now()
	order := func(change func(*remote.Order)) []byte {
		id := make([]byte, 16)
		copy(id, strconv.FormatInt(time.Now().UnixNano(), 10))
		r := nodeRequest(t, "worker-1")
		o := remote.Order{ID: id, SignerName: kubelet, CSR: r.CSR.Raw, Usages: r.Usages, Made: now, NotAfter: now.Add(time.Hour)}
		if change != nil {
			change(&o)
		}
		return must.Value(json.Marshal(o))(t)
	}
	csr := func(template *x509.CertificateRequest) func(*remote.Order) {
		return func(o *remote.Order) { o.CSR = csrtest.New(t, template, nil).Raw }
	}
	first := order(nil)
	for _, test := range []struct {
		name     string
		body     []byte
		status   int
		want     string
		recorded bool
	}{
		{"as kubejoin does", first, http.StatusOK, "BEGIN CERTIFICATE", true},
		{"replay", first, http.StatusConflict, "sent before", false},
		{"replay with another layout", append([]byte("  \n"), first...), http.StatusConflict, "sent before", false},
		{"old", order(func(o *remote.Order) { o.Made = now.Add(-2 * time.Minute) }), http.StatusConflict, "set the clocks", false},
		{"of the future", order(func(o *remote.Order) { o.Made = now.Add(2 * time.Minute) }), http.StatusConflict, "set the clocks", false},
		{"from before the start", order(func(o *remote.Order) { o.Made = now.Add(-30 * time.Second) }), http.StatusConflict, "before this process started", false},
		{"no ID", order(func(o *remote.Order) { o.ID = nil }), http.StatusForbidden, "ID of the order", true},
		{"oversize", bytes.Repeat([]byte(" "), remote.MaxOrder+1), http.StatusRequestEntityTooLarge, fmt.Sprintf("%d bytes, want at most %d", remote.MaxOrder+1, remote.MaxOrder), false},
		{"no JSON", []byte("{"), http.StatusBadRequest, "not valid", false},
		{"unknown field", append(first[:len(first)-1:len(first)-1], `,"ca":true}`...), http.StatusBadRequest, "not valid", false},
		{"field twice", append(first[:len(first)-1:len(first)-1], `,"signerName":"x"}`...), http.StatusBadRequest, "not valid", false},
		{"no CSR", order(func(o *remote.Order) { o.CSR = nil }), http.StatusForbidden, "cannot be parsed", true},
		{"another signer", order(func(o *remote.Order) { o.SignerName = certificates.KubeAPIServerClientSignerName }), http.StatusForbidden, "no certificate of signer", true},
		{"CA", order(csr(&x509.CertificateRequest{Subject: csrtest.Node("a"), ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}})), http.StatusForbidden, "CA certificate", true},
		{"masters", order(csr(&x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:masters"}}})), http.StatusForbidden, "system:masters", true},
		{"user", order(csr(&x509.CertificateRequest{Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:nodes"}}})), http.StatusForbidden, "common name", true},
		{"names", order(csr(&x509.CertificateRequest{Subject: csrtest.Node("a"), DNSNames: []string{"kubernetes"}})), http.StatusForbidden, "alternative names", true},
		{"server", order(func(o *remote.Order) { o.Usages = append(o.Usages, certificates.UsageServerAuth) }), http.StatusForbidden, "usage", true},
		{"longer", order(func(o *remote.Order) { o.NotAfter = now.Add(1e6 * time.Hour) }), http.StatusOK, "BEGIN CERTIFICATE", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(w.entries())
			status, text := w.post(test.body)
			if status != test.status || !strings.Contains(text, test.want) {
				t.Errorf("got %d %s, want %d and %q", status, text, test.status, test.want)
			}
			if recorded := len(w.entries()) > before; recorded != test.recorded {
				t.Errorf("recorded: %t, want %t", recorded, test.recorded)
			}
			for block, _ := pem.Decode([]byte(text)); block != nil; block = nil {
				cert := must.Value(x509.ParseCertificate(block.Bytes))(t)
				if cert.IsCA || cert.NotAfter.After(time.Now().Add(24*time.Hour)) || cert.Subject.CommonName != "system:node:worker-1" {
					t.Errorf("got a certificate of %s until %s", cert.Subject, cert.NotAfter)
				}
			}
		})
	}
}

// For each unusable file or address, the start must fail with an error that names it.
func TestStartErrors(t *testing.T) {
	w := newWorld(t, false, 1)
	text := w.write("text", []byte("text"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	sock := unixScheme + filepath.Join(w.dir, "sock")
	must.OK(t, Run(ended, w.Options, slog.New(slog.DiscardHandler)))
	for _, test := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Record = w.dir }, "--issuance-record: "},
		{func(o *Options) { o.KeyFile = text }, "cluster CA: "},
		{func(o *Options) { o.Policy = text }, text + ":1: "},
		{func(o *Options) { o.Policy = "missing" }, "--policy: "},
		{func(o *Options) { o.TLSCertFile = text }, "--tls-cert-file: "},
		{func(o *Options) { o.ClientCAFile = text }, "--client-ca-file: "},
		{func(o *Options) { o.ClientCAFile = "missing" }, "--client-ca-file: "},
		{func(o *Options) { o.Listen = w.address }, "--listen: "}, // the address is in use
		{func(o *Options) { o.Listen = sock + "/a" }, "--listen: "},
	} {
		o := w.Options
		test.change(&o)
		if err := Run(ended, o, slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
}

// A requester that was removed from the policy must get no more certificates, even on open connections.
func TestFollowsPolicy(t *testing.T) {
	w := newWorld(t, true, os.Getuid())
	authority := authorityOf(t, w.clientOf("", nil), w.h.ca().Bundle())
	must.Value(authority.Sign(t.Context(), nodeRequest(t, "worker-1")))(t)
	policy := must.Value(config.ParsePolicy("policy.yaml", []byte(policyOf(os.Getuid()+1)), signer.Fixed(w.h.ca())))(t)
	w.policy.Store(policy)
	if chain, err := authority.Sign(t.Context(), nodeRequest(t, "worker-1")); !errors.Is(err, remote.ErrRefused) || len(chain) > 0 {
		t.Errorf("after it left the policy: got %q, %v", chain, err)
	}
	w.policy.Store(nil)
	must.Value(authority.Sign(t.Context(), nodeRequest(t, "worker-1")))(t)
}

// listenUnix must replace a socket that a killed process left, and no other file.
func TestListensOnSocket(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sock")
	left := must.Value(net.ListenUnix("unix", &net.UnixAddr{Name: file, Net: "unix"}))(t)
	if _, err := listenUnix(t.Context(), file, nil); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("in use: got %v", err)
	}
	left.SetUnlinkOnClose(false)
	must.OK(t, left.Close())
	listener := must.Value(listenUnix(t.Context(), file, nil))(t)
	must.OK(t, listener.Close())
	datagrams := must.Value(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: file, Net: "unixgram"}))(t)
	if _, err := listenUnix(t.Context(), file, nil); err == nil {
		t.Error("a socket of another type was replaced")
	}
	must.OK(t, errors.Join(datagrams.Close(), os.Remove(file)))
	must.OK(t, os.WriteFile(file, []byte("content"), 0o600))
	if _, err := listenUnix(t.Context(), filepath.Join(file, "sock"), nil); err == nil || !strings.Contains(err.Error(), "lstat") {
		t.Errorf("below a file: got %v", err)
	}
	if _, err := listenUnix(t.Context(), file, nil); err == nil || string(must.Value(os.ReadFile(file))(t)) != "content" {
		t.Errorf("a file: got %v, want an error, and the file as it was", err)
	}
}

// Linux reports the same user ID for all users of another user namespace. So a policy must not be able to allow this ID.
func TestRefusesUserOfAnotherNamespace(t *testing.T) {
	var logged bytes.Buffer
	w := newWorld(t, false, os.Getuid())
	w.h.log = slog.New(slog.NewTextHandler(&logged, nil))
	file := filepath.Join(w.dir, "sock")
	l := must.Value(listenUnix(t.Context(), file, w.h))(t).(peerListener)
	conn := must.Value(net.Dial("unix", file))(t)
	must.OK(t, must.Value(l.Accept())(t).Close()) // the policy contains the user
	must.OK(t, conn.Close())

	l.overflow = os.Getuid()
	done := make(chan struct{})
	go func() { defer close(done); _, _ = l.Accept() }() // Accept returns when the listener is closed
	conn = must.Value(net.Dial("unix", file))(t)
	if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		t.Errorf("got %d bytes, %v, want a closed connection", n, err)
	}
	must.OK(t, errors.Join(conn.Close(), l.Close()))
	<-done
	if !strings.Contains(logged.String(), "PrivateUsers=no") {
		t.Errorf("log %q, want the reason", logged.String())
	}
}

// If the record cannot be written, the signer process must sign nothing.
func TestSignsNothingWithoutRecord(t *testing.T) {
	w := newWorld(t, true, os.Getuid())
	w.h.authority.Record = full{}
	client := w.clientOf("", nil)
	chain, err := authorityOf(t, client, w.h.ca().Bundle()).Sign(t.Context(), nodeRequest(t, "worker-1"))
	if !errors.Is(err, remote.ErrUnavailable) || len(chain) > 0 {
		t.Errorf("got %q, %v, want no certificate", chain, err)
	}
}

// allowing allows every permission.
type allowing struct{ approval.Facts }

func (allowing) Allowed(context.Context, approval.Request, approval.Permission) (bool, error) {
	return true, nil
}

// While the signer process is unavailable, a CSR object must get neither Failed nor Denied, which are final. When the
// process is available again, it must sign the object. This test catches a controller that gives up.
func TestCSRObjectWaitsForSigner(t *testing.T) {
	w := newWorld(t, true, os.Getuid())
	must.OK(t, os.Rename(w.Socket(), w.Socket()+".away"))
	r := nodeRequest(t, "worker-1")
	objects := fake.NewClientset(&certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "1", CreationTimestamp: metav1.Now()},
		Spec: certificates.CertificateSigningRequestSpec{
			SignerName: kubelet, Username: "kubelet-bootstrap", Usages: r.Usages,
			Request: pem.EncodeToMemory(&pem.Block{Type: pkcs10.BlockType, Bytes: r.CSR.Raw}),
		},
	})
	authority := authorityOf(t, w.clientOf("", nil), w.h.ca().Bundle())
	authority.Facts = allowing{}
	counts, done := prometheus.NewRegistry(), make(chan error, 1)
	go func() {
		done <- csr.Controller{Client: objects, Authority: authority, Approve: true, Sign: true, Registerer: counts}.Run(t.Context())
	}()
	t.Cleanup(func() { must.OK(t, <-done) })
	await := func(metric string) *certificates.CertificateSigningRequest {
		t.Helper()
		wait.Until(t, metric, func() bool { return must.Value(testutil.GatherAndCount(counts, metric))(t) > 0 })
		return must.Value(objects.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "csr-1", metav1.GetOptions{}))(t)
	}
	o := await("kubejoin_csr_sign_failures_total")
	if c := o.Status.Conditions; len(c) != 1 || c[0].Type != certificates.CertificateApproved || len(o.Status.Certificate) > 0 {
		t.Errorf("while the process is away: got status %+v, want only Approved", o.Status)
	}
	must.OK(t, os.Rename(w.Socket()+".away", w.Socket()))
	o = await("kubejoin_csr_signed_total")
	if block, _ := pem.Decode(o.Status.Certificate); block == nil || len(o.Status.Conditions) != 1 || len(w.entries()) != 1 {
		t.Errorf("after it is back: got status %+v and %d entries, want one certificate", o.Status, len(w.entries()))
	}
}

// full is a record on a full disk.
type full struct{}

func (full) Append(context.Context, issuance.Entry) error { return errors.New("disk full") }

func TestLimitsOrders(t *testing.T) {
	w := newWorld(t, true, os.Getuid())
	policy := must.Value(config.ParsePolicy("policy.yaml", []byte(strings.Replace(policyOf(os.Getuid()), "qps: 1000, burst: 100000", "qps: 0.001, burst: 2", 1)), signer.Fixed(w.h.ca())))(t)
	w.policy.Store(policy)
	for i := range maxInFlight {
		w.h.slots.Take(strconv.Itoa(i))
	}
	if status, text := w.post([]byte("{")); status != http.StatusServiceUnavailable || !strings.Contains(text, "in flight") {
		t.Errorf("with all slots taken: got %d %s", status, text)
	}
	// A client that sends slowly must hold no slot.
	slow := httptest.NewRequest(http.MethodPost, remote.SignPath, readerFunc(func([]byte) (int, error) {
		w.h.slots.Free("0")
		return 0, io.EOF
	}))
	q, _ := policy.Of(os.Getuid())
	if _, err := w.h.sign(slow, q); web.ProblemOf(err).Status != http.StatusBadRequest {
		t.Errorf("with a slot that became free while it sent: got %v", err)
	}
	for i := range maxInFlight - 1 {
		w.h.slots.Free(strconv.Itoa(i + 1))
	}
	w.h.rates = rates{}
	// The rate also counts invalid orders.
	for i, want := range []int{http.StatusBadRequest, http.StatusBadRequest, http.StatusTooManyRequests} {
		if status, text := w.post([]byte("{")); status != want {
			t.Errorf("order %d: got %d %s, want %d", i+1, status, text, want)
		}
	}
}

// If a requester has all orders in flight that it can get, slots must remain for another requester.
func TestRequesterLeavesOrdersInFlight(t *testing.T) {
	w := newWorld(t, true, os.Getuid())
	sign := func() (int, string) {
		r := nodeRequest(t, "worker-1")
		id := make([]byte, 16)
		_, _ = rand.Read(id) // documented never to fail
		return w.post(must.Value(json.Marshal(remote.Order{ID: id, SignerName: kubelet, CSR: r.CSR.Raw, Usages: r.Usages, Made: time.Now(), NotAfter: time.Now().Add(time.Hour)}))(t))
	}
	for w.h.slots.Take("second") {
	}
	if status, text := sign(); status != http.StatusOK {
		t.Errorf("beside another requester: got %d %s", status, text)
	}
	for w.h.slots.Take("kubejoin") {
	}
	if status, text := sign(); status != http.StatusServiceUnavailable || !strings.Contains(text, "in flight") {
		t.Errorf("beyond its own share: got %d %s", status, text)
	}
}

// A requester over its rate must not use up the rate of another requester. This test catches a rate that requesters share.
func TestLimitsEachRequesterByItself(t *testing.T) {
	w := newWorld(t, false, 1)
	one := strings.Replace(policyOf(1), "qps: 1000, burst: 100000", "qps: 0.001, burst: 1", 1)
	_, entry, _ := strings.Cut(one, "requesters:\n")
	both := one + strings.NewReplacer("name: kubejoin\n", "name: second\n", "uid: 1\n", "uid: 2\n").Replace(entry)
	w.policy.Store(must.Value(config.ParsePolicy("policy.yaml", []byte(both), signer.Fixed(w.h.ca())))(t))
	now := time.Now()
	w.h.now = func() time.Time { return now } // fixed clock: no rate recovers
	bundle := w.h.ca().Bundle()
	first, second := w.clientOf("kubejoin", w.clients), w.clientOf("second", w.clients)
	want429 := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "429") {
			t.Errorf("got %v, want status 429", err)
		}
	}
	sign := func(client *remote.Client) error {
		_, err := authorityOf(t, client, bundle).Sign(t.Context(), nodeRequest(t, "worker-1"))
		return err
	}
	must.OK(t, sign(first))
	want429(sign(first))
	must.OK(t, sign(second))
	want429(sign(first))
	if entries := w.entries(); len(entries) != 2 || entries[0].Approver != "kubejoin" || entries[1].Approver != "second" {
		t.Errorf("record %+v, want one certificate of each requester", entries)
	}
	for range readBurst {
		must.Value(first.Ping(t.Context(), bundle))(t)
	}
	_, err := first.Ping(t.Context(), bundle)
	want429(err)
	must.Value(second.Ping(t.Context(), bundle))(t)
}

// A requester over its rate must cost little, so responses to its orders and reads are delayed. HTTP/2 must be off,
// because one connection could then have many requests in flight.
func TestRequestsOverTheRateTakeTheirTime(t *testing.T) {
	w := newWorld(t, false, 1)
	policy := must.Value(config.ParsePolicy("policy.yaml", []byte(strings.Replace(policyOf(1), "qps: 1000, burst: 100000", "qps: 0.001, burst: 1", 1)), signer.Fixed(w.h.ca())))(t)
	w.policy.Store(policy)
	now := time.Now()
	w.h.now = func() time.Time { return now } // fixed clock: no rate recovers
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must.Value(os.ReadFile(filepath.Join(w.dir, "servers.crt")))(t))
	leaf := certtest.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "kubejoin"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, w.clients)
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{*leaf}}}}
	defer client.CloseIdleConnections()
	for _, route := range []struct {
		method, path string
		first        int // status while within the rate
		burst        int
	}{
		{http.MethodPost, remote.SignPath, http.StatusBadRequest, 1},
		{http.MethodGet, remote.CAPath, http.StatusOK, readBurst},
		{http.MethodGet, "/metrics", http.StatusOK, 0}, // has the same rate
	} {
		over := false
		for i := 0; !over && i < 10*(route.burst+1); i++ { // on a slow machine, the rate allows some more requests
			began := time.Now()
			r := must.Value(client.Do(must.Value(http.NewRequestWithContext(t.Context(), route.method, "https://"+w.address+route.path, strings.NewReader("{")))(t)))(t)
			must.OK(t, r.Body.Close())
			took := time.Since(began)
			if r.ProtoMajor != 1 {
				t.Fatalf("got %s, want HTTP/1.1", r.Proto)
			}
			over = r.StatusCode == http.StatusTooManyRequests
			if over && (took < overRate || i < route.burst) || !over && r.StatusCode != route.first {
				t.Errorf("%s %s, request %d: got %s after %s", route.method, route.path, i+1, r.Status, took)
			}
		}
		if !over {
			t.Errorf("%s %s: no request was over the rate", route.method, route.path)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// If one client opens many connections, the number of open connections must stay limited.
func TestLimitsConnections(t *testing.T) {
	w := newWorld(t, false, 1)
	for range 2 * maxConnections {
		conn := must.Value(net.Dial("tcp", w.address))(t)
		defer func() { _ = conn.Close() }()
	}
	wait.OK(t, "the process refuses connections", func() error {
		if open, refused, _ := w.connections(); open < 0 || open > maxConnections || refused == 0 {
			return fmt.Errorf("%d connections are open and %d were refused, want at most %d open", open, refused, maxConnections)
		}
		return nil
	})
}

// connections returns how many connections are open, how many were refused, and how many were closed in favour of others.
func (w *world) connections() (open, refused, shed int) {
	w.t.Helper()
	open = -1
	for _, f := range must.Value(w.registry.Gather())(w.t) {
		switch f.GetName() {
		case "kubejoin_http_connections":
			open = int(f.GetMetric()[0].GetGauge().GetValue())
		case "kubejoin_http_connections_refused_total":
			refused = int(f.GetMetric()[0].GetCounter().GetValue())
		case "kubejoin_http_connections_shed_total":
			shed = int(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	return open, refused, shed
}

// A listenerOf reports another user for each accepted connection. A real connection of another user would need root.
type listenerOf struct {
	net.Listener
	uid int
}

func (l listenerOf) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return peerConn{conn, l.uid}, nil
}

// If a user holds all connections that it can get, other users must still be able to connect. This test catches a
// limit that all users share.
func TestUserOfSocketKeepsNoOtherOut(t *testing.T) {
	w := newWorld(t, true, os.Getuid())
	policy := strings.NewReplacer("name: kubejoin\n", "name: second\n", "qps: 1000, burst: 100000", "qps: 1, burst: 1000").Replace(policyOf(os.Getuid() + 1))
	_, entry, _ := strings.Cut(policy, "requesters:\n")
	w.policy.Store(must.Value(config.ParsePolicy("policy.yaml", []byte(policyOf(os.Getuid())+entry), signer.Fixed(w.h.ca())))(t))
	second := filepath.Join(w.dir, "second")
	listener := listenerOf{must.Value(net.Listen("unix", second))(t), os.Getuid() + 1}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(listener) }()
	const sent = maxConnections + 1
	for range sent {
		conn := must.Value(net.Dial("unix", second))(t)
		defer func() { _ = conn.Close() }()
		// Fails if the connection was closed.
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: signer\r\nContent-Length: 1\r\n\r\n", remote.SignPath)
	}
	wait.OK(t, "the process has seen all connections", func() error {
		if open, refused, shed := w.connections(); open+refused+shed != sent {
			return fmt.Errorf("%d connections are open, and %d refused, and %d closed, want %d", open, refused, shed, sent)
		}
		return nil
	})
	for i := range 10 {
		client := w.clientOf("", nil) // uses a new connection
		if _, err := authorityOf(t, client, w.h.ca().Bundle()).Sign(t.Context(), nodeRequest(t, "worker-1")); err != nil {
			t.Errorf("order %d of the other user: %v", i+1, err)
		}
	}
	must.OK(t, listener.Close())
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve = %v", err)
	}
}

func TestReplays(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &replays{started: start}
	must.OK(t, asError(r.take([]byte("a"), start, start)))
	for after := time.Duration(0); after <= 10*remote.MaxSkew; after += remote.MaxSkew / 4 {
		now := start.Add(after)
		if r.take([]byte("a"), start, now) == nil {
			t.Errorf("after %s: the order was accepted again", after)
		}
		// An order with a time in the future is valid for longer than other orders.
		must.OK(t, asError(r.take([]byte(after.String()), now.Add(remote.MaxSkew), now)))
		if r.take([]byte(after.String()), now.Add(remote.MaxSkew), now.Add(2*remote.MaxSkew)) == nil {
			t.Errorf("after %s: an order of the future was accepted twice", after)
		}
	}
	// The clock jumps ahead, so that replays forgets the first order. Then the clock is set back.
	for _, at := range []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Hour} {
		must.OK(t, asError(r.take([]byte(at.String()), start.Add(at), start.Add(at))))
	}
	if r.take([]byte("a"), start, start) == nil {
		t.Error("after the clock was set back, an order was accepted again")
	}
	if got := len(r.last) + len(r.earlier); got > 32 {
		t.Errorf("%d orders are remembered, want those of the last minutes", got)
	}
	for i := 0; len(r.last) < maxSeen; i++ {
		r.last[[32]byte{1, byte(i), byte(i >> 8), byte(i >> 16)}] = struct{}{}
	}
	if p := r.take([]byte("one more"), r.since, r.since); p == nil || p.Status != http.StatusServiceUnavailable {
		t.Errorf("with full memory: got %v, want that the order waits", p)
	}
}

// If requesters send as many orders as any policy can allow, replays must keep all of them in limited memory. This test
// catches a policy that allows more orders than replays keeps.
func TestReplaysKeepAllOrdersOfPolicy(t *testing.T) {
	// Together, they allow config.MaxOrders orders in two minutes.
	const rates1, rates2 = "qps: 1000, burst: 100000", "qps: 100, burst: 30144"
	ca := must.Value(signer.GenerateCA("ca", time.Now(), 240*time.Hour))(t)
	_, entry, _ := strings.Cut(strings.NewReplacer("name: kubejoin\n", "name: second\n", rates1, rates2).Replace(policyOf(2)), "requesters:\n")
	policy := must.Value(config.ParsePolicy("policy.yaml", []byte(policyOf(1)+entry), signer.Fixed(ca)))(t)
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	seen, allowed, sent := &replays{started: start}, &rates{}, uint64(0)
	take := func(now time.Time) {
		sent++
		must.OK(t, asError(seen.take(binary.BigEndian.AppendUint64(nil, sent), now, now)))
	}
	for range maxConnections { // orders that were in flight before, allowed by the rates
		take(start)
	}
	for now := start; len(seen.earlier) == 0; now = now.Add(time.Second) {
		for _, q := range policy.Requesters {
			for allowed.take(q, now) {
				take(now)
			}
		}
	}
	if len(seen.earlier) != maxSeen {
		t.Errorf("a generation has %d orders, want all %d that fit", len(seen.earlier), maxSeen)
	}
}

func asError[E interface {
	error
	comparable
}](e E) error {
	var none E
	if e == none {
		return nil
	}
	return e
}

// While the signer process keeps changing its CA, each certificate must come from exactly one CA, with the chain of that
// CA. KUBEJOIN_TEST_SIGNATURES is the number of certificates to sign.
func TestSwapsCAWhileItSigns(t *testing.T) {
	total := must.Value(strconv.Atoi(cmp.Or(os.Getenv("KUBEJOIN_TEST_SIGNATURES"), "200")))(t)
	const n = 3
	var cas [n]*signer.CA
	var certs []*x509.Certificate
	for i := range cas {
		cas[i] = must.Value(signer.GenerateCA(fmt.Sprint("ca-", i), time.Now(), time.Duration(i+1)*24*time.Hour))(t)
		certs = append(certs, cas[i].Certificate())
	}
	w := newWorld(t, true, os.Getuid())
	var turn atomic.Int64
	current := func() (*signer.CA, error) { return cas[turn.Load()%n], nil }
	policy := must.Value(config.ParsePolicy("policy.yaml", []byte(policyOf(os.Getuid())), current))(t)
	w.policy.Store(policy)
	authority := authorityOf(t, w.clientOf("", nil), certs)
	var group sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(total))
	request := nodeRequest(t, "worker-1")
	var byCA [n]atomic.Int64
	for range 8 {
		group.Go(func() {
			for left.Add(-1) >= 0 {
				turn.Add(1)
				chain, err := authority.Sign(t.Context(), request)
				if err != nil {
					t.Error(err)
					return
				}
				block, _ := pem.Decode(chain)
				cert, err := x509.ParseCertificate(block.Bytes)
				if err != nil {
					t.Error(err)
					return
				}
				for i, ca := range certs {
					if cert.Issuer.CommonName == ca.Subject.CommonName {
						byCA[i].Add(1)
						if err := cert.CheckSignatureFrom(ca); err != nil || cert.NotAfter.After(ca.NotAfter) {
							t.Errorf("issued by %s until %s: %v", cert.Issuer, cert.NotAfter, err)
						}
					}
				}
			}
		})
	}
	group.Wait()
	signed := int64(0)
	for i := range byCA {
		if byCA[i].Load() == 0 {
			t.Errorf("CA %d has signed nothing, so this test shows nothing about it", i)
		}
		signed += byCA[i].Load()
	}
	if signed != int64(total) {
		t.Errorf("%d of %d certificates are from one of the CAs", signed, total)
	}
}
