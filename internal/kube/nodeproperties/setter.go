package nodeproperties

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// attempts limits how often a patch is tried at once. Others change the taints of a Node that joins, so that it fails.
	attempts = 3
	// pause is how long a Node is not read again after a conflict, without the right to patch it, and at most after failures.
	pause = 30 * time.Second
	// named limits how many waiting Nodes the metric names, with the taint of joining and without it.
	named = 20
	// kept is how long the metric names a Node without the taint after the last look at it. A sweep looks each minute.
	kept = 5 * time.Minute
)

// A Setter gives Nodes what their tokens ask for. It is the [cleaner.Properties] of a cluster.
type Setter struct {
	client  kubernetes.Interface
	nodes   *kubefacts.NodeCache
	claims  func(ctx context.Context, node string, read tokens.Read) (tokens.Claim, error)
	may     func() bool
	log     *slog.Logger
	waiting *prometheus.GaugeVec
	// served has the requests for serving certificates. It begins to watch when the first Node waits for one.
	served func() *kubecache.Cache[*certificates.CertificateSigningRequest, serving]
	hints  tokens.Hints

	mu      sync.Mutex
	joining map[string]kubefacts.Registration // the Nodes with JoiningTaint
	waits   map[string]wait                   // by Node
}

// A wait is a Node that waits.
type wait struct {
	Waits
	paused  time.Time     // Set does not read the Node before this time
	failing time.Duration // the last pause after a repeated failure; the next one is twice as long
	tainted bool          // it has JoiningTaint
	named   bool          // the metric names it
}

// A serving is a request for a serving certificate.
type serving struct {
	user   string
	issued time.Time // zero if it was not issued
}

// Open returns a Setter. watch is the context of its watch of certificate requests. client patches Nodes, claims is
// [tokens.Claims.Get], and may reports whether kubejoin may patch Nodes. The client needs get and patch on nodes, and list
// and watch on certificatesigningrequests.
func Open(watch context.Context, client kubernetes.Interface, nodes *kubefacts.NodeCache,
	claims func(context.Context, string, tokens.Read) (tokens.Claim, error), may func() bool, log *slog.Logger, registry prometheus.Registerer) *Setter {
	s := &Setter{client: client, nodes: nodes, claims: claims, may: may, log: log, waits: map[string]wait{}}
	s.waiting = metrics.Gauge(registry, "kubejoin_node_waits_since_timestamp_seconds",
		"Since when a Node waits for what its token asks for, in Unix seconds, by what it waits for; at most 20 Nodes with the taint kubejoin.io/joining, and 20 without.", "node", "waits_for")
	s.served = sync.OnceValue(func() *kubecache.Cache[*certificates.CertificateSigningRequest, serving] {
		return kubecache.Open(watch, client, client.CertificatesV1().CertificateSigningRequests(), "spec.signerName="+certificates.KubeletServingSignerName, kubecache.Config[*certificates.CertificateSigningRequest, serving]{
			What: "serving certificates",
			Decode: func(r *certificates.CertificateSigningRequest) (serving, error) {
				return serving{r.Spec.Username, Issued(r)}, nil
			},
			Groups: func(r serving) []string { return []string{r.user} },
			Changed: func(_ string, r serving, _ error) {
				if !r.issued.IsZero() {
					s.hints.Send()
				}
			},
		})
	})
	return s
}

// Issued returns when a request for the serving certificate of a kubelet was approved, if its certificate was issued. Otherwise
// it returns the zero time.
func Issued(r *certificates.CertificateSigningRequest) time.Time {
	if r.Spec.SignerName != certificates.KubeletServingSignerName || len(r.Status.Certificate) == 0 {
		return time.Time{}
	}
	at := r.CreationTimestamp.Time
	for _, c := range r.Status.Conditions {
		if c.Type == certificates.CertificateApproved && c.LastUpdateTime.After(at) {
			at = c.LastUpdateTime.Time
		}
	}
	return at
}

// Serves reports whether a request gave the kubelet of a Node a serving certificate at or after a time.
func Serves(r *certificates.CertificateSigningRequest, node string, since time.Time) bool {
	at := Issued(r)
	return r.Spec.Username == tokens.NodeUserPrefix+node && !at.IsZero() && !at.Before(since)
}

// Watch sends a hint when a kubelet has got a serving certificate, if a Node waits for one, and after [Setter.Permitted].
func (s *Setter) Watch(ctx context.Context) <-chan struct{} { return s.hints.Watch(ctx) }

// Permitted ends the pauses of the Nodes that wait until kubejoin may patch them.
func (s *Setter) Permitted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, w := range s.waits {
		if w.For == ForRight {
			w.paused = time.Time{}
			s.waits[name] = w
		}
	}
	s.hints.Send()
}

