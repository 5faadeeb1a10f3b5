package secretstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// openClaims opens claims in a new namespace.
func openClaims(t testing.TB, log *slog.Logger) (*secretstore.Claims, typedcoordinationv1.LeaseInterface) {
	t.Helper()
	return openClaimsOf(t, open(t, nil), log)
}

// openClaimsOf is openClaims for the tokens of a store.
func openClaimsOf(t testing.TB, store tokens.Store, log *slog.Logger) (*secretstore.Claims, typedcoordinationv1.LeaseInterface) {
	t.Helper()
	client := cluster.Shared(t).Client()
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "claims-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := secretstore.OpenClaims(t.Context(), client, store, namespace.Name, log)
	if err != nil {
		t.Fatal(err)
	}
	return s, client.CoordinationV1().Leases(namespace.Name)
}

func TestCommit(t *testing.T) {
	storetest.RunCommit(t, func(t *testing.T) (tokens.Store, tokens.Claims) {
		store := open(t, nil)
		claims, _ := openClaimsOf(t, store, nil)
		return store, claims
	})
}

// The steps must do the same over stores whose writes are as fast as their reads.
func TestCommitInSteps(t *testing.T) {
	storetest.RunCommit(t, func(*testing.T) (tokens.Store, tokens.Claims) {
		db := memdb.Open()
		return db, secretstore.Steps{Claims: db.Claims(), Tokens: db}
	})
}

func TestClaims(t *testing.T) {
	storetest.RunClaims(t, func(t *testing.T) tokens.Claims {
		s, _ := openClaims(t, nil)
		return s
	})
}

// waitClaims calls List at every hint until the condition holds.
func waitClaims(t *testing.T, s *secretstore.Claims, what string, done func([]tokens.Claim) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lag)
	defer cancel()
	hints := s.Watch(ctx)
	var all []tokens.Claim
	for {
		select {
		case <-hints:
		case <-ctx.Done():
			t.Fatalf("after %v List gives %+v, want %s", lag, all, what)
		}
		var err error
		if all, err = s.List(ctx); err != nil {
			t.Fatal(err)
		}
		if done(all) {
			return
		}
	}
}

func claim(node string) tokens.Claim {
	return tokens.Claim{
		Node: node, TokenID: "abc123", TokenUID: "u",
		Limits: tokens.Limits{MaxNodes: 2, NodeNames: []string{"a", "w*"}, CertificateDuration: 8 * time.Hour},
		Keys:   []string{"sha256:1", "sha256:2"}, Requests: []string{"r1", "r2"},
	}
}

