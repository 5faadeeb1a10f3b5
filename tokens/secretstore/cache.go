package secretstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/kubejoin/kubejoin/internal/outage"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/cluster-bootstrap/token/api"
)

// A cache has every bootstrap token of the cluster as a record, decoded and put in order once for
// each change: with 12,000 tokens a List after every burst of changes must not do it for all.
type cache struct {
	log    *slog.Logger
	hints  tokens.Hints
	synced chan struct{} // closed when all is there for the first time
	ended  <-chan struct{}

	mu      sync.Mutex
	entries []*entry // in the order of their names, which is that of token IDs
	trouble error    // why the first answer is not there yet
}

// An entry is what became of one Secret.
type entry struct {
	name    string
	version string
	record  tokens.Record
	ignored bool // it is no bootstrap token
}

// follow starts the informer. The field selector keeps all other Secrets on the server.
func follow(ctx context.Context, client kubernetes.Interface, log *slog.Logger) (*cache, error) {
	c := &cache{log: log, synced: make(chan struct{}), ended: ctx.Done()}
	only := fields.OneTermEqualSelector("type", string(api.SecretTypeBootstrapToken)).String()
	informer := clientcache.NewSharedIndexInformer(outage.Follow(client.CoreV1().Secrets(metav1.NamespaceSystem), only, c.outage), &corev1.Secret{}, 0, nil)
	handler, err := informer.AddEventHandler(clientcache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { c.set(object) },
		UpdateFunc: func(_, object any) { c.set(object) },
		DeleteFunc: c.remove,
	})
	err = errors.Join(err,
		informer.SetTransform(dropManagedFields),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *clientcache.Reflector, err error) { c.watchFailed(err) }))
	if err != nil {
		return nil, err
	}
	go informer.RunWithContext(ctx)
	go func() {
		if clientcache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
			close(c.synced)
			c.hints.Send()
		}
	}()
	return c, nil
}

// dropManagedFields saves about a third of the memory.
func dropManagedFields(object any) (any, error) {
	if secret, ok := object.(*corev1.Secret); ok {
		secret.ManagedFields = nil
	}
	return object, nil
}

func (c *cache) set(object any) {
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return
	}
	c.mu.Lock()
	at, found := c.find(secret.Name)
	if found && c.entries[at].version == secret.ResourceVersion {
		c.mu.Unlock()
		return // the informer has read everything again, and this has not changed
	}
	r, err := decode(secret)
	e := &entry{name: secret.Name, version: secret.ResourceVersion, record: r, ignored: err != nil}
	if found {
		c.entries[at] = e
	} else {
		c.entries = slices.Insert(c.entries, at, e)
	}
	c.mu.Unlock()
	c.hints.Send()
	switch {
	case err != nil:
		c.log.Warn("Secret of the type of bootstrap tokens is none, and is ignored", "secret", secret.Name, "problem", err)
	case errors.Is(r.Problem, tokens.ErrDeleting):
		c.log.Info("bootstrap token is being deleted", "token", r.Token.ID(), "problem", r.Problem)
	case r.Problem != nil:
		c.log.Warn("bootstrap token is no good", "token", r.Token.ID(), "problem", r.Problem)
	}
}

func (c *cache) remove(object any) {
	key, err := clientcache.DeletionHandlingObjectToName(object)
	if err != nil {
		c.log.Error("informer gives a deleted object that has no name", "error", err)
		return
	}
	c.mu.Lock()
	if at, found := c.find(key.Name); found {
		c.entries = slices.Delete(c.entries, at, at+1)
	}
	c.mu.Unlock()
	c.hints.Send()
}

// outage is told when the API server ceases to answer and, with nil, when it answers again.
func (c *cache) outage(err error) {
	if err == nil {
		c.log.Info("bootstrap tokens can be followed again")
		return
	}
	c.log.Warn("cannot follow bootstrap tokens: no API server, will be tried again until there is", "error", err)
	c.mu.Lock()
	c.trouble = err
	c.mu.Unlock()
}

// watchFailed is told whenever following stops; it begins again by itself, with backoff.
func (c *cache) watchFailed(err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		c.log.Debug("watch of bootstrap tokens ended, begins again", "reason", err)
		return
	}
	c.log.Warn("cannot follow bootstrap tokens, will be tried again", "error", err)
	c.mu.Lock()
	c.trouble = err
	c.mu.Unlock()
}

func (c *cache) list(ctx context.Context) ([]tokens.Record, error) {
	if err := c.wait(ctx); err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]tokens.Record, 0, len(c.entries))
	for _, e := range c.entries {
		if !e.ignored {
			all = append(all, clone(e.record))
		}
	}
	return all, nil
}

// find gives the place of a Secret in entries, or the one that it would have.
func (c *cache) find(name string) (at int, found bool) {
	return slices.BinarySearchFunc(c.entries, name, func(e *entry, name string) int { return strings.Compare(e.name, name) })
}

// wait returns when the cache has everything that was there when it began to follow.
func (c *cache) wait(ctx context.Context) error {
	select {
	case <-c.synced:
	case <-c.ended:
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		err := fmt.Errorf("no answer of the API server yet: %w", ctx.Err())
		if c.trouble != nil {
			err = fmt.Errorf("%w (%w)", err, c.trouble)
		}
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-c.ended:
		return errors.New("the context of the store has ended")
	default:
		return nil
	}
}
