package csr

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
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

// A WaitingRenewal is a certificate that a node has requested under its own name and has not received.
type WaitingRenewal struct {
	Node, Signer string
	// Request and UID are the name and the UID of the oldest waiting request for this certificate. Since is when
	// that request was created. A node may give its requests any names.
	Request, UID string
	Since        time.Time
}

// A renewal identifies a certificate that a node requests repeatedly.
type renewal struct{ user, signer string }

// waitingRenewals finds waiting renewals among CSR objects: client and serving certificates that a kubelet
// requests as its node. A request waits if it is neither issued, denied nor failed, and no later request for the
// same certificate was issued. A kubelet that restarts creates a new request. The result has the first waiting
// request for each node and signer, the oldest first. waitingRenewals stores in got when the last issued request
// was created, because an issued request is deleted long before a waiting request.
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
	return slices.SortedFunc(maps.Values(first), func(a, b WaitingRenewal) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Signer+a.Node, b.Signer+b.Node))
	})
}

// ofNode reports whether a node created the request, for one of the kubelet signers.
func ofNode(r *certificates.CertificateSigningRequest) bool {
	return strings.HasPrefix(r.Spec.Username, tokens.NodeUserPrefix) &&
		(r.Spec.SignerName == certificates.KubeAPIServerClientKubeletSignerName || r.Spec.SignerName == certificates.KubeletServingSignerName)
}

// ownName reports whether the request is for the node that created it.
func ownName(r *certificates.CertificateSigningRequest) bool {
	parsed, err := pkcs10.Parse(r.Spec.Request)
	return err == nil && parsed.Subject.CommonName == r.Spec.Username
}

// RenewalPatience returns how long a renewal may wait before it is late: a twentieth of the lifetime of the
// certificates, at least 30 seconds and at most an hour. A kubelet renews after 70 to 90 % of the lifetime. So
// if renewals wait for a tenth of the lifetime, the first certificates expire.
func RenewalPatience(lifetime time.Duration) time.Duration {
	return min(max(lifetime/20, 30*time.Second), time.Hour)
}

// Renewals reports renewals that wait too long.
type Renewals struct {
	// Informer caches CSR objects, see [NewInformer]; the caller runs it.
	Informer cache.SharedIndexInformer
	// Lifetime returns the lifetime of certificates that the signer of w issues. It returns false if
	// kubejoin does not serve that signer; the renewal is then ignored.
	Lifetime func(ctx context.Context, w WaitingRenewal) (time.Duration, bool)
	// Nodes returns the existing Nodes by name. Renewals of deleted Nodes are ignored. If it is nil or returns
	// an error, Renewals assumes that all Nodes exist.
	Nodes func(ctx context.Context) (map[string]string, error)
	// Late is called at each check with the renewals that have waited longer than RenewalPatience, the
	// oldest first. Run calls it with none when it ends. Nil disables it.
	Late func(late []WaitingRenewal)
	// Logger is for the loop; nil disables logging.
	Logger *slog.Logger
	// Registerer registers kubejoin_csr_oldest_waiting_renewal_seconds and the metrics of the loop; nil
	// disables them.
	Registerer prometheus.Registerer
}

const (
	// renewalsInterval is the time between two checks.
	renewalsInterval = 15 * time.Second
	// issuedRenewalTTL is how long an issued renewal is cached: longer than a waiting request is kept.
	issuedRenewalTTL = 48 * time.Hour
	// nodesTimeout limits the time of a call of Nodes.
	nodesTimeout = 5 * time.Second
)

// Run checks every 15 s until ctx ends, and then returns nil.
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
		"Age in seconds of the oldest certificate request that a kubelet waits for; 0 if none waits.").WithLabelValues()
	defer r.Late(nil)
	defer oldest.Set(0) // this replica no longer checks
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

// check reports late renewals, and returns the age of the oldest waiting renewal.
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

// ofNodes removes the renewals of deleted Nodes.
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
