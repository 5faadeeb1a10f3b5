package kube

import (
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
)

// Catches callers that each explain or sort all machines, and a list that is not in order.
func TestCallersShareOneList(t *testing.T) {
	now, record := time.Now(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	id := record.Token.ID()
	l := &look{
		now: now, byID: map[string]tokens.Record{id: record},
		claims: map[string]tokens.Claim{"worker-1": {Node: "worker-1", TokenID: id, Created: now}, "worker-2": {Node: "worker-2", TokenID: id, Created: now.Add(-time.Hour)}},
		nodes:  map[string]kubefacts.SeenNode{"worker-3": {Registration: kubefacts.Registration{UID: "3", Created: now}}},
	}
	for _, token := range []string{"", id} {
		var callers sync.WaitGroup
		items := make([]any, 4)
		for i := range items {
			callers.Go(func() { items[i] = &l.list(token).Items[0] })
		}
		callers.Wait()
		for _, item := range items {
			if item != items[0] {
				t.Errorf("token %q: callers have different lists, want one", token)
			}
		}
	}
	all, ofToken := l.list(""), l.list(id)
	if len(all.Items) != 3 || all.Items[0].Node != "worker-2" || len(ofToken.Items) != 2 || ofToken.Items[0].Node != "worker-2" || ofToken.Cursor == all.Cursor {
		t.Errorf("got %+v and %+v of the token, want the machine that waits longest first", all, ofToken)
	}
}
