package admission_test

import (
	"crypto/elliptic"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// Two tokens for one node each request the same names from two leaders. Calls fail, and claims become abandoned
// between calls. Each name must belong to one token, and each token must admit one name.
func TestTwoTokensForTheSameNamesInAnyOrder(t *testing.T) {
	runs := 200
	if testing.Short() {
		runs = 50
	}
	key := csrtest.ECDSA(elliptic.P256())
	for run := range runs {
		if t.Failed() {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(run), 12))
			c := newCluster()
			c.failing = 0.1
			all := []tokens.Token{c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{MaxNodes: 1})}
			for _, token := range all {
				c.editToken(token.ID(), func(r *tokens.Record) { r.Expires = time.Time{} })
			}
			s := &schedule{}
			var replicas []*admission.Nodes
			for range 2 {
				n := c.admissionWith(s.faults)
				n.Retention = 1000 * time.Hour
				replicas = append(replicas, n)
			}
			var mu sync.Mutex
			tokenOf, nameOf := map[string]string{}, map[string]string{}
			ask := func(n *admission.Nodes, token tokens.Token, node string, tries int) {
				r := firstRequest(t, bootstrapUser(token), node, key)
				for range tries {
					_, err := admit(t.Context(), n, r)
					if approval.Refused(err) != nil {
						return
					} else if err != nil {
						continue
					}
					mu.Lock()
					defer mu.Unlock()
					if other, taken := tokenOf[node]; taken && other != token.ID() {
						t.Errorf("run %d: %s was admitted with two tokens", run, node)
					}
					if other, taken := nameOf[token.ID()]; taken && other != node {
						t.Errorf("run %d: a token for one node admitted %s and %s", run, other, node)
					}
					tokenOf[node], nameOf[token.ID()] = token.ID(), node
					return
				}
			}
			var asking sync.WaitGroup
			for i := range 12 {
				token, node := all[i%2], fmt.Sprint("worker-", random.IntN(2))
				replica := replicas[random.IntN(2)]
				asking.Go(func() { ask(replica, token, node, 1+i%4) })
				for range random.IntN(8) {
					s.next(random)
				}
			}
			for s.next(random) {
				switch random.IntN(8) {
				case 0:
					time.Sleep(70 * time.Second)
				case 1:
					c.refreshCaches()
				}
			}
			asking.Wait()
			// A token that has counted no name still admits a machine.
			c.failing = 0
			time.Sleep(5 * time.Minute)
			c.refreshCaches()
			n := c.admission()
			n.Retention = 1000 * time.Hour
			for i, token := range all {
				if len(c.records[token.ID()].Nodes) == 0 {
					if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), fmt.Sprint("free-", i), key)); err != nil {
						t.Errorf("run %d: %v", run, err)
					}
				}
			}
		})
	}
}
