package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
)

// options are the flags of [run].
type options struct {
	kubejoin                 string
	machines, replicas       int
	tokens, keys             string
	ramp                     time.Duration
	atOnce                   int
	heartbeat                time.Duration
	down, partition, timeout time.Duration
	rejoin                   time.Duration
	revoked                  int
	progress                 io.Writer
}

// A world is the control plane, the replicas and the machines of a storm.
type world struct {
	options
	*cluster.Cluster
	audit    cluster.AuditLog
	newKey   []newKey // machines use them in turn
	pins     []string
	replicas []*replica
	machines []*machine
	tokens   []*token
	slots    chan struct{} // one for each machine between power-on and Ready
	joining  sync.WaitGroup
	beating  sync.WaitGroup
	began    time.Time

	mu      sync.Mutex
	senders map[string]string // ID of the machine by its certificate request
	readyAt []float64         // seconds since the storm began, ascending
	took    []float64         // seconds from power-on to Ready
	results
}

// A token is a bootstrap token with a node limit.
type token struct {
	tokens.Token
	limit int
	left  atomic.Int32 // machines that are not Ready yet
	spare *token       // only for attacked tokens: another token, with which nobody joins
}

// A replica is one kubejoin process. It connects to the API server through its own proxy, from its own address.
type replica struct {
	name, listen, from string
	proxy              *cluster.Proxy
	process            *cluster.Process
	cmd                func() *exec.Cmd
	operator           *rest.RESTClient
}

