package nodeproperties

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// A cluster is a fake one with the Node worker-1, created at created.
type cluster struct {
	*Setter
	client  *fake.Clientset
	may     bool
	created time.Time
	version string // of the claim of each Node
	recent  string // the version that only live reads have passed
}

func openCluster(t *testing.T, n *corev1.Node) *cluster {
	c := &cluster{may: true, version: "1", recent: "1", created: time.Now().Truncate(time.Second)}
	n.CreationTimestamp = metav1.NewTime(c.created)
	c.client = fake.NewClientset(n)
	claims := func(_ context.Context, node string, read tokens.Read) (tokens.Claim, error) {
		version := c.version
		if read != tokens.Live { // another replica has changed the claim within tokens.MaxAge
			version = c.recent
		}
		if version == "" {
			return tokens.Claim{}, tokens.ErrNotFound
		}
		return tokens.Claim{Node: node, Version: version}, nil
	}
	c.Setter = Open(t.Context(), c.client, kubefacts.OpenNodes(t.Context(), c.client), claims, func() bool { return c.may }, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	return c
}

// claim returns what the list of claims has for a Node.
func (c *cluster) claim(node string, want tokens.NodeProperties) tokens.Claim {
	return tokens.Claim{Node: node, TokenID: "abcdef", Version: "1", Created: c.created.Add(-time.Minute), Limits: tokens.Limits{Node: want}}
}

// set returns the requests for Nodes that Set sends, its results, and what the metric shows that the Node waits for.
func (c *cluster) set(t *testing.T, want tokens.NodeProperties) (calls string, done bool, waits string, err error) {
	t.Helper()
	synctest.Wait() // for the caches
	must.Value(c.Joining(t.Context()))(t)
	synctest.Wait() // for the watch of Nodes
	c.client.ClearActions()
	_, done, err = c.Set(t.Context(), c.claim("worker-1", want))
	synctest.Wait()
	for _, a := range c.client.Actions() {
		if a.GetResource().Resource == "nodes" {
			calls += a.GetVerb() + " "
		}
	}
	for _, reason := range []string{ForCertificate, ForConflict, ForPatch, ForRight} {
		if testutil.ToFloat64(c.waiting.WithLabelValues("worker-1", reason)) == float64(c.created.Unix()) {
			waits += reason
		}
	}
	return strings.TrimSpace(calls), done, waits, err
}

func (c *cluster) serve(t *testing.T, name, user string, approved time.Time, issued bool) {
	t.Helper()
	r := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(approved.Add(-time.Second))},
		Spec:       certificates.CertificateSigningRequestSpec{SignerName: certificates.KubeletServingSignerName, Username: user},
		Status:     certificates.CertificateSigningRequestStatus{Conditions: []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, LastUpdateTime: metav1.NewTime(approved)}}},
	}
	if issued {
		r.Status.Certificate = []byte("certificate")
	}
	must.Value(c.client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), r, metav1.CreateOptions{}))(t)
}

var waitsForCert = tokens.NodeProperties{Labels: "e=1", ReadyAfter: tokens.ReadyAfterServingCertificate}

// Catches a taint that goes before the serving certificate, or because of a certificate of another machine. Also catches reads
// of a Node that waits for it, and a wait for a certificate that is older than the Node, but not than its claim.
func TestSetWaitsForServingCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCluster(t, node(nil, joining, notReady))
		expect := func(when, wantCalls string, wantDone bool, wantWaits string) {
			t.Helper()
			if calls, done, waits, err := c.set(t, waitsForCert); calls != wantCalls || done != wantDone || waits != wantWaits || err != nil {
				t.Errorf("%s: got %q, %t, %q, %v, want %q, %t, %q", when, calls, done, waits, err, wantCalls, wantDone, wantWaits)
			}
		}
		expect("first", "", false, ForCertificate)
		c.serve(t, "other", tokens.NodeUserPrefix+"worker-2", c.created.Add(time.Minute), true)
		c.serve(t, "before", tokens.NodeUserPrefix+"worker-1", c.created.Add(-2*time.Minute), true)
		c.serve(t, "approved", tokens.NodeUserPrefix+"worker-1", c.created.Add(time.Minute), false)
		expect("other certificates", "", false, ForCertificate)
		hints := c.Watch(t.Context())
		<-hints
		c.serve(t, "issued", tokens.NodeUserPrefix+"worker-1", c.created.Add(-time.Minute), true)
		synctest.Wait()
		select {
		case <-hints:
		default:
			t.Error("no hint after the certificate")
		}
		expect("certificate", "get patch", true, "")
		n := must.Value(c.client.CoreV1().Nodes().Get(t.Context(), "worker-1", metav1.GetOptions{}))(t)
		if Joining(n) || n.Labels["e"] != "1" || len(n.Spec.Taints) != 1 {
			t.Errorf("got labels %v, taints %v, want label e and the taint not-ready", n.Labels, n.Spec.Taints)
		}
		expect("nothing missing", "get", true, "")
	})
}

