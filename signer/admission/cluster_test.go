package admission_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// cluster holds tokens, claims and Nodes in memory. It misbehaves as an API server may: calls fail before or after
// they took effect, and caches are stale.
type cluster struct {
	mu      sync.Mutex
	failing float64 // share of calls that fail
	failAt  int     // number of the call that fails, counted from 1 (0: none)
	calls   int
	version int
	records map[string]tokens.Record
	older   map[string][]tokens.Record // latest versions of each token, newest last
	claims  map[string]tokens.Claim
	history []map[string]tokens.Claim // latest states of claims, newest last
	nodes   map[string]string
	ready   map[string]string // current Ready period of each Node

	// Content of the caches while they are frozen; nil otherwise.
	cachedRecords map[string]tokens.Record
	cachedClaims  map[string]tokens.Claim

	writes map[string]int // calls that took effect, by kind

	oneDatabase bool // one transaction commits claims and their count
}

func newCluster() *cluster {
	return &cluster{records: map[string]tokens.Record{}, older: map[string][]tokens.Record{}, claims: map[string]tokens.Claim{}, nodes: map[string]string{}, ready: map[string]string{}, writes: map[string]int{}}
}

var errInjected = errors.New("injected failure")

// call runs a read or write. A share of calls fails, some of them after they took effect.
func (c *cluster) call(kind string, do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls++; c.calls == c.failAt {
		return errInjected
	}
	before := rand.Float64() < c.failing/2
	after := rand.Float64() < c.failing/2
	if before && rand.IntN(2) == 0 {
		return tokens.ErrConflict // a conflict with an unknown write
	} else if before {
		return errInjected
	}
	err := do()
	if err == nil {
		c.writes[kind]++
		c.history = append(c.history, maps.Clone(c.claims))
		if len(c.history) > 20 {
			c.history = c.history[1:]
		}
		if after {
			return errInjected
		}
	}
	return err
}

// lagging returns the claims of a cache: a random recent state.
func (c *cluster) lagging() map[string]tokens.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cachedClaims != nil {
		return c.cachedClaims
	}
	if len(c.history) == 0 {
		return maps.Clone(c.claims)
	}
	return c.history[rand.IntN(len(c.history))]
}

func (c *cluster) next() string { c.version++; return strconv.Itoa(c.version) }

// createToken stores a token that is one minute old.
func (c *cluster) createToken(limits tokens.Limits) tokens.Token {
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits, r.Created = limits, time.Now().Add(-time.Minute)
	c.put(r)
	return r.Token
}

func (c *cluster) put(r tokens.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.UID, r.Version = "uid-"+c.next(), c.next()
	c.keep(r)
}

func (c *cluster) keep(r tokens.Record) {
	id := r.Token.ID()
	c.records[id] = copied(r)
	c.older[id] = append(c.older[id], copied(r))
	if len(c.older[id]) > 3 {
		c.older[id] = c.older[id][1:]
	}
}

// node creates a Node and returns its UID.
func (c *cluster) node(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[name] = "node-" + c.next()
	return c.nodes[name]
}

func (c *cluster) deleteNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, name)
}

func (c *cluster) Node(_ context.Context, name string) (uid string, err error) {
	err = c.call("read", func() error {
		if uid = c.nodes[name]; uid == "" {
			return tokens.ErrNotFound
		}
		return nil
	})
	return uid, err
}

// Ready returns the current Ready period of a Node.
func (c *cluster) Ready(_ context.Context, name string) (period string, err error) {
	err = c.call("read", func() error {
		if c.nodes[name] == "" {
			return tokens.ErrNotFound
		}
		period = c.ready[name]
		return nil
	})
	return period, err
}

// freezeCaches keeps the caches at the present state until refreshCaches.
func (c *cluster) freezeCaches() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cachedClaims, c.cachedRecords = maps.Clone(c.claims), map[string]tokens.Record{}
	for id, r := range c.records {
		c.cachedRecords[id] = copied(r)
	}
}

// refreshCaches makes the caches current. From then on they lag as usual.
func (c *cluster) refreshCaches() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cachedClaims, c.cachedRecords, c.history, c.older = nil, nil, nil, map[string][]tokens.Record{}
	for id, r := range c.records {
		c.older[id] = []tokens.Record{copied(r)}
	}
}

// registerNode creates a Node and notes it in the claim of its name, as the claim cleaner does.
func (c *cluster) registerNode(name string) {
	uid := c.node(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.claims[name]
	claim.NodeUID, claim.Version = uid, c.next()
	c.claims[name] = claim
}

// editToken changes the Secret of a token. Another UID makes it another Secret.
func (c *cluster) editToken(id string, edit func(*tokens.Record)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := copied(c.records[id])
	edit(&r)
	r.Version = c.next()
	c.keep(r)
}

// store implements tokens.Store on a cluster.
type store struct {
	tokens.Store
	*cluster
}

func copied(r tokens.Record) tokens.Record {
	return r.Clone()
}

// Get reads the cache, or the current token, which is recent.
func (s store) Get(_ context.Context, id string, read tokens.Read) (tokens.Record, error) {
	if read == tokens.Cached {
		return s.cached(id)
	}
	return s.read(callOf(read), id)
}

// callOf returns the call of a read that does not use the cache.
func callOf(read tokens.Read) string {
	return map[tokens.Read]string{tokens.Live: "read", tokens.Recent: "recent"}[read]
}

func (s store) read(call, id string) (r tokens.Record, err error) {
	err = s.call(call, func() error {
		found, ok := s.records[id]
		if !ok {
			return fmt.Errorf("token %s: %w", id, tokens.ErrNotFound)
		}
		r = copied(found)
		return nil
	})
	return r, err
}

// cached reads the cache, which is sometimes some writes behind.
func (s store) cached(id string) (tokens.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := s.older[id]
	if s.cachedRecords != nil {
		versions = nil
		if r, found := s.cachedRecords[id]; found {
			versions = []tokens.Record{r}
		}
	}
	if len(versions) == 0 {
		return tokens.Record{}, tokens.ErrNotFound
	}
	return copied(versions[rand.IntN(len(versions))]), nil
}

func (s store) List(context.Context) ([]tokens.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.records), func(a, b tokens.Record) int { return strings.Compare(a.Token.ID(), b.Token.ID()) }), nil
}

