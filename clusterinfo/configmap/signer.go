package configmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

const (
	// gap collects a burst of new tokens into one write. A write itself takes a few milliseconds.
	gap = 5 * time.Millisecond
	// gapOfEach is added to the gap between writes for each signature. A write contains all signatures, and
	// takes a tenth of a second with ten thousand signatures.
	gapOfEach = 70 * time.Microsecond
	// stepTimeout limits the time of a step.
	stepTimeout = 30 * time.Second
	// maxConflicts is how often one step starts over before it backs off.
	maxConflicts = 10
)

// A Signer keeps cluster-info signed by exactly the live tokens of a store. It creates cluster-info if it does
// not exist. One Signer should run in a cluster. Additional Signers do no harm, and kube-controller-manager's
// bootstrap signer does none either.
//
// In namespace kube-public the client needs get, list, watch and update on ConfigMap cluster-info, and
// create on configmaps to create it. A Signer does not make cluster-info public: see [PublicRole].
type Signer struct {
	ConfigMap *ConfigMap
	Tokens    tokens.Store
	// Default is the kubeconfig to use if cluster-info does not exist or has no kubeconfig. Without Default,
	// Run fails to sign until another program adds a kubeconfig.
	Default []byte
	// Server, if set, is the URL that the kubeconfig must have. A kubeconfig with another URL is
	// replaced by one with the same CAs, and all signatures are computed again. If Server is empty, the
	// kubeconfig stays byte for byte.
	Server string
	// Follow updates the CAs in cluster-info during a CA rotation; nil does not change them. The kubeconfig and all
	// signatures change in one write.
	Follow *Follower
	// Spent finds the tokens whose signatures are not needed any more. With nil, all live tokens sign.
	Spent *clusterinfo.Spent

	// Logger logs changes and failures; nil disables logging.
	Logger *slog.Logger
	// Registerer registers kubejoin_clusterinfo_writes_total, kubejoin_clusterinfo_signatures,
	// kubejoin_clusterinfo_unsigned_tokens, kubejoin_clusterinfo_bytes and the loop's metrics with
	// loop="bootstrap-signer"; nil disables them.
	Registerer prometheus.Registerer
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Run signs until ctx ends, and then returns nil. It returns an error at once for a Server that
// [clusterinfo.Endpoint] refuses. It reacts to hints from the store and the ConfigMap, and
// removes a signature when its token expires.
func (s Signer) Run(ctx context.Context) error {
	if s.Server != "" {
		if _, err := clusterinfo.Endpoint(s.Server); err != nil {
			return fmt.Errorf("cluster-info: server: %w", err)
		}
	}
	run := s.start()
	return loop.Loop{
		Name:       "bootstrap-signer",
		Step:       run.step,
		Hint:       loop.Either(ctx, s.Tokens.Watch(ctx), s.ConfigMap.Watch(ctx), s.Follow.watch(ctx)),
		Gap:        gap,
		Logger:     run.Logger,
		Registerer: s.Registerer,
	}.Run(ctx)
}

func (s Signer) start() *signing {
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &signing{
		Signer:     s,
		limit:      clusterinfo.MaxData,
		writes:     metrics.Counter(s.Registerer, "kubejoin_clusterinfo_writes_total", "Writes of cluster-info, by result.", "result"),
		signatures: metrics.Gauge(s.Registerer, "kubejoin_clusterinfo_signatures", "Signatures in cluster-info.").WithLabelValues(),
		unsigned:   metrics.Gauge(s.Registerer, "kubejoin_clusterinfo_unsigned_tokens", "Tokens without a signature because cluster-info is full.").WithLabelValues(),
		bytes:      metrics.Gauge(s.Registerer, "kubejoin_clusterinfo_bytes", "Size of all values in cluster-info in bytes; the maximum is 1 MiB.").WithLabelValues(),
	}
}

// signing is the state of a running Signer.
type signing struct {
	Signer
	document clusterinfo.Document
	// written is the object that the last write or live read returned: the watch may lag behind it.
	written *corev1.ConfigMap
	// live makes the next step read the object from the API server, because the watch lags.
	live bool
	// limit is the maximum sum of values for a write, in bytes. After etcd has rejected a write as too large,
	// limit is below the limit of a ConfigMap.
	limit   int
	leftOut int
	signed  int // signatures in cluster-info
	// lastWrite is when the last write ended. After a write that did not wait for the gap, it is the end of
	// that gap.
	lastWrite time.Time
	// late are the IDs of existing tokens that were not in the list of the last step.
	late map[string]bool
	// retired are the tokens that Spent has found. removed are the retired tokens whose signatures the last step
	// has removed.
	retired clusterinfo.Retired
	removed removed
	// done is the last step that left nothing to do.
	done settled
	// checkedKubeconfig is the last kubeconfig that was checked for joining nodes.
	checkedKubeconfig string
	// followed is the stage of a rotation whose CAs were in cluster-info at the last step; empty if there was none.
	followed string

	writes                      *prometheus.CounterVec
	signatures, unsigned, bytes prometheus.Gauge
}

func (s *signing) step(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for conflicts := 0; conflicts < maxConflicts; {
		next, err := s.sign(ctx)
		switch {
		case errors.Is(err, errEarly):
			// Wait only half of the gap, because a signature may have to be removed earlier.
			select {
			case <-ctx.Done():
				return time.Time{}, fmt.Errorf("wait for the next write of cluster-info: %w", ctx.Err())
			case <-time.After(min(time.Until(next), writeGap(s.signed)/2)):
			}
		case errors.Is(err, errStartOver):
			conflicts++
			s.live = true
		default:
			return next, err
		}
	}
	return time.Time{}, fmt.Errorf("cluster-info: %d writes in a row conflicted", maxConflicts)
}

// errEarly means that a write is not due yet.
var errEarly = errors.New("write of cluster-info is not due yet")

// notBefore returns when the next write is due. A write that only adds signatures waits for the gap after the
// last write. Any other write is due at once: a revoked token must not keep its signature for long.
func notBefore(last time.Time, signatures int, onlyAdds bool) time.Time {
	if !onlyAdds {
		return last
	}
	return last.Add(writeGap(signatures))
}

func writeGap(signatures int) time.Duration { return gap + time.Duration(signatures)*gapOfEach }

// onlyAdds reports whether all existing entries of cluster-info stay unchanged.
func onlyAdds(current, next map[string]string) bool {
	for key, value := range current {
		if next[key] != value {
			return false
		}
	}
	return current[clusterinfo.KubeconfigKey] == next[clusterinfo.KubeconfigKey]
}

// sign reads, computes and, if there is a difference, writes. With errEarly, next is when the write is due.
func (s *signing) sign(ctx context.Context) (next time.Time, err error) {
	listed, err := s.list(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("cluster-info: list tokens: %w", err)
	}
	retireErr := s.retire(ctx, listed)
	current, err := s.current(ctx)
	if err != nil {
		return time.Time{}, err
	}
	var data map[string]string
	space := s.limit
	if current != nil {
		data = current.Data
		for _, value := range current.BinaryData {
			space -= len(value)
		}
	}
	// Do the other parts first, then return the error of this part.
	followed, kubeconfigErr := s.kubeconfig(data)
	kubeconfig := followed.kubeconfig
	if len(kubeconfig) == 0 {
		return time.Time{}, kubeconfigErr
	}
	if kubeconfigErr == nil && retireErr == nil && current != nil && s.done.still(current.ResourceVersion, string(kubeconfig), listed, s.Now()) {
		s.corrected(followed)
		return s.done.until, nil
	}
	s.done = settled{}
	if s.checkedKubeconfig != string(kubeconfig) {
		s.checkedKubeconfig = string(kubeconfig)
		if _, _, err := clusterinfo.ParseKubeconfig(kubeconfig); err != nil && kubeconfigErr == nil {
			s.Logger.Warn("kubeconfig in cluster-info is malformed, nodes cannot join with it", "error", err)
		}
	}
	records, retired := s.signers(listed)
	if records, err = s.confirmed(ctx, records, data); err != nil {
		return time.Time{}, err
	}
	document, documentErr := s.document.Update(kubeconfig, records, s.Now())
	merged := document.Merge(data, max(space, 1))
	if merged.Changed {
		if due := notBefore(s.lastWrite, s.signed, onlyAdds(data, merged.Data)); time.Now().Before(due) {
			return due, errEarly // s.document stays: confirmed must not look up tokens that were removed since
		}
	}
	s.document = document
	if merged.Changed {
		if err := s.write(ctx, current, merged); err != nil {
			return time.Time{}, err
		}
	}
	s.corrected(followed)
	s.report(merged)
	s.removed = retired
	if kubeconfigErr == nil && documentErr == nil && !merged.Changed && len(s.late) == 0 {
		s.done = settled{current.ResourceVersion, string(kubeconfig), listed, document.Next(), retired}
	}
	return document.Next(), errors.Join(kubeconfigErr, documentErr, retireErr)
}

// current returns the newest known cluster-info; nil if there is none.
func (s *signing) current(ctx context.Context) (*corev1.ConfigMap, error) {
	now, err := s.ConfigMap.read(ctx)
	if err != nil && !errors.Is(err, clusterinfo.ErrNotFound) {
		return nil, err
	}
	seen := now.object
	// Confirm with the API server that there is no cluster-info: the watch may lag.
	if s.live || seen == nil {
		seen, err = s.ConfigMap.client.CoreV1().ConfigMaps(clusterinfo.Namespace).Get(ctx, clusterinfo.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			seen, err = nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cluster-info: %w", err)
		}
		s.live, s.written = false, seen
		return seen, nil
	}
	if s.written != nil {
		// Resource versions of the same resource are comparable (KEP-5504).
		if order, err := resourceversion.CompareResourceVersion(s.written.ResourceVersion, seen.ResourceVersion); err == nil && order > 0 {
			return s.written, nil
		}
	}
	return seen, nil
}

// kubeconfig returns the kubeconfig to sign. With an error, the kubeconfig is still usable, but Server or the
// CAs could not be set in it.
func (s *signing) kubeconfig(data map[string]string) (followed, error) {
	kubeconfig := []byte(data[clusterinfo.KubeconfigKey])
	if len(kubeconfig) == 0 {
		kubeconfig = s.Default
	}
	if len(kubeconfig) == 0 {
		return followed{}, fmt.Errorf("ConfigMap %s/%s: %w: name the API server so that kubejoin can create it, or run 'kubeadm init phase bootstrap-token'",
			clusterinfo.Namespace, clusterinfo.Name, clusterinfo.ErrNoKubeconfig)
	}
	if s.Server != "" {
		renamed, err := clusterinfo.WithServer(kubeconfig, s.Server)
		if err != nil {
			return followed{kubeconfig: kubeconfig}, fmt.Errorf("cluster-info is signed unchanged, without server %q: %w", s.Server, err)
		}
		kubeconfig = renamed
	}
	now, err := s.Follow.follow(kubeconfig)
	if err != nil {
		err = fmt.Errorf("cluster-info keeps its CAs and does not follow the CA rotation: %w", err)
	}
	return now, err
}

func (s *signing) report(m clusterinfo.Merged) {
	s.signed = m.Signed
	s.signatures.Set(float64(m.Signed))
	s.bytes.Set(float64(m.Bytes))
	s.unsigned.Set(float64(len(m.LeftOut)))
	if len(m.LeftOut) == 0 {
		s.limit = clusterinfo.MaxData
	}
	s.ConfigMap.setLimit(s.limit)
	if n := len(m.LeftOut); n != s.leftOut {
		s.leftOut = n
		if n > 0 {
			s.Logger.Warn("cluster-info is full, newest tokens stay unsigned until others expire or are deleted",
				"unsigned_tokens", n, "signatures", m.Signed, "bytes", m.Bytes)
		} else {
			s.Logger.Info("cluster-info has space for all signatures again", "signatures", m.Signed)
		}
	}
}
