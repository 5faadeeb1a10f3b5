package main

import (
	"bytes"
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
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The clients. kubejoin has its default rate limits. To stay below them, each client has its own address and uses
// several users in turn. The flood comes from few addresses, so it exceeds the limits.
const (
	apiClients     = 32
	usersEach      = 16
	floodClients   = 32
	floodAddresses = 2
)

// The initial state: tokens that sign cluster-info, and nodes that have joined.
const (
	apiTokens = 200
	apiNodes  = 50
)

// An apiLoad is one route that all clients request.
type apiLoad struct {
	name      string
	request   func(w *apiEnv, client, n int) (*http.Request, error)
	joining   int  // number of tokens to join with
	onCluster bool // with kubejoin on a cluster
}

// apiLoads are the loads, in the order of the table.
var apiLoads = []apiLoad{
	{name: "`GET …/configmaps/cluster-info`", request: anybody("/api/v1/namespaces/kube-public/configmaps/cluster-info")},
	{name: "`GET /v1/cluster-info`", request: anybody("/v1/cluster-info")},
	{name: "`POST /v1/token/print-join-command`", request: operator(http.MethodPost, func(*apiEnv, int, int) string { return "/v1/token/print-join-command?ttl=1s" })},
	{name: "`POST /v1/token`", request: operator(http.MethodPost, func(*apiEnv, int, int) string { return "/v1/token?ttl=1s" })},
	{name: "`GET /v1/token`", request: operator(http.MethodGet, func(*apiEnv, int, int) string { return "/v1/token" })},
	{name: "`GET /v1/token/ID`", request: operator(http.MethodGet, func(w *apiEnv, client, n int) string { return "/v1/token/" + w.id(client+n) })},
	{name: "`POST /v1/token/ID/renew`", request: operator(http.MethodPost, func(w *apiEnv, client, n int) string {
		return "/v1/token/" + w.id(client+n) + "/renew?ttl=24h&shorten"
	})},
	{name: "`GET /v1/issued`", request: operator(http.MethodGet, func(*apiEnv, int, int) string { return "/v1/issued" })},
	{name: "`POST /v1/certificate`, a claim each", request: joinNode, joining: 2000},
	{name: "`POST …/tokenreviews`", request: reviewToken},
	{name: "`GET /v1/claim`", request: operator(http.MethodGet, at("/v1/claim"))},
	{name: "`DELETE /v1/claim/NODE?dryRun`", request: operator(http.MethodDelete, func(w *apiEnv, client, n int) string { return "/v1/claim/" + w.node(client+n) + "?dryRun" })},
	{name: "`DELETE /v1/token/ID?dryRun`", request: operator(http.MethodDelete, func(w *apiEnv, client, n int) string { return "/v1/token/" + w.id(client+n) + "?dryRun" })},
	{name: "`GET /v1/issued/SERIAL`", request: operator(http.MethodGet, func(w *apiEnv, _, _ int) string { return "/v1/issued/" + w.serial })},
	{name: "`GET /v1/ca`", request: anybody("/v1/ca")},
	{name: "`GET /openapi.yaml`", request: anybody("/openapi.yaml")},
	{name: "`GET /openapi.json`", request: anybody("/openapi.json")},
	{name: "`GET /`", request: anybody("/")},
	{name: "`GET /healthz`", request: anybody("/healthz")},
	{name: "`GET /readyz`", request: anybody("/readyz")},
	{name: "`GET /version`", request: anybody("/version")},
	{name: "`GET /metrics`", request: operator(http.MethodGet, at("/metrics"))},
	{name: "`GET /v1/explain/NODE`, on a cluster", request: operator(http.MethodGet, at("/v1/explain/"+explainedNode)), onCluster: true},
	{name: "`POST /v1/explain`, on a cluster", request: operator(http.MethodPost, at("/v1/explain?csr="+explainedRequest)), onCluster: true},
}

// explainedNode and explainedRequest are what the load on a cluster explains: a machine and its CSR.
const explainedNode, explainedRequest = "worker-1", "bench-worker-1"

func at(path string) func(*apiEnv, int, int) string {
	return func(*apiEnv, int, int) string { return path }
}

func anybody(path string) func(*apiEnv, int, int) (*http.Request, error) {
	return func(*apiEnv, int, int) (*http.Request, error) { return http.NewRequest(http.MethodGet, path, nil) }
}

func operator(method string, path func(w *apiEnv, client, n int) string) func(*apiEnv, int, int) (*http.Request, error) {
	return func(w *apiEnv, client, n int) (*http.Request, error) {
		r, err := http.NewRequest(method, path(w, client, n), nil)
		if err == nil {
			r.Header.Set("Authorization", "Bearer "+w.bearers[client*usersEach+n%usersEach])
		}
		return r, err
	}
}

// joinNode requests the first certificate of a machine, with a token for several machines.
func joinNode(w *apiEnv, client, n int) (*http.Request, error) {
	i := client + n*apiClients
	if i/nodesPerToken >= len(w.joining) {
		return nil, errNoMoreRequests
	}
	return postNode(certificatePath, fmt.Sprintf("new-%d", i), w.key, w.joining[i/nodesPerToken].Reveal())
}

func reviewToken(w *apiEnv, client, n int) (*http.Request, error) {
	body := fmt.Sprintf(`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":%q}}`, w.tokens[(client+n)%len(w.tokens)].Reveal())
	r, err := post("/apis/authentication.k8s.io/v1/tokenreviews", []byte(body), w.reviewer)
	if err == nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, err
}

// An apiEnv is one kubejoin and its clients.
type apiEnv struct {
	*signingWorld
	address  string
	roots    *x509.CertPool
	key      *ecdsa.PrivateKey // of all nodes
	tokens   []tokens.Token
	joining  []tokens.Token // for joining only
	bearers  []string       // of operators
	reviewer string         // bearer of kube-apiserver
	serial   string         // of an issued certificate
}

func (w *apiEnv) id(n int) string   { return w.tokens[n%len(w.tokens)].ID() }
func (w *apiEnv) node(n int) string { return fmt.Sprintf("worker-%d", n%apiNodes) }

// A loadResult is the result of one load.
type loadResult struct {
	name            string
	rate, p50, p99  float64 // responses per second, and latency in ms
	tooMany         int     // 429 responses to the clients
	flood, floodToo float64 // responses to the flood per second, and 429 responses among them
	peak            float64 // peak memory of the server, in bytes
}

// measureAPI measures each route with many clients, during a flood of requests to public routes.
func (b *bench) measureAPI(ctx context.Context, dir string) (err error) {
	if b.cluster, err = cluster.Start(ctx, cluster.Options{Progress: b.progress}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.cluster.Close()) }()
	if err := errors.Join(b.deploy(ctx), b.askOnCluster(ctx)); err != nil {
		return err
	}
	var found []loadResult
	for i, load := range apiLoads {
		one, err := b.measureLoad(ctx, load, filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			return fmt.Errorf("%s: %w", load.name, err)
		}
		b.say("%s: %.0f/s, p50 %.2f ms, p99 %.2f ms, %d times 429; flood %.0f/s, of it %.0f/s 429; at most %.0f MB", one.name, one.rate, one.p50, one.p99, one.tooMany, one.flood, one.floodToo, one.peak/1e6)
		found = append(found, one)
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| HTTPS API, one run: %d clients beside a flood, %s each | answers | p50 | p99 | 429 | the flood's answers | … of which 429 | most memory |\n|---|---:|---:|---:|---:|---:|---:|---:|\n", apiClients, b.askFor)
	for _, r := range found {
		fmt.Fprintf(&table, "| %s | %.0f /s | %.2f ms | %.2f ms | %d | %.0f /s | %.0f /s | %.0f MB |\n", r.name, r.rate, r.p50, r.p99, r.tooMany, r.flood, r.floodToo, r.peak/1e6)
	}
	b.report.notes = append(b.report.notes, table.String())
	return nil
}

// measureLoad measures one load with a new kubejoin.
func (b *bench) measureLoad(ctx context.Context, load apiLoad, dir string) (result loadResult, err error) {
	start, prepare := b.startAPI, (*apiEnv).prepare
	if load.onCluster {
		start, prepare = b.startAPIOnCluster, (*apiEnv).ready
	}
	w, p, err := start(ctx, dir, load.joining)
	if err != nil {
		return result, err
	}
	defer p.Stop(10 * time.Second)
	if err := prepare(w, ctx); err != nil {
		return result, fmt.Errorf("%w\n%s", err, lastLines(p.Log(), 20))
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var flood floodCount
	var flooding sync.WaitGroup
	for i := range floodClients {
		client := w.from(net.IPv4(127, 0, 1, byte(1+i%floodAddresses)))
		defer client.CloseIdleConnections()
		flooding.Go(func() {
			if err := w.flood(ctx, client, &flood); err != nil && ctx.Err() == nil {
				stop(fmt.Errorf("the flood: %w", err))
			}
		})
	}
	askers := make([]*asker, apiClients)
	for i := range askers {
		askers[i] = &asker{world: w, load: load, number: i, client: w.from(net.IPv4(127, 0, 2, byte(1+i)))}
		defer askers[i].client.CloseIdleConnections()
	}
	err = askAll(ctx, askers, b.askFor/15) // to warm up
	for _, a := range askers {
		a.took, a.tooMany = nil, 0
	}
	answered, refused, began := flood.answered.Load(), flood.tooMany.Load(), time.Now()
	if err == nil {
		err = askAll(ctx, askers, b.askFor)
	}
	elapsed := time.Since(began).Seconds()
	result = loadResult{name: load.name, flood: float64(flood.answered.Load()-answered) / elapsed, floodToo: float64(flood.tooMany.Load()-refused) / elapsed}
	err = errors.Join(err, context.Cause(ctx))
	stop(nil)
	flooding.Wait()
	if err != nil {
		return result, err
	}
	var took []float64
	for _, a := range askers {
		took = append(took, a.took...)
		result.tooMany += a.tooMany
	}
	if len(took) == 0 {
		return result, errors.New("no client got a response")
	}
	result.rate, result.p50, result.p99 = float64(len(took))/elapsed, percentile(took, 50), percentile(took, 99)
	result.peak, err = memoryOf(p.PID(), "VmHWM")
	return result, err
}

// startAPI starts a standalone kubejoin with default limits and with tokens in its file store.
func (b *bench) startAPI(ctx context.Context, dir string, joining int) (*apiEnv, *cluster.Process, error) {
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, nil, err
	}
	w := &apiEnv{signingWorld: &signingWorld{dir: dir}, roots: x509.NewCertPool(), reviewer: rand.Text() + rand.Text()}
	if err := w.makeCA(); err != nil {
		return nil, nil, err
	}
	w.roots.AddCert(w.root)
	var err error
	if w.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	store, err := boltstore.Open(filepath.Join(data, "kubejoin.db"))
	if err != nil {
		return nil, nil, err
	}
	var records []tokens.Record
	for range apiTokens {
		records = append(records, tokens.NewRecord(tokens.Generate(), time.Hour, time.Now()))
		w.tokens = append(w.tokens, records[len(records)-1].Token)
	}
	for range joining + 1 {
		r := tokens.Record{Token: tokens.Generate(), Authentication: true, Groups: []string{tokens.DefaultGroup}, Limits: tokens.Limits{MaxNodes: nodesPerToken}}
		records, w.joining = append(records, r), append(w.joining, r.Token)
	}
	errs := make([]error, len(records))
	var created sync.WaitGroup // in parallel, so that the store writes them to disk in batches
	for i, r := range records {
		created.Go(func() { _, errs[i] = store.Create(ctx, r) })
	}
	created.Wait()
	err = errors.Join(append(errs, store.Close(), w.createOperators(),
		os.WriteFile(filepath.Join(data, "kube-apiserver.token"), []byte(w.reviewer+"\n"), 0o600))...)
	if err != nil {
		return nil, nil, err
	}
	p, err := cluster.StartProcess("kubejoin", w.path("log"), exec.Command(b.kubejoin, "serve", "--data-dir="+data,
		"--cluster-signing-cert-file="+w.path("ca.crt"), "--cluster-signing-key-file="+w.path("ca.key"),
		"--tls-cert-file="+w.path("serving.crt"), "--tls-private-key-file="+w.path("serving.key"),
		"--token-auth-file="+w.path(operatorsFile), "--listen="+w.address))
	return w, p, err
}

// startAPIOnCluster starts kubejoin on the cluster, with all controllers.
func (b *bench) startAPIOnCluster(_ context.Context, dir string, _ int) (*apiEnv, *cluster.Process, error) {
	w := &apiEnv{signingWorld: &signingWorld{dir: dir}, roots: b.cluster.CAPool()}
	if err := errors.Join(os.MkdirAll(dir, 0o700), w.createOperators()); err != nil {
		return nil, nil, err
	}
	p, err := cluster.StartProcess("kubejoin", w.path("log"), exec.Command(b.kubejoin, "serve", "--kubeconfig="+b.identity, "--leader-elect=false",
		"--cluster-signing-cert-file="+b.cluster.CAFile(), "--cluster-signing-key-file="+b.cluster.CAKeyFile(),
		"--token-auth-file="+w.path(operatorsFile), "--listen="+w.address))
	return w, p, err
}

// askOnCluster creates the CSR to explain.
func (b *bench) askOnCluster(ctx context.Context) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	request, _, err := nodeRequest(explainedNode, key)
	if err != nil {
		return err
	}
	_, err = b.cluster.Client().CertificatesV1().CertificateSigningRequests().Create(ctx, &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: explainedRequest},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: request, SignerName: certificates.KubeAPIServerClientKubeletSignerName,
			Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	return err
}

