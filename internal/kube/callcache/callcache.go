// Package callcache caches yes/no answers of API calls for a short time. It makes at most one call per question at a
// time.
package callcache

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
	"k8s.io/apimachinery/pkg/util/cache"
)

// MaxCached is the maximum number of cached answers of each kind, yes and no. A full cache evicts the least recently
// used.
const MaxCached = 4096

// MaxCalls is the maximum number of concurrent calls of a Cache. Further callers wait.
const MaxCalls = 64

// A Cache caches answers by question. Yes and no have separate caches, so that a flood of questions with the answer no, for
// example bad tokens, cannot evict a yes. A question may be a secret: the Cache stores only its HMAC under a random key.
type Cache[T any] struct {
	yesAge, noAge, timeout time.Duration

	key     [sha256.Size]byte
	slots   chan struct{}
	calls   batch.Queue[digest, *answer[T]]
	yes, no *cache.LRUExpireCache
}

type digest [sha256.Size]byte

type answer[T any] struct {
	value T
	yes   bool
	err   error
}

// New returns a Cache that caches a yes for yesAge and a no for noAge, counted from the start of the call; zero
// disables caching. Get waits for at most timeout, or without limit if timeout is zero.
func New[T any](yesAge, noAge, timeout time.Duration) *Cache[T] {
	c := &Cache[T]{
		yesAge: yesAge, noAge: noAge, timeout: timeout, slots: make(chan struct{}, MaxCalls),
		yes: cache.NewLRUExpireCache(MaxCached), no: cache.NewLRUExpireCache(MaxCached),
	}
	_, _ = rand.Read(c.key[:]) // documented never to fail
	return c
}

// Get returns the cached answer to a question, or calls ask for it. Errors are not cached. The context of ask ends
// when no caller waits for the answer any more.
func (c *Cache[T]) Get(ctx context.Context, question []byte, ask func(context.Context) (value T, yes bool, err error)) (value T, yes bool, err error) {
	m := hmac.New(sha256.New, c.key[:])
	m.Write(question)
	key := digest(m.Sum(nil))
	if a, found := c.cached(key); found {
		return a.value, a.yes, nil
	}
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no response within %s", c.timeout))
		defer cancel()
	}
	var mine answer[T]
	if err := c.calls.Do(ctx, key, &mine, func(ctx context.Context, all []*answer[T]) {
		a := c.ask(ctx, key, ask)
		for _, waiting := range all {
			*waiting = a
		}
	}); err != nil {
		return value, false, context.Cause(ctx)
	}
	return mine.value, mine.yes, mine.err
}

func (c *Cache[T]) cached(key digest) (answer[T], bool) {
	kept, found := c.yes.Get(key)
	if !found {
		kept, found = c.no.Get(key)
	}
	a, _ := kept.(answer[T])
	return a, found
}

func (c *Cache[T]) ask(ctx context.Context, key digest, ask func(context.Context) (T, bool, error)) answer[T] {
	if a, found := c.cached(key); found { // cached since the caller checked
		return a
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return answer[T]{err: ctx.Err()}
	}
	asked := time.Now()
	value, yes, err := ask(ctx)
	if err != nil {
		return answer[T]{err: err}
	}
	a, in, age := answer[T]{value: value, yes: yes}, c.no, c.noAge
	if yes {
		in, age = c.yes, c.yesAge
	}
	if left := age - time.Since(asked); left > 0 {
		in.Add(key, a, left)
	}
	return a
}