// storm runs a storm and returns the results, which include the objects in the API server at the end.
func storm(ctx context.Context, o options) (r *results, err error) {
	if o.machines < 3 || o.replicas < 1 || o.atOnce < 1 || !slices.Contains([]string{"each", "one", "both"}, o.tokens) {
		return nil, errors.New("invalid options: want at least 3 machines, 1 replica and 1 at once, and tokens each, one or both")
	}
	dir, err := os.MkdirTemp("", "kubejoin-storm-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	w := &world{options: o, senders: map[string]string{}, slots: make(chan struct{}, o.atOnce)}
	for kind := range strings.SplitSeq(o.keys, ",") {
		newKey, err := keysOf(kind)
		if err != nil {
			return nil, err
		}
		w.newKey = append(w.newKey, newKey)
	}
	if w.audit, err = cluster.NewAuditLog(dir, auditRules); err != nil {
		return nil, err
	}
	if w.Cluster, err = cluster.Start(ctx, cluster.Options{Progress: o.progress, APIServerFlags: w.audit.Flags()}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, w.Logs())
		}
		err = errors.Join(err, w.Close())
	}()
	w.plan()
	if err := w.start(ctx); err != nil {
		return nil, err
	}
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	e, err := w.evidence(ctx)
	if err != nil {
		return nil, err
	}
	w.finish(e)
	return &w.results, nil
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(w.progress, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// attacked is how many tokens there are for each token that intruders attack.
const attacked = 100

// plan makes machines and tokens. A token admits at most [tokens.MaxNodes] nodes, so large storms have several shared tokens.
func (w *world) plan() {
	var shared []*machine
	for i := range w.options.machines {
		m := &machine{id: fmt.Sprintf("machine-%d", i), node: fmt.Sprintf("storm-%05d", i), number: i, newKey: w.newKey[i/2%len(w.newKey)]}
		w.machines = append(w.machines, m)
		if w.options.tokens == "one" || w.options.tokens == "both" && i%2 == 1 {
			shared = append(shared, m)
			continue
		}
		m.token = w.newToken(1)
	}
	for part := range slices.Chunk(shared, tokens.MaxNodes) {
		t := w.newToken(len(part))
		for _, m := range part {
			m.token = t
		}
	}
	for i, n := 0, len(w.tokens); i < n; i += attacked {
		w.tokens[i].spare = w.newToken(1)
	}
}

func (w *world) newToken(limit int) *token {
	t := &token{Token: tokens.Generate(), limit: limit}
	t.left.Store(int32(limit))
	w.tokens = append(w.tokens, t)
	return t
}

// start starts the replicas, creates the tokens and waits until machines can use them for discovery.
func (w *world) start(ctx context.Context) error {
	kubeconfig, err := w.InstallRights(ctx)
	if err != nil {
		return err
	}
	own, err := os.ReadFile(kubeconfig)
	if err != nil {
		return err
	}
	bearer, operators := rand.Text(), filepath.Join(w.Dir, "operators.csv")
	if err := os.WriteFile(operators, []byte(bearer+`,storm,1,"kubejoin:admins"`+"\n"), 0o600); err != nil {
		return err
	}
	for i := range w.options.replicas {
		port, err := cluster.FreePort()
		if err != nil {
			return err
		}
		r := &replica{
			name: fmt.Sprintf("kubejoin-%d", i+1), from: fmt.Sprintf("127.0.1.%d", i+1),
			listen: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		}
		if r.proxy, err = cluster.NewProxy(w.Address, net.ParseIP(r.from)); err != nil {
			return err
		}
		context.AfterFunc(ctx, r.proxy.Close)
		through := filepath.Join(w.Dir, r.name+".conf")
		if err := os.WriteFile(through, bytes.ReplaceAll(own, []byte(w.Address), []byte(r.proxy.Address())), 0o600); err != nil {
			return err
		}
		r.cmd = func() *exec.Cmd {
			return exec.Command(w.options.kubejoin, "serve", "--kubeconfig="+through, "--listen="+r.listen,
				"--cluster-signing-cert-file="+w.CAFile(), "--cluster-signing-key-file="+w.CAKeyFile(),
				"--token-auth-file="+operators, "--serving-allowed-cidr="+machineNet, "--rejoin-window="+w.options.rejoin.String(),
				"--client-qps=0",                                              // all machines send from the same address
				"--controllers=*,-csr-cleaner", "--spent-token-retention=24h") // keep CSRs and spent tokens for the evidence
		}
		if r.process, err = w.StartProcess(r.name, r.cmd()); err != nil {
			return err
		}
		r.operator, err = rest.UnversionedRESTClientFor(&rest.Config{
			Host: r.listen, BearerToken: bearer, TLSClientConfig: rest.TLSClientConfig{CAFile: w.CAFile()},
			ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
		})
		if err != nil {
			return err
		}
		w.replicas = append(w.replicas, r)
	}
	if err := w.createTokens(ctx); err != nil {
		return err
	}
	if err := w.revokeOthers(ctx); err != nil {
		return err
	}
	cas, err := cert.CertsFromFile(w.CAFile())
	if err != nil {
		return err
	}
	w.pins = clusterinfo.Pins(cas)
	for _, r := range w.replicas {
		d := clusterinfo.Discovery{Endpoint: r.listen, Token: w.tokens[len(w.tokens)-1].Token, Pins: w.pins, Retry: 100 * time.Millisecond}
		if err := r.process.WaitFor(ctx, func(ctx context.Context) error { _, err := d.Run(ctx); return err }); err != nil {
			return err
		}
	}
	_, err = w.leader(ctx)
	return err
}

func (w *world) createTokens(ctx context.Context) error {
	w.say("creating %d tokens", len(w.tokens))
	creating, limited := errgroup.WithContext(ctx)
	creating.SetLimit(16)
	for _, t := range w.tokens {
		creating.Go(func() error {
			r := tokens.NewRecord(t.Token, 24*time.Hour, time.Now())
			r.Limits.MaxNodes = t.limit
			secret, err := secretstore.Manifest(r)
			if err == nil {
				_, err = w.Client().CoreV1().Secrets(metav1.NamespaceSystem).Create(limited, secret, metav1.CreateOptions{})
			}
			return err
		})
	}
	return creating.Wait()
}

// revokeOthers revokes nodes that do not join.
func (w *world) revokeOthers(ctx context.Context) error {
	revoking, limited := errgroup.WithContext(ctx)
	revoking.SetLimit(16)
	for i := range w.options.revoked {
		revoking.Go(func() error {
			order := fmt.Appendf(nil, `{"node": "stolen-%d"}`, i+1)
			return w.replicas[0].operator.Post().AbsPath("/v1/revocation").SetHeader("Content-Type", "application/json").Body(order).Do(limited).Error()
		})
	}
	return revoking.Wait()
}

// run powers on the machines, kills and partitions leaders, and returns when all machines are Ready or time is up.
func (w *world) run(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	beats, endBeats := context.WithCancel(ctx)
	defer endBeats()
	before, err := w.use(ctx)
	if err != nil {
		return err
	}
	w.say("%d machines power on", len(w.machines))
	w.began = time.Now()
	for i, m := range w.machines {
		w.joining.Go(func() {
			if sleep(limited, w.ramp*time.Duration(i)/time.Duration(len(w.machines))) == nil {
				w.join(limited, beats, m)
			}
		})
	}
	disturbed := make(chan error, 1)
	go func() { disturbed <- w.disturb(limited) }()
	_ = w.waitReady(limited, len(w.machines)) // ignore the error: the evidence shows lost machines
	w.Seconds = time.Since(w.began).Seconds()
	w.say("%d of %d machines are Ready", w.ready(), len(w.machines))
	err = <-disturbed
	if limited.Err() != nil {
		err = nil // time is up
	}
	time.AfterFunc(time.Minute, cancel) // ends the wait of intruders that get no decision, because kubejoin never admits them
	w.joining.Wait()
	endBeats()
	w.beating.Wait()
	if err := errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	after, err := w.use(ctx)
	if err != nil {
		return err
	}
	var from map[string]float64
	if w.Calls, from, err = tally(w.audit.Calls(), w.began, len(w.machines)); err != nil {
		return err
	}
	sent := map[string]float64{"simulator": from["127.0.0.1"]}
	for _, r := range w.replicas {
		sent[r.name] = from[r.from]
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		each := float64(len(w.machines))
		w.Processes = append(w.Processes, use{name, sent[name] + (after[name].Calls-before[name].Calls)/each, (after[name].CPU - before[name].CPU) / each})
	}
	return nil
}

// sleep waits for d. If ctx ends before, it returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (w *world) ready() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.readyAt)
}