const operatorsFile = "operators.csv"

// createOperators creates the operators and chooses the address of kubejoin.
func (w *apiEnv) createOperators() error {
	var operators strings.Builder
	for i := range apiClients * usersEach {
		w.bearers = append(w.bearers, rand.Text())
		fmt.Fprintf(&operators, "%s,operator-%d,%d,\"kubejoin:admins\"\n", w.bearers[i], i, i)
	}
	port, err := cluster.FreePort()
	w.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return errors.Join(err, os.WriteFile(w.path(operatorsFile), []byte(operators.String()), 0o600))
}

// from returns a client with one connection from a loopback address.
func (w *apiEnv) from(address net.IP) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:     (&net.Dialer{LocalAddr: &net.TCPAddr{IP: address}}).DialContext,
			TLSClientConfig: &tls.Config{RootCAs: w.roots}, MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1,
			// The benchmark measures HTTP/1.1 connections, without the cost of decompression in the client.
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, DisableCompression: true,
		},
		Timeout: 30 * time.Second,
	}
}

// do sends a request and copies the response body to body.
func (w *apiEnv) do(ctx context.Context, client *http.Client, r *http.Request, body io.Writer) (status int, err error) {
	r = r.WithContext(ctx)
	if r.URL, err = r.URL.Parse("https://" + w.address + r.URL.String()); err != nil {
		return 0, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(body, answer.Body)
	return answer.StatusCode, errors.Join(err, answer.Body.Close())
}

// ready waits until the server is ready.
func (w *apiEnv) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client := w.from(net.IPv4(127, 0, 0, 1))
	defer client.CloseIdleConnections()
	for {
		r, err := anybody("/readyz")(w, 0, 0)
		if err != nil {
			return err
		}
		status, err := w.do(ctx, client, r, io.Discard)
		if err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %d %w", status, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// prepare is [apiWorld.ready]. It also joins nodes, to create claims and certificates.
func (w *apiEnv) prepare(ctx context.Context) error {
	if err := w.ready(ctx); err != nil {
		return err
	}
	client := w.from(net.IPv4(127, 0, 0, 1))
	defer client.CloseIdleConnections()
	last := w.joining[len(w.joining)-1]
	w.joining = w.joining[:len(w.joining)-1]
	for i := range apiNodes {
		r, err := postNode(certificatePath+"?signer="+certificates.KubeAPIServerClientKubeletSignerName, w.node(i), w.key, last.Reveal())
		if err != nil {
			return err
		}
		var body bytes.Buffer
		if status, err := w.do(ctx, client, r, &body); err != nil || status != http.StatusOK {
			return fmt.Errorf("join a node: %d %s %w", status, &body, err)
		}
	}
	r, err := operator(http.MethodGet, func(*apiEnv, int, int) string { return "/v1/issued?limit=1" })(w, 0, 0)
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if _, err := w.do(ctx, client, r, &body); err != nil {
		return err
	}
	var list api.IssuanceEntryList
	if err := json.Unmarshal(body.Bytes(), &list); err != nil || len(list.Items) != 1 {
		return fmt.Errorf("list issued certificates: %s: %w", &body, err)
	}
	w.serial = list.Items[0].Serial
	return nil
}

// An asker is one of the measured clients. It has one request in flight.
type asker struct {
	world   *apiEnv
	load    apiLoad
	number  int
	client  *http.Client
	asked   int
	took    []float64 // milliseconds
	tooMany int
}

func askAll(ctx context.Context, askers []*asker, duration time.Duration) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	end := time.Now().Add(duration)
	var asking sync.WaitGroup
	for _, a := range askers {
		asking.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				if err := a.ask(ctx); err != nil {
					stop(err)
				}
			}
		})
	}
	asking.Wait()
	return context.Cause(ctx)
}

