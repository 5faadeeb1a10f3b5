package daemon

import (
	"crypto/x509"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/kubecache"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// eventClusterInfoEdited is the Event reason for a person who changes the CAs in cluster-info during a rotation.
const eventClusterInfoEdited = "ClusterInfoEdited"

// A rotating has what this kubejoin needs of a stored rotation of the cluster's CA. It is computed once for each change. The
// zero rotating means that no rotation is in progress.
type rotating struct {
	// info is the state for cluster-info; nil if no rotation is in progress.
	info *configmap.Rotation
	// leaving are the pins of the CA whose certificates must be renewed early.
	leaving []string
	// cross is for clients that know only the old CA; nil if none may need it.
	cross *x509.Certificate
}

// newRotating returns what a stored rotation means.
func newRotating(r rotation.Rotation) (rotating, error) {
	if !r.InProgress() {
		return rotating{}, nil
	}
	trusted, err := r.Trusted()
	if err != nil {
		return rotating{}, err
	}
	old, err := r.OldCerts()
	if err != nil {
		return rotating{}, err
	}
	fresh, err := r.NewCerts()
	if err != nil {
		return rotating{}, err
	}
	leaving, err := r.Leaving()
	if err != nil {
		return rotating{}, err
	}
	cross, err := r.CrossCert()
	if err != nil {
		return rotating{}, err
	}
	stage := r.ID + "/" + string(r.Stage)
	return rotating{&configmap.Rotation{Stage: stage, Trusted: trusted, All: slices.Concat(old, fresh)}, clusterinfo.Pins(leaving), cross}, nil
}

// watchRotation follows the stored rotation. Reads during a request come from a cache. Its watch notices within 15 s if the
// API server is gone, see pingSoon. Until then, it may lag by less than a second.
func (c *cluster) watchRotation() {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, clusterstore.Name).String()
	c.stored = kubecache.Open(c.watch, c.client, c.client.CoreV1().ConfigMaps(clusterstore.Namespace), only, kubecache.Config[*corev1.ConfigMap, rotating]{
		What: "CA rotations", Log: c.log,
		Decode: func(object *corev1.ConfigMap) (rotating, error) {
			r, err := clusterstore.FromConfigMap(object, rotation.Cluster)
			if err != nil {
				return rotating{}, err
			}
			return newRotating(r)
		},
	})
	c.rotating = func() rotating {
		if e := c.stored.Peek(clusterstore.Name); e != nil {
			return e.Value // zero with an error, which followRotation returns
		}
		return rotating{}
	}
	c.rotated = c.stored.Watch(c.watch)
}

// followRotation returns what keeps the CAs in cluster-info those of the rotation.
func (c *cluster) followRotation() *configmap.Follower {
	return &configmap.Follower{
		Rotation: func() (*configmap.Rotation, error) {
			e := c.stored.Peek(clusterstore.Name)
			if e == nil {
				return nil, nil // none, or not read yet: without the permission, cluster-info must still be signed
			}
			return e.Value.info, e.Err
		},
		Watch:  c.stored.Watch,
		Edited: func(message string) { c.event(corev1.EventTypeWarning, eventClusterInfoEdited, message) },
	}
}

// cross returns the certificate that kubejoin serves behind its own, or nil.
func (s *service) cross() *x509.Certificate { return s.rotating().cross }

// maxLifetime returns the longest lifetime of a certificate that ca signs for a kubelet. It is zero unless ca will not be
// trusted at the end of a rotation.
func (s *service) maxLifetime(ca *x509.Certificate, node string) time.Duration {
	r := s.rotating()
	if len(r.leaving) == 0 || !slices.Contains(r.leaving, clusterinfo.Pin(ca)) {
		return 0
	}
	return rotation.ShortLifetime(node, s.liveNodes(), s.options.CA.RotationQPS)
}
