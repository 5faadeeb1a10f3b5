package admission_test

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// schedule runs the calls of several replicas one after the other, in random order.
type schedule struct {
	mu      sync.Mutex
	waiting []chan struct{}
}

func (s *schedule) turn() {
	mine := make(chan struct{})
	s.mu.Lock()
	s.waiting = append(s.waiting, mine)
	s.mu.Unlock()
	<-mine
}

// next lets one waiting call continue and reports whether there was one.
func (s *schedule) next(random *rand.Rand) bool {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return false
	}
	i := random.IntN(len(s.waiting))
	close(s.waiting[i])
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return true
}

// faults make each live call wait for its turn, and each write of an update.
func (s *schedule) faults(c *storetest.Call, do func() error) error {
	switch c.Method {
	case "Store.Update.change", "Claims.Update.change":
		err := do()
		s.turn()
		return err
	case "Store.Get.cached", "Store.List", "Store.Delete", "Claims.Get.cached", "Claims.List", "Claims.HeldBy.cached":
		return do()
	}
	s.turn()
	return do()
}

// releaseClaim releases a name and repeats it until there is nothing to release.
func releaseClaim(ctx context.Context, store tokens.Store, claims tokens.Claims, node string) {
	for {
		if _, _, err := (tokens.Releaser{Tokens: store, Claims: claims}).Release(ctx, node, false); errors.Is(err, tokens.ErrNotFound) {
			return
		}
	}
}

