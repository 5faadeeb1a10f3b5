package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// storeConnections is the number of connections. Each has one request in flight.
const storeConnections = 32

// A backend is a running store of tokens.
type backend struct {
	flags []string // flags for kubejoin
	pids  []int    // process IDs of the store
	// calls returns how many calls the store has counted so far, without calls for watches. If it is nil, calls are not
	// counted.
	calls func(context.Context) (float64, error)
	close func() error
}

// A storeBackend starts a store.
type storeBackend struct {
	name string
	open func(b *bench, ctx context.Context, dir string) (backend, error)
}

// storeBackends are the stores, in the order of the table.
var storeBackends = []storeBackend{
	{"file", func(_ *bench, _ context.Context, dir string) (backend, error) {
		return backend{flags: []string{"--data-dir=" + filepath.Join(dir, "data")}, close: func() error { return nil }}, nil
	}},
	{"etcd, 1 member", etcdBackend(1)},
	{"etcd, 3 members", etcdBackend(3)},
	{"Kubernetes", kubernetesBackend},
}

// etcdBackend starts members on this machine. They write to disk before they respond, as in production.
func etcdBackend(members int) func(*bench, context.Context, string) (backend, error) {
	return func(_ *bench, ctx context.Context, dir string) (backend, error) {
		c, err := etcd.Start(ctx, etcd.Options{Members: members, Sync: true, Dir: filepath.Join(dir, "etcd"), Progress: os.Stderr})
		if err != nil {
			return backend{}, err
		}
		store, err := backendOf(c, dir)
		if err != nil {
			return backend{}, errors.Join(err, c.Close())
		}
		return store, nil
	}
}

// backendOf returns the backend of running members.
func backendOf(c *etcd.Cluster, dir string) (backend, error) {
	files, err := c.User("root")
	if err != nil {
		return backend{}, err
	}
	config, err := c.TLS("root")
	if err != nil {
		return backend{}, err
	}
	return backend{
		flags: []string{
			"--token-store=etcd", "--data-dir=" + filepath.Join(dir, "data"), "--etcd-servers=" + strings.Join(c.Endpoints(), ","),
			"--etcd-cafile=" + files.CA, "--etcd-certfile=" + files.Cert, "--etcd-keyfile=" + files.Key,
		},
		pids: c.PIDs(), close: c.Close,
		calls: func(ctx context.Context) (float64, error) { return etcdCalls(ctx, config, c.Endpoints()) },
	}, nil
}

// etcdCalls returns how many reads and transactions the members have started.
func etcdCalls(ctx context.Context, config *tls.Config, endpoints []string) (sum float64, err error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	defer client.CloseIdleConnections()
	for _, endpoint := range endpoints {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/metrics", nil)
		if err != nil {
			return 0, err
		}
		response, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			if labels, value, found := strings.Cut(line, "} "); found && strings.HasPrefix(labels, "grpc_server_started_total{") && strings.Contains(labels, `"etcdserverpb.KV"`) {
				n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				if err != nil {
					return 0, err
				}
				sum += n
			}
		}
	}
	return sum, nil
}

// kubernetesBackend starts a control plane with kubejoin's RBAC.
func kubernetesBackend(b *bench, ctx context.Context, _ string) (backend, error) {
	c, err := cluster.Start(ctx, cluster.Options{Progress: b.progress})
	if err != nil {
		return backend{}, err
	}
	b.cluster = c
	watching, stop := context.WithCancel(ctx)
	end := func() error {
		stop() // stop the watches first
		return c.Close()
	}
	if err := errors.Join(b.deploy(ctx), b.connect(watching)); err != nil {
		return backend{}, errors.Join(err, end())
	}
	pids, err := childrenNamed("kube-apiserver", "etcd")
	if err != nil {
		return backend{}, errors.Join(err, end())
	}
	return backend{
		flags: []string{"--kubeconfig=" + b.identity, "--leader-elect=false", "--api-server=" + c.Server()}, pids: pids, close: end,
		calls: func(ctx context.Context) (sum float64, err error) {
			counted, err := b.apiCalls(ctx)
			for name, n := range counted {
				if verb, resource, _ := strings.Cut(name, " "); verb != "WATCH" && resource != "" {
					sum += n
				}
			}
			return sum, err
		},
	}, nil
}

// A storeWorld is one kubejoin on a backend, and its clients.
type storeWorld struct {
	*signingWorld
	process *cluster.Process
	address string
	client  *http.Client
	renewer *http.Client // with the client certificate of a node
	tokens  []tokens.Token
	key     *ecdsa.PrivateKey
}

// A storeLoad is one request over HTTPS, sent many times.
type storeLoad struct {
	name    string
	request func(w *storeWorld, n int) (*http.Request, error)
}