// Joining returns the names of the Nodes with [tokens.JoiningTaint], from a cache that may lag.
func (s *Setter) Joining(ctx context.Context) ([]string, error) {
	joining, err := s.nodes.Joining(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joining = joining
	maps.DeleteFunc(s.waits, func(name string, w wait) bool {
		_, tainted := joining[name]
		ended := !tainted && (w.tainted || time.Now().After(w.paused.Add(kept)))
		if ended {
			s.waiting.DeletePartialMatch(prometheus.Labels{"node": name})
		}
		return ended
	})
	return slices.Sorted(maps.Keys(joining)), nil
}

// Set implements [cleaner.Properties]. While the Node waits, Set adds only what [Plan] allows. Another machine can register the
// Node only after the claim has changed. So Set reads the claim after the Node, and the patch is for the UID that Set has read.
func (s *Setter) Set(ctx context.Context, claim tokens.Claim) (uid string, done bool, err error) {
	name, want := claim.Node, claim.Remaining().Node
	s.mu.Lock()
	cached, tainted := s.joining[name]
	paused := s.waits[name].paused
	s.mu.Unlock()
	if time.Now().Before(paused) {
		return "", false, nil
	}
	served := tainted && want.ReadyAfter == tokens.ReadyAfterServingCertificate && s.isServed(name, claim.Created)
	if tainted && want.ReadyAfter == tokens.ReadyAfterServingCertificate && !served { // the Node need not be read
		s.wait(name, Since(cached.Created, claim), waitsForCertificate)
		return "", false, nil
	}
	for attempt := 1; ; attempt++ {
		node, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", false, nodeError(name, err)
		}
		now, err := s.claims(ctx, name, tokens.Live) // another replica may just have changed it
		if err != nil && !errors.Is(err, tokens.ErrNotFound) {
			return "", false, err
		}
		if now.Version != claim.Version {
			return "", false, nil
		}
		patch, waits := Plan(node, want, served && string(node.UID) == cached.UID)
		if patch != nil && !s.may() {
			patch, waits = nil, WaitsForRight
		}
		if patch != nil {
			_, err = s.client.CoreV1().Nodes().Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: tokens.OwnName})
		}
		switch {
		case attempt < attempts && (apierrors.IsInvalid(err) || apierrors.IsConflict(err)): // perhaps its taints have changed
		case apierrors.IsNotFound(err):
			return "", false, nodeError(name, err)
		case err != nil: // only the first failure is an error: a kubelet can make its Node too large for a patch
			if s.wait(name, Since(node.CreationTimestamp.Time, claim), Waits{ForPatch, "the API server accepts the patch: " + err.Error()}) {
				return "", false, nil
			}
			return "", false, nodeError(name, err)
		case waits != (Waits{}):
			s.wait(name, Since(node.CreationTimestamp.Time, claim), waits)
			return "", false, nil
		default:
			s.mu.Lock()
			delete(s.waits, name)
			s.waiting.DeletePartialMatch(prometheus.Labels{"node": name})
			s.mu.Unlock()
			if patch != nil {
				s.log.Info("node has what its token asks for", "node", name, "labels", want.Labels, "taints", want.Taints)
			}
			return string(node.UID), true, nil
		}
	}
}

func nodeError(name string, err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("node %s: %w", name, tokens.ErrNotFound)
	}
	return fmt.Errorf("properties of node %s: %w", name, err)
}

// Since returns when a Node that was created at a time began to wait. A Node that is replaced is older than its claim.
func Since(created time.Time, claim tokens.Claim) time.Time {
	if claim.Created.After(created) {
		return claim.Created
	}
	return created
}

// wait records that a Node waits, and reports whether it waited for the same before.
func (s *Setter) wait(name string, since time.Time, w Waits) (again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.waits[name]
	now := wait{Waits: w, paused: time.Now()}
	again = before.For == w.For
	switch {
	case w.For == ForConflict, w.For == ForRight:
		now.paused = now.paused.Add(pause)
	case w.For == ForPatch && again: // perhaps for seconds only, while etcd elects a leader
		now.failing = min(max(2*before.failing, time.Second), pause)
		now.paused = now.paused.Add(now.failing)
		time.AfterFunc(now.failing, s.hints.Send)
	}
	_, now.tainted = s.joining[name]
	delete(s.waits, name)
	others := 0
	for _, other := range s.waits {
		if other.named && other.tainted == now.tainted {
			others++
		}
	}
	now.named = others < named
	s.waits[name] = now
	if !again {
		s.log.Info("node waits", "node", name, "until", w.Text)
	}
	if !again || !now.named {
		s.waiting.DeletePartialMatch(prometheus.Labels{"node": name})
	}
	if now.named {
		s.waiting.WithLabelValues(name, w.For).Set(float64(since.Unix()))
	}
	return again
}

// isServed reports whether the kubelet of a Node got a serving certificate after its claim was created: the certificate is older
// than a Node that was created again. It does not wait until the cache is filled: a hint follows.
func (s *Setter) isServed(name string, claimed time.Time) bool {
	requests := s.served()
	if _, filled := requests.Len(); !filled {
		return false
	}
	all, _ := requests.Grouped(context.Background(), tokens.NodeUserPrefix+name)
	return slices.ContainsFunc(all, func(r serving) bool { return !r.issued.IsZero() && !r.issued.Before(claimed) })
}
