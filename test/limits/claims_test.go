package limits

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cfssllog "github.com/cloudflare/cfssl/log"
	"github.com/kubejoin/kubejoin/internal/testing/faults"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A contest is a set of machines that request more certificates at the same time than their tokens allow.
type contest struct {
	name   string
	tokens int
	most   int // node limit of each token
	names  int // number of node names, requested in turn
	wins   int // number of requests that must be issued
}

const contestants = 200

var contests = []contest{
	{"one-for-one", 1, 1, contestants, 1},
	{"one-for-ten", 1, 10, contestants, 10},
	{"all-for-one-name", contestants, 1, 1, 1},
}

// ask creates all requests and returns their names. It calls middle once half of them exist.
func (c contest) ask(ctx context.Context, t *testing.T, s *harness.Site, middle func()) []string {
	t.Helper()
	ids := map[string]bool{}
	for len(ids) < c.tokens {
		ids[tokens.Generate().ID()] = true
	}
	limits := map[string]string{"kubejoin.io/max-nodes": strconv.Itoa(c.most)}
	machines := make([]kubernetes.Interface, 0, c.tokens)
	for id := range ids {
		must.OK(t, harness.StoreToken(ctx, s.Client(), id, limits))
		machines = append(machines, harness.AsToken(t, s.Cluster, id))
	}
	names := make([]string, contestants)
	next := make(chan int)
	var asking sync.WaitGroup
	for range 16 {
		asking.Go(func() {
			for i := range next {
				names[i] = fmt.Sprintf("%s-%d", c.name, i)
				node := fmt.Sprintf("%s-node-%d", c.name, i%c.names)
				if err := harness.CreateRequest(ctx, machines[i%c.tokens], names[i], certificates.KubeAPIServerClientKubeletSignerName, node); err != nil {
					t.Errorf("request %s: %v", names[i], err)
				}
			}
		})
	}
	for i := range contestants {
		if i == contestants/2 && middle != nil {
			middle()
		}
		next <- i
	}
	close(next)
	asking.Wait()
	return names
}

// outcomes waits until each request is issued, denied or failed, and returns the counts.
func outcomes(ctx context.Context, t *testing.T, l *harness.Ledger, names []string) (issued, denied, failed int) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		issued, denied, failed = 0, 0, 0
		var open []string
		for _, name := range names {
			switch e := l.Entry(name); {
			case e == nil:
				open = append(open, name)
			case e.Certificate != nil:
				issued++
			case e.Conditions[certificates.CertificateDenied] > 0:
				denied++
			case e.Conditions[certificates.CertificateFailed] > 0:
				failed++
			default:
				open = append(open, name)
			}
		}
		if len(open) == 0 {
			return issued, denied, failed
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d of %d requests are not decided, for example %s", len(open), len(names), open[0])
		}
	}
}

// checkClaims checks the invariant of limited tokens: issued names do not exceed the limit, each of them has a claim, and
// the token counts exactly its claims. After a failed attempt a claim may stay until the retry, so checkClaims waits for
// the retry.
func checkClaims(t *testing.T, l *harness.Ledger, s *harness.Site) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		broken, leftOver := claimProblems(t, l, s)
		if len(broken) == 0 && len(leftOver) > 0 && time.Now().Before(deadline) {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		for _, line := range append(broken, leftOver...) {
			t.Error(line)
		}
		return
	}
}

// claimProblems returns violations of the invariant, and claims and counts without a certificate. It reads the ledger
// first: each name in the ledger must already have a claim and a count, but the ledger may lag behind claims and counts.
func claimProblems(t *testing.T, l *harness.Ledger, s *harness.Site) (broken, leftOver []string) {
	t.Helper()
	all := l.All()
	secrets := must.Value(s.Client().CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{FieldSelector: "type=bootstrap.kubernetes.io/token"}))(t)
	leases := must.Value(s.Client().CoordinationV1().Leases("kubejoin-system").List(t.Context(), metav1.ListOptions{LabelSelector: "kubejoin.io/claim=true"}))(t)
	fail := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	holders, claimed := map[string]string{}, map[string][]string{}
	for _, lease := range leases.Items {
		holders[lease.Name] = *lease.Spec.HolderIdentity
		claimed[*lease.Spec.HolderIdentity] = append(claimed[*lease.Spec.HolderIdentity], lease.Name)
	}
	issued := map[string]map[string]bool{} // names by token ID
	for name, e := range all {
		id, found := strings.CutPrefix(e.User, "system:bootstrap:")
		if !found || e.Certificate == nil {
			continue
		}
		if issued[id] == nil {
			issued[id] = map[string]bool{}
		}
		issued[id][e.Node] = true
		if id != "abc123" && holders[e.Node] != id {
			fail("%s was issued for %s with token %s, but token %q holds the claim", name, e.Node, id, holders[e.Node])
		}
	}
	limited := 0
	for _, secret := range secrets.Items {
		text := secret.Annotations["kubejoin.io/max-nodes"]
		if text == "" {
			continue
		}
		limited++
		id := strings.TrimPrefix(secret.Name, "bootstrap-token-")
		most, err := strconv.Atoi(text)
		if err != nil {
			fail("%v", err)
		}
		if n := len(issued[id]); n > most {
			fail("token %s has a limit of %d nodes, but %d were issued: %v", id, most, n, issued[id])
		}
		var counted []string
		if text := secret.Annotations["kubejoin.io/nodes"]; text != "" {
			for entry := range strings.SplitSeq(text, ",") {
				counted = append(counted, entry[1:]) // without the prefix that marks it
			}
		}
		for name := range issued[id] {
			if !slices.Contains(counted, name) {
				fail("token %s counts nodes %q, but %s was issued", id, counted, name)
			}
		}
		if len(counted) > len(issued[id]) {
			leftOver = append(leftOver, fmt.Sprintf("token %s counts nodes %q, but only %v were issued", id, counted, issued[id]))
		}
		for _, name := range counted {
			if !slices.Contains(claimed[id], name) {
				fail("token %s counts nodes %q, but its claims are %q", id, counted, claimed[id])
			}
		}
		if len(claimed[id]) > len(counted) {
			leftOver = append(leftOver, fmt.Sprintf("token %s counts nodes %q, but its claims are %q", id, counted, claimed[id]))
		}
	}
	if limited == 0 {
		fail("got no limited token, want at least one to check")
	}
	return broken, leftOver
}