// storeLoads are the loads. The order matters: each machine in the second load uses a token from the first.
var storeLoads = []storeLoad{
	{"tokens created", func(w *storeWorld, n int) (*http.Request, error) {
		body, err := json.Marshal(api.CreateToken{Token: api.Secret(w.tokens[n].Reveal()), TokenSpec: api.TokenSpec{TTL: "1h", MaxNodes: 1}})
		if err != nil {
			return nil, err
		}
		r, err := post("/v1/token", body, w.bearer)
		if err == nil {
			r.Header.Set("Content-Type", "application/json")
		}
		return r, err
	}},
	{"certificates, a token for one node each", func(w *storeWorld, n int) (*http.Request, error) {
		return postNode(certificatePath, fmt.Sprintf("new-%d", n), w.key, w.tokens[n].Reveal())
	}},
	{"certificates, an admin", func(w *storeWorld, n int) (*http.Request, error) {
		return postNode(certificatePath+"?signer="+certificates.KubeAPIServerClientKubeletSignerName, fmt.Sprintf("other-%d", n), w.key, w.bearer)
	}},
}

// renewedNode is the node that renews its certificate.
const renewedNode = "renewed"

// renewal is the load of a node that renews its certificate with its current certificate.
var renewal = storeLoad{"certificates, a node renews", func(w *storeWorld, _ int) (*http.Request, error) {
	return postNode(certificatePath, renewedNode, w.key, "")
}}

// stored has the measurements for one load on one backend in one round.
type stored struct{ rate, p50, p99, cpu, storeCPU, calls, rss float64 }

// measureStores compares the stores of tokens, over HTTPS.
func (b *bench) measureStores(ctx context.Context, dir string) error {
	return b.overHTTPS(ctx, dir, storeBackends, storeLoads, b.csrs)
}

// signCertificates measures the issuance of certificates over HTTPS by a standalone kubejoin with a file store.
func (b *bench) signCertificates(ctx context.Context, dir string) error {
	return b.overHTTPS(ctx, dir, storeBackends[:1], append(slices.Clip(storeLoads), renewal), b.signs)
}

// overHTTPS measures loads on backends, with a number of requests per load.
func (b *bench) overHTTPS(ctx context.Context, dir string, backends []storeBackend, loads []storeLoad, requests int) error {
	world, err := newSigningWorld(dir)
	if err != nil {
		return err
	}
	found := make([][][]stored, len(backends)) // measurements by backend, round and load
	for round := range b.rounds {
		for i := range backends {
			if round%2 == 1 {
				i = len(backends) - 1 - i
			}
			one, err := b.measureStore(ctx, world, backends[i], filepath.Join(dir, fmt.Sprintf("store-%d-%d", round, i)), loads, requests)
			if err != nil {
				return fmt.Errorf("%s: %w", backends[i].name, err)
			}
			found[i] = append(found[i], one)
		}
	}
	b.report.notes = append(b.report.notes, storeTable(backends, loads, found))
	return nil
}

// measureStore returns the measurements of one round on a backend, one for each load.
func (b *bench) measureStore(ctx context.Context, world *signingWorld, on storeBackend, dir string, loads []storeLoad, requests int) (found []stored, err error) {
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		return nil, err
	}
	store, err := on.open(b, ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.close()) }()
	w, stop, err := b.startStore(ctx, world, store, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = stop(err) }()
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := w.process.WaitFor(ready, func(ctx context.Context) error { return w.send(ctx, http.MethodGet, "/readyz") }); err != nil {
		return nil, err
	}
	for _, load := range loads {
		one, err := runStoreLoad(ctx, w, store, load.request, requests, storeConnections)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", load.name, err)
		}
		b.say("%s, %s: %.0f/s, p50 %.1f ms, p99 %.1f ms, %.2f ms CPU of kubejoin and %.2f ms of the store, %.2f calls each", on.name, load.name,
			one.rate, one.p50, one.p99, one.cpu, one.storeCPU, one.calls)
		found = append(found, one)
	}
	return found, nil
}

// startStore starts a kubejoin on a backend, and does not wait for it. stop stops it, and adds its log to an error.
func (b *bench) startStore(ctx context.Context, world *signingWorld, store backend, dir string) (w *storeWorld, stop func(error) error, err error) {
	operators := filepath.Join(dir, "operators.csv")
	if err := os.WriteFile(operators, []byte(world.bearer+`,bench,1,"kubejoin:admins"`+"\n"), 0o600); err != nil {
		return nil, nil, err
	}
	port, err := cluster.FreePort()
	if err != nil {
		return nil, nil, err
	}
	w = &storeWorld{signingWorld: world, address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), client: world.client()}
	if w.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	old, err := world.certificate(&x509.Certificate{Subject: nodeSubject(renewedNode), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, w.key)
	if err != nil {
		return nil, nil, err
	}
	w.renewer = world.client(old)
	w.tokens, _ = generate(max(b.csrs, b.signs))
	w.process, err = cluster.StartProcess("kubejoin", filepath.Join(dir, "log"), exec.Command(b.kubejoin, append(store.flags, "serve",
		"--cluster-signing-cert-file="+world.path("ca.crt"), "--cluster-signing-key-file="+world.path("ca.key"),
		"--tls-cert-file="+world.path("serving.crt"), "--tls-private-key-file="+world.path("serving.key"),
		"--token-auth-file="+operators, "--client-ca-file="+world.path("ca.crt"), "--listen="+w.address, "--client-qps=0", "--user-qps=0", "--user-tokens=0")...))
	return w, func(err error) error {
		w.client.CloseIdleConnections()
		w.renewer.CloseIdleConnections()
		w.process.Stop(10 * time.Second)
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, lastLines(w.process.Log(), 20))
		}
		return err
	}, err
}

