package differential

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/outage"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// How many requests each cluster gets, and how many of them a person approves.
const (
	differentialRequests = 10_000
	differentialByHand   = 3_500
)

// signingDuration is --cluster-signing-duration in both clusters. No default has this value, so a lifetime with this limit
// is easy to see.
const signingDuration = "1000h"

func showExtension(e pkix.Extension) string {
	return fmt.Sprintf("%s/%v/%s", e.Id, e.Critical, hex.EncodeToString(e.Value))
}

// A testCluster is a control plane with one of the two signers.
type testCluster struct {
	*cluster.Cluster
	clients map[string]kubernetes.Interface // by user
	store   cache.Store
	last    atomic.Int64 // time of the last change, in Unix nanoseconds
}

// newTestCluster creates the same permissions, tokens and Nodes in each cluster.
func newTestCluster(t *testing.T, c *cluster.Cluster) *testCluster {
	t.Helper()
	ctx := t.Context()
	a := &testCluster{Cluster: c, clients: map[string]kubernetes.Interface{}}
	for _, who := range requesters {
		a.clients[who.user] = a.as(t, who)
	}
	create := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	create(c.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbac.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "askers"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: rbac.GroupKind, Name: "askers"}},
	}, metav1.CreateOptions{}))
	for _, name := range []string{"w-1", "w-2"} {
		node, err := c.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		create(node, err)
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: "192.0.2." + strings.TrimPrefix(name, "w-")},
		}
		create(c.Client().CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}))
	}
	for id, limits := range map[string]map[string]string{
		"abc123": nil,
		"lim100": {"kubejoin.io/max-nodes": "1000", "kubejoin.io/node-names": "n-1*,n-2*,n-3*,n-4*,n-5*"},
		"spent1": {"kubejoin.io/max-nodes": "1"},
	} {
		must.OK(t, harness.StoreToken(ctx, c.Client(), id, limits))
	}
	return a
}

func (a *testCluster) as(t *testing.T, who requester) kubernetes.Interface {
	t.Helper()
	config := a.AdminConfig()
	config.ContentType = "application/vnd.kubernetes.protobuf"
	if who.user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: who.user, Groups: who.groups}
	}
	return must.Value(kubernetes.NewForConfig(config))(t)
}

// watch starts an informer for all requests.
func (a *testCluster) watch(t *testing.T) {
	t.Helper()
	informer := cache.NewSharedIndexInformer(outage.Follow(nil, a.as(t, requester{}).CertificatesV1().CertificateSigningRequests(), "", nil),
		&certificates.CertificateSigningRequest{}, 0, nil)
	seen := func() { a.last.Store(time.Now().UnixNano()) }
	must.Value(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { seen() }, UpdateFunc: func(any, any) { seen() }}))(t)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(t.Context()) })
	t.Cleanup(running.Wait)
	cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced)
	a.store = informer.GetStore()
}

// ask creates the request. With byHand, it also approves the request at once. An error is the refusal of the API
// server.
func (a *testCluster) ask(ctx context.Context, g *generated, byHand bool) error {
	made, err := a.clients[g.who.user].CertificatesV1().CertificateSigningRequests().Create(ctx,
		&certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: g.name}, Spec: g.spec}, metav1.CreateOptions{})
	if err != nil || !byHand {
		return err
	}
	made.Status.Conditions = append(made.Status.Conditions, certificates.CertificateSigningRequestCondition{
		Type: certificates.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ByHand", Message: "by hand",
	})
	if _, err := a.Client().CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, g.name, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("approving %s: %w", g.name, err)
	}
	return nil
}

const leftAlone = "left alone"

// An outcome is the final state of a request.
type outcome struct {
	verdict     string // leftAlone, "approved: REASON MESSAGE" or "denied"
	failed      bool
	said        string // message of a refusal
	certificate *x509.Certificate
	blocks      int // PEM blocks of the certificate
}