// TestLease checks the format of a claim in Kubernetes, which kubectl and other programs read.
func TestLease(t *testing.T) {
	s, leases := openClaims(t, nil)
	if _, err := s.Create(t.Context(), claim("worker-1")); err != nil {
		t.Fatal(err)
	}
	lease, err := leases.Get(t.Context(), "worker-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != "abc123" || lease.Spec.AcquireTime == nil {
		t.Errorf("got holder %v since %v, want the token since now", lease.Spec.HolderIdentity, lease.Spec.AcquireTime)
	}
	wantMap(t, "labels", lease.Labels, map[string]string{"kubejoin.io/claim": "true", "kubejoin.io/token-id": "abc123"})
	wantMap(t, "annotations", lease.Annotations, map[string]string{
		"kubejoin.io/token-uid": "u", "kubejoin.io/keys": "sha256:1,sha256:2", "kubejoin.io/requests": "r1,r2",
		"kubejoin.io/max-nodes": "2", "kubejoin.io/node-names": "a,w*", "kubejoin.io/certificate-duration": "8h0m0s",
	})

	// Values of others stay unchanged.
	lease.Labels["l"], lease.Annotations["example.com/a"] = "1", "2"
	lease.Annotations["kubejoin.io/certificate-duration"] = "480m"
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(t.Context(), "worker-1", func(c *tokens.Claim) error {
		if c.Limits.CertificateDuration != 8*time.Hour {
			t.Errorf("got duration %s for 480m", c.Limits.CertificateDuration)
		}
		c.NodeUID, c.Keys, c.Requests, c.Limits.MaxNodes, c.TokenID = "n", nil, nil, 0, "def456"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if lease, err = leases.Get(t.Context(), "worker-1", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	wantMap(t, "labels", lease.Labels, map[string]string{"kubejoin.io/claim": "true", "kubejoin.io/token-id": "def456", "l": "1"})
	wantMap(t, "annotations", lease.Annotations, map[string]string{
		"kubejoin.io/token-uid": "u", "kubejoin.io/node-uid": "n", "example.com/a": "2",
		"kubejoin.io/node-names": "a,w*", "kubejoin.io/certificate-duration": "480m",
	})
	if *lease.Spec.HolderIdentity != "def456" {
		t.Errorf("got holder %s, want the other token", *lease.Spec.HolderIdentity)
	}
}

// Earlier versions kept all requests of a claim. The store must read such a Lease, and shorten the list with the
// next write.
func TestShortensRequestsOfEarlierVersions(t *testing.T) {
	s, leases := openClaims(t, nil)
	if _, err := s.Create(t.Context(), claim("worker-1")); err != nil {
		t.Fatal(err)
	}
	lease, err := leases.Get(t.Context(), "worker-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range 7000 { // close to the 256 KiB limit of annotations
		all = append(all, fmt.Sprintf("8c1d3c0e-6a55-4bb5-b0a4-%012d", i))
	}
	lease.Annotations["kubejoin.io/requests"] = strings.Join(all, ",")
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitClaims(t, s, "the newest requests", func(cs []tokens.Claim) bool { return len(cs) == 1 && slices.Equal(cs[0].Requests, all[6997:]) })
	got, err := s.Update(t.Context(), "worker-1", func(c *tokens.Claim) error { c.NodeUID = strings.Repeat("n", 1000); return nil })
	if err != nil || !slices.Equal(got.Requests, all[6997:]) {
		t.Fatalf("Update gives requests %.200q, %v", got.Requests, err)
	}
	if lease, err = leases.Get(t.Context(), "worker-1", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := lease.Annotations["kubejoin.io/requests"]; got != strings.Join(all[6997:], ",") {
		t.Errorf("got %d bytes of requests, want the last three", len(got))
	}
}

// TestLeaseOfReplacedNode checks the annotations of a claim that replaces a Node. Their prefix is one that earlier
// versions of kubejoin ignore.
func TestLeaseOfReplacedNode(t *testing.T) {
	s, leases := openClaims(t, nil)
	c := claim("worker-1")
	c.ReadyBefore = "spell"
	if _, err := s.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(t.Context(), "worker-1", func(c *tokens.Claim) error { c.ReadyAgain = true; return nil }); err != nil {
		t.Fatal(err)
	}
	lease, err := leases.Get(t.Context(), "worker-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"replaced.kubejoin.io/ready-before": "spell", "replaced.kubejoin.io/ready-again": "true"} {
		if got := lease.Annotations[key]; got != want {
			t.Errorf("annotation %s is %q, want %q", key, got, want)
		}
	}
}

// An Update of a claim that this store has written, or has in its cache with an Identity, must send one PUT. It must
// read the Lease only if it has changed since. A renewal would otherwise cost two requests more, and not one.
func TestUpdateOfKnownClaimSendsOneRequest(t *testing.T) {
	c := cluster.Shared(t)
	var calls calledVerbs
	config := c.AdminConfig()
	config.Wrap(calls.wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, leases := openClaims(t, nil)
	list, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "namespace"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	open := func() *secretstore.Claims {
		s, err := secretstore.OpenClaims(t.Context(), client, nil, list.Namespace, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	const node = "worker-1"
	made, err := s.Create(t.Context(), claim(node))
	if err != nil {
		t.Fatal(err)
	}
	next := 0
	update := func(s *secretstore.Claims, what string, want ...string) {
		t.Helper()
		calls.reset()
		next++
		uid := fmt.Sprint("uid-", next)
		got, err := s.Update(t.Context(), node, func(c *tokens.Claim) error { c.NodeUID = uid; return nil })
		if err != nil || got.NodeUID != uid || got.Version == made.Version {
			t.Fatalf("%s: %+v, %v", what, got, err)
		}
		made = got
		if got := calls.about(node); !slices.Contains(want, got) {
			t.Errorf("%s: the update sent %s, want %s", what, got, want)
		}
	}
	// touch changes the Lease as another program does, and waits until s shows it.
	touch := func(s *secretstore.Claims) {
		t.Helper()
		lease, err := leases.Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lease.Annotations["example.com/a"] += "1"
		if lease, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		waitClaims(t, s, "the change", func([]tokens.Claim) bool {
			found, err := s.Find(t.Context(), node)
			return err == nil && found.Version == lease.ResourceVersion
		})
	}
	update(s, "after Create", "PUT")
	update(s, "after Update", "PUT")
	touch(s)
	update(s, "after a change by others", "GET PUT")
	if _, err := s.Update(t.Context(), node, func(c *tokens.Claim) error { c.Identity.Keys = []string{"sha256:1"}; return nil }); err != nil {
		t.Fatal(err)
	}
	touch(s)
	update(s, "after a change by others, with an Identity", "PUT")
	other := open()
	touch(other)
	update(other, "in another replica, with an Identity", "PUT")
	update(s, "after an update by another replica", "PUT", "PUT GET PUT") // the watch may not have delivered it yet
	if lease, err := leases.Get(t.Context(), node, metav1.GetOptions{}); err != nil || lease.Annotations["example.com/a"] != "111" {
		t.Errorf("got Lease %+v, %v, want the annotation of others in it", lease, err)
	}
}

// calledVerbs records the sent requests.
type calledVerbs struct {
	mu   sync.Mutex
	sent []*http.Request
	next http.RoundTripper
}

func (c *calledVerbs) wrap(next http.RoundTripper) http.RoundTripper { c.next = next; return c }

func (c *calledVerbs) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.sent = append(c.sent, r)
	c.mu.Unlock()
	return c.next.RoundTrip(r)
}

func (c *calledVerbs) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = nil
}

func (c *calledVerbs) about(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var verbs []string
	for _, r := range c.sent {
		if strings.HasSuffix(r.URL.Path, "/"+name) {
			verbs = append(verbs, r.Method)
		}
	}
	return strings.Join(verbs, " ")
}

// TestReleasedLease checks the format of a released claim, and of the next claim in the same Lease.
func TestReleasedLease(t *testing.T) {
	s, leases := openClaims(t, nil)
	c, err := s.Create(t.Context(), claim("worker-1"))
	if err != nil {
		t.Fatal(err)
	}
	edited := func(change func(*coordinationv1.Lease)) {
		t.Helper()
		lease, err := leases.Get(t.Context(), "worker-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(lease)
		if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	long := metav1.NewMicroTime(time.Now().Add(-time.Hour))
	edited(func(l *coordinationv1.Lease) { l.Spec.AcquireTime = &long })
	if c, err = s.Get(t.Context(), "worker-1"); err != nil || time.Since(c.Created) < 59*time.Minute {
		t.Fatalf("%+v %v, want a claim of an hour ago", c, err)
	}
	until := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := tokens.Release(t.Context(), s, c, tokens.ReleasedClaim{Until: until, CertificateDuration: 8 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	lease, err := leases.Get(t.Context(), "worker-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lease.Spec.HolderIdentity != nil {
		t.Errorf("got holder %q, want none", *lease.Spec.HolderIdentity)
	}
	// Earlier versions of kubejoin ignore a Lease without claim=true, and these annotations.
	past := map[string]string{"released.kubejoin.io/until": "2031-02-03T04:05:06Z", "released.kubejoin.io/certificate-duration": "8h0m0s"}
	wantMap(t, "labels", lease.Labels, map[string]string{"kubejoin.io/claim": "released"})
	wantMap(t, "annotations", lease.Annotations, past)

	again, err := s.Update(t.Context(), "worker-1", func(c *tokens.Claim) error { c.TokenID, c.TokenUID = "def456", "v"; return nil })
	if err != nil || time.Since(again.Created) > 5*time.Minute {
		t.Errorf("%+v %v, want a claim of now", again, err)
	}
	if lease, err = leases.Get(t.Context(), "worker-1", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	past["kubejoin.io/token-uid"] = "v"
	wantMap(t, "labels", lease.Labels, map[string]string{"kubejoin.io/claim": "true", "kubejoin.io/token-id": "def456"})
	wantMap(t, "annotations", lease.Annotations, past)

	// A malformed released claim keeps the name taken, like a malformed claim.
	for name, change := range map[string]func(*coordinationv1.Lease){
		"label":    func(l *coordinationv1.Lease) { l.Labels["kubejoin.io/claim"] = "released" },
		"until":    func(l *coordinationv1.Lease) { l.Annotations["released.kubejoin.io/until"] = "tomorrow" },
		"end":      func(l *coordinationv1.Lease) { delete(l.Annotations, "released.kubejoin.io/until") },
		"duration": func(l *coordinationv1.Lease) { l.Annotations["released.kubejoin.io/certificate-duration"] = "long" },
		"second":   func(l *coordinationv1.Lease) { l.Annotations["released.kubejoin.io/certificate-duration"] = "1s" },
	} {
		edited(change)
		if c, err := s.Get(t.Context(), "worker-1"); err == nil || errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("%s: %+v %v, want an error other than ErrNotFound", name, c, err)
		}
		edited(func(l *coordinationv1.Lease) { l.Labels, l.Annotations = lease.Labels, lease.Annotations })
	}
}

// A Lease that is not a claim, even one with the name of a node, must stay unchanged and unlisted.
func TestIgnoresOtherLease(t *testing.T) {
	s, leases := openClaims(t, nil)
	holder := "pod-1"
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "worker-2"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), claim("worker-1")); err != nil {
		t.Fatal(err)
	}
	waitClaims(t, s, "worker-1", func(all []tokens.Claim) bool { return len(all) == 1 && all[0].Node == "worker-1" })
	_, getErr := s.Get(t.Context(), "worker-2")
	_, findErr := s.Find(t.Context(), "worker-2")
	_, updateErr := s.Update(t.Context(), "worker-2", func(*tokens.Claim) error { return nil })
	for what, err := range map[string]error{"Get": getErr, "Find": findErr, "Update": updateErr} {
		if !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("%s = %v, want ErrNotFound", what, err)
		}
	}
	_, err = s.Create(t.Context(), claim("worker-2"))
	if !errors.Is(err, tokens.ErrExists) || !strings.Contains(err.Error(), "Lease "+lease.Namespace+"/worker-2") {
		t.Errorf("Create = %v, want ErrExists that names the Lease", err)
	}
	after, err := leases.Get(t.Context(), "worker-2", metav1.GetOptions{})
	if err != nil || after.ResourceVersion != lease.ResourceVersion {
		t.Errorf("got other Lease %+v, %v, want it unchanged", after, err)
	}
}

// A claim that someone edited to a malformed one must keep its name taken. Errors must say what is wrong.
func TestMalformedClaimKeepsName(t *testing.T) {
	var log logs.Buffer
	s, leases := openClaims(t, slog.New(slog.NewTextHandler(&log, nil)))
	for node, change := range map[string]func(*coordinationv1.Lease){
		"holder":   func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil },
		"max":      func(l *coordinationv1.Lease) { l.Annotations["kubejoin.io/max-nodes"] = "many" },
		"unknown":  func(l *coordinationv1.Lease) { l.Annotations["kubejoin.io/zone"] = "eu" },
		"keys":     func(l *coordinationv1.Lease) { l.Annotations["kubejoin.io/keys"] = "a,,b" },
		"requests": func(l *coordinationv1.Lease) { l.Annotations["kubejoin.io/requests"] = "a b" },
	} {
		if _, err := s.Create(t.Context(), claim(node)); err != nil {
			t.Fatal(err)
		}
		lease, err := leases.Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(lease)
		if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		waitClaims(t, s, "no malformed claim", func(all []tokens.Claim) bool {
			_, err := s.Find(t.Context(), node)
			return len(all) == 0 && !errors.Is(err, tokens.ErrNotFound)
		})
		_, getErr := s.Get(t.Context(), node)
		_, findErr := s.Find(t.Context(), node)
		_, updateErr := s.Update(t.Context(), node, func(*tokens.Claim) error { return nil })
		for what, err := range map[string]error{"Get": getErr, "Find": findErr, "Update": updateErr} {
			if err == nil || errors.Is(err, tokens.ErrNotFound) || !strings.Contains(err.Error(), "Lease "+lease.Namespace+"/"+node+" is ") {
				t.Errorf("%s of %s = %v, want an error other than ErrNotFound that names the Lease", what, node, err)
			}
		}
		_, err = s.Create(t.Context(), claim(node))
		if !errors.Is(err, tokens.ErrExists) {
			t.Errorf("Create of %s = %v, want ErrExists", node, err)
		}
	}
	if of, err := s.HeldBy(t.Context(), "abc123", tokens.Cached); err != nil || len(of) > 0 {
		t.Errorf("cached HeldBy = %+v, %v, want no malformed claim", of, err)
	}
	// HeldBy must fail, because without these claims the token could claim more names than its limit.
	if held, err := s.HeldBy(t.Context(), "abc123", tokens.Live); err == nil || errors.Is(err, tokens.ErrNotFound) || !strings.Contains(err.Error(), "/unknown is ") {
		t.Errorf("HeldBy = %+v, %v, want an error that names the malformed claim", held, err)
	}
	if held, err := s.HeldBy(t.Context(), "def456", tokens.Live); err != nil || len(held) > 0 {
		t.Errorf("HeldBy of another token = %+v, %v, want none", held, err)
	}
	// Make another change: the warning about the first one is logged shortly after List shows it.
	if _, err := s.Create(t.Context(), claim("worker-1")); err != nil {
		t.Fatal(err)
	}
	waitClaims(t, s, "worker-1", func(all []tokens.Claim) bool { return len(all) == 1 })
	for _, part := range []string{"/holder ", "/max ", "/unknown ", "/keys ", "/requests ", `max-nodes: \"many\" given, want 1 to 1000`} {
		if strings.Count(log.String(), part) != 1 {
			t.Errorf("got log without exactly one line with %q:\n%s", part, log.String())
		}
	}

	// A Lease that lost its label is not a claim, but still occupies the name.
	lease, err := leases.Get(t.Context(), "worker-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delete(lease.Labels, "kubejoin.io/claim")
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitClaims(t, s, "none", func(all []tokens.Claim) bool { return len(all) == 0 })
	if _, err := s.Find(t.Context(), "worker-1"); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("Find of a Lease without the label = %v, want ErrNotFound", err)
	}
	if _, err := s.Create(t.Context(), claim("worker-1")); !errors.Is(err, tokens.ErrExists) {
		t.Errorf("Create of a Lease without the label = %v, want ErrExists", err)
	}
}

// awaitForbidden calls read until its error has the reason why the cache is empty. The cache knows it after its first
// list.
func awaitForbidden(t *testing.T, read func(context.Context) error) {
	t.Helper()
	for deadline := time.Now().Add(lag); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err := read(ctx)
		cancel()
		if apierrors.IsForbidden(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s the error is %v, want the reason", lag, err)
		}
	}
}

// Without permission to list Leases, all methods that read the cache must return that error.
func TestClaimsReportForbiddenList(t *testing.T) {
	c := cluster.Shared(t)
	path, err := c.ServiceAccountKubeconfig(t.Context(), "default", "nobody")
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.Config(path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	storeCtx, end := context.WithCancel(t.Context())
	s, err := secretstore.OpenClaims(storeCtx, client, nil, "default", nil)
	if err != nil {
		t.Fatal(err)
	}
	read := func(ctx context.Context) map[string]error {
		_, findErr := s.Find(ctx, "worker-1")
		_, listErr := s.List(ctx)
		_, ofErr := s.HeldBy(ctx, "abc123", tokens.Cached)
		return map[string]error{"Find": findErr, "List": listErr, "cached HeldBy": ofErr}
	}
	awaitForbidden(t, func(ctx context.Context) error { _, err := s.List(ctx); return err })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for what, err := range read(ctx) {
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, tokens.ErrNotFound) || !apierrors.IsForbidden(err) {
			t.Errorf("%s = %v, want the error of the context and the reason", what, err)
		}
	}
	end()
	for what, err := range read(t.Context()) {
		if err == nil || !strings.Contains(err.Error(), "context of the watch has ended") {
			t.Errorf("%s after the context of the store ended = %v", what, err)
		}
	}
	if _, err := secretstore.OpenClaims(t.Context(), client, nil, "", nil); err == nil {
		t.Error("OpenClaims without a namespace succeeds")
	}
}

// If the namespace does not exist, Create must return the command that creates it. The error must not wrap
// ErrNotFound, which means that the name is free.
func TestReportsMissingNamespace(t *testing.T) {
	s, err := secretstore.OpenClaims(t.Context(), cluster.Shared(t).Client(), nil, "no-such-namespace", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, createErr := s.Create(t.Context(), claim("worker-7"))
	for what, err := range map[string]error{"Ready": s.Ready(t.Context()), "Create": createErr} {
		if !errors.Is(err, secretstore.ErrNoNamespace) || errors.Is(err, tokens.ErrNotFound) || !strings.Contains(err.Error(), "kubectl create namespace no-such-namespace") {
			t.Errorf("%s = %v, want ErrNoNamespace with the command", what, err)
		}
	}
	if createErr == nil || !strings.Contains(createErr.Error(), "worker-7") {
		t.Errorf("Create = %v, want the node name in it", createErr)
	}
	there, leases := openClaims(t, nil)
	if err := there.Ready(t.Context()); err != nil {
		t.Errorf("Ready = %v", err)
	}
	if list, err := leases.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("Ready left %d Leases, %v", len(list.Items), err)
	}
}
