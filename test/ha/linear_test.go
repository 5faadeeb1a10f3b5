package ha

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// TestTokensAndClaimsAreLinearizable calls all methods that write, at three replicas with few keys, while 30 % of the calls
// to etcd fail and the leader of etcd is killed.
func TestTokensAndClaimsAreLinearizable(t *testing.T) {
	harness.Parallel(t)
	seed := harness.Seed(t)
	c, ca, h := etcd.ForTest(t, etcd.Options{Members: 3}), newCA(t), newHistory()
	var all []tokens.Token
	for range 3 {
		all = append(all, tokens.Generate())
	}
	const each = 250 // number of operations of each caller
	var marks atomic.Int64
	var replicas []*replica
	var running sync.WaitGroup
	for i := range uint64(9) {
		r := newReplica(t, c, ca, h, seed+i, 0.3)
		replicas = append(replicas, r)
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, i))
			for n := range each {
				if i == 0 && n == each/2 {
					leader, err := c.Leader(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					c.Kill(leader)
					defer func() {
						if err := c.Restart(t.Context(), leader); err != nil {
							t.Error(err)
						}
					}()
				}
				token := all[random.IntN(len(all))]
				mark := fmt.Sprint("mark-", marks.Add(1)) // each write is different
				call(t, r, random, token, "node-"+token.ID(), mark)
			}
		})
	}
	running.Wait()
	for i, r := range replicas {
		if counts := r.faults.Counts(); counts.Before == 0 || counts.After == 0 {
			t.Errorf("replica %d: got faults %+v, want some calls that fail before and after they take effect", i, counts)
		}
	}
	h.check(t, 9*each/2)
}

// errNothing ends an update without a write.
var errNothing = errors.New("nothing to write")

// call makes one random change. The history records its errors.
func call(t *testing.T, r *replica, random *rand.Rand, token tokens.Token, node, mark string) {
	ctx, id := t.Context(), token.ID()
	record := tokens.NewRecord(token, time.Hour, time.Now())
	record.Description = mark
	claim := tokens.Claim{Node: node, TokenID: id, Requests: []string{mark}}
	switch random.IntN(11) {
	case 0:
		_, _ = r.tokens.Create(ctx, record)
	case 1, 2:
		_, _ = r.tokens.Update(ctx, id, func(r *tokens.Record) error { r.Description = mark; return nil })
	case 3:
		_, _ = r.tokens.Update(ctx, id, func(*tokens.Record) error { return errNothing })
	case 4:
		if now, err := r.tokens.Get(ctx, id, tokens.Live); err == nil {
			_ = r.tokens.Delete(ctx, now)
		}
	case 5:
		_, _ = storetest.CreateClaim(ctx, r.claims, claim)
	case 6:
		_, _ = storetest.UpdateClaim(ctx, r.claims, node, func(c *tokens.Claim) error { c.Requests = []string{mark}; return nil })
	case 7:
		if now, err := r.claims.Get(ctx, node, tokens.Live); err == nil {
			_ = storetest.DeleteClaim(ctx, r.claims, now)
		}
	case 8:
		_, _ = r.claims.HeldBy(ctx, id, tokens.Live)
	default:
		now, err := r.tokens.Get(ctx, id, tokens.Live)
		if err != nil {
			return
		}
		changed, change := now.Clone(), tokens.ClaimChange{After: claim}
		changed.Description = mark
		if held, err := r.claims.Get(ctx, node, tokens.Live); err == nil {
			change.Before, change.After = held, held.Clone()
			change.After.Requests = []string{mark}
		} else if !errors.Is(err, tokens.ErrNotFound) {
			return
		}
		_, _ = r.claims.Commit(ctx, now, changed, []tokens.ClaimChange{change})
	}
}
