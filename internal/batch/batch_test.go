package batch_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/internal/batch"
)

// calls records its calls. Each call waits for permission to return.
type calls struct {
	batch.Queue[string, int]
	made   [][]int
	leave  chan struct{}
	given  []error // context errors at the end of each call
	mu     sync.Mutex
	result map[int]error // mu guards it while callers run
}

func newCalls() *calls { return &calls{leave: make(chan struct{}), result: map[int]error{}} }

func (c *calls) call(ctx context.Context, all []int) {
	c.made = append(c.made, all)
	select {
	case <-c.leave:
	case <-ctx.Done():
	}
	c.given = append(c.given, ctx.Err())
}

// ask starts a caller in the background and records its result. Callers start in order.
func (c *calls) ask(ctx context.Context, key string, items ...int) {
	for _, item := range items {
		go func() {
			err := c.Do(ctx, key, item, c.call)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.result[item] = err
		}()
		synctest.Wait()
	}
}

func (c *calls) return1() {
	c.leave <- struct{}{}
	synctest.Wait()
}

func TestWaitingCallersShareNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalls()
		c.ask(t.Context(), "a", 1, 2, 3)
		if want := [][]int{{1}}; !slices.EqualFunc(c.made, want, slices.Equal) {
			t.Fatalf("calls are %v, want %v: a lone item waits for nothing, and what comes later is not in its call", c.made, want)
		}
		c.return1()
		if _, answered := c.result[2]; answered || len(c.made) != 2 {
			t.Fatalf("calls are %v, answers %v: want a second call that began after 2 and 3 had asked", c.made, c.result)
		}
		c.return1()
		if want := [][]int{{1}, {2, 3}}; !slices.EqualFunc(c.made, want, slices.Equal) {
			t.Errorf("calls are %v, want %v", c.made, want)
		}
		for _, item := range []int{1, 2, 3} {
			if err, answered := c.result[item]; !answered || err != nil {
				t.Errorf("%d has an answer: %t, error %v", item, answered, err)
			}
		}
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalls()
		c.ask(t.Context(), "a", 1)
		c.ask(t.Context(), "b", 2)
		if len(c.made) != 2 {
			t.Errorf("calls are %v, want one for each key", c.made)
		}
		c.return1()
		c.return1()
	})
}

func TestCanceledCallerDoesNotStopOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalls()
		ctx, giveUp := context.WithCancel(t.Context())
		c.ask(ctx, "a", 1)
		c.ask(ctx, "a", 2)
		c.ask(t.Context(), "a", 3)
		giveUp()
		synctest.Wait()
		for _, item := range []int{1, 2} {
			if err := c.result[item]; !errors.Is(err, context.Canceled) {
				t.Errorf("%d has given up: %v", item, err)
			}
		}
		// No caller of the first call waits any more. The second call continues for caller 3.
		if len(c.given) != 1 || !errors.Is(c.given[0], context.Canceled) {
			t.Errorf("contexts of calls that ended: %v, want the first one's, canceled", c.given)
		}
		c.return1()
		if err, answered := c.result[3]; !answered || err != nil || len(c.given) != 2 || c.given[1] != nil {
			t.Errorf("3 has an answer: %t, error %v; contexts %v", answered, err, c.given)
		}
	})
}

// A call must not start if all its callers were canceled before. A later caller must get its own call.
func TestSkipsCallThatAllCallersCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalls()
		c.ask(t.Context(), "a", 1)
		ctx, giveUp := context.WithCancel(t.Context())
		c.ask(ctx, "a", 2)
		giveUp()
		synctest.Wait()
		c.ask(t.Context(), "a", 3)
		c.return1()
		c.return1()
		if want := [][]int{{1}, {3}}; !slices.EqualFunc(c.made, want, slices.Equal) {
			t.Errorf("calls are %v, want %v", c.made, want)
		}
	})
}
