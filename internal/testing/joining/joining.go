// Package joining has the machines in the pictures of README.md. explain.Join makes their states, sentences and commands.
package joining

import (
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
)

// Machines returns a list of machines at the time now.
func Machines(now time.Time) api.JoinList {
	before := func(d time.Duration) time.Time { return now.Add(-d) }
	created := func(id string, d time.Duration, limits tokens.Limits) tokens.Record {
		r := tokens.NewRecord(must.Get(tokens.New(id, "0123456789abcdef")), 24*time.Hour, before(d))
		r.Created, r.UID, r.Limits = before(d), id, limits
		return r
	}
	all := []tokens.Record{
		created("k4r7xq", 2*time.Hour, tokens.Limits{MaxNodes: 12}), // 5 nodes have joined with it long ago
		created("gpu5m2", 10*time.Minute, tokens.Limits{NodeNames: []string{"gpu-1", "gpu-2", "gpu-3", "gpu-4"}}),
	}
	requested := func(node, id string, ago time.Duration) explain.Facts {
		return explain.Facts{Node: node, Requests: []api.RequestEvidence{{
			Name: "node-csr-" + node, UID: node, Signer: "kubernetes.io/kube-apiserver-client-kubelet", User: tokens.BootstrapUserPrefix + id, Created: before(ago),
		}}}
	}
	issued := func(node, id string, ago time.Duration) explain.Facts {
		f := requested(node, id, ago)
		f.Requests[0].Certificate = &api.CertificateEvidence{Writer: "kubejoin", At: before(ago - 4*time.Second)}
		f.Claim = &tokens.Claim{Node: node, TokenID: id, TokenUID: id, Created: before(ago - 2*time.Second)}
		return f
	}
	// registered returns a Node that registered after half a minute, and has its status since then.
	registered := func(node, id string, ago, since time.Duration, ready, message string) explain.Facts {
		f := issued(node, id, ago)
		f.Object = &api.NodeEvidence{UID: node, Created: before(ago - 30*time.Second), Ready: ready, Message: message, Since: before(since)}
		return f
	}
	refused := requested("rack7-13", "k4r7xq", 4*time.Minute)
	refused.Requests[0].Denied = &api.RequestCondition{At: before(4*time.Minute - 5*time.Second), Reason: string(explain.TokenSpent), Message: "token k4r7xq is spent: it allows 12 nodes, and 12 have joined with it; create another one: kubejoin token create --max-nodes 1 --node-name rack7-13"}
	facts := []explain.Facts{
		refused,
		registered("gpu-1", "gpu5m2", 8*time.Minute, 7*time.Minute, "False", "cni plugin not initialized"),
		issued("gpu-2", "gpu5m2", 40*time.Second),
		registered("gpu-3", "gpu5m2", time.Minute, 20*time.Second, "False", "cni plugin not initialized"),
		{Node: "gpu-4", Unread: []api.UnreadFact{{Fact: explain.FactClusterInfo}}},
	}
	for i := range 7 {
		ago := time.Duration(20-2*i) * time.Minute
		facts = append(facts, registered(fmt.Sprintf("rack7-%02d", i+6), "k4r7xq", ago, ago-time.Duration(70+25*(i*i%7))*time.Second, "True", ""))
	}
	joins := make([]api.Join, len(facts))
	for i, f := range facts {
		f.Tokens = all
		joins[i] = explain.Join(f, now)
	}
	return explain.JoinList(joins)
}
