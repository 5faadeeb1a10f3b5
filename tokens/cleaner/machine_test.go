package cleaner_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

var machine = tokens.Machine{Key: "lusab-babad-gutih-tugad", By: "ada"}

// cleanFor runs the cleaner without Nodes, or for an empty cluster. It returns how often the cleaner wrote a claim.
func cleanFor(t *testing.T, d time.Duration, store *rowstore.Store, empty bool) (writes int) {
	t.Helper()
	counted := storetest.Faulty(func(c *storetest.Call, do func() error) error {
		if strings.HasPrefix(c.Method, "Claims.") && c.Method != "Claims.List" {
			writes++
		}
		return do()
	})
	c := cleaner.Claims{Store: counted.Claims(store.Claims()), Tokens: store, RejoinWindow: time.Minute}
	if empty {
		c.Node = func(context.Context, string) (string, error) { return "", tokens.ErrNotFound }
		c.Nodes = func(context.Context) (map[string]string, error) { return nil, nil }
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	must.OK(t, c.Run(ctx))
	return writes
}

// Catches a cleaner that forgets a machine before it has joined, or that writes all machines in each step.
func TestClaimsWritesNoClaimOfMachineAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []tokens.Claim
		for i := range 10_000 {
			all = append(all, tokens.Claim{Node: fmt.Sprintf("worker-%d", i), Machine: machine})
		}
		store := openClaims(t, all...)
		for _, empty := range []bool{false, true} {
			if writes := cleanFor(t, 3*time.Minute, store, empty); writes > 0 {
				t.Errorf("no Nodes: %t: got %d reads and writes of claims, want none", empty, writes)
			}
		}
		if left := must.Value(store.Claims().List(t.Context()))(t); len(left) != len(all) {
			t.Errorf("got %d claims, want all %d", len(left), len(all))
		}
	})
}

// A machine must keep its name if its Node, its token, its Past or its Identity is gone.
func TestClaimsKeepsMachineOfReleasedClaim(t *testing.T) {
	for name, claim := range map[string]tokens.Claim{
		"Node deleted": {TokenID: "abc123", NodeUID: "u"},
		"token gone":   {TokenID: "abc123"},
		"Past over":    {Past: tokens.ReleasedClaim{Until: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)}},
		"Past ends":    {Past: tokens.ReleasedClaim{Until: time.Date(2000, 1, 1, 0, 30, 0, 0, time.UTC)}},
		"identity over": {Identity: tokens.Identity{
			Credentials: []tokens.Credential{{Key: "k"}}, NodeUID: "u", NotAfter: time.Date(2000, 1, 1, 0, 30, 0, 0, time.UTC),
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			claim.Node, claim.Machine = "worker-1", machine
			store := openClaims(t, claim)
			if writes := cleanFor(t, time.Hour, store, true); writes != 1 {
				t.Errorf("%s: got %d writes, want one", name, writes)
			}
			c, err := store.Claims().Get(t.Context(), "worker-1", tokens.Live)
			if err != nil || !c.Released() || c.Machine != machine || !c.Equal(c.AfterRelease(tokens.ReleasedClaim{})) {
				t.Errorf("%s: got %+v, %v, want only the machine", name, c, err)
			}
		})
	}
}
