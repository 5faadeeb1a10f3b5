// Package caobserver observes what a rotation of a CA must change on a cluster: the certificates and CAs of API servers and
// kubelets, objects with CA certificates, tokens, the issuance record, and the reports of hosts. [Observer] only reads.
package caobserver

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
)

// deadline limits the time of one call of Observe. Everything that was not observed by then is unseen.
const deadline = 2 * time.Minute

// An Observer is a [rotation.Observer] of a cluster. Only Client is required.
type Observer struct {
	// Client is nil without a cluster. Then the Observer observes only tokens and certificates.
	Client kubernetes.Interface
	// Tokens lists the bootstrap tokens; nil reads their Secrets.
	Tokens func(context.Context) ([]tokens.Record, error)
	// Record is the issuance record; nil if it cannot be searched. If Record is nil, NoRecord is the command that searches
	// it; empty means 'kubejoin ca status --url URL'.
	Record   issuance.Store
	NoRecord string
	// Revocations returns which certificates in the record are revoked; nil means none.
	Revocations *revocation.Guard
	// Servers are addresses (HOST:PORT) at which kubejoin serves.
	Servers []string
	// Dial connects to API servers, kubelets, etcd and Servers; nil uses the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// patience replaces handshakeTimeout if it is set.
	patience time.Duration
}

var _ rotation.Observer = (*Observer)(nil)

// Observe implements [rotation.Observer]. After the rotation has ended, it still observes API servers and members of etcd,
// which may have the replaced CA. It then skips kubelets, because there are many. The result is sorted by kind and name. The
// error means that the Nodes could not be listed.
func (o *Observer) Observe(ctx context.Context, r rotation.Rotation) ([]rotation.Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	l := &look{Observer: o, Rotation: r, now: time.Now()}
	if o.Now != nil {
		l.now = o.Now()
	}
	if l.alone = o.Client == nil; l.alone {
		l.tokens(ctx)
		l.certificates(ctx)
		return l.seen, nil
	}
	if err := l.listHosts(ctx); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	parts := []func(context.Context){l.reports, l.apiServers}
	if r.CA == rotation.Etcd {
		parts[1] = l.etcd
	}
	switch {
	case !r.InProgress() && r.Stage != rotation.Finish: // after an abort
		parts = parts[:1]
	case !r.InProgress():
	case r.CA == rotation.Cluster:
		parts = append(parts, l.authentication, l.kubelets, l.controllerManagers, l.clusterInfo, l.rootCAs, l.caBundles, l.tokens, l.certificates, l.servers)
	case r.CA == rotation.FrontProxy:
		parts = append(parts, l.authentication)
	}
	var looking sync.WaitGroup
	for _, part := range parts {
		looking.Go(func() { part(ctx) })
	}
	looking.Wait()
	if r.InProgress() {
		l.need()
	}
	for i := range l.seen {
		o := &l.seen[i]
		if !l.behind(*o) {
			o.Next = ""
		}
		// After the rotation has ended, an unreachable server is not an error.
		o.Optional = o.Optional || !r.InProgress() && o.Kind != rotation.KindFile && o.Unseen != ""
	}
	slices.SortFunc(l.seen, func(a, b rotation.Observation) int {
		return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Name, b.Name), strings.Compare(a.Node, b.Node), strings.Compare(string(a.From), string(b.From)))
	})
	return l.seen, nil
}

// Every step needs an API server, or for etcd a member. If none was seen, need adds an observation that says so. It does not
// check kubelets, because the list of Nodes is complete.
func (l *look) need() {
	none := rotation.Observation{
		Kind: rotation.KindAPIServer, Name: "addresses", Next: labelControlPlane("NODE") + " # each control plane",
		Unseen: "no API server was seen: no Node has the label " + controlPlaneLabel + ", and EndpointSlice default/kubernetes has no address",
	}
	if l.CA == rotation.Etcd {
		none.Kind, none.Name = rotation.KindEtcd, "members"
		none.Unseen = "no member was seen: no Node with the label " + controlPlaneLabel + " has a static pod of etcd or kube-apiserver, and kubeadm-config has no etcd.external"
	}
	if !slices.ContainsFunc(l.seen, func(o rotation.Observation) bool { return o.Kind == none.Kind }) {
		l.add(none)
	}
}

// look is one call of Observe.
type look struct {
	*Observer
	rotation.Rotation
	now   time.Time
	alone bool // without a cluster
	hosts []host

	mu   sync.Mutex
	seen []rotation.Observation
}

func (l *look) add(all ...rotation.Observation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, all...)
}

// behind reports whether an observation does not fit the stage or shows nothing. Then the operator needs its next command.
func (l *look) behind(o rotation.Observation) bool {
	return o.Trusts == nil && o.From == "" ||
		o.Unseen != "" || o.Off || !l.Fits(o)
}

// maxWhy is the maximum length of the reason why something is unseen, in bytes. Servers choose parts of it.
const maxWhy = 300

// failed adds an observation for a request that failed. right is the permission that the request needs.
func (l *look) failed(kind rotation.Kind, name, right string, err error) {
	o := rotation.Observation{Kind: kind, Name: name, Unseen: safetext.Text(err.Error(), maxWhy), Next: l.CA.Command("status")}
	if apierrors.IsForbidden(err) {
		o.Unseen, o.Next = "need "+right, "retry with a kubeconfig of cluster-admin"
		if l.Tokens != nil { // kubejoin itself lacks the permission
			o.Next = "apply the manifests or the chart of this version of kubejoin"
		}
	}
	if kind == rotation.KindSigner {
		o.Unseen = "could not be checked: " + o.Unseen
	}
	l.add(o)
}

// on returns a command, preceded by the name of the node where it must run.
func on(node, command string) string {
	if node == "" {
		return command
	}
	return "on " + node + ": " + command
}
