package ha

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	certificates "k8s.io/api/certificates/v1"
)

// A replica is a kubejoin inside the test: a store and an authority of its own.
type replica struct {
	*signer.Authority
	tokens  tokens.Store
	claims  tokens.Claims
	network *etcd.Network
	faults  *etcd.Faults
	kill    func() // as if its process was killed
	dead    atomic.Bool
}

// A shared is what the replicas of one test have in common.
type shared struct {
	etcd   *etcd.Cluster
	ca     *signer.CA
	record issuance.Log
	h      *history
}

// newReplica returns a replica whose calls to etcd fail at a rate.
func (s *shared) newReplica(t *testing.T, seed uint64, rate float64) *replica {
	t.Helper()
	network, err := s.etcd.Network()
	must(t, err)
	faults, err := s.etcd.Faults(network, "kubejoin", seed, rate)
	must(t, err)
	store := openStore(t, s.etcd, faults.Endpoints())
	r := &replica{tokens: recordedTokens{store, s.h}, claims: recordedClaims{store.Claims(), s.h}, network: network, faults: faults}
	r.kill = sync.OnceFunc(func() {
		r.dead.Store(true)
		faults.Close()
		network.Close()
		_ = store.Close() // its calls fail
	})
	t.Cleanup(r.kill)
	signers, err := signer.KubernetesSigners(signer.Fixed(s.ca), time.Hour)
	must(t, err)
	r.Authority = &signer.Authority{
		Facts: signer.Standalone{Claims: r.claims}, Signers: signer.FixedSigners(signers),
		Nodes:  &admission.Nodes{Tokens: r.tokens, Claims: r.claims, Logger: slog.New(slog.DiscardHandler)},
		Record: s.record, Unthrottled: true,
	}
	return r
}

// openStore opens the store of a replica.
func openStore(t *testing.T, c *etcd.Cluster, endpoints []string) *etcdstore.Store {
	t.Helper()
	files, err := c.User("kubejoin")
	must(t, err)
	store, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: endpoints, CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key})
	must(t, err)
	return store
}

// issuedNames is an issuance record that collects the names of certificates, also of those that no machine received.
type issuedNames struct {
	mu    sync.Mutex
	names map[string]map[string]bool // by token
}

func (i *issuedNames) Append(ctx context.Context, e issuance.Entry) error {
	if e.Outcome == issuance.Issued {
		i.mu.Lock()
		if i.names[e.Requester] == nil {
			i.names[e.Requester] = map[string]bool{}
		}
		i.names[e.Requester][e.Node] = true
		i.mu.Unlock()
	}
	return harness.InProcess.Append(ctx, e)
}

// redemption is 1,000 machines that join with one token at several replicas.
type redemption struct {
	replicas []*replica
	token    tokens.Token

	admitted, refused, retries atomic.Int64
}

// TestTokenAdmitsItsLimitAtThreeReplicas redeems a token for one node and one for 100 nodes, each by 1,000 machines. 30 % of
// the calls to etcd fail. A replica is separated from the leader of etcd, another one is killed, and the leader is paused.
func TestTokenAdmitsItsLimitAtThreeReplicas(t *testing.T) {
	harness.Parallel(t)
	for _, limit := range []int{1, 100} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			seed := harness.Seed(t)
			ca, err := signer.GenerateCA("kubernetes", time.Now(), time.Hour*24)
			must(t, err)
			issued := &issuedNames{names: map[string]map[string]bool{}}
			s := &shared{etcd: etcd.ForTest(t, etcd.Options{Members: 3}), ca: ca, record: issued, h: newHistory()}
			r := &redemption{token: tokens.Generate()}
			for i := range uint64(3) {
				r.replicas = append(r.replicas, s.newReplica(t, seed+i, 0.3))
			}
			store := openStore(t, s.etcd, s.etcd.Endpoints())
			defer func() { must(t, store.Close()) }()
			record := tokens.NewRecord(r.token, time.Hour, time.Now())
			record.Limits.MaxNodes = limit
			_, err = recordedTokens{store, s.h}.Create(t.Context(), record)
			must(t, err)
			var paused int
			r.run(t, map[int]func(){ // while the larger limit is not reached
				5: func() {
					leader, err := s.etcd.Leader(t.Context())
					if err != nil {
						t.Error(err)
					}
					r.replicas[0].network.Drop(leader)
				},
				30: func() { r.replicas[0].network.Heal() }, // until then many calls wait for their time limit
				45: func() { r.replicas[1].kill() },
				55: func() {
					var err error
					if paused, err = s.etcd.Leader(t.Context()); err != nil {
						t.Error(err)
					}
					if err := s.etcd.Pause(paused); err != nil {
						t.Error(err)
					}
				},
				85: func() {
					if err := s.etcd.Resume(paused); err != nil {
						t.Error(err)
					}
				},
			})
			for i, replica := range r.replicas {
				counts := replica.faults.Counts()
				t.Logf("calls of replica %d to etcd: %+v", i, counts)
				if counts.Before == 0 || counts.After == 0 {
					t.Errorf("no call of replica %d failed", i)
				}
			}
			r.check(t, limit, issued, store, store.Claims())
			s.h.check(t, 100) // each batch of machines reads once
		})
	}
}