func (o outcome) String() string {
	s := o.verdict
	if o.failed {
		s += ", failed"
	}
	if o.said != "" {
		s += fmt.Sprintf(" (%s)", o.said)
	}
	if o.certificate != nil {
		s += ", issued"
	}
	return s
}

func (a *testCluster) outcome(name string) (outcome, error) {
	obj, exists, err := a.store.GetByKey(name)
	if err != nil || !exists {
		return outcome{}, fmt.Errorf("%s is not in the cache: %w", name, err)
	}
	csr := obj.(*certificates.CertificateSigningRequest)
	o := outcome{verdict: leftAlone}
	for _, c := range csr.Status.Conditions {
		switch c.Type {
		case certificates.CertificateApproved:
			o.verdict = fmt.Sprintf("approved: %s %s", c.Reason, c.Message)
		case certificates.CertificateDenied:
			o.verdict, o.said = "denied", c.Message
		case certificates.CertificateFailed:
			o.failed, o.said = true, c.Message
		}
	}
	for block, rest := pem.Decode(csr.Status.Certificate); block != nil; block, rest = pem.Decode(rest) {
		if o.blocks++; o.blocks == 1 {
			if o.certificate, err = x509.ParseCertificate(block.Bytes); err != nil {
				return outcome{}, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return o, nil
}

// TestDecidesAndSignsAsKubeControllerManager sends ten thousand valid, borderline and hostile requests to kubejoin and
// to the real kube-controller-manager with the same CA. It catches every difference that is not on the list.
func TestDecidesAndSignsAsKubeControllerManager(t *testing.T) {
	harness.Parallel(t)
	began := time.Now()
	seed := harness.Seed(t)
	s := harness.PrepareSite(t, cluster.Options{}, "--cluster-signing-duration="+signingDuration, "--reserved-node-names=cp-*", "--serving-allowed-cidr=192.0.2.0/24")
	ours, theirs := newTestCluster(t, s.Cluster), newTestCluster(t, cluster.ForTest(t, cluster.Options{}))
	generator := newGenerator(t, seed)
	ours.watch(t)
	theirs.watch(t)
	d := &differential{ours: ours, theirs: theirs, count: map[string]int{}, refused: map[string]int{}}

	const signing, approving = "certificatesigningrequest-signing-controller", "certificatesigningrequest-approving-controller"
	for _, round := range []struct {
		requests       int
		byHand         bool
		flag, theirsOn string
	}{
		{differentialByHand, true, "--controllers=csr-signer", signing},
		{differentialRequests - differentialByHand, false, "--controllers=csr-approver,csr-signer", signing + "," + approving},
	} {
		// --user-qps=0 because a few users send thousands of requests.
		p := harness.Serve(t, s.WorkDir, s.CAFile(), s.Curlrc(), append(s.Flags, round.flag, "--user-qps=0")...)
		kcm := must.Value(theirs.StartKCM(t.Context(), "--controllers="+round.theirsOn, "--kube-api-qps=5000", "--kube-api-burst=5000",
			"--cluster-signing-cert-file="+s.CAFile(), "--cluster-signing-key-file="+s.CAKeyFile(), "--cluster-signing-duration="+signingDuration))(t)
		if round.byHand {
			ours.spend(t)
		}
		d.round(t, generator, round.requests, round.byHand)
		kcm.Stop(5 * time.Second)
		p.Stop(20 * time.Second)
	}
	d.report(t)
	t.Logf("%d requests of each, seed %d, in %s", differentialRequests, seed, time.Since(began).Round(time.Second))
}

// spend uses up the node limit of token spent1 and the key limit of its claim.
func (a *testCluster) spend(t *testing.T) {
	t.Helper()
	client := a.as(t, tokenSpent)
	for i := range 3 {
		name := fmt.Sprintf("taken-%d", i)
		must.OK(t, harness.CreateRequest(t.Context(), client, name, certificates.KubeAPIServerClientKubeletSignerName, "taken-0"))
		must.OK(t, harness.Decide(t.Context(), a.Client(), name, certificates.CertificateApproved))
		harness.Wait(t, "a claim", func() error {
			if o, err := a.outcome(name); err != nil || o.certificate == nil {
				return fmt.Errorf("%s: %s (%w)", name, o, err)
			}
			return nil
		})
	}
}

// A differential compares kubejoin (ours) with kube-controller-manager (theirs).
type differential struct {
	ours, theirs *testCluster

	equal, issued int
	refused       map[string]int // refusals by the API server, by reason
	count         map[string]int // number of each difference
}

// round sends requests to both clusters and compares the outcomes.
func (d *differential) round(t *testing.T, g *generator, n int, byHand bool) {
	t.Helper()
	began := time.Now()
	all := make([]*generated, n)
	for i := range all {
		all[i] = g.next(t, byHand)
	}
	// Both sides handle requests in order. So once they have issued the last requests, they have handled all requests.
	for range 20 {
		last := g.next(t, byHand)
		(&draft{generator: g}).plain(last)
		all = append(all, last)
	}
	generated := time.Since(began)
	type answers [2]error
	answered := make([]answers, len(all))
	next := make(chan int)
	var asking sync.WaitGroup
	for range 16 {
		asking.Go(func() {
			for i := range next {
				answered[i] = answers{d.ours.ask(t.Context(), all[i], byHand), d.theirs.ask(t.Context(), all[i], byHand)}
			}
		})
	}
	for i := range all {
		next <- i
	}
	close(next)
	asking.Wait()
	asked := time.Since(began)
	var open []*compared
	for i, a := range answered {
		switch {
		case a[0] == nil && a[1] == nil:
			open = append(open, &compared{generated: all[i], byHand: byHand, asked: began})
		case a[0] != nil && a[1] != nil && apierrors.ReasonForError(a[0]) == apierrors.ReasonForError(a[1]) && apierrors.ReasonForError(a[0]) != metav1.StatusReasonUnknown:
			d.refused[string(apierrors.ReasonForError(a[0]))]++
		default:
			t.Errorf("creation: kubejoin's API server returned %v, the other %v, want the same\n%s", a[0], a[1], all[i])
		}
	}
	d.settle(t, all[n:])
	wrong := d.compareAll(t, open)
	for i, c := range wrong {
		if i == 20 {
			t.Errorf("%d more differences are not shown", len(wrong)-i)
			break
		}
		t.Errorf("%s\nkubejoin: %s\nkube-controller-manager: %s\n%s", c.why, c.ours, c.theirs, c.generated)
	}
	t.Logf("approved by hand: %v: %d requests generated after %s, sent after %s, compared after %s", byHand, n, generated.Round(time.Second), asked.Round(time.Second), time.Since(began).Round(time.Second))
}

// plain turns g into a request that both sides approve.
func (d *draft) plain(g *generated) {
	d.kubelet()
	d.who = machineUser
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:node:" + strings.ReplaceAll(g.name, "r-", "n-last-"), Organization: []string{"system:nodes"},
	}}, d.keys["P-256"])
	if err != nil {
		panic(err)
	}
	g.about, g.who = nil, d.who
	g.spec = certificates.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: d.signer, Usages: d.usages,
	}
	g.csr, err = x509.ParseCertificateRequest(der)
	if err != nil {
		panic(err)
	}
}

