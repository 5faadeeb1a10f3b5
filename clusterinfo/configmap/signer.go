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
	// gap is what a burst of new tokens has to gather in one write. A write takes a few
	// milliseconds by itself.
	gap = 5 * time.Millisecond
	// gapOfEach is what the gap is longer by for each signature: a write carries all of them,
	// and takes a tenth of a second with ten thousand.
	gapOfEach = 30 * time.Microsecond
	// stepTimeout ends a step that the API server does not answer.
	stepTimeout = 30 * time.Second
	// conflicts is how often one step starts over before it backs off.
	maxConflicts = 10
)

// A Signer keeps cluster-info signed by the live tokens of a store, and nobody else's
// signatures in it. It creates cluster-info where there is none. One at a time should run in a
// cluster; more do no harm, nor does kube-controller-manager's bootstrap signer beside it.
//
// In namespace kube-public the client needs get, list, watch and update on ConfigMap
// cluster-info, and create on configmaps to create it. A Signer does not make cluster-info public:
// see [PublicRole].
type Signer struct {
	ConfigMap *ConfigMap
	Tokens    tokens.Store
	// Default is the kubeconfig of a cluster-info that does not exist or holds none. Without
	// it there is an error until somebody else has made one.
	Default []byte
	// Server is the https URL that the kubeconfig is to name. One that names another is
	// written anew, with the same CAs, together with all its signatures. Empty keeps the
	// kubeconfig that is there, byte for byte.
	Server string

	// Logger is told of changes and failures; nil is nobody.
	Logger *slog.Logger
	// Registerer has kubejoin_clusterinfo_writes_total, kubejoin_clusterinfo_signatures,
	// kubejoin_clusterinfo_unsigned_tokens, kubejoin_clusterinfo_bytes and the loop's metrics
	// as loop="bootstrap-signer"; nil counts nothing.
	Registerer prometheus.Registerer
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Run signs until ctx ends, and returns nil then. It answers hints of the store and of the
// ConfigMap, and takes a signature away at the moment that its token expires.
func (s Signer) Run(ctx context.Context) error {
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	run := &signing{
		Signer:     s,
		limit:      clusterinfo.MaxData,
		writes:     metrics.Counter(s.Registerer, "kubejoin_clusterinfo_writes_total", "Writes of cluster-info, by result.", "result"),
		signatures: metrics.Gauge(s.Registerer, "kubejoin_clusterinfo_signatures", "Signatures in cluster-info.").WithLabelValues(),
		unsigned:   metrics.Gauge(s.Registerer, "kubejoin_clusterinfo_unsigned_tokens", "Live tokens whose signature does not fit into cluster-info.").WithLabelValues(),
		bytes:      metrics.Gauge(s.Registerer, "kubejoin_clusterinfo_bytes", "Sum of the values in cluster-info, of which 1 MiB is allowed.").WithLabelValues(),
	}
	return loop.Loop{
		Name:       "bootstrap-signer",
		Step:       run.step,
		Hint:       loop.Either(ctx, s.Tokens.Watch(ctx), s.ConfigMap.Watch(ctx)),
		Gap:        gap,
		MoreGap:    func() time.Duration { return time.Duration(run.signed) * gapOfEach },
		Logger:     s.Logger,
		Registerer: s.Registerer,
	}.Run(ctx)
}

// signing is what a running Signer remembers.
type signing struct {
	Signer
	document clusterinfo.Document
	// written is the object as the last write or live read gave it: the watch may lag behind.
	written *corev1.ConfigMap
	// live asks for the object itself, because the watch has shown to lag.
	live bool
	// limit is the most bytes of values that are tried: less than a ConfigMap may have once
	// etcd has refused as much.
	limit   int
	leftOut int
	signed  int // signatures in cluster-info
	// late are the IDs of tokens that exist and were not in the list of the last step.
	late map[string]bool
	// looked is the kubeconfig that was looked at last for being of use.
	checkedKubeconfig string

	writes                      *prometheus.CounterVec
	signatures, unsigned, bytes prometheus.Gauge
}

func (s *signing) step(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for range maxConflicts {
		next, err := s.sign(ctx)
		if !errors.Is(err, errStartOver) {
			return next, err
		}
		s.live = true
	}
	return time.Time{}, fmt.Errorf("cluster-info: %d writes in a row came too late", maxConflicts)
}

// sign reads, computes and, if there is a difference, writes.
func (s *signing) sign(ctx context.Context) (next time.Time, err error) {
	records, err := s.Tokens.List(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("cluster-info: listing tokens: %w", err)
	}
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
	// An error that concerns one part is told after the other parts are done.
	kubeconfig, kubeconfigErr := s.kubeconfig(data)
	if len(kubeconfig) == 0 {
		return time.Time{}, kubeconfigErr
	}
	if s.checkedKubeconfig != string(kubeconfig) {
		s.checkedKubeconfig = string(kubeconfig)
		if _, _, err := clusterinfo.ParseKubeconfig(kubeconfig); err != nil && kubeconfigErr == nil {
			s.Logger.Warn("cluster-info is signed as it is, and of no use to joining nodes", "error", err)
		}
	}
	if records, err = s.confirmed(ctx, records, data); err != nil {
		return time.Time{}, err
	}
	document, documentErr := s.document.Update(kubeconfig, records, s.Now())
	s.document = document
	merged := document.Merge(data, max(space, 1))
	if merged.Changed {
		if err := s.write(ctx, current, merged); err != nil {
			return time.Time{}, err
		}
	}
	s.report(merged)
	return document.Next(), errors.Join(kubeconfigErr, documentErr)
}

// current is the newest cluster-info that is known; nil if there is none.
func (s *signing) current(ctx context.Context) (*corev1.ConfigMap, error) {
	seen, err := s.ConfigMap.read(ctx)
	if err != nil {
		return nil, err
	}
	// That there is none is too far-reaching to be taken from a watch that may lag.
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
		// Versions of one resource can be compared (KEP-5504).
		if order, err := resourceversion.CompareResourceVersion(s.written.ResourceVersion, seen.ResourceVersion); err == nil && order > 0 {
			return s.written, nil
		}
	}
	return seen, nil
}

// kubeconfig is what is to be signed. With an error beside it there was a wish that cannot be
// met.
func (s *signing) kubeconfig(data map[string]string) ([]byte, error) {
	kubeconfig := []byte(data[clusterinfo.KubeconfigKey])
	if len(kubeconfig) == 0 {
		kubeconfig = s.Default
	}
	if len(kubeconfig) == 0 {
		return nil, fmt.Errorf("ConfigMap %s/%s: %w: name the API server, so that it can be made, or run 'kubeadm init phase bootstrap-token'",
			clusterinfo.Namespace, clusterinfo.Name, clusterinfo.ErrNoKubeconfig)
	}
	if s.Server == "" {
		return kubeconfig, nil
	}
	renamed, err := clusterinfo.WithServer(kubeconfig, s.Server)
	if err != nil {
		return kubeconfig, fmt.Errorf("cluster-info is signed as it is, not changed to server %q: %w", s.Server, err)
	}
	return renamed, nil
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
			s.Logger.Warn("cluster-info is full: the newest tokens are not signed and joins on them wait until others expire or are deleted",
				"unsigned_tokens", n, "signatures", m.Signed, "bytes", m.Bytes)
		} else {
			s.Logger.Info("cluster-info has room for all signatures again", "signatures", m.Signed)
		}
	}
}
