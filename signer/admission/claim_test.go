package admission_test

import (
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// issued collects the names of issued certificates, with the IDs of the tokens.
type issued struct {
	mu    sync.Mutex
	names map[string]map[string]bool // token IDs by name
}

func (i *issued) note(t *testing.T, token tokens.Token, chain []byte) {
	block, _ := pem.Decode(chain)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Error(err)
		return
	}
	name := strings.TrimPrefix(cert.Subject.CommonName, "system:node:")
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.names[name] == nil {
		i.names[name] = map[string]bool{}
	}
	i.names[name][token.ID()] = true
}

// check verifies the invariants of limited tokens: each certificate has a claim, no name has two tokens, no token
// has more names than its limit, and each count equals the number of claims.
func (i *issued) check(t *testing.T, c *cluster) {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	byToken := map[string][]string{}
	for name, ids := range i.names {
		if len(ids) != 1 {
			t.Errorf("%s was issued with %d tokens, want 1", name, len(ids))
		}
		for id := range ids {
			byToken[id] = append(byToken[id], name)
			if claim, found := c.claims[name]; !found || claim.TokenID != id {
				t.Errorf("%s was issued with token %s, but has claim %+v", name, id, claim)
			}
			if !slices.Contains(c.records[id].Nodes, name) {
				t.Errorf("%s was issued with token %s, which only counts %q", name, id, c.records[id].Nodes)
			}
		}
	}
	for id, r := range c.records {
		if most := r.Limits.NodeLimit(); len(byToken[id]) > most || len(r.Nodes) > most {
			t.Errorf("token %s for %d nodes counts %q and got certificates for %q", id, most, r.Nodes, byToken[id])
		}
	}
	claimed := map[string]int{}
	for _, claim := range c.claims {
		claimed[claim.TokenID]++
	}
	for id, r := range c.records {
		if claimed[id] != len(r.Nodes)-len(r.Marks) {
			t.Errorf("token %s counts %q, of which %q have left, but has %d claims", id, r.Nodes, r.Marks, claimed[id])
		}
	}
}

// Two replicas that both believe to lead handle concurrent requests, with and without failing calls. They issue
// exactly as many names as the tokens allow, and keep what remains of released claims.
func TestConcurrentRequestsGetExactlyTheLimit(t *testing.T) {
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key := csrtest.ECDSA(elliptic.P256()) // creating keys would dominate the run time
	many := 300
	if testing.Short() {
		many = 60
	}
	for _, test := range []struct {
		name          string
		tokens, most  int
		names, issued int
	}{
		{"one token for one node, many names", 1, 1, many, 1},
		{"one token for ten nodes, many names", 1, 10, many, 10},
		{"many tokens, one name", many, 1, 1, 1},
		{"ten tokens for three nodes, many names", 10, 3, many, 30},
	} {
		for _, mode := range []struct {
			failing     float64
			oneDatabase bool
		}{{0, false}, {0.3, false}, {0, true}, {0.3, true}} {
			t.Run(fmt.Sprintf("%s, %.0f%% fail, one database %t", test.name, mode.failing*100, mode.oneDatabase), func(t *testing.T) {
				t.Parallel()
				c := newCluster()
				c.oneDatabase = mode.oneDatabase
				// A machine with each name joined earlier, and its claim was released.
				past := tokens.ReleasedClaim{Until: time.Now().Add(100 * time.Hour).UTC().Truncate(time.Second), CertificateDuration: time.Hour}
				for i := range test.names {
					name := fmt.Sprintf("worker-%d", i)
					c.claims[name] = tokens.Claim{Node: name, Past: past, UID: "released-" + name, Version: c.next(), Created: time.Now().Add(-time.Hour)}
				}
				var all []tokens.Token
				for range test.tokens {
					all = append(all, c.createToken(tokens.Limits{MaxNodes: test.most}))
				}
				c.failing = mode.failing
				willing := must.Get(signer.KubernetesSigners(signer.Fixed(ca), time.Hour))
				for name, s := range willing {
					s.Rules = []approval.Rule{approveAll{}}
					willing[name] = s
				}
				var replicas []*signer.Authority
				for range 2 {
					replicas = append(replicas, &signer.Authority{
						Nodes: c.admission(), Signers: signer.FixedSigners(willing),
					})
				}
				var done issued
				done.names = map[string]map[string]bool{}
				var running sync.WaitGroup
				type work struct{ request, replica int }
				queue := make(chan work)
				for range 16 {
					running.Go(func() {
						for w := range queue {
							i := w.request
							token := all[i%len(all)]
							r := firstRequest(t, bootstrapUser(token), fmt.Sprintf("worker-%d", i%test.names), key)
							r.UID = fmt.Sprint("csr-", i)
							authority := replicas[w.replica]
							for tries := 0; ; tries++ {
								if tries > 1000 {
									t.Errorf("request %d: no decision after 1000 tries", i)
									break
								}
								chain, err := authority.Issue(t.Context(), r)
								if chain != nil {
									done.note(t, token, chain)
									break
								}
								if approval.Refused(err) != nil {
									break
								}
							}
						}
					})
				}
				for i := range many { // both replicas handle each request
					queue <- work{i, 0}
					queue <- work{i, 1}
				}
				close(queue)
				running.Wait()
				if len(done.names) != test.issued {
					t.Errorf("got certificates for %d names, want %d", len(done.names), test.issued)
				}
				done.check(t, c)
				for i := range test.names {
					if claim := c.claims[fmt.Sprintf("worker-%d", i)]; claim.Past != past {
						t.Errorf("worker-%d: claim %+v has lost its earlier release", i, claim)
					}
				}
				t.Logf("writes: %v", c.writes)
			})
		}
	}
}

