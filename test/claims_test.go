package test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cfssllog "github.com/cloudflare/cfssl/log"
	"github.com/kubejoin/kubejoin/internal/testing/faults"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A contest is machines that ask at the same time for more than their tokens allow.
type contest struct {
	name   string
	tokens int
	most   int // nodes for each token
	names  int // of nodes, that they ask for in turn
	wins   int // names that are issued in the end
}

const contestants = 1000

var contests = []contest{
	{"one-for-one", 1, 1, contestants, 1},
	{"one-for-ten", 1, 10, contestants, 10},
	{"all-for-one-name", contestants, 1, 1, 1},
}

// ask makes all requests, of that name and a number each, and returns their names. middle is
// called when half of them are there.
func (c contest) ask(ctx context.Context, t *testing.T, s *site, middle func()) []string {
	t.Helper()
	ids := map[string]bool{}
	for len(ids) < c.tokens {
		ids[tokens.Generate().ID()] = true
	}
	limits := map[string]string{"kubejoin.io/max-nodes": strconv.Itoa(c.most)}
	machines := make([]kubernetes.Interface, 0, c.tokens)
	for id := range ids {
		if err := storeToken(ctx, s.Client(), id, limits); err != nil {
			t.Fatal(err)
		}
		machines = append(machines, asToken(t, s.Cluster, id))
	}
	names := make([]string, contestants)
	next := make(chan int)
	var asking sync.WaitGroup
	for range 16 {
		asking.Go(func() {
			for i := range next {
				names[i] = fmt.Sprintf("%s-%d", c.name, i)
				node := fmt.Sprintf("%s-node-%d", c.name, i%c.names)
				if err := request(ctx, machines[i%c.tokens], names[i], certificates.KubeAPIServerClientKubeletSignerName, node); err != nil {
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

// decided waits until each of the requests is issued, denied or failed, and returns how many are
// of each kind.
func (l *ledger) decided(ctx context.Context, t *testing.T, names []string) (issued, denied, failed int) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		issued, denied, failed = 0, 0, 0
		var open []string
		for _, name := range names {
			switch e := l.entry(name); {
			case e == nil:
				open = append(open, name)
			case e.certificate != nil:
				issued++
			case e.conditions[certificates.CertificateDenied] > 0:
				denied++
			case e.conditions[certificates.CertificateFailed] > 0:
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
			t.Fatalf("%d of %d requests are not decided, such as %s", len(open), len(names), open[0])
		}
	}
}

// checkClaims is the invariant: on each limited token no more names are issued than it is for,
// each of them has its claim, and the token counts what there are claims of. The last may take a
// while where a try has failed that nothing came of: its claim goes when it is the try's turn again.
func (l *ledger) checkClaims(t *testing.T, s *site) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		broken, leftOver := l.lookAtClaims(t, s)
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

// lookAtClaims gives what must never be, and claims that nothing was issued on.
func (l *ledger) lookAtClaims(t *testing.T, s *site) (broken, leftOver []string) {
	t.Helper()
	secrets, err := s.Client().CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{FieldSelector: "type=bootstrap.kubernetes.io/token"})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := s.Client().CoordinationV1().Leases("kubejoin-system").List(t.Context(), metav1.ListOptions{LabelSelector: "kubejoin.io/claim=true"})
	if err != nil {
		t.Fatal(err)
	}
	fail := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	holders, claimed := map[string]string{}, map[string][]string{}
	for _, lease := range leases.Items {
		holders[lease.Name] = *lease.Spec.HolderIdentity
		claimed[*lease.Spec.HolderIdentity] = append(claimed[*lease.Spec.HolderIdentity], lease.Name)
	}
	issued := map[string]map[string]bool{} // names by token
	l.mu.Lock()
	for name, e := range l.entries {
		id, found := strings.CutPrefix(e.user, "system:bootstrap:")
		if !found || e.certificate == nil {
			continue
		}
		if issued[id] == nil {
			issued[id] = map[string]bool{}
		}
		issued[id][e.node] = true
		if id != "abc123" && holders[e.node] != id {
			fail("%s was issued for %s on token %s, and the claim is %q's", name, e.node, id, holders[e.node])
		}
	}
	l.mu.Unlock()
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
			fail("token %s is for %d nodes, and %d were issued: %v", id, most, n, issued[id])
		}
		var counted []string
		if text := secret.Annotations["kubejoin.io/nodes"]; text != "" {
			counted = strings.Split(text, ",")
		}
		slices.Sort(counted)
		if got := slices.Sorted(maps.Keys(issued[id])); !slices.Equal(got, counted) {
			fail("token %s counts %q, and %q were issued", id, counted, got)
		}
		for _, name := range counted {
			if !slices.Contains(claimed[id], name) {
				fail("token %s counts %q, and its claims are %q", id, counted, claimed[id])
			}
		}
		if len(claimed[id]) > len(counted) {
			leftOver = append(leftOver, fmt.Sprintf("token %s counts %q, and its claims are %q", id, counted, claimed[id]))
		}
	}
	if limited == 0 {
		fail("there is no limited token: this check could not fail")
	}
	return broken, leftOver
}

// won checks what came of a contest.
func (c contest) won(t *testing.T, s *site, l *ledger, names []string, began time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	issued, denied, failed := l.decided(ctx, t, names)
	t.Logf("%s: %d issued, %d denied, %d failed after %s", c.name, issued, denied, failed, time.Since(began).Round(time.Second))
	if issued != c.wins {
		t.Errorf("%s: %d requests are issued, want %d", c.name, issued, c.wins)
	}
	l.checkClaims(t, s)
	l.check(t)
}

// Two that both believe to lead, each over a connection that fails nearly a third of all writes.
func TestClaimsOfTwoLeaders(t *testing.T) {
	t.Parallel()
	cfssllog.Level = cfssllog.LevelWarning
	s := prepare(t, cluster.Options{})
	l := keepLedger(t, s.Cluster)
	ca, err := signer.LoadCA(s.CAFile(), s.CAKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	var failing []*faults.Transport
	for i := range 2 {
		transport := &faults.Transport{Seed: seed(t) + uint64(i), Rate: 0.3}
		failing = append(failing, transport)
		config, err := s.Config(s.kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		config.Wrap(transport.Wrap)
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.DiscardHandler)
		store, err := secretstore.Open(ctx, client, log)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := secretstore.OpenClaims(ctx, client, "kubejoin-system", log)
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := csr.OpenNodes(ctx, client)
		if err != nil {
			t.Fatal(err)
		}
		authority := &signer.Authority{
			Facts: &csr.Facts{Client: client}, Signers: signer.FixedSigners(signer.KubernetesSigners(signer.Fixed(ca), 24*time.Hour)),
			Nodes: &admission.Nodes{Tokens: store, Claims: claims, Node: nodes.Node, Ready: nodes.Ready}, Record: &inProcess,
		}
		for _, run := range []func(context.Context) error{
			csr.Controller{Client: client, Authority: authority, Approve: true, Sign: true, Logger: log}.Run,
			cleaner.Claims{Store: claims, Tokens: store, Node: nodes.Node, Nodes: nodes.Nodes, Ready: nodes.Ready, NodesChanged: nodes.Watch(ctx), Logger: log}.Run,
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
		c.won(t, s, l, c.ask(ctx, t, s, nil), began)
	}
	for i, transport := range failing {
		total := 0
		for _, n := range transport.Failed() {
			total += n
		}
		if total == 0 {
			t.Errorf("connection %d: nothing failed", i)
		}
		t.Logf("connection %d: %d writes passed, %d failed", i, transport.Passed(), total)
	}
}

// The leader is killed in the middle, kube-controller-manager's approver runs beside, and in the
// end a person approves what nobody did: tokens are held to their limits when a certificate is
// issued.
func TestClaimsWhoeverApproves(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{})
	l := keepLedger(t, s.Cluster)
	s.leads(t)
	if _, err := s.StartKCM(t.Context(), "--controllers=certificatesigningrequest-approving-controller", "--kube-api-qps=5000", "--kube-api-burst=5000"); err != nil {
		t.Fatal(err)
	}
	for _, c := range contests {
		began := time.Now()
		first := s.program
		s.start(t)
		names := c.ask(t.Context(), t, s, func() { first.kill(t) })
		c.won(t, s, l, names, began)
	}
}

// A person approves each request, and kubejoin has no say in that.
func TestClaimsApprovedByHand(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{}, "--controllers=*,-csr-approver")
	l := keepLedger(t, s.Cluster)
	for _, c := range contests {
		began := time.Now()
		names := c.ask(t.Context(), t, s, nil)
		// kubectl sends five requests a second: the others are approved as it does.
		s.kubectl(t, append([]string{"certificate", "approve"}, names[:20]...)...)
		var approving sync.WaitGroup
		for part := range slices.Chunk(names[20:], 100) {
			approving.Go(func() {
				for _, name := range part {
					if err := decide(t.Context(), s.Client(), name, certificates.CertificateApproved); err != nil {
						t.Errorf("approve %s: %v", name, err)
					}
				}
			})
		}
		approving.Wait()
		c.won(t, s, l, names, began)
		why := map[string]int{}
		list, err := s.Client().CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.Items {
			for _, condition := range r.Status.Conditions {
				if condition.Type == certificates.CertificateFailed {
					why[condition.Reason]++
				}
			}
		}
		want := "TokenSpent"
		if c.names == 1 {
			want = "NodeNameClaimed"
		}
		if why[want] != contestants-c.wins || len(why) != 1 {
			t.Errorf("%s: failed for %v, want %s", c.name, why, want)
		}
		if err := s.Client().CertificatesV1().CertificateSigningRequests().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