// runStoreLoad sends a number of requests on some connections.
func runStoreLoad(ctx context.Context, w *storeWorld, store backend, request func(*storeWorld, int) (*http.Request, error), requests, connections int) (s stored, err error) {
	used := func() (own, other time.Duration, calls float64, err error) {
		own, err = cpu(w.process.PID())
		for _, pid := range store.pids {
			one, oneErr := cpu(pid)
			other, err = other+one, errors.Join(err, oneErr)
		}
		if store.calls != nil && err == nil {
			calls, err = store.calls(ctx)
		}
		return own, other, calls, err
	}
	own, other, calls, err := used()
	if err != nil {
		return s, err
	}
	var next atomic.Int64
	took, errs := make([][]float64, connections), make([]error, connections)
	var running sync.WaitGroup
	start := time.Now()
	for i := range connections {
		running.Go(func() {
			for errs[i] == nil && ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= requests {
					return
				}
				var r *http.Request
				if r, errs[i] = request(w, n); errs[i] == nil {
					began := time.Now()
					errs[i] = w.do(r.WithContext(ctx))
					took[i] = append(took[i], time.Since(began).Seconds()*1000)
				}
			}
		})
	}
	running.Wait()
	elapsed := time.Since(start).Seconds()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return s, err
	}
	ownAfter, otherAfter, callsAfter, err := used()
	all, n := slices.Concat(took...), float64(requests)
	if err != nil {
		return s, err
	}
	rss, err := resident(w.process.PID())
	return stored{
		rate: n / elapsed, p50: percentile(all, 50), p99: percentile(all, 99), rss: rss,
		cpu: (ownAfter - own).Seconds() * 1000 / n, storeCPU: (otherAfter - other).Seconds() * 1000 / n, calls: (callsAfter - calls) / n,
	}, err
}

func (w *storeWorld) send(ctx context.Context, method, path string) error {
	r, err := http.NewRequestWithContext(ctx, method, path, nil)
	if err != nil {
		return err
	}
	return w.do(r)
}

// do sends a request. If it has no bearer token, do sends it with the client certificate of a node.
func (w *storeWorld) do(r *http.Request) error {
	client := w.client
	if r.Method == http.MethodPost && r.Header.Get("Authorization") == "" {
		client = w.renewer
	}
	_, err := exchange(client, "https://"+w.address, r)
	return err
}

// client returns a client that trusts the CA and uses HTTP/1.1.
func (w *signingWorld) client(certificates ...tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(w.root)
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates}, MaxConnsPerHost: storeConnections, MaxIdleConnsPerHost: storeConnections,
	}}
}

func storeTable(backends []storeBackend, loads []storeLoad, found [][][]stored) string {
	var table strings.Builder
	fmt.Fprintf(&table, "| over HTTPS, %d connections |", storeConnections)
	for _, s := range backends {
		fmt.Fprintf(&table, " %s |", s.name)
	}
	table.WriteString("\n|---|" + strings.Repeat("---:|", len(backends)) + "\n")
	for i, load := range loads {
		row := func(name, format string, value func(stored) float64) {
			fmt.Fprintf(&table, "| %s |", name)
			for _, rounds := range found {
				var values []float64
				for _, loads := range rounds {
					values = append(values, value(loads[i]))
				}
				fmt.Fprintf(&table, " "+format+" |", percentile(values, 50))
			}
			table.WriteString("\n")
		}
		row(load.name, "%.0f /s", func(s stored) float64 { return s.rate })
		row("… p50", "%.1f ms", func(s stored) float64 { return s.p50 })
		row("… p99", "%.1f ms", func(s stored) float64 { return s.p99 })
		row("… CPU of kubejoin for one", "%.2f ms", func(s stored) float64 { return s.cpu })
		row("… CPU of the store for one", "%.2f ms", func(s stored) float64 { return s.storeCPU })
		row("… calls to the store for one", "%.2f", func(s stored) float64 { return s.calls })
		row("… resident memory of kubejoin", "%.1f MB", func(s stored) float64 { return s.rss / 1e6 })
	}
	return table.String()
}
