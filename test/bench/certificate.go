package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	certificates "k8s.io/api/certificates/v1"
)

// signingConnections is the number of connections. Each requests one certificate after another.
const signingConnections = 32

const (
	// nodesPerToken is how many machines join on each token.
	nodesPerToken = 100
	// mostPerSecond is an upper bound of the joins per second. That many requests are prepared in advance.
	mostPerSecond = 10_000
)

// A signingLoad is one way to request certificates over HTTPS.
type signingLoad struct {
	name string
	// start starts the server in the folder dir.
	start func(ctx context.Context, w *signingWorld, dir string, port int) (*cluster.Process, error)
	// client returns the TLS client certificate of a connection. A nil function means none.
	client func(w *signingWorld, connection int) *tls.Certificate
	// request returns the n-th request of a connection, or errNoMoreRequests.
	request func(w *signingWorld, connection, n int) (*http.Request, error)
	// certificate returns the certificate chain in a response body, in PEM.
	certificate func(body []byte) ([]byte, error)
}

// signingLoads are the loads, in the order of the table.
var signingLoads = []signingLoad{
	{name: "cfssl serve, `sign`", start: startCFSSL, request: cfsslSign, certificate: cfsslCertificate},
	{name: "cfssl serve, `authsign`", start: startCFSSL, request: cfsslAuthSign, certificate: cfsslCertificate},
	{name: "kubejoin, an admin", start: startSigning, request: adminSigns, certificate: asItIs},
	{name: "kubejoin, a node renews", start: startSigning, client: nodeCertificate, request: nodeRenews, certificate: asItIs},
	{name: "kubejoin, a claim each", start: startSigning, request: nodeJoins, certificate: asItIs},
}

// A signingWorld is what all servers and loads have in common.
type signingWorld struct {
	dir      string
	kubejoin string
	cfssl    string
	root     *x509.Certificate
	rootKey  *ecdsa.PrivateKey
	requests [][]byte          // of existing nodes, one for each connection, in PEM
	nodes    []tls.Certificate // client certificates of these nodes
	joining  [][]byte          // of new nodes, in PEM
	tokens   []tokens.Token    // for the new nodes
	bearer   string            // of kubejoin's admin
	authKey  []byte            // of cfssl's authsign
}

// signCertificates compares kubejoin's POST /v1/certificate with cfssl serve, with the same CA, key and requests.
func (b *bench) signCertificates(ctx context.Context, dir string) (err error) {
	program, err := b.buildCFSSL(ctx)
	if err != nil {
		return err
	}
	w, err := newSigningWorld(dir, b.kubejoin, program, warm(b.signFor)+b.signFor)
	if err != nil {
		return err
	}
	found := make([]signed, len(signingLoads))
	for round := range b.rounds {
		for i := range signingLoads {
			if round%2 == 1 {
				i = len(signingLoads) - 1 - i
			}
			one, err := w.measure(ctx, signingLoads[i], filepath.Join(dir, fmt.Sprintf("%d-%d", round, i)), b.signFor)
			if err != nil {
				return fmt.Errorf("%s: %w", signingLoads[i].name, err)
			}
			b.say("%s: %.0f/s, p50 %.2f ms, p99 %.2f ms, %.3f ms CPU, %.1f MB", signingLoads[i].name, one.rate[0], one.p50[0], one.p99[0], one.cpu[0], one.rss[0])
			found[i].add(one)
		}
	}
	b.report.notes = append(b.report.notes, signingTable(found))
	return nil
}

// signed has the measurements, one value per round.
type signed struct{ rate, p50, p99, cpu, rss []float64 }

func (s *signed) add(o signed) {
	s.rate, s.p50, s.p99 = append(s.rate, o.rate...), append(s.p50, o.p50...), append(s.p99, o.p99...)
	s.cpu, s.rss = append(s.cpu, o.cpu...), append(s.rss, o.rss...)
}

func signingTable(found []signed) string {
	var table strings.Builder
	fmt.Fprintf(&table, "| certificates over HTTPS, %d connections |", signingConnections)
	for _, l := range signingLoads {
		fmt.Fprintf(&table, " %s |", l.name)
	}
	table.WriteString("\n|---|" + strings.Repeat("---:|", len(signingLoads)) + "\n")
	row := func(name, format string, values func(signed) []float64) {
		fmt.Fprintf(&table, "| %s |", name)
		for _, s := range found {
			fmt.Fprintf(&table, " "+format+" |", percentile(values(s), 50))
		}
		table.WriteString("\n")
	}
	row("issued", "%.0f /s", func(s signed) []float64 { return s.rate })
	base := percentile(found[0].rate, 50)
	row("… of `cfssl serve`", "%.2f", func(s signed) []float64 { return []float64{percentile(s.rate, 50) / base} })
	row("p50", "%.2f ms", func(s signed) []float64 { return s.p50 })
	row("p99", "%.2f ms", func(s signed) []float64 { return s.p99 })
	row("CPU for one", "%.3f ms", func(s signed) []float64 { return s.cpu })
	row("resident memory", "%.1f MB", func(s signed) []float64 { return s.rss })
	return table.String()
}

