package client_test

import (
	"errors"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
)

// The server refuses empty fields. Catches a client that sends zero fields, or that omits an empty list: without
// nodeNames the token would allow every name.
func TestOmitsZeroFieldsButNotEmptyLists(t *testing.T) {
	s, _, ca := newServer(t)
	c := overTLS(t, s, ca)
	ctx := t.Context()
	made := must.Value(c.CreateToken(ctx, api.CreateToken{}))(t)
	if _, err := c.CreateToken(ctx, api.CreateToken{TokenSpec: api.TokenSpec{Groups: []string{}}}); err != nil {
		t.Error(err)
	}
	if _, err := c.PrintJoinCommand(ctx, api.PrintJoinCommand{}); err != nil {
		t.Error(err)
	}
	if _, err := c.RenewToken(ctx, made.ID, api.RenewToken{}); err != nil {
		t.Error(err)
	}
	if _, err := c.DeleteToken(ctx, made.ID, api.DeleteToken{}); err != nil {
		t.Error(err)
	}
	if _, err := c.TokensPage(ctx, api.ListPage{}); err != nil {
		t.Error(err)
	}
	if _, err := c.ClaimsPage(ctx, api.ListPage{}); err != nil {
		t.Error(err)
	}
	var p *api.Problem
	if _, err := c.ListIssued(ctx, api.ListIssued{}); !errors.As(err, &p) || !p.Named("no-issuance-record") {
		t.Error(err)
	}
	if _, err := c.ReleaseClaim(ctx, "worker-7", api.ReleaseClaim{}); !errors.As(err, &p) || !p.Named("no-claim") {
		t.Error(err)
	}
	if _, err := c.ExplainRequest(ctx, api.ExplainRequest{CSR: "x"}); !errors.As(err, &p) || !p.Named("no-cluster") {
		t.Error(err)
	}
	for field, spec := range map[string]api.TokenSpec{"nodeNames": {NodeNames: []string{}}, "usages": {Usages: []string{}}} {
		if _, err := c.CreateToken(ctx, api.CreateToken{TokenSpec: spec}); !errors.As(err, &p) || p.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