// Two leaders run in random order while calls fail, caches lag and somebody edits objects by hand. The limits on
// names and keys must hold, no existing Node may be given away, and in the end retries must use all slots.
func TestLimitsHoldInAnyOrderOfCalls(t *testing.T) {
	keys := make([]crypto.Signer, 8)
	for i := range keys {
		keys[i] = csrtest.ECDSA(elliptic.P256())
	}
	erase := []func(c *cluster, r *tokens.Record){
		func(_ *cluster, r *tokens.Record) { r.Nodes = nil },
		func(_ *cluster, r *tokens.Record) { r.Limits = tokens.Limits{} },
		func(_ *cluster, r *tokens.Record) { r.Nodes, r.Limits = nil, tokens.Limits{} },
		func(c *cluster, r *tokens.Record) {
			r.UID, r.Nodes, r.Limits = "replaced-"+c.next(), nil, tokens.Limits{}
		},
		func(c *cluster, r *tokens.Record) { r.UID, r.Nodes = "replaced-"+c.next(), nil },
	}
	runs := 60
	if testing.Short() {
		runs = 12
	}
	for _, test := range []struct {
		name    string
		limits  tokens.Limits
		names   int
		failing float64
		erases  bool // limits or counts are erased once
		leases  bool // claims are deleted
		nodes   bool // Nodes register and are deleted
		// releases releases claims. Each frees one slot.
		releases bool
		database bool // tokens and claims are in one database
	}{
		{name: "two names, one slot", limits: tokens.Limits{MaxNodes: 1}, names: 2},
		{name: "three names, two slots, calls fail", limits: tokens.Limits{MaxNodes: 2}, names: 3, failing: 0.2},
		{name: "erased", limits: tokens.Limits{MaxNodes: 1}, names: 3, erases: true},
		{name: "erased, calls fail", limits: tokens.Limits{MaxNodes: 2}, names: 4, failing: 0.2, erases: true},
		{name: "Leases deleted", limits: tokens.Limits{MaxNodes: 2}, names: 3, failing: 0.1, leases: true},
		{name: "Nodes come and go", limits: tokens.Limits{MaxNodes: 2}, names: 3, failing: 0.1, nodes: true},
		{name: "Nodes come and go, Leases deleted", limits: tokens.Limits{MaxNodes: 2}, names: 3, nodes: true, leases: true},
		{name: "Leases deleted, claims released", limits: tokens.Limits{MaxNodes: 2}, names: 4, failing: 0.1, leases: true, releases: true},
		{name: "claims released", limits: tokens.Limits{MaxNodes: 2}, names: 3, releases: true},
		{name: "claims released, calls fail", limits: tokens.Limits{MaxNodes: 2, CertificateDuration: time.Hour}, names: 3, failing: 0.1, releases: true},
		{name: "claims released in one database, calls fail", limits: tokens.Limits{MaxNodes: 2}, names: 3, failing: 0.1, releases: true, database: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for run := range runs {
				if t.Failed() {
					return
				}
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(uint64(run), 11))
					c := newCluster()
					c.oneDatabase = test.database
					token := c.createToken(test.limits)
					c.failing = test.failing
					s := &schedule{}
					var replicas []*admission.Nodes
					for range 2 {
						n := c.admissionWith(s.faults)
						replicas = append(replicas, n)
					}
					issued := map[string]map[int]bool{} // keys by name
					var mu sync.Mutex
					// ask retries until there is a decision, or tries are used up.
					ask := func(n *admission.Nodes, node string, key, tries int) {
						r := firstRequest(t, bootstrapUser(token), node, keys[key])
						r.UID = fmt.Sprintf("%s-%d", node, key)
						for range tries {
							c.mu.Lock()
							uid := c.nodes[node]
							c.mu.Unlock()
							_, err := admit(t.Context(), n, r)
							c.mu.Lock()
							existed := uid != "" && c.nodes[node] == uid // it may have been deleted meanwhile
							c.mu.Unlock()
							if approval.Refused(err) != nil {
								return
							} else if err != nil {
								continue
							}
							mu.Lock()
							defer mu.Unlock()
							if existed {
								t.Errorf("%s was admitted, but its Node existed", node)
							}
							if issued[node] == nil {
								issued[node] = map[int]bool{}
							}
							issued[node][key] = true
							return
						}
					}
					var asking sync.WaitGroup
					for i := range test.names * 2 * len(keys) / 3 {
						node, key := fmt.Sprintf("worker-%d", i%test.names), i/test.names%len(keys)
						if random.IntN(2) == 0 {
							continue
						}
						replica := replicas[random.IntN(2)] // chosen here because random is not safe for concurrent use
						asking.Go(func() { ask(replica, node, key, 4) })
						for range random.IntN(8) {
							s.next(random)
						}
					}
					erased, releases := false, 0
					for s.next(random) {
						mu.Lock()
						names := slices.Sorted(maps.Keys(issued))
						mu.Unlock()
						switch happens := random.IntN(40); {
						case happens == 0:
							c.freezeCaches()
						case happens == 1:
							c.refreshCaches()
						case happens == 2 && test.erases && !erased:
							erased = true
							what := erase[random.IntN(len(erase))]
							c.editToken(token.ID(), func(r *tokens.Record) {
								if what(c, r); len(c.claims) == 0 { // limits that were never used are lost with the token's own
									r.Limits = test.limits
								}
							})
						case happens == 3 && test.leases:
							c.mu.Lock()
							delete(c.claims, fmt.Sprintf("worker-%d", random.IntN(test.names)))
							c.mu.Unlock()
						case happens <= 7 && happens > 4 && test.releases && len(names) > 0:
							name := names[random.IntN(len(names))]
							releases++
							asking.Go(func() { releaseClaim(t.Context(), replicas[1].Tokens, replicas[1].Claims, name) })
						case happens == 4 && test.nodes && len(names) > 0:
							name := names[random.IntN(len(names))]
							c.mu.Lock()
							claim, claimed := c.claims[name]
							exists := c.nodes[name] != ""
							if claimed && exists { // as the claim cleaner does
								claim.NodeUID, claim.Version = c.nodes[name], c.next()
								c.claims[name] = claim
							}
							c.mu.Unlock()
							if !exists {
								c.node(name)
							} else if claim.NodeUID != "" && random.IntN(2) == 0 {
								c.deleteNode(name)
							}
						}
					}
					asking.Wait()
					if !test.nodes && !test.leases {
						// Without failures, refused machines retry.
						c.failing = 0
						c.refreshCaches()
						for i := range test.names {
							asking.Go(func() {
								for key := range keys { // a claim admits three of them
									ask(replicas[0], fmt.Sprintf("worker-%d", i), key, 4)
								}
							})
						}
						for s.next(random) {
						}
						asking.Wait()
						counts, claimed := slices.Sorted(slices.Values(c.records[token.ID()].Nodes)), []string{}
						for _, name := range slices.Sorted(maps.Keys(c.claims)) {
							if !c.claims[name].Released() {
								claimed = append(claimed, name)
							}
						}
						if len(counts) != test.limits.NodeLimit() || !slices.Equal(counts, claimed) || releases == 0 && len(issued) != len(counts) {
							t.Errorf("run %d: got %d admitted names in the end, want %d; the token counts %q, claims are %v", run, len(issued), test.limits.NodeLimit(), c.records[token.ID()].Nodes, c.claims)
						}
					}
					if len(issued) > test.limits.NodeLimit()+releases {
						t.Errorf("run %d: got names %v with a token for %d and %d releases", run, issued, test.limits.NodeLimit(), releases)
					}
					for name, used := range issued {
						// If somebody deletes a Lease, machines that are joining may use more keys.
						if len(used) > tokens.MaxKeys && !test.leases && !test.releases {
							t.Errorf("run %d: %s was admitted with %d keys, want at most 3", run, name, len(used))
						}
					}
				})
			}
		})
	}
}
