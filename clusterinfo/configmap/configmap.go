package configmap

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

var errNone = fmt.Errorf("ConfigMap %s/%s: %w", clusterinfo.Namespace, clusterinfo.Name, clusterinfo.ErrNotFound)

// ConfigMap caches the live cluster-info of a cluster with a watch on this one object. [Open] creates it.
// Its methods may be called concurrently.
type ConfigMap struct {
	client kubernetes.Interface
	cache  *kubecache.Cache[*corev1.ConfigMap, cached]

	limit  atomic.Int64 // maximum sum of all values in bytes, which the Signer found; zero: the default
	limits tokens.Hints // reports changes of limit
}

// cached is cluster-info with the values that are computed once for each change. The zero value means that it
// does not exist.
type cached struct {
	object *corev1.ConfigMap
	config []byte // the kubeconfig in object
	json   func() ([]byte, error)
	fill   Fill // without its limit
}

// Open watches cluster-info until ctx ends. It returns at once: methods that need the object wait for it.
// Failures of the watch go to klog.
func Open(ctx context.Context, client kubernetes.Interface) *ConfigMap {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, clusterinfo.Name).String()
	return &ConfigMap{client: client, cache: kubecache.Open(ctx, client, client.CoreV1().ConfigMaps(clusterinfo.Namespace), only,
		kubecache.Config[*corev1.ConfigMap, cached]{What: "cluster-info", Decode: decode})}
}

func decode(object *corev1.ConfigMap) (cached, error) {
	config := []byte(object.Data[clusterinfo.KubeconfigKey])
	return cached{object, config, sync.OnceValues(func() ([]byte, error) {
		// An edit of cluster-info may have added a credential, which must not be passed on.
		if _, _, err := clusterinfo.ParseKubeconfig(config); err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %w", clusterinfo.Namespace, clusterinfo.Name, err)
		}
		return clusterinfo.MarshalConfigMap(object.Data)
	}), measure(object)}, nil
}

// Data returns the cached data of cluster-info. The map is shared and must not be changed. Data waits until
// the object was read or ctx ends. The error wraps [clusterinfo.ErrNotFound] if there is no cluster-info.
func (c *ConfigMap) Data(ctx context.Context) (map[string]string, error) {
	now, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	return now.object.Data, nil
}

// JSON returns cluster-info in the form of [clusterinfo.MarshalConfigMap]. It is encoded once for each
// change. The bytes are shared and must not be changed. The error wraps [clusterinfo.ErrKubeconfig] if a
// joining node cannot use the kubeconfig in it.
func (c *ConfigMap) JSON(ctx context.Context) ([]byte, error) {
	now, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	return now.json()
}

// Config returns the cached kubeconfig of cluster-info without checks; empty if it has none. The bytes are
// shared and must not be changed. It returns the same errors as Data.
func (c *ConfigMap) Config(ctx context.Context) ([]byte, error) {
	now, err := c.read(ctx)
	return now.config, err
}

// WaitSigned returns the kubeconfig of the live cluster-info as soon as it has a valid signature by the token,
// from any program. If ctx ends first, the error wraps the error of ctx and says what was found instead.
func (c *ConfigMap) WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error) {
	if !t.HasSecret() {
		return nil, fmt.Errorf("waiting for a signature by token %s: its secret is not known", t)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for changed := c.Watch(ctx); ; {
		object := c.peek().object
		seen := verify(object, t)
		if seen == nil {
			return []byte(object.Data[clusterinfo.KubeconfigKey]), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			// If the ConfigMap could not be read, return that reason instead of "no cluster-info".
			if _, filled := c.cache.Len(); !filled {
				if _, err := c.read(ctx); err != nil {
					return nil, fmt.Errorf("waiting for a signature by token %s: %w", t, err)
				}
			}
			return nil, fmt.Errorf("waiting for a signature by token %s: %w; found: %w", t, context.Cause(ctx), seen)
		}
	}
}

func verify(object *corev1.ConfigMap, t tokens.Token) error {
	if object == nil {
		return errNone
	}
	kubeconfig, jws := object.Data[clusterinfo.KubeconfigKey], object.Data[clusterinfo.SignatureKey(t.ID())]
	switch {
	case kubeconfig == "":
		return fmt.Errorf("ConfigMap %s/%s holds no kubeconfig", clusterinfo.Namespace, clusterinfo.Name)
	case jws == "":
		return fmt.Errorf("ConfigMap %s/%s holds no signature by the token", clusterinfo.Namespace, clusterinfo.Name)
	}
	return clusterinfo.Verify([]byte(kubeconfig), jws, t)
}

// Watch returns a channel that receives a value soon after cluster-info has changed, and once at the start.
// Several changes in a short time may cause only one value. The channel is never closed.
func (c *ConfigMap) Watch(ctx context.Context) <-chan struct{} { return c.cache.Watch(ctx) }

// read returns the cached cluster-info. It waits until the object was read or ctx ends. The error wraps
// [clusterinfo.ErrNotFound] if there is no cluster-info.
func (c *ConfigMap) read(ctx context.Context) (cached, error) {
	if _, filled := c.cache.Len(); !filled {
		if _, err := c.cache.Get(ctx, clusterinfo.Name); err != nil {
			return cached{}, fmt.Errorf("ConfigMap %s/%s: %w", clusterinfo.Namespace, clusterinfo.Name, err)
		}
	}
	e := c.cache.Peek(clusterinfo.Name) // even if ctx has ended: a client that disconnects is no failure
	if e == nil {
		return cached{}, errNone
	}
	return e.Value, nil
}

// peek is like read, but does not wait. It returns the zero value in place of an error.
func (c *ConfigMap) peek() cached {
	if e := c.cache.Peek(clusterinfo.Name); e != nil {
		return e.Value
	}
	return cached{}
}