// machines is how many machines redeem one token, and inFlight how many of them at once.
const (
	machines = 1000
	inFlight = 40
)

// run lets all machines join. Each retries at any living replica until it has a certificate or is refused. The functions
// of after are called one after another, when that many machines have their answer.
func (r *redemption) run(t *testing.T, after map[int]func()) {
	t.Helper()
	next, answered := make(chan int), make(chan struct{}, machines)
	var running, acting sync.WaitGroup
	for range inFlight {
		running.Go(func() {
			for i := range next {
				r.join(t, i)
				answered <- struct{}{}
			}
		})
	}
	acting.Go(func() {
		for n := 1; ; n++ {
			if _, more := <-answered; !more {
				return
			}
			if do := after[n]; do != nil {
				do()
			}
		}
	})
	for i := range machines {
		next <- i
	}
	close(next)
	running.Wait()
	close(answered)
	acting.Wait()
}

// firstRequest returns a request for the first client certificate of a node.
func firstRequest(t *testing.T, token tokens.Token, node string) approval.Request {
	return approval.Request{
		UID: "csr-" + node, SignerName: certificates.KubeAPIServerClientKubeletSignerName, User: tokens.BootstrapUserPrefix + token.ID(),
		Groups: []string{tokens.BootstrappersGroup, tokens.DefaultGroup}, Created: time.Now(),
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		CSR:    csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, nil),
	}
}

func (r *redemption) join(t *testing.T, i int) {
	node := fmt.Sprintf("%s-%d", r.token.ID(), i)
	ask := firstRequest(t, r.token, node)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var last error
	for {
		at := r.replicas[rand.IntN(len(r.replicas))]
		if at.dead.Load() {
			continue
		}
		try, stop := context.WithTimeout(ctx, 30*time.Second) // as the server
		chain, err := at.Issue(try, ask)
		stop()
		refused := approval.Refused(err)
		switch {
		case len(chain) > 0 && err == nil:
			r.admitted.Add(1)
			return
		case refused != nil:
			if refused.Reason != admission.ReasonTokenSpent {
				t.Errorf("%s was refused: %s %v", node, refused.Reason, err)
			}
			r.refused.Add(1)
			return
		}
		last = err
		r.retries.Add(1)
		select {
		case <-ctx.Done():
			t.Errorf("%s got no answer: %v", node, last)
			return
		case <-time.After(time.Duration(rand.IntN(100)) * time.Millisecond):
		}
	}
}

// check compares what was issued and stored with the limit of the token.
func (r *redemption) check(t *testing.T, limit int, issued *issuedNames, store tokens.Store, claims tokens.Claims) {
	t.Helper()
	issued.mu.Lock()
	names := issued.names[tokens.BootstrapUserPrefix+r.token.ID()]
	issued.mu.Unlock()
	t.Logf("limit %d: %d machines have a certificate, %d were refused, after %d retries", limit, r.admitted.Load(), r.refused.Load(), r.retries.Load())
	if r.admitted.Load() != int64(limit) || len(names) != limit || r.refused.Load() != int64(machines-limit) {
		t.Errorf("%d machines got a certificate, %d names were issued and %d machines refused; want %d, %d and %d",
			r.admitted.Load(), len(names), r.refused.Load(), limit, limit, machines-limit)
	}
	record, err := store.Get(t.Context(), r.token.ID())
	must(t, err)
	held, err := claims.HeldBy(t.Context(), r.token.ID(), tokens.Live)
	must(t, err)
	for _, c := range held {
		if !names[c.Node] {
			t.Errorf("node %s has a claim and no certificate", c.Node)
		}
	}
	if len(record.Nodes) != limit || len(held) != limit {
		t.Errorf("the token counts %d nodes and has %d claims, want %d", len(record.Nodes), len(held), limit)
	}
}
