package kubeauth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// MaxAnswers is how many answers of a kind, yes or no, are remembered at most. There is one for each
// token, or for each user and permission.
const MaxAnswers = 4096

// MaxReviews is how many questions are asked of the API server at the same time, of each kind. Others
// wait in line for as long as one may take.
const MaxReviews = 64

// answers asks each question once at a time, and remembers what was said for a short time. Yes and no
// are kept apart, so that a flood of bad tokens pushes no good one out. What it asks with is known
// to it by a MAC under a key of its own alone: a dump of it has no token.
type answers[T any] struct {
	timeout time.Duration // of one question

	key    [32]byte
	places chan struct{}
	flight singleflight.Group

	mu      sync.Mutex
	yes, no memory[T]
}

// A memory has answers of one kind.
type memory[T any] struct {
	age   time.Duration // that an answer may have
	all   map[digest]remembered[T]
	swept time.Time // when those that are too old were last removed
}

type digest [sha256.Size]byte

type remembered[T any] struct {
	answer T
	asked  time.Time
}

// newAnswers has answers count for so long.
func newAnswers[T any](yes, no, timeout time.Duration) *answers[T] {
	a := &answers[T]{timeout: timeout, places: make(chan struct{}, MaxReviews)}
	_, _ = rand.Read(a.key[:]) // documented never to fail
	a.yes = memory[T]{age: yes, all: map[digest]remembered[T]{}}
	a.no = memory[T]{age: no, all: map[digest]remembered[T]{}}
	return a
}

// of gives the answer to a question, which ask gets if it is not remembered. An error is not
// remembered. ask has a context that goes on when the one who asked first leaves, since others may
// wait for the same.
func (a *answers[T]) of(ctx context.Context, question []byte, ask func(context.Context) (answer T, yes bool, err error)) (T, bool, error) {
	m := hmac.New(sha256.New, a.key[:])
	m.Write(question)
	var mac digest
	m.Sum(mac[:0])
	if answer, yes, found := a.known(mac, time.Now()); found {
		return answer, yes, nil
	}
	type reply struct {
		answer T
		yes    bool
	}
	flying := a.flight.DoChan(string(mac[:]), func() (any, error) {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), a.timeout, fmt.Errorf("no answer within %s", a.timeout))
		defer cancel()
		// It may have been answered since it was looked for.
		if answer, yes, found := a.known(mac, time.Now()); found {
			return reply{answer, yes}, nil
		}
		select {
		case a.places <- struct{}{}:
			defer func() { <-a.places }()
		case <-ctx.Done():
			return nil, fmt.Errorf("%d questions are being asked: %w", MaxReviews, context.Cause(ctx))
		}
		asked := time.Now()
		answer, yes, err := ask(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
			return nil, err
		}
		a.remember(mac, answer, yes, asked)
		return reply{answer, yes}, nil
	})
	var none T
	select {
	case result := <-flying:
		if result.Err != nil {
			return none, false, result.Err
		}
		r := result.Val.(reply)
		return r.answer, r.yes, nil
	case <-ctx.Done():
		return none, false, ctx.Err()
	}
}

func (a *answers[T]) known(mac digest, now time.Time) (answer T, yes, found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, there := a.yes.all[mac]; there && now.Sub(r.asked) < a.yes.age {
		return r.answer, true, true
	}
	if r, there := a.no.all[mac]; there && now.Sub(r.asked) < a.no.age {
		return r.answer, false, true
	}
	return answer, false, false
}

func (a *answers[T]) remember(mac digest, answer T, yes bool, asked time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.yes.all, mac)
	delete(a.no.all, mac)
	in := &a.no
	if yes {
		in = &a.yes
	}
	in.add(mac, remembered[T]{answer, asked}, time.Now())
}

// add makes room first, if there is none: of what is too old, or else of any.
func (m *memory[T]) add(mac digest, r remembered[T], now time.Time) {
	if len(m.all) >= MaxAnswers && now.Sub(m.swept) >= m.age { // or there is not much to find
		m.swept = now
		for old, o := range m.all {
			if now.Sub(o.asked) >= m.age {
				delete(m.all, old)
			}
		}
	}
	for some := range m.all {
		if len(m.all) < MaxAnswers {
			break
		}
		delete(m.all, some)
	}
	m.all[mac] = r
}