func (w *world) waitReady(ctx context.Context, n int) error {
	for w.ready() < n {
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// disturb kills the leader when a third of the machines is Ready. When two thirds are Ready, it cuts off the current leader
// from the API server.
func (w *world) disturb(ctx context.Context) error {
	n := len(w.machines)
	if err := w.waitReady(ctx, n/3); err != nil {
		return err
	}
	if w.down > 0 {
		r, err := w.leader(ctx)
		if err != nil {
			return err
		}
		r.process.Stop(0)
		w.mark(r.name + " killed")
		if err := sleep(ctx, w.down); err != nil {
			return err
		}
		if r.process, err = w.StartProcess(r.name, r.cmd()); err != nil {
			return err
		}
		w.mark(r.name + " restarted")
	}
	if err := w.waitReady(ctx, 2*n/3); err != nil || w.partition == 0 {
		return err
	}
	r, err := w.leader(ctx)
	if err != nil {
		return err
	}
	defer r.proxy.Stall()()
	w.mark(r.name + " partitioned")
	defer func() { w.mark(r.name + " connected") }()
	return sleep(ctx, w.partition)
}

func (w *world) mark(what string) {
	w.say("%s, %d machines are Ready", what, w.ready())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Marks = append(w.Marks, mark{time.Since(w.began).Seconds(), what})
}

// leader waits until a replica leads, and returns it.
func (w *world) leader(ctx context.Context) (*replica, error) {
	for {
		for _, r := range w.replicas {
			metrics, err := r.operator.Get().AbsPath("/metrics").DoRaw(ctx)
			if err == nil && strings.Contains(string(metrics), "\nkubejoin_leader 1\n") { // after an error, the replica does not run
				return r, nil
			}
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// use returns the processor time of each process so far, and the requests that kube-apiserver and etcd received.
func (w *world) use(ctx context.Context) (map[string]use, error) {
	cpu, err := w.CPU()
	if err != nil {
		return nil, err
	}
	metrics, err := w.Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	simulator, err := cluster.ReadStat(os.Getpid())
	if err != nil {
		return nil, err
	}
	calls := map[string]float64{"kube-apiserver": sum(string(metrics), "apiserver_request_total{"), "etcd": sum(string(metrics), "etcd_requests_total{")}
	cpu["simulator"] = simulator.CPU
	used := map[string]use{}
	for name, c := range cpu {
		used[name] = use{name, calls[name], c.Seconds()}
	}
	return used, nil
}

// sum adds up the samples of a metric in the text format of Prometheus.
func sum(metrics, name string) (total float64) {
	for line := range strings.Lines(metrics) {
		if _, value, found := strings.Cut(line, "} "); found && strings.HasPrefix(line, name) {
			n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			total += n
		}
	}
	return total
}