// check waits for the end of a contest and checks its outcome.
func (c contest) check(t *testing.T, s *harness.Site, l *harness.Ledger, names []string, began time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	issued, denied, failed := outcomes(ctx, t, l, names)
	t.Logf("%s: %d issued, %d denied, %d failed after %s", c.name, issued, denied, failed, time.Since(began).Round(time.Second))
	if issued != c.wins {
		t.Errorf("%s: got %d requests issued, want %d", c.name, issued, c.wins)
	}
	checkClaims(t, l, s)
	l.Check(t)
}

// TestLimitsHoldWithTwoLeaders runs two leaders at once, each over a connection that fails nearly a third of all writes. It
// catches certificates beyond the limit of a token, and claims that do not match the certificates.
func TestLimitsHoldWithTwoLeaders(t *testing.T) {
	harness.Parallel(t)
	cfssllog.Level = cfssllog.LevelWarning
	s := harness.PrepareSite(t, cluster.Options{})
	l := harness.NewLedger(t, s.Cluster)
	ca := must.Value(signer.LoadCA(s.CAFile(), s.CAKeyFile()))(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	var failing []*faults.Transport
	for i := range 2 {
		transport := &faults.Transport{Seed: harness.Seed(t) + uint64(i), Rate: 0.3}
		failing = append(failing, transport)
		config := must.Value(s.Config(s.OwnKubeconfig))(t)
		config.Wrap(transport.Wrap)
		client := must.Value(kubernetes.NewForConfig(config))(t)
		log := slog.New(slog.DiscardHandler)
		store := must.Value(secretstore.Open(ctx, client, log))(t)
		claims := must.Value(secretstore.OpenClaims(ctx, client, store, "kubejoin-system", log))(t)
		nodes := kubefacts.OpenNodes(ctx, client)
		authority := &signer.Authority{
			Facts: &kubefacts.Facts{Client: client}, Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 24*time.Hour))),
			Nodes: &admission.Nodes{Tokens: store, Claims: claims, Node: nodes.Node, Ready: nodes.Ready}, Record: &harness.InProcess,
		}
		for _, run := range []func(context.Context) error{
			csr.Controller{Client: client, Authority: authority, Approve: true, Sign: true, Logger: log}.Run,
			cleaner.Claims{Store: claims, Tokens: store, Node: nodes.Node, Nodes: nodes.Nodes, Ready: nodes.Ready, NodesChanged: nodes.Watch, Logger: log}.Run,
		} {
			running.Go(func() {
				if err := run(ctx); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		}
	}
	for _, c := range contests {
		began := time.Now()
		c.check(t, s, l, c.ask(ctx, t, s, nil), began)
	}
	for i, transport := range failing {
		total := 0
		for _, n := range transport.Failed() {
			total += n
		}
		if total == 0 {
			t.Errorf("connection %d: got no failed write, want some", i)
		}
		t.Logf("connection %d: %d writes passed, %d failed", i, transport.Passed(), total)
	}
}

// TestLimitsHoldWhenOthersApprove runs kube-controller-manager's approver beside kubejoin and kills the leader. It
// catches a token limit that holds at approval but not when kubejoin signs.
func TestLimitsHoldWhenOthersApprove(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	l := harness.NewLedger(t, s.Cluster)
	s.WaitLeader(t)
	must.Value(s.StartKCM(t.Context(), "--controllers=certificatesigningrequest-approving-controller", "--kube-api-qps=5000", "--kube-api-burst=5000"))(t)
	for _, c := range contests {
		began := time.Now()
		first := s.Program
		s.Start(t)
		names := c.ask(t.Context(), t, s, func() { first.Kill(t) })
		c.check(t, s, l, names, began)
	}
}
