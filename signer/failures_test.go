package signer_test

import (
	"crypto/elliptic"
	"errors"
	"testing"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// An error means wait: whichever call of an admission fails, the request is neither admitted nor refused.
func TestFailedCallNeitherAdmitsNorRefuses(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, c *cluster) approval.Request{
		"a token for one node": func(t *testing.T, c *cluster) approval.Request {
			return asks(t, by(c.mint(tokens.Limits{MaxNodes: 1})), "worker-1", nil)
		},
		"the next on one for many": func(t *testing.T, c *cluster) approval.Request {
			token := c.mint(tokens.Limits{MaxNodes: 2})
			c.admits(t, asks(t, by(token), "worker-2", nil))
			return asks(t, by(token), "worker-1", nil)
		},
		"another key": func(t *testing.T, c *cluster) approval.Request {
			token := c.mint(tokens.Limits{MaxNodes: 1})
			c.admits(t, asks(t, by(token), "worker-1", nil))
			return asks(t, by(token), "worker-1", newKey(elliptic.P256()))
		},
		"a token for a name": func(t *testing.T, c *cluster) approval.Request {
			return asks(t, by(c.mint(tokens.Limits{NodeNames: []string{"worker-1"}})), "worker-1", nil)
		},
		"a token that replaces a Node": func(t *testing.T, c *cluster) approval.Request {
			uid := c.node("worker-1")
			return asks(t, by(c.mint(tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: uid}})), "worker-1", nil)
		},
		"a name whose Node was deleted": func(t *testing.T, c *cluster) approval.Request {
			c.admits(t, asks(t, by(c.mint(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
			c.registers("worker-1")
			c.deleteNode("worker-1")
			return asks(t, by(c.mint(tokens.Limits{MaxNodes: 1})), "worker-1", nil)
		},
		"a token without limits": func(t *testing.T, c *cluster) approval.Request {
			return asks(t, by(c.mint(tokens.Limits{})), "worker-1", nil)
		},
		"no limits, a name whose Node was deleted": func(t *testing.T, c *cluster) approval.Request {
			c.admits(t, asks(t, by(c.mint(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
			c.registers("worker-1")
			c.deleteNode("worker-1")
			return asks(t, by(c.mint(tokens.Limits{})), "worker-1", nil)
		},
		"a user": func(t *testing.T, _ *cluster) approval.Request { return asks(t, "jane", "worker-1", nil) },
		"a renewal": func(t *testing.T, c *cluster) approval.Request {
			c.node("worker-1")
			return renews(t, "worker-1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			for at, most := 1, 1; at <= most; at++ {
				c := newCluster()
				r := prepare(t, c)
				c.catchesUp()
				c.calls, c.failAt = 0, at
				admission, err := c.admission().Admit(t.Context(), r)
				if most = max(most, c.calls); c.calls < at {
					break // it has no such call
				}
				if admission != nil || err == nil || errors.As(err, new(*signer.Refused)) {
					t.Errorf("call %d of %d fails: %v, %v; want an error that may pass", at, c.calls, admission, err)
				}
				c.failAt = 0
				if _, err := c.admission().Admit(t.Context(), r); err != nil {
					t.Errorf("again after call %d failed: %v", at, err)
				}
				most++
			}
		})
	}
}

// admits admits a request while nothing fails.
func (c *cluster) admits(t *testing.T, r approval.Request) {
	t.Helper()
	if _, err := c.admission().Admit(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func TestAdmitsNothingWithoutARequestOrTokens(t *testing.T) {
	if _, err := (&signer.NodeAdmission{}).Admit(t.Context(), approval.Request{User: "jane"}); !errors.As(err, new(*signer.Refused)) {
		t.Errorf("without a certificate request: %v", err)
	}
	c := newCluster()
	token := c.mint(tokens.Limits{MaxNodes: 1})
	for name, n := range map[string]*signer.NodeAdmission{
		"no tokens": {Claims: claims{cluster: c}, Node: c.Node},
		"no claims": {Tokens: store{cluster: c}, Node: c.Node},
	} {
		_, err := n.Admit(t.Context(), asks(t, by(token), "worker-1", nil))
		wantRefused(t, name, err, "TokenRevoked")
	}
}