// settle waits until both sides have handled all requests and no changes arrive.
func (d *differential) settle(t *testing.T, last []*generated) {
	t.Helper()
	for name, a := range map[string]*testCluster{"kubejoin": d.ours, "kube-controller-manager": d.theirs} {
		harness.WaitFor(t, 10*time.Minute, "the last requests of "+name, func() error {
			for _, g := range last {
				if o, err := a.outcome(g.name); err != nil || o.certificate == nil {
					return fmt.Errorf("%s: %s (%w)", g.name, o, err)
				}
			}
			return nil
		})
	}
	harness.WaitFor(t, 10*time.Minute, "three seconds without changes", func() error {
		for _, a := range []*testCluster{d.ours, d.theirs} {
			if quiet := time.Since(time.Unix(0, a.last.Load())); quiet < 3*time.Second {
				return fmt.Errorf("last change %s ago", quiet)
			}
		}
		return nil
	})
}

// compared is a request with its outcome on both sides.
type compared struct {
	*generated
	byHand       bool
	asked        time.Time
	ours, theirs outcome
	why          string
}

// compareAll counts requests whose outcomes are equal or differ as listed, and returns the others. It waits up to two
// minutes because both sides retry failed writes with backoff.
func (d *differential) compareAll(t *testing.T, open []*compared) []*compared {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		var wrong []*compared
		for _, c := range open {

			c.ours = must.Value(d.ours.outcome(c.name))(t)
			c.theirs = must.Value(d.theirs.outcome(c.name))(t)
			if c.why = d.compare(c); c.why != "" {
				wrong = append(wrong, c)
			}
		}
		if open = wrong; len(open) == 0 || time.Now().After(deadline) {
			return open
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-t.Context().Done():
			return open
		}
	}
}

