package main

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

const kubejoinUser = "system:serviceaccount:kubejoin-system:kubejoin"

// auditRules make kube-apiserver record each request of kubejoin and of kubelets once, when the request ends. This is
// necessary because no metric counts requests by user.
const auditRules = `- {level: Metadata, omitStages: [ResponseStarted], users: ["` + kubejoinUser + `"]}
- {level: Metadata, omitStages: [ResponseStarted], userGroups: ["system:bootstrappers", "system:nodes"]}
- level: None
`

// calls is the number of requests of one kind that kube-apiserver received for each machine, by sender.
type calls struct {
	Kind     string  `json:"kind"` // for example "get nodes 404"
	Kubejoin float64 `json:"kubejoin"`
	Kubelets float64 `json:"kubelets"`
}

// tally counts the requests since a time, divided by the number of machines: by kind, kubejoin's most frequent kinds first,
// and by source address. The first kind is "all".
func tally(log iter.Seq2[cluster.Call, error], since time.Time, machines int) (kinds []calls, from map[string]float64, err error) {
	each, byKind, from := 1/float64(machines), map[string]calls{}, map[string]float64{}
	for c, err := range log {
		if err != nil {
			return nil, nil, err
		}
		if c.RequestReceivedTimestamp.Before(since) {
			continue
		}
		from[c.SourceIPs[0]] += each
		for _, kind := range []string{"all", kind(c)} {
			sum := byKind[kind]
			if sum.Kind = kind; c.User.Username == kubejoinUser {
				sum.Kubejoin += each
			} else {
				sum.Kubelets += each
			}
			byKind[kind] = sum
		}
	}
	return slices.SortedFunc(maps.Values(byKind), func(a, b calls) int {
		return cmp.Or(cmp.Compare(b.Kubejoin, a.Kubejoin), cmp.Compare(b.Kubelets, a.Kubelets), cmp.Compare(a.Kind, b.Kind))
	}), from, nil
}

// kind returns the verb and resource of a request, with the status if the request failed.
func kind(c cluster.Call) string {
	what := c.ObjectRef.Resource
	if what == "" {
		what, _, _ = strings.Cut(c.RequestURI, "?")
	}
	if c.ObjectRef.Subresource != "" {
		what += "/" + c.ObjectRef.Subresource
	}
	if c.ResponseStatus.Code >= 400 {
		what += fmt.Sprintf(" %d", c.ResponseStatus.Code)
	}
	return c.Verb + " " + what
}