func (s store) Delete(_ context.Context, r tokens.Record) error {
	return s.call("token", func() error {
		if _, ok := s.records[r.Token.ID()]; !ok {
			return tokens.ErrNotFound
		}
		delete(s.records, r.Token.ID())
		return nil
	})
}

func (s store) Watch(context.Context) <-chan struct{} { return nil }

// Update starts from the cache, and decides nothing from it.
func (s store) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	read := tokens.Cached
	for cached := true; ; cached, read = false, tokens.Live {
		before, err := s.Get(ctx, id, read)
		if err != nil {
			if cached {
				continue
			}
			return before, err
		}
		after := copied(before)
		if err := change(&after); err != nil {
			if cached {
				continue
			}
			return tokens.Record{}, err
		}
		if err := after.Check(); err != nil {
			return tokens.Record{}, err
		}
		err = s.call("token", func() error {
			if s.records[id].Version != before.Version {
				return tokens.ErrConflict
			}
			after.Version = s.next()
			s.cluster.keep(after)
			return nil
		})
		if !errors.Is(err, tokens.ErrConflict) {
			return after, err
		}
	}
}

// claims implements tokens.Claims on a cluster.
type claims struct {
	tokens.Claims
	*cluster
}

// Get reads the cache, or the current claim, which is recent.
func (s claims) Get(_ context.Context, node string, read tokens.Read) (tokens.Claim, error) {
	if read != tokens.Cached {
		return s.read(callOf(read), node)
	}
	if c, ok := s.lagging()[node]; ok {
		return c.Clone(), nil
	}
	return tokens.Claim{}, tokens.ErrNotFound
}

func (s claims) read(call, node string) (c tokens.Claim, err error) {
	err = s.call(call, func() error {
		found, ok := s.cluster.claims[node]
		if !ok {
			return fmt.Errorf("claim of %s: %w", node, tokens.ErrNotFound)
		}
		c = found.Clone()
		return nil
	})
	return c, err
}

func (s claims) List(context.Context) ([]tokens.Claim, error) {
	all := s.lagging()
	return slices.SortedFunc(maps.Values(all), func(a, b tokens.Claim) int { return strings.Compare(a.Node, b.Node) }), nil
}

// HeldBy reads the cache, or the current claims, which are recent.
func (s claims) HeldBy(ctx context.Context, id string, read tokens.Read) (all []tokens.Claim, err error) {
	if read == tokens.Cached {
		all, err = s.List(ctx)
		return slices.DeleteFunc(all, func(c tokens.Claim) bool { return c.TokenID != id }), err
	}
	err = s.call(map[tokens.Read]string{tokens.Live: "list", tokens.Recent: "recent"}[read], func() error {
		for _, node := range slices.Sorted(maps.Keys(s.cluster.claims)) {
			if c := s.cluster.claims[node]; c.TokenID == id {
				all = append(all, c.Clone())
			}
		}
		return nil
	})
	return all, err
}

func (s claims) Watch(context.Context) <-chan struct{} { return nil }

// Ended is for one database.
func (s claims) Ended(r tokens.Record, c tokens.Claim) bool {
	return c.TokenID != r.Token.ID() && slices.Contains(r.Nodes, c.Node)
}

// Commit is for one database, or for one claim without a token.
func (s claims) Commit(_ context.Context, before, after tokens.Record, changes []tokens.ClaimChange) (outcomes []tokens.Outcome, err error) {
	if err := after.Check(); after.Token.ID() != "" && err != nil {
		return nil, err
	}
	id, now := before.Token.ID(), s.cluster.claims
	counts := !slices.Equal(before.Nodes, after.Nodes) || !before.Limits.Equal(after.Limits) || !before.Expires.Equal(after.Expires)
	outcomes = make([]tokens.Outcome, len(changes))
	same := true
	for i, c := range changes {
		outcomes[i].Claim = c.After
		same = same && c.Before.Version != "" && c.Before.Equal(c.After)
	}
	if same && !counts {
		return outcomes, nil
	}
	kind := "commit"
	if id == "" {
		kind = "claim"
	}
	err = s.call(kind, func() error {
		if s.records[id].Version != before.Version {
			return tokens.ErrConflict
		}
		for _, c := range changes {
			if is := now[c.After.Node]; is.Version != c.Before.Version || is.UID != c.Before.UID {
				return tokens.ErrConflict
			}
		}
		for i, change := range changes {
			c := change.After.Clone()
			if change.Before.Version == "" {
				c.UID = "uid-" + s.next()
			}
			if change.Before.Version == "" || change.Before.TokenID != c.TokenID && !c.Released() {
				c.Created = time.Now()
			}
			c.Version = s.next()
			if now[c.Node] = c; c.Empty() {
				delete(now, c.Node)
			}
			outcomes[i].Claim = c.Clone()
		}
		if counts {
			after = copied(after)
			after.Version = s.next()
			s.cluster.keep(after)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}

// The marks of Secrets: a name whose claim has ended, and a name whose slot is about to be free.
const (
	left = "-"
	lost = "!"
)