// Catches a Node that is read again and again, and an error that a kubelet could cause at will: the loop would back off.
func TestSetWaitsWithPauses(t *testing.T) {
	other := func(_ *cluster, n *corev1.Node) { n.Labels = map[string]string{"e": "2"} }
	for name, test := range map[string]struct {
		change func(*cluster, *corev1.Node)
		mend   func(*cluster, *corev1.Node)
		waits  string
	}{
		"no taint of joining":  {func(c *cluster, n *corev1.Node) { other(c, n); n.Spec.Taints = nil }, func(_ *cluster, n *corev1.Node) { n.Labels = nil }, ForConflict},
		"label of the kubelet": {other, func(_ *cluster, n *corev1.Node) { n.Labels = nil }, ForConflict},
		"no right":             {func(c *cluster, _ *corev1.Node) { c.may = false }, func(c *cluster, _ *corev1.Node) { c.may = true; c.Permitted() }, ForRight},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := node(nil, joining)
			c := openCluster(t, n)
			apply := func(change func(*cluster, *corev1.Node)) {
				change(c, n)
				must.Value(c.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}))(t)
			}
			apply(test.change)
			want := tokens.NodeProperties{Labels: "e=1", ReadyAfter: tokens.ReadyAfterLabels}
			for i, wantCalls := range []string{"get", ""} {
				if calls, done, waits, err := c.set(t, want); calls != wantCalls || done || waits != test.waits || err != nil {
					t.Errorf("%s, call %d: got %q, %t, %q, %v, want %q and %s", name, i, calls, done, waits, err, wantCalls, test.waits)
				}
			}
			apply(test.mend)
			if test.waits != ForRight { // Permitted ends the pause
				time.Sleep(pause)
			}
			if calls, done, waits, err := c.set(t, want); calls != "get patch" || !done || waits != "" || err != nil {
				t.Errorf("%s, mended: got %q, %t, %q, %v", name, calls, done, waits, err)
			}
		})
	}
}

// Catches a Node that gets what another token's claim asked for, or that loses the taint of joining because of another claim: a
// machine of another token may register the Node before each read of it, also after a failed patch, and within [tokens.MaxAge]
// after another replica has changed the claim.
func TestSetReadsClaimAfterNode(t *testing.T) {
	for name, want := range map[string]tokens.NodeProperties{"with labels": {Labels: "e=1"}, "without": {}} {
		for at, changed := range []string{"2", ""} {
			synctest.Test(t, func(t *testing.T) {
				c := openCluster(t, node(nil, joining))
				gets := 0
				c.client.PrependReactor("get", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
					if gets == at { // another machine registers
						c.version = changed
					}
					gets++
					return false, nil, nil
				})
				c.client.PrependReactor("patch", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewConflict(corev1.Resource("nodes"), "worker-1", errors.New("other UID"))
				})
				wantCalls := strings.Repeat("get patch ", at) + "get"
				if calls, done, waits, err := c.set(t, want); calls != wantCalls || done || waits != "" || err != nil {
					t.Errorf("%s, claim changes to version %q: got %q, %t, %q, %v, want %q", name, changed, calls, done, waits, err, wantCalls)
				}
			})
		}
	}
}

// Catches an alert about a Node that is older than the token that replaces it.
func TestReplacedNodeWaitsSinceItsClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCluster(t, node(map[string]string{"e": "2"}))
		claim := c.claim("worker-1", tokens.NodeProperties{Labels: "e=1"})
		claim.Created = c.created.Add(time.Hour)
		if _, done, err := c.Set(t.Context(), claim); done || err != nil {
			t.Fatalf("got %t, %v, want a Node that waits", done, err)
		}
		if got := testutil.ToFloat64(c.waiting.WithLabelValues("worker-1", ForConflict)); got != float64(claim.Created.Unix()) {
			t.Errorf("the Node waits since %v, want %d", got, claim.Created.Unix())
		}
	})
}