const keyIdentifierAdded = "adds a subject key identifier"

// compare returns why the outcomes of a request are wrong. If they are right, it counts them and returns "".
func (d *differential) compare(c *compared) (why string) {
	ours, theirs := c.ours, c.theirs
	listed := explained(c.generated, ours.said, c.byHand)
	switch {
	case ours.certificate != nil && theirs.certificate != nil:
		if ours.verdict != theirs.verdict || ours.failed || theirs.failed || ours.blocks != theirs.blocks {
			return "both issued a certificate, but the verdict or the number of PEM blocks differs"
		}
		differ, identified := certificateDifferences(ours.certificate, theirs.certificate)
		for _, certificate := range []*x509.Certificate{ours.certificate, theirs.certificate} {
			if at := certificate.NotBefore.Add(5 * time.Minute); at.Before(c.asked.Add(-2*time.Second)) || at.After(time.Now().Add(2*time.Second)) {
				differ = append(differ, "notBefore")
			}
		}
		if len(differ) > 0 {
			return "certificates differ in " + strings.Join(differ, ", ")
		}
		if identified {
			d.count[keyIdentifierAdded]++
		}
		d.issued++
		d.equal++
	case ours.certificate == nil && theirs.certificate == nil && ours.failed == theirs.failed && ours.verdict == theirs.verdict:
		d.equal++
	case theirs == outcome{verdict: leftAlone} && servingDifference(c.generated, ours) != "":
		d.count[servingDifference(c.generated, ours)]++
	case ours.certificate == nil && listed != nil:
		d.count[listed.doc]++
	default:
		return "a difference that is not on the list"
	}
	return ""
}

// report logs the counts, and fails for each listed difference that did not occur.
func (d *differential) report(t *testing.T) {
	t.Helper()
	t.Logf("%d equal, of which %d issued; refused by the API server: %v", d.equal, d.issued, d.refused)
	if d.issued < differentialRequests/10 {
		t.Errorf("both sides issued %d certificates, want at least %d", d.issued, differentialRequests/10)
	}
	page := strings.Join(strings.Fields(string(harness.ReadFile(t, harness.RepositoryFile(t, "docs/migrate-from-kube-controller-manager.md")))), " ")
	names := []string{keyIdentifierAdded, servingApproved, servingDenied}
	for _, l := range differences {
		names = append(names, l.doc)
	}
	for _, name := range names {
		t.Logf("%6d %s", d.count[name], name)
		if d.count[name] == 0 {
			t.Errorf("difference %q is on the list and did not occur", name)
		}
		if !strings.Contains(page, name) {
			t.Errorf("docs/migrate-from-kube-controller-manager.md does not name %q", name)
		}
	}
}
