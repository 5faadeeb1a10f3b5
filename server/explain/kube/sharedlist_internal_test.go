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
	record := tokens.NewRecord(tokens.Generate(), time.Hour, start)
	record.Created = start.Add(-2 * time.Hour)
	id := record.Token.ID()
	l := seen(record)
	for node, ago := range map[string]time.Duration{"worker-1": 0, "worker-2": time.Hour} {
		l.claims[node] = tokens.Claim{Node: node, TokenID: id, Created: start.Add(-ago)}
	}
	l.nodes["worker-3"] = kubefacts.SeenNode{Registration: kubefacts.Registration{UID: "3", Created: start}}
	for _, token := range []string{"", id} {
		var callers sync.WaitGroup
		items := make([]any, 4)
		for i := range items {
			callers.Go(func() { items[i] = &l.shared("", token, l.byID[token]).Items[0] })
		}
		callers.Wait()
		for _, item := range items {
			if item != items[0] {
				t.Errorf("token %q: callers have different lists, want one", token)
			}
		}
	}
	all, ofToken := l.shared("", "", tokens.Record{}), l.shared("", id, l.byID[id])
	if len(all.Items) != 3 || all.Items[0].Node != "worker-2" || len(ofToken.Items) != 2 || ofToken.Items[0].Node != "worker-2" || ofToken.Cursor == all.Cursor {
		t.Errorf("got %+v and %+v of the token, want the machine that waits longest first", all, ofToken)
	}
}
