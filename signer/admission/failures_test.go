package admission_test

import (
	"context"
	"crypto/elliptic"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// An error means wait: if any call of an admission fails, the request is neither admitted nor refused.
func TestFailedCallNeitherAdmitsNorRefuses(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, c *cluster) approval.Request{
		"a token for one node": func(t *testing.T, c *cluster) approval.Request {
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)
		},
		"the next on one for many": func(t *testing.T, c *cluster) approval.Request {
			token := c.createToken(tokens.Limits{MaxNodes: 2})
			c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-2", nil))
			return firstRequest(t, bootstrapUser(token), "worker-1", nil)
		},
		"another key": func(t *testing.T, c *cluster) approval.Request {
			token := c.createToken(tokens.Limits{MaxNodes: 1})
			c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", nil))
			return firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))
		},
		"a token for a name": func(t *testing.T, c *cluster) approval.Request {
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{NodeNames: []string{"worker-1"}})), "worker-1", nil)
		},
		"a token that replaces a Node": func(t *testing.T, c *cluster) approval.Request {
			uid := c.node("worker-1")
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: uid}})), "worker-1", nil)
		},
		"a name whose Node was deleted": func(t *testing.T, c *cluster) approval.Request {
			c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
			c.registerNode("worker-1")
			c.deleteNode("worker-1")
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)
		},
		"a token without limits": func(t *testing.T, c *cluster) approval.Request {
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{})), "worker-1", nil)
		},
		"no limits, a name whose Node was deleted": func(t *testing.T, c *cluster) approval.Request {
			c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
			c.registerNode("worker-1")
			c.deleteNode("worker-1")
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{})), "worker-1", nil)
		},
		"a name that was released": func(t *testing.T, c *cluster) approval.Request {
			c.claims["worker-1"] = tokens.Claim{Node: "worker-1", UID: "1", Version: "1", Created: time.Now(), Past: tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second)}}
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil)
		},
		"no limits, a name that was released": func(t *testing.T, c *cluster) approval.Request {
			c.claims["worker-1"] = tokens.Claim{Node: "worker-1", UID: "1", Version: "1", Created: time.Now(), Past: tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second)}}
			return firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{})), "worker-1", nil)
		},
		"a renewal after release": func(t *testing.T, c *cluster) approval.Request {
			c.node("worker-1")
			past := tokens.ReleasedClaim{Until: time.Now().Add(time.Minute).Truncate(time.Second), CertificateDuration: time.Hour}
			c.claims["worker-1"] = tokens.Claim{Node: "worker-1", UID: "1", Version: "1", Created: time.Now(), Past: past}
			return renewal(t, "worker-1")
		},
		"a user": func(t *testing.T, _ *cluster) approval.Request { return firstRequest(t, "jane", "worker-1", nil) },
		"a renewal": func(t *testing.T, c *cluster) approval.Request {
			c.node("worker-1")
			return renewal(t, "worker-1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			everyCallFails(t, prepare, (*cluster).admission)
			everyCallFails(t, prepare, func(c *cluster) *admission.Nodes { return c.admission().DryRun() })
			everyCallFails(t, prepare, func(c *cluster) *admission.Nodes {
				c.oneDatabase = true
				return c.admission()
			})
		})
	}
}

// everyCallFails repeats the admission of a valid request and fails another call each time.
func everyCallFails(t *testing.T, prepare func(t *testing.T, c *cluster) approval.Request, of func(*cluster) *admission.Nodes) {
	t.Helper()
	for at := 1; ; at++ {
		c := newCluster()
		r := prepare(t, c)
		c.refreshCaches()
		c.calls, c.failAt = 0, at
		admission, err := admit(t.Context(), of(c), r)
		if c.calls < at {
			return // the admission makes fewer calls
		}
		if admission != nil || !errors.Is(err, errInjected) || approval.Refused(err) != nil {
			t.Errorf("call %d of %d fails: %v, %v; want its error", at, c.calls, admission, err)
		}
		c.failAt = 0
		if _, err := admit(t.Context(), of(c), r); err != nil {
			t.Errorf("retry after call %d failed: %v", at, err)
		}
	}
}

// mustAdmit admits a request without failing calls.
func (c *cluster) mustAdmit(t *testing.T, r approval.Request) {
	t.Helper()
	must.Value(admit(t.Context(), c.admission(), r))(t)
}

func TestAdmitsNothingWithoutARequestOrTokens(t *testing.T) {
	if _, err := (&admission.Nodes{}).Admit(t.Context(), admission.CheckedRequest{}); approval.Refused(err) == nil {
		t.Errorf("without a certificate request: %v", err)
	}
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	for name, n := range map[string]*admission.Nodes{
		"no tokens": {Claims: claims{cluster: c}, Node: c.Node},
		"no claims": {Tokens: store{cluster: c}, Node: c.Node},
	} {
		_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
		wantRefused(t, name, err, "TokenRevoked")
	}
}

// The decision about a token may outlast the request. Catches a request that is admitted without a decision.
func TestCanceledRequestIsNotAdmitted(t *testing.T) {
	c := newCluster()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer close(ended)
	n := c.admissionWith(func(call *storetest.Call, do func() error) error {
		if call.Method == "Store.Update" || call.Method == "Claims.Create" {
			cancel()
			<-ended
		}
		return do()
	})
	a, err := admit(ctx, n, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
	if a != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v, want %v", a, err, context.Canceled)
	}
}

// A kubelet with a deleted token retries about a hundred times an hour.
func TestDeletedTokenCostsOneRead(t *testing.T) {
	c := newCluster()
	_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(tokens.Generate()), "worker-1", nil))
	wantRefused(t, "deleted", err, "TokenRevoked")
	if c.calls != 1 {
		t.Errorf("got %d reads, want 1", c.calls)
	}
}

// A token may expire while its claim and the Node are read: after the check of the token, before the claim is written.
func TestTokenThatExpiresDuringReadsAdmitsNobody(t *testing.T) {
	for name, limits := range map[string]tokens.Limits{"limited": {MaxNodes: 1}, "without limits": {}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			token := c.createToken(limits)
			n, read := c.admission(), atomic.Bool{}
			n.Node = func(ctx context.Context, name string) (string, error) {
				read.Store(true)
				return c.Node(ctx, name)
			}
			n.Now = func() time.Time {
				if read.Load() {
					return c.records[token.ID()].Expires
				}
				return time.Now()
			}
			_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
			wantRefused(t, "a token that expired meanwhile", err, "TokenExpired")
			if len(c.claims) > 0 {
				t.Errorf("got claims %v, want none", c.claims)
			}
		})
	}
}
