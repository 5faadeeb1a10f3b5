package configmap

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/outage"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

var errNone = fmt.Errorf("ConfigMap %s/%s: %w", clusterinfo.Namespace, clusterinfo.Name, clusterinfo.ErrNotFound)

// ConfigMap caches the live cluster-info of a cluster with a watch on this one object. [Open] creates it.
// Its methods may be called concurrently.
type ConfigMap struct {
	client kubernetes.Interface

	mu      sync.Mutex
	synced  bool
	object  *corev1.ConfigMap      // nil if there is none
	config  []byte                 // the kubeconfig in object
	json    func() ([]byte, error) // of object
	fill    Fill                   // of object, without its limit
	limit   int                    // for the sum of values in bytes, as the Signer found it; zero is the default
	failure error                  // of the last read; nil after success
	changed chan struct{}          // closed and replaced whenever a field above changes
}

// Open watches cluster-info until ctx ends. It returns at once: methods that need the object wait for it.
func Open(ctx context.Context, client kubernetes.Interface) *ConfigMap {
	c := &ConfigMap{client: client, changed: make(chan struct{})}
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, clusterinfo.Name).String()
	reflector := cache.NewReflectorWithOptions(outage.Follow(client, tried{client.CoreV1().ConfigMaps(clusterinfo.Namespace), c}, only, nil),
		&corev1.ConfigMap{}, (*mirror)(c), cache.ReflectorOptions{Name: "cluster-info"})
	go reflector.RunWithContext(ctx)
	return c
}

// Data returns the cached data of cluster-info. The map is shared and must not be changed. Data waits until
// the object was read or ctx ends. The error wraps [clusterinfo.ErrNotFound] if there is no cluster-info.
func (c *ConfigMap) Data(ctx context.Context) (map[string]string, error) {
	object, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	if object == nil {
		return nil, errNone
	}
	return object.Data, nil
}

// JSON returns cluster-info in the form of [clusterinfo.MarshalConfigMap]. It is encoded once for each
// change. The bytes are shared and must not be changed. The error wraps [clusterinfo.ErrKubeconfig] if a
// joining node cannot use the kubeconfig in it.
func (c *ConfigMap) JSON(ctx context.Context) ([]byte, error) {
	if _, err := c.read(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	encode := c.json
	c.mu.Unlock()
	return encode()
}

// Config returns the cached kubeconfig of cluster-info without checks; empty if it has none. The bytes are
// shared and must not be changed. Errors are as with Data.
func (c *ConfigMap) Config(ctx context.Context) ([]byte, error) {
	if _, err := c.read(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.object == nil {
		return nil, errNone
	}
	return c.config, nil
}

// WaitSigned returns the kubeconfig of the live cluster-info as soon as it has a valid signature by the
// token, whichever program signed it. If ctx ends before, the error wraps the context's and says what was
// found instead.
func (c *ConfigMap) WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error) {
	if !t.HasSecret() {
		return nil, fmt.Errorf("waiting for a signature by token %s: its secret is not known", t)
	}
	for {
		_, object, changed, _ := c.state()
		seen := verify(object, t)
		if seen == nil {
			return []byte(object.Data[clusterinfo.KubeconfigKey]), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			// If the ConfigMap could not be read, that reason is better than "no cluster-info".
			if _, err := c.Data(ctx); err != nil && !errors.Is(err, clusterinfo.ErrNotFound) {
				return nil, fmt.Errorf("waiting for a signature by token %s: %w", t, err)
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
func (c *ConfigMap) Watch(ctx context.Context) <-chan struct{} {
	hint := make(chan struct{}, 1)
	go func() {
		for {
			_, _, changed, _ := c.state()
			select {
			case hint <- struct{}{}:
			default:
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return hint
}

// read returns the cached object, nil if there is none, after the first read.
func (c *ConfigMap) read(ctx context.Context) (*corev1.ConfigMap, error) {
	for {
		synced, object, changed, _ := c.state()
		if synced {
			return object, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err := fmt.Errorf("ConfigMap %s/%s has not been read yet: %w", clusterinfo.Namespace, clusterinfo.Name, context.Cause(ctx))
			if _, _, _, failure := c.state(); failure != nil {
				err = fmt.Errorf("%w; last error: %w", err, failure)
			}
			return nil, err
		}
	}
}

func (c *ConfigMap) state() (synced bool, object *corev1.ConfigMap, changed <-chan struct{}, failure error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced, c.object, c.changed, c.failure
}

// tried stores the result of each list and watch request.
type tried struct {
	api typedcorev1.ConfigMapInterface
	of  *ConfigMap
}

func (t tried) List(ctx context.Context, options metav1.ListOptions) (*corev1.ConfigMapList, error) {
	list, err := t.api.List(ctx, options)
	t.note(err)
	return list, err
}

func (t tried) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := t.api.Watch(ctx, options)
	t.note(err)
	return w, err
}

func (t tried) note(err error) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.failure = err
}

// mirror is a ConfigMap as the reflector's store of this one object.
type mirror ConfigMap

func (m *mirror) set(object *corev1.ConfigMap) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced, m.object = true, object
	m.config, m.fill = nil, measure(object)
	if object != nil {
		m.config = []byte(object.Data[clusterinfo.KubeconfigKey])
	}
	m.json = sync.OnceValues(func() ([]byte, error) {
		if object == nil {
			return nil, errNone
		}
		// An edit of cluster-info may have added a credential, which must not be passed on.
		if _, _, err := clusterinfo.ParseKubeconfig([]byte(object.Data[clusterinfo.KubeconfigKey])); err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %w", clusterinfo.Namespace, clusterinfo.Name, err)
		}
		return clusterinfo.MarshalConfigMap(object.Data)
	})
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *mirror) Add(object any) error {
	configMap, ok := object.(*corev1.ConfigMap)
	if !ok {
		return fmt.Errorf("unexpected %T in the watch of cluster-info", object)
	}
	configMap.ManagedFields = nil // as large as the rest, and not used
	m.set(configMap)
	return nil
}

func (m *mirror) Update(object any) error { return m.Add(object) }

func (m *mirror) Delete(any) error {
	m.set(nil)
	return nil
}

func (m *mirror) Replace(list []any, _ string) error {
	if len(list) == 0 {
		return m.Delete(nil)
	}
	return m.Add(list[0])
}

func (m *mirror) Resync() error { return nil }
