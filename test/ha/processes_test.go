package ha

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// inFlight is how many machines or clients send requests at once.
const inFlight = 40

// TestTokenAdmitsItsLimitAtThreeProcesses redeems a token for 40 nodes by 300 machines. 30 % of the calls to etcd fail. A
// process is separated from the leader of etcd, another one is killed, and the leader is paused. It catches a count that a
// process keeps in memory, and a slot that two machines get.
func TestTokenAdmitsItsLimitAtThreeProcesses(t *testing.T) {
	harness.Parallel(t)
	const most, limit = 300, 40
	seed := harness.Seed(t)
	c := etcd.ForTest(t, etcd.Options{Members: 3})
	s := newService(t, c, 0)
	var records []string
	var networks []*etcd.Network
	for i := range uint64(3) {
		network := must.Value(c.Network())(t)
		t.Cleanup(network.Close)
		faults := must.Value(c.Faults(network, "kubejoin", seed+i, 0))(t)
		t.Cleanup(faults.Close)
		record := filepath.Join(t.TempDir(), "issued.jsonl")
		s.all, records = append(s.all, s.start(t, faults.Endpoints(), "--issuance-record="+record)), append(records, record)
		faults.SetRate(0.3) // it is ready
		networks = append(networks, network)
	}
	token, expires := tokens.Generate(), time.Now().Add(time.Hour)
	harness.Wait(t, "a token", func() error {
		return s.newToken(t.Context(), rand.IntN(3), token, expires, api.TokenSpec{MaxNodes: limit})
	})
	var dead atomic.Int64
	dead.Store(-1)
	var admitted, refused, retries atomic.Int64
	var running, acting sync.WaitGroup
	next := make(chan int)
	leader := func() int {
		i, err := c.Leader(t.Context())
		if err != nil {
			t.Error(err)
		}
		return i
	}
	var paused int
	after := map[int]func(){ // by answered machines, while the limit is not reached
		3:  func() { networks[0].Drop(leader()) },
		12: func() { networks[0].Heal() }, // until then many calls wait for their time limit
		18: func() { dead.Store(1); s.all[1].Kill(t) },
		22: func() {
			paused = leader()
			if err := c.Pause(paused); err != nil {
				t.Error(err)
			}
		},
		32: func() {
			if err := c.Resume(paused); err != nil {
				t.Error(err)
			}
		},
	}
	answered := make(chan struct{}, most)
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
	for range inFlight {
		running.Go(func() {
			for i := range next {
				switch ok, failed := s.join(t, token, fmt.Sprintf("machine-%d", i), &dead); {
				case ok:
					admitted.Add(1)
					retries.Add(failed)
				default:
					refused.Add(1)
					retries.Add(failed)
				}
				answered <- struct{}{}
			}
		})
	}
	for i := range most {
		next <- i
	}
	close(next)
	running.Wait()
	close(answered)
	acting.Wait()

	issued := map[string]bool{}
	for _, file := range records {
		for line := range strings.Lines(string(harness.ReadFile(t, file))) {
			var e issuance.Entry
			if err := json.Unmarshal([]byte(line), &e); err == nil && e.Outcome == issuance.Issued { // the last line may be incomplete
				issued[e.Node] = true
			}
		}
	}
	t.Logf("%d machines have a certificate, %d names were issued and %d machines refused, after %d retries", admitted.Load(), len(issued), refused.Load(), retries.Load())
	if admitted.Load() != limit || len(issued) != limit || refused.Load() != most-limit {
		t.Errorf("want %d, %d and %d", limit, limit, most-limit)
	}
	store := openStore(t, c, c.Endpoints())
	defer func() { must.OK(t, store.Close()) }()
	record := must.Value(store.Get(t.Context(), token.ID(), tokens.Live))(t)
	held := must.Value(store.Claims().HeldBy(t.Context(), token.ID(), tokens.Live))(t)
	if len(record.Nodes) != limit || len(held) != limit {
		t.Errorf("the token counts %d nodes and has %d claims, want %d", len(record.Nodes), len(held), limit)
	}
}

// join requests a certificate at the replicas that live until a machine has one, which it reports, or is refused.
func (s *service) join(t *testing.T, token tokens.Token, node string, dead *atomic.Int64) (admitted bool, retries int64) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	csr := csrtest.PEM(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, nil)
	for ; ; retries++ {
		i := rand.IntN(len(s.all))
		if int64(i) == dead.Load() {
			continue
		}
		_, err := s.at(i, api.Secret(token.Reveal())).Certificate(ctx, api.SignCertificate{CSR: csr, Signer: certificates.KubeAPIServerClientKubeletSignerName})
		if err == nil {
			return true, retries
		}
		if p := (*api.Problem)(nil); errors.As(err, &p) && p.Reason == admission.ReasonTokenSpent {
			return false, retries
		} else if errors.As(err, &p) && p.Status < 500 && p.Status != 429 {
			t.Errorf("%s: %d %s %v", node, p.Status, p.Reason, err)
			return false, retries
		}
		select {
		case <-ctx.Done():
			t.Errorf("%s got no answer: %v", node, err)
			return false, retries
		case <-time.After(time.Duration(rand.IntN(100)) * time.Millisecond):
		}
	}
}