// warm returns how long a server signs before the measurement.
func warm(duration time.Duration) time.Duration { return duration / 5 }

// newSigningWorld prepares enough keys, requests and tokens for loads of that duration.
func newSigningWorld(dir, kubejoin, cfssl string, duration time.Duration) (*signingWorld, error) {
	w := &signingWorld{dir: dir, kubejoin: kubejoin, cfssl: cfssl, bearer: rand.Text(), authKey: []byte(rand.Text())}
	if err := w.makeCA(); err != nil {
		return nil, err
	}
	for i := range signingConnections {
		name := fmt.Sprintf("node-%d", i)
		request, key, err := nodeRequest(name, nil)
		if err != nil {
			return nil, err
		}
		certificate, err := w.certificate(&x509.Certificate{Subject: nodeSubject(name), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, key)
		if err != nil {
			return nil, err
		}
		w.requests, w.nodes = append(w.requests, request), append(w.nodes, certificate)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	for i := range int(mostPerSecond * duration.Seconds()) {
		if i%nodesPerToken == 0 {
			w.tokens = append(w.tokens, tokens.Generate())
		}
		request, _, err := nodeRequest(fmt.Sprintf("new-%d", i), key)
		if err != nil {
			return nil, err
		}
		w.joining = append(w.joining, request)
	}
	return w, nil
}

func (w *signingWorld) path(name string) string { return filepath.Join(w.dir, name) }

// makeCA creates the CA and the serving certificate for both servers.
func (w *signingWorld) makeCA() error {
	var err error
	if w.rootKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kubernetes"}, SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, w.rootKey.Public(), w.rootKey)
	if err != nil {
		return err
	}
	if w.root, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serving, err := w.certificate(&x509.Certificate{
		Subject: pkix.Name{CommonName: "bench"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key)
	if err != nil {
		return err
	}
	for _, pair := range []struct {
		name string
		der  []byte
		key  *ecdsa.PrivateKey
	}{{"ca", der, w.rootKey}, {"serving", serving.Certificate[0], key}} {
		keyDER, err := x509.MarshalECPrivateKey(pair.key)
		if err != nil {
			return err
		}
		if err := errors.Join(
			os.WriteFile(w.path(pair.name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.der}), 0o600),
			os.WriteFile(w.path(pair.name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600),
		); err != nil {
			return err
		}
	}
	return nil
}

// certificate issues a certificate from the CA, valid for an hour.
func (w *signingWorld) certificate(template *x509.Certificate, key *ecdsa.PrivateKey) (tls.Certificate, error) {
	template.SerialNumber = new(big.Int).SetBytes([]byte(rand.Text()))
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, w.root, key.Public(), w.rootKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func nodeSubject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name}
}

// nodeRequest returns a kubelet's CSR in PEM, and its key. If key is nil, it makes a new one.
func nodeRequest(name string, key *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey, error) {
	var err error
	if key == nil {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, nil, err
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: nodeSubject(name)}, key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), key, err
}

// measure starts a new server, warms it up, and measures it for duration.
func (w *signingWorld) measure(ctx context.Context, load signingLoad, dir string, duration time.Duration) (s signed, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return s, err
	}
	port, err := cluster.FreePort()
	if err != nil {
		return s, err
	}
	p, err := load.start(ctx, w, dir, port)
	if err != nil {
		return s, err
	}
	defer p.Stop(10 * time.Second)
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if err := p.WaitFor(ready, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}); err != nil {
		return s, err
	}
	connections := make([]*connection, signingConnections)
	for i := range connections {
		connections[i] = w.connect(load, address, i)
		defer connections[i].client.CloseIdleConnections()
	}
	if _, err := together(ctx, connections, warm(duration)); err != nil {
		return s, err
	}
	before, err := cpu(p.PID())
	if err != nil {
		return s, err
	}
	start := time.Now()
	took, err := together(ctx, connections, duration)
	if err != nil {
		return s, err
	}
	elapsed := time.Since(start).Seconds()
	after, err := cpu(p.PID())
	if err != nil {
		return s, err
	}
	rss, err := resident(p.PID())
	n := float64(len(took))
	return signed{
		rate: []float64{n / elapsed}, p50: []float64{percentile(took, 50)}, p99: []float64{percentile(took, 99)},
		cpu: []float64{(after - before).Seconds() * 1000 / n}, rss: []float64{rss / 1e6},
	}, err
}

// A connection has one request in flight.
type connection struct {
	world  *signingWorld
	load   signingLoad
	base   string
	number int
	client *http.Client
	asked  int
}

func (w *signingWorld) connect(load signingLoad, address string, number int) *connection {
	roots := x509.NewCertPool()
	roots.AddCert(w.root)
	config := &tls.Config{RootCAs: roots}
	if load.client != nil {
		config.Certificates = []tls.Certificate{*load.client(w, number)}
	}
	return &connection{world: w, load: load, base: "https://" + address, number: number, client: &http.Client{
		// The benchmark measures HTTP/1.1 connections.
		Transport: &http.Transport{TLSClientConfig: config, MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}},
		Timeout:   30 * time.Second,
	}}
}