// An admission that stops between any two calls leaves a state from which the next attempt can continue.
func TestNextAttemptContinuesInterruptedAdmission(t *testing.T) {
	for i := range 2 * 12 {
		step, newKey := i/2, i%2 == 1
		c := newCluster()
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		stopped := storetest.Before(func() error {
			if step--; step < 0 {
				return errors.New("process stopped")
			}
			return nil
		}, "Store.Get", "Store.Update", "Claims.Create", "Claims.Update")
		n := c.admissionWith(stopped)
		request := firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))
		first, err := admit(t.Context(), n, request)
		again := c.admission()
		other, otherErr := admit(t.Context(), again, firstRequest(t, bootstrapUser(token), "worker-2", nil))
		if newKey { // a minute later
			later := time.Now().Add(time.Minute)
			again.Now = func() time.Time { return later }
			request = firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))
		}
		one, oneErr := admit(t.Context(), again, request)
		if (one != nil) == (other != nil) || first != nil && one == nil {
			t.Errorf("worker-1: got %v, %v, then %v, %v; worker-2: %v, %v; want exactly one admitted", first, err, one, oneErr, other, otherErr)
		}
		if len(c.claims) != 1 || len(c.records[token.ID()].Nodes) != 1 {
			t.Errorf("got %d claims and counted names %q, want one of each", len(c.claims), c.records[token.ID()].Nodes)
		}
	}
}

// Concurrent requests with many keys, some of them invalid, must not exceed the number of keys for one name.
func TestConcurrentKeysStayWithinTheLimit(t *testing.T) {
	for i := range 40 {
		c := newCluster()
		c.oneDatabase = i%2 == 1
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		n := c.admission()
		var asking sync.WaitGroup
		var admitted atomic.Int64
		ask := func(r approval.Request) {
			asking.Go(func() {
				if _, err := admit(t.Context(), n, r); err == nil {
					admitted.Add(1)
				}
			})
		}
		for range 16 {
			r := firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))
			forged := r
			csr := *r.CSR
			csr.Signature = slices.Clone(csr.Signature)
			csr.Signature[len(csr.Signature)-1] ^= 1
			forged.CSR = &csr
			ask(forged)
			ask(r)
			ask(forged)
		}
		asking.Wait()
		if claim := c.claims["worker-1"]; admitted.Load() != tokens.MaxKeys || len(claim.Keys) != tokens.MaxKeys {
			t.Errorf("got %d admitted keys and %d on the claim, want %d", admitted.Load(), len(claim.Keys), tokens.MaxKeys)
		}
	}
}

// Each API call of an admission counts when a rack joins. Reads of the Node and of the CSR are not included.
func TestAdmissionMakesFewCalls(t *testing.T) {
	for name, test := range map[string]struct {
		limits tokens.Limits
		before bool // another machine has joined with the token
		one    bool // tokens and claims are in one database
		want   map[string]int
	}{
		// List the claims of the token, count the name, create the claim and read the token.
		"token for one node":             {limits: tokens.Limits{MaxNodes: 1}, want: map[string]int{"read": 1, "list": 1, "token": 1, "claim": 1}},
		"second machine, token for many": {limits: tokens.Limits{MaxNodes: 9}, before: true, want: map[string]int{"read": 1, "token": 1, "claim": 1}},
		// List the claims of the token, and commit the count and the claim.
		"token for one node, one database":             {limits: tokens.Limits{MaxNodes: 1}, one: true, want: map[string]int{"list": 1, "commit": 1}},
		"second machine, token for many, one database": {limits: tokens.Limits{MaxNodes: 9}, before: true, one: true, want: map[string]int{"commit": 1}},
		"token for names":                              {limits: tokens.Limits{NodeNames: []string{"w*"}}, want: map[string]int{"read": 1, "list": 1, "claim": 1}},
		// Reads that find nothing are not counted: those of the Node and the claim.
		"token without limits": {want: map[string]int{"recent": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.oneDatabase = test.one
			token := c.createToken(test.limits)
			n := c.admission()
			if test.before {
				if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
					t.Fatal(err)
				}
			}
			c.refreshCaches()
			clear(c.writes)
			if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-2", nil)); err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(c.writes, test.want) {
				t.Errorf("got calls %v, want %v", c.writes, test.want)
			}
		})
	}
}
