package daemon

import (
	"cmp"
	"context"
	"crypto/x509"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// A rotating contains the parts of a stored rotation of the cluster CA that this kubejoin needs. It is computed once for
// each change. The zero rotating means that there was no rotation.
type rotating struct {
	// info is the state for cluster-info; nil if no rotation is in progress.
	info *configmap.Rotation
	// leaving are the pins of the CA whose certificates must be renewed early.
	leaving []string
	// nodes is how many nodes renew certificates early.
	nodes int
	// cross is the cross certificate for clients that trust only the old CA; nil if no client needs it.
	cross *x509.Certificate
	// gone are the pins of the CAs that rotations took out of use.
	gone []string
}

// replaced reports whether a rotation took a CA out of use.
func (r rotating) replaced(ca *x509.Certificate) bool {
	return len(r.gone) > 0 && slices.Contains(r.gone, clusterinfo.Pin(ca))
}

// newRotating computes the rotating of a stored rotation.
func newRotating(r rotation.Rotation) rotating {
	if !r.InProgress() {
		return rotating{gone: r.Gone()}
	}
	info := &configmap.Rotation{Stage: r.ID + "/" + string(r.Stage), Trusted: r.Trusted(), All: slices.Concat(r.Old, r.New)}
	return rotating{info, clusterinfo.Pins(r.Leaving()), r.Nodes, r.CrossCert(), r.Gone()}
}

// A storedRotation contains the parts of the Secret of CA rotations that this kubejoin needs.
type storedRotation struct {
	rotating
	states map[string]string
}

// A clusterRotation follows the stored rotation on a cluster, and its copy for hosts.
type clusterRotation struct {
	rotationState
	conn *connection
	// stored caches the Secret of CA rotations. copies caches the ConfigMap that hosts read.
	stored *kubecache.Cache[*corev1.Secret, storedRotation]
	copies *kubecache.Cache[*corev1.ConfigMap, map[string]string]
}

// watchRotation follows the stored rotation, and its copy for hosts. Requests read a cache, which normally lags by less than a
// second. The watch of the cache notices within 15 s that the API server does not respond, see pingSoon.
func (k *connection) watchRotation() *clusterRotation {
	named := func(name string) string {
		return fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	c := &clusterRotation{conn: k}
	c.stored = kubecache.Open(k.watch, k.client, k.client.CoreV1().Secrets(clusterstore.KeyNamespace), named(clusterstore.KeyName), kubecache.Config[*corev1.Secret, storedRotation]{
		What: "CA rotations", Log: k.log,
		Decode: func(object *corev1.Secret) (storedRotation, error) {
			r, err := clusterstore.FromSecret(object, rotation.Cluster)
			return storedRotation{newRotating(r), clusterstore.States(object)}, err
		},
	})
	c.copies = kubecache.Open(k.watch, k.client, k.client.CoreV1().ConfigMaps(clusterstore.Namespace), named(clusterstore.Name), kubecache.Config[*corev1.ConfigMap, map[string]string]{
		What: "copies of CA rotations", Log: k.log,
		Decode: func(object *corev1.ConfigMap) (map[string]string, error) { return object.Data, nil },
	})
	c.rotationState = rotationState{
		now: func() rotating {
			if e := c.stored.Peek(clusterstore.KeyName); e != nil {
				return e.Value.rotating // the zero value after an error, which follower returns
			}
			return rotating{}
		},
		changed: c.stored.Watch(k.watch), renewals: k.options.CA.RotationQPS,
	}
	k.check("ca-rotation", func(context.Context) error {
		if _, filled := c.stored.Len(); !filled {
			return api.Notice("CA rotations have not been read, so kubejoin does not know which CAs were replaced; see the log")
		}
		if err := c.checkCopy(); err != nil {
			return api.Notice(err.Error())
		}
		return nil
	})
	return c
}

// checkCopy returns an error if, according to the caches, the state that hosts read differs from the stored state. It
// returns nil until both caches are filled.
func (c *clusterRotation) checkCopy() error {
	_, stored := c.stored.Len()
	if _, copied := c.copies.Len(); !stored || !copied {
		return nil
	}
	var states, copied map[string]string
	if e := c.stored.Peek(clusterstore.KeyName); e != nil {
		states = e.Value.states
	}
	if e := c.copies.Peek(clusterstore.Name); e != nil {
		copied = e.Value
	}
	return clusterstore.CheckCopy(states, copied)
}

// hints returns a channel that receives a hint when the stored rotation or its copy may have changed.
func (c *clusterRotation) hints(ctx context.Context) <-chan struct{} {
	var both tokens.Hints
	hints := both.Watch(ctx)
	for _, one := range []<-chan struct{}{c.stored.Watch(ctx), c.copies.Watch(ctx)} {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-one:
					both.Send()
				}
			}
		}()
	}
	return hints
}

// follower returns a Follower that updates the CAs in cluster-info to match the rotation. It does not change them
// while hosts read a state that differs from the stored state.
func (c *clusterRotation) follower() *configmap.Follower {
	return &configmap.Follower{
		Rotation: func() (*configmap.Rotation, error) {
			e := c.stored.Peek(clusterstore.KeyName)
			if e == nil {
				// No rotation, or not read yet: even without the permission to read it, kubejoin must sign
				// cluster-info.
				return nil, nil
			}
			if err := cmp.Or(e.Err, c.checkCopy()); err != nil {
				return nil, err
			}
			return e.Value.info, nil
		},
		Watch:  c.hints,
		Edited: func(message string) { c.conn.events.own(codes.ClusterInfoEdited, message) },
	}
}

// publish corrects the hosts' copy of the stored rotation. It returns an error if only a person can correct the copy.
func (c *clusterRotation) publish(ctx context.Context) error {
	store := clusterstore.New(c.conn.working)
	wrong, err := store.Publish(ctx)
	if err != nil {
		return err
	}
	if wrong == nil {
		return store.Check(ctx)
	}
	c.conn.log.Warn("copy of the CA rotation corrected", "problem", wrong)
	c.conn.events.own(codes.CARotationEdited, "kubejoin corrected the state of CA rotations that hosts read. Before, "+wrong.Error()+". Next: kubejoin ca status")
	return nil
}

// A rotationState gives access to the cached rotation of the cluster CA.
type rotationState struct {
	now func() rotating
	// changed receives a hint when the rotation has changed; nil gives no hints.
	changed <-chan struct{}
	// renewals is the maximum number of kubelet renewals per second.
	renewals float64
}

// cross returns the cross certificate that kubejoin presents after its own certificate, or nil.
func (r *rotationState) cross() *x509.Certificate { return r.now().cross }

// maxLifetime returns the longest lifetime of a certificate that ca signs for a kubelet. It returns zero (no limit)
// unless a rotation will end the trust in ca.
func (r *rotationState) maxLifetime(ca *x509.Certificate, node string) time.Duration {
	now := r.now()
	if len(now.leaving) == 0 || !slices.Contains(now.leaving, clusterinfo.Pin(ca)) {
		return 0
	}
	return rotation.ShortLifetime(node, now.nodes, r.renewals)
}
