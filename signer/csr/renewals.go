package csr

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/cache"
)

// A WaitingRenewal is a certificate that a node has asked for under its own name, and has not got.
type WaitingRenewal struct {
	Node, Signer string
	// Request is the first of its requests that waits, since Since, and UID its UID. A node may give
	// its requests any names.
	Request, UID string
	Since        time.Time
}

// A renewal identifies what a node asks for again and again.
type renewal struct{ user, signer string }

// WaitingRenewals finds the renewals that wait among CSR objects: client and serving certificates
// of kubelets that a node asks for itself. It is the first request that counts which is neither
// issued, denied nor failed, unless a later one of the same node was issued: a kubelet that is
// started again asks anew. There is one for each node and signer, the oldest first.
func WaitingRenewals(requests []*certificates.CertificateSigningRequest) []WaitingRenewal {
	return waitingRenewals(requests, map[renewal]time.Time{})
}

// waitingRenewals is WaitingRenewals that keeps, in got, when what was issued last was asked for:
// an issued request is deleted long before one that waits.
func waitingRenewals(requests []*certificates.CertificateSigningRequest, got map[renewal]time.Time) []WaitingRenewal {
	for _, r := range requests {
		if of := (renewal{r.Spec.Username, r.Spec.SignerName}); ofNode(r) && issued(r) && r.CreationTimestamp.After(got[of]) {
			got[of] = r.CreationTimestamp.Time
		}
	}
	first := map[renewal]WaitingRenewal{}
	for _, r := range requests {
		if !ofNode(r) || over(r) {
			continue
		}
		of, since := renewal{r.Spec.Username, r.Spec.SignerName}, r.CreationTimestamp.Time
		if known, found := first[of]; found && !since.Before(known.Since) || !since.After(got[of]) || !ownName(r) {
			continue
		}
		first[of] = WaitingRenewal{Node: strings.TrimPrefix(of.user, tokens.NodeUserPrefix), Signer: of.signer, Request: r.Name, UID: string(r.UID), Since: since}
	}
	all := make([]WaitingRenewal, 0, len(first))
	for _, w := range first {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b WaitingRenewal) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(a.Signer+a.Node, b.Signer+b.Node)
	})
	return all
}

// ofNode reports whether a node has made the request, of a signer of kubelets.
func ofNode(r *certificates.CertificateSigningRequest) bool {
	return strings.HasPrefix(r.Spec.Username, tokens.NodeUserPrefix) &&
		(r.Spec.SignerName == certificates.KubeAPIServerClientKubeletSignerName || r.Spec.SignerName == certificates.KubeletServingSignerName)
}

// ownName reports whether it is for the node itself.
func ownName(r *certificates.CertificateSigningRequest) bool {
	parsed, err := pkcs10.Parse(r.Spec.Request)
	return err == nil && parsed.Subject.CommonName == r.Spec.Username
}

// RenewalPatience is how long a renewal may wait before it is late: a twentieth of the lifetime of
// the certificates, and at least 30 seconds and at most an hour. A kubelet asks when 70 to 90 % of
// the lifetime are over: where a tenth of it goes by without an answer, the first nodes are lost.
func RenewalPatience(lifetime time.Duration) time.Duration {
	return min(max(lifetime/20, 30*time.Second), time.Hour)
}

// Renewals looks for renewals that wait.
type Renewals struct {
	// Informer is the view of CSR objects, see [NewInformer]; the caller runs it.
	Informer cache.SharedIndexInformer
	// Lifetime is that of the certificates that the node has of its signer, and whether there is
	// such a signer: others are not looked at.
	Lifetime func(ctx context.Context, w WaitingRenewal) (time.Duration, bool)
	// Nodes gives the Nodes that there are, by name: one that was deleted renews in vain, as it
	// should. Nil is that all are there; so is an error.
	Nodes func(ctx context.Context) (map[string]string, error)
	// Late is told at each look of the renewals that wait for longer than RenewalPatience, the
	// oldest first, and of none when this ends. Nil is nobody.
	Late func(late []WaitingRenewal)
	// Logger is told of nothing but what the loop says; nil is nobody.
	Logger *slog.Logger
	// Registerer has kubejoin_csr_oldest_waiting_renewal_seconds and the metrics of the loop; nil
	// counts nothing.
	Registerer prometheus.Registerer
}

const (
	// renewalsInterval is how often it is looked.
	renewalsInterval = 15 * time.Second
	// issuedRenewalTTL is for how long it is known that a node got what it asked for: longer than a
	// request is kept that waits.
	issuedRenewalTTL = 48 * time.Hour
	// nodesTimeout is how long Nodes may take.
	nodesTimeout = 5 * time.Second
)

// Run looks every 15 s until ctx ends, and returns nil then.
func (r Renewals) Run(ctx context.Context) error {
	if r.Informer == nil || r.Lifetime == nil {
		return errors.New("waiting renewals: want an informer and lifetimes")
	}
	if r.Late == nil {
		r.Late = func([]WaitingRenewal) {}
	}
	if !cache.WaitForCacheSync(ctx.Done(), r.Informer.HasSynced) {
		return nil
	}
	oldest := metrics.Gauge(r.Registerer, "kubejoin_csr_oldest_waiting_renewal_seconds",
		"For how long the kubelet certificate has been asked for that a node of the cluster waits for the longest; 0 if none waits.").WithLabelValues()
	defer r.Late(nil)
	defer oldest.Set(0) // another replica looks, or nobody
	got := map[renewal]time.Time{}
	return loop.Loop{
		Name: "waiting-renewals", Sweep: renewalsInterval, Logger: r.Logger, Registerer: r.Registerer,
		Step: func(ctx context.Context) (time.Time, error) {
			age := r.check(ctx, got, time.Now())
			oldest.Set(age.Seconds())
			return time.Time{}, nil
		},
	}.Run(ctx)
}

// check tells of what is late, and gives the age of the oldest.
func (r Renewals) check(ctx context.Context, got map[renewal]time.Time, now time.Time) time.Duration {
	for of, at := range got {
		if now.Sub(at) > issuedRenewalTTL {
			delete(got, of)
		}
	}
	var requests []*certificates.CertificateSigningRequest
	for _, object := range r.Informer.GetStore().List() {
		if request, ok := object.(*certificates.CertificateSigningRequest); ok {
			requests = append(requests, request)
		}
	}
	var oldest time.Duration
	var late []WaitingRenewal
	for _, w := range r.ofNodes(ctx, waitingRenewals(requests, got)) {
		lifetime, ours := r.Lifetime(ctx, w)
		if !ours {
			continue
		}
		age := now.Sub(w.Since)
		oldest = max(oldest, age)
		if age > RenewalPatience(lifetime) {
			late = append(late, w)
		}
	}
	r.Late(late)
	return oldest
}

// ofNodes leaves out the renewals of Nodes that are gone.
func (r Renewals) ofNodes(ctx context.Context, waiting []WaitingRenewal) []WaitingRenewal {
	if r.Nodes == nil || len(waiting) == 0 {
		return waiting
	}
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	nodes, err := r.Nodes(ctx)
	if err != nil {
		return waiting
	}
	return slices.DeleteFunc(waiting, func(w WaitingRenewal) bool { _, there := nodes[w.Node]; return !there })
}