// together sends requests on all connections for duration. It returns the latency of each response in milliseconds.
func together(ctx context.Context, connections []*connection, duration time.Duration) ([]float64, error) {
	took, errs := make([][]float64, len(connections)), make([]error, len(connections))
	end := time.Now().Add(duration)
	var running sync.WaitGroup
	for i, c := range connections {
		running.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil && errs[i] == nil {
				start := time.Now()
				if errs[i] = c.ask(ctx); errs[i] == nil {
					took[i] = append(took[i], time.Since(start).Seconds()*1000)
				}
			}
		})
	}
	running.Wait()
	return slices.Concat(took...), errors.Join(append(errs, ctx.Err())...)
}

var errNoMoreRequests = errors.New("all prepared requests are used up: increase mostPerSecond")

func (c *connection) ask(ctx context.Context) error {
	r, err := c.load.request(c.world, c.number, c.asked)
	if err != nil {
		return err
	}
	first := c.asked == 0
	c.asked++
	body, err := exchange(c.client, c.base, r.WithContext(ctx))
	if err != nil {
		return err
	}
	if !first {
		return nil
	}
	return c.check(body)
}

// exchange sends a request to the server at base, and fails unless it succeeds.
func exchange(client *http.Client, base string, r *http.Request) (body []byte, err error) {
	if r.URL, err = r.URL.Parse(base + r.URL.String()); err != nil {
		return nil, err
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	body, err = io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		return nil, fmt.Errorf("%s: %.500s", response.Status, body)
	}
	return body, nil
}

// check checks the first certificate of a connection.
func (c *connection) check(body []byte) error {
	chain, err := c.load.certificate(body)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(chain)
	if block == nil {
		return fmt.Errorf("no certificate in %.200q", body)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.world.root)
	if !strings.HasPrefix(cert.Subject.CommonName, "system:node:") || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
		return fmt.Errorf("certificate of %s for %v", cert.Subject, cert.ExtKeyUsage)
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

func asItIs(body []byte) ([]byte, error) { return body, nil }

// startSigning starts a standalone kubejoin with tokens and issuance record in the file store.
func startSigning(ctx context.Context, w *signingWorld, dir string, port int) (*cluster.Process, error) {
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	store, err := boltstore.Open(filepath.Join(data, "kubejoin.db"))
	if err != nil {
		return nil, err
	}
	var created sync.WaitGroup // in parallel, so that the store writes them to disk in batches
	errs := make([]error, len(w.tokens))
	for i, t := range w.tokens {
		created.Go(func() {
			_, errs[i] = store.Create(ctx, tokens.Record{
				Token: t, Authentication: true, Groups: []string{tokens.DefaultGroup}, Limits: tokens.Limits{MaxNodes: nodesPerToken},
			})
		})
	}
	created.Wait()
	operators := filepath.Join(dir, "operators.csv")
	err = errors.Join(append(errs, store.Close(), os.WriteFile(operators, []byte(w.bearer+`,bench,1,"kubejoin:admins"`+"\n"), 0o600))...)
	if err != nil {
		return nil, err
	}
	return cluster.StartProcess("kubejoin", filepath.Join(dir, "log"), exec.Command(w.kubejoin, "serve", "--data-dir="+data,
		"--cluster-signing-cert-file="+w.path("ca.crt"), "--cluster-signing-key-file="+w.path("ca.key"),
		"--tls-cert-file="+w.path("serving.crt"), "--tls-private-key-file="+w.path("serving.key"),
		"--token-auth-file="+operators, "--client-ca-file="+w.path("ca.crt"), "--listen=127.0.0.1:"+strconv.Itoa(port),
		"--client-qps=0", "--user-qps=0")) // cfssl has no rate limits, and a few clients must reach full load
}

const certificatePath = "/v1/certificate"

// post returns a POST request with a bearer token.
func post(path string, body []byte, bearer string) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	if err == nil {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	return r, err
}

// postNode returns a request for the client certificate of a node.
func postNode(path, node string, key *ecdsa.PrivateKey, bearer string) (*http.Request, error) {
	request, _, err := nodeRequest(node, key)
	if err != nil {
		return nil, err
	}
	return post(path, request, bearer)
}

func adminSigns(w *signingWorld, connection, n int) (*http.Request, error) {
	return post(certificatePath+"?signer="+certificates.KubeAPIServerClientKubeletSignerName, w.requests[(connection+n)%len(w.requests)], w.bearer)
}

func nodeCertificate(w *signingWorld, connection int) *tls.Certificate { return &w.nodes[connection] }

func nodeRenews(w *signingWorld, connection, _ int) (*http.Request, error) {
	return http.NewRequest(http.MethodPost, certificatePath, bytes.NewReader(w.requests[connection]))
}

// nodeJoins requests the first certificate of a machine, with a token limited to several machines.
func nodeJoins(w *signingWorld, connection, n int) (*http.Request, error) {
	i := connection + n*signingConnections
	if i >= len(w.joining) {
		return nil, errNoMoreRequests
	}
	return post(certificatePath, w.joining[i], w.tokens[i/nodesPerToken].Reveal())
}