// Others change the taints of a Node that joins, at any time. Catches a Node that then waits for a backoff, and a patch without end.
func TestSetRetriesPatch(t *testing.T) {
	invalid := apierrors.NewGenericServerResponse(422, "patch", corev1.Resource("nodes"), "worker-1", "testing path /spec/taints", 0, true)
	for name, test := range map[string]struct {
		errs  []error // of the patches
		calls string
		want  error
	}{
		"taints changed once":   {[]error{invalid}, "get patch get patch", nil},
		"taints change forever": {[]error{invalid, invalid, invalid}, "get patch get patch get patch", invalid},
		"forbidden":             {[]error{apierrors.NewForbidden(corev1.Resource("nodes"), "worker-1", nil)}, "get patch", apierrors.NewForbidden(corev1.Resource("nodes"), "worker-1", nil)},
		"deleted":               {[]error{apierrors.NewNotFound(corev1.Resource("nodes"), "worker-1")}, "get patch", tokens.ErrNotFound},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := openCluster(t, node(nil, joining))
			errs := slices.Clone(test.errs)
			c.client.PrependReactor("patch", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
				if len(errs) == 0 {
					return false, nil, nil
				}
				err := errs[0]
				errs = errs[1:]
				return true, nil, err
			})
			calls, done, _, err := c.set(t, tokens.NodeProperties{Labels: "e=1"})
			if calls != test.calls || done != (test.want == nil) || (err == nil) != (test.want == nil) || test.want == tokens.ErrNotFound && !errors.Is(err, test.want) {
				t.Errorf("%s: got %q, %t, %v, want %q, %v", name, calls, done, err, test.calls, test.want)
			}
		})
	}
}

// A kubelet can fill its Node with labels until etcd accepts no more. Catches a Node whose patch fails each time, so that the
// loop backs off and other Nodes wait longer.
func TestRepeatedFailureIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCluster(t, node(nil, joining))
		c.client.PrependReactor("patch", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(errors.New("etcdserver: request is too large"))
		})
		for i, wantCalls := range []string{"get patch", "get patch", "", ""} {
			calls, done, waits, err := c.set(t, tokens.NodeProperties{Labels: "e=1"})
			if calls != wantCalls || done || waits != ForPatch || (err != nil) != (i == 0) {
				t.Errorf("call %d: got %q, %t, %q, %v, want %q, and an error of the first call only", i, calls, done, waits, err, wantCalls)
			}
		}
		time.Sleep(pause)
		if calls, _, _, err := c.set(t, tokens.NodeProperties{Labels: "e=1"}); calls != "get patch" || err != nil {
			t.Errorf("after the pause: got %q, %v", calls, err)
		}
	})
}

// Catches Nodes that wait for a minute with their taint because the API server refused patches for two seconds, for example while
// etcd elected a leader.
func TestNodeIsPatchedSoonAfterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCluster(t, node(nil, joining))
		end := time.Now().Add(2 * time.Second)
		c.client.PrependReactor("patch", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
			return time.Now().Before(end), nil, apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
		})
		hints := c.Watch(t.Context())
		for {
			_, done, _, err := c.set(t, tokens.NodeProperties{Labels: "e=1"})
			if done {
				break
			}
			wait := time.Minute
			if err != nil {
				wait = 200 * time.Millisecond // as loop.Loop
			}
			select {
			case <-hints:
			case <-time.After(wait):
			}
		}
		if late := time.Since(end); late > 5*time.Second {
			t.Errorf("the Node was patched %s after the outage", late)
		}
	})
}

// The metric names Nodes. Catches one that grows without limit, that names a Node that is gone, or that Nodes without the taint
// of joining fill up.
func TestMetricNamesFewWaitingNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := openCluster(t, node(nil, joining))
		for i := range 2 * named {
			for prefix, n := range map[string]*corev1.Node{"other-": node(nil, joining), "conflict-": node(map[string]string{"e": "2"})} {
				n.Name = prefix + string(rune('a'+i))
				must.Value(c.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}))(t)
			}
		}
		set := func(names []string) {
			t.Helper()
			for _, name := range names {
				if _, done, err := c.Set(t.Context(), c.claim(name, waitsForCert)); done || err != nil {
					t.Errorf("%s: %t, %v", name, done, err)
				}
			}
		}
		expect := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			must.Value(c.Joining(t.Context()))(t)
			if n := testutil.CollectAndCount(c.waiting); n != want {
				t.Errorf("%s: got %d waiting Nodes, want %d", when, n, want)
			}
		}
		for i := range 2 * named {
			set([]string{"conflict-" + string(rune('a'+i))})
		}
		expect("conflicts", named)
		tainted := must.Value(c.Joining(t.Context()))(t)
		set(tainted)
		expect("with the taint", 2*named)
		must.OK(t, c.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "other-a"))
		expect("after a deletion", 2*named-1)
		set(tainted[2:])
		expect("the next one", 2*named)
		time.Sleep(pause + kept + time.Second)
		expect("conflicts that are gone", named)
	})
}
