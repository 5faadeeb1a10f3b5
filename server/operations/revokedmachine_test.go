package operations_test

import (
	"errors"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// Catches a machine whose key was barred, and that is added again before somebody has deleted it.
func TestAddsNoRevokedMachine(t *testing.T) {
	o := &operations.Operations{Claims: memdb.Open().Claims()}
	req := api.AddMachines{Items: []api.MachineSpec{{Node: "worker-1", Key: "lusab-babad-gutih-tugad"}}}
	add := func() (api.MachineList, error) {
		return o.AddMachines(t.Context(), req, "ada", operations.Everything)
	}
	must.Value(add())(t)
	if list, err := add(); err != nil || list.Items[0].Result != api.MachineUnchanged {
		t.Errorf("again: got %+v, %v, want %s", list, err, api.MachineUnchanged)
	}
	must.Value(storetest.UpdateClaim(t.Context(), o.Claims, "worker-1", func(c *tokens.Claim) error { c.Machine.Revoked = true; return nil }))(t)
	refused := (*tokens.Refusal)(nil)
	if _, err := add(); !errors.As(err, &refused) || refused.Reason != "machine-exists" {
		t.Errorf("revoked: got %v, want machine-exists", err)
	}
}