func (a *asker) ask(ctx context.Context) error {
	r, err := a.load.request(a.world, a.number, a.asked)
	if err != nil {
		return err
	}
	a.asked++
	var body bytes.Buffer
	start := time.Now()
	status, err := a.world.do(ctx, a.client, r, &body)
	switch {
	case err != nil:
		return err
	case status == http.StatusOK || status == http.StatusCreated:
		a.took = append(a.took, time.Since(start).Seconds()*1000)
		return nil
	case status == http.StatusTooManyRequests:
		a.tooMany++
		return nil
	}
	return fmt.Errorf("%s %s: %d %.500s", r.Method, r.URL.Path, status, &body)
}

type floodCount struct{ answered, tooMany atomic.Int64 }

// flood requests public routes one after another without a pause, and counts the responses.
func (w *apiEnv) flood(ctx context.Context, client *http.Client, count *floodCount) error {
	paths := []string{"/api/v1/namespaces/kube-public/configmaps/cluster-info", "/v1/cluster-info", "/v1/ca", "/version", "/nowhere"}
	for n := 0; ctx.Err() == nil; n++ {
		r, err := anybody(paths[n%len(paths)])(w, 0, 0)
		if err != nil {
			return err
		}
		status, err := w.do(ctx, client, r, io.Discard)
		if err != nil {
			return err
		}
		if !slices.Contains([]int{http.StatusOK, http.StatusNotFound, http.StatusTooManyRequests}, status) {
			return fmt.Errorf("%s: %d", r.URL.Path, status)
		}
		count.answered.Add(1)
		if status == http.StatusTooManyRequests {
			count.tooMany.Add(1)
		}
	}
	return nil
}
