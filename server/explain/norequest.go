package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server/api"
)

// noRequest explains a name with neither requests nor a Node object.
func (v *view) noRequest() {
	const nobody = "there is no certificate request for this name"
	claimed := v.readable(FactClaim) && v.Claim != nil
	if claimed {
		c := v.Claim
		if c.NodeUID != "" && v.readable(FactNode) {
			v.say(NodeDeleted, c.Created, "joined with token %s, which claimed the name %s, but its Node was deleted", c.TokenID, ago(c.Created, v.now))
			v.next(v.remedy(NodeDeleted))
			return
		}
		v.say(Claimed, c.Created, "token %s claimed the name %s, but there is no certificate request and no Node with this name", c.TokenID, ago(c.Created, v.now))
		v.next(v.remedy(Claimed))
		return
	}
	if v.unproven(nobody) {
		return
	}
	if v.readable(FactClusterInfo) && len(v.ClusterInfo.Data) == 0 {
		v.say(NoClusterInfo, time.Time{}, "%s, and no machine can discover the cluster: there is no ConfigMap kube-public/cluster-info; %s", nobody,
			v.responsible("publish it", "bootstrap-signer", "bootstrap-signer-controller after 'kubeadm init phase bootstrap-token'"))
		return
	}
	if !v.readable(FactTokens) {
		v.say(NothingKnown, time.Time{}, "%s; check on the machine what kubeadm join prints%s, and whether its token is still valid", nobody, v.discovery())
		v.next("", "kubejoin token list")
		return
	}
	bound, general := v.usable()
	v.e.Evidence.TokenCount = len(bound)
	v.e.Evidence.Tokens = bound[:min(len(bound), api.MaxEvidence)]
	usable, kind := bound, "limited to it"
	if len(bound) == 0 {
		usable, kind = general, "for any name"
	}
	if len(usable) == 0 {
		v.say(NothingKnown, time.Time{}, "%s, and there is no token for this name", nobody)
		v.next("create one with", v.ofNode("kubejoin token create --max-nodes 1 --node-name"))
		return
	}
	list := v.list(usable)
	switch best := usable[0]; {
	case best.Status == api.StatusActive && len(bound) > 0:
		v.say(NothingArrived, time.Time{}, "%s; tokens limited to it: %s; check on the machine what kubeadm join prints%s", nobody, list, v.discovery())
	case best.Status == api.StatusActive:
		v.say(NothingKnown, time.Time{}, "%s; no token is limited to it (active tokens for any name: %d); check on the machine what kubeadm join prints%s", nobody, active(general), v.discovery())
		v.next("", "kubejoin token list")
	case best.Status == api.StatusUnsigned:
		v.say(TokenUnsigned, time.Time{}, "%s, and it cannot discover the cluster, because cluster-info has no signature by its token; tokens %s: %s; %s", nobody, kind, list,
			v.responsible("sign it", "bootstrap-signer", "bootstrap-signer-controller"))
		v.next("", "kubectl -n "+clusterinfo.Namespace+" get configmap "+clusterinfo.Name+" -o yaml")
	default:
		state := map[string]api.NodeState{api.StatusSpent: TokenSpent, api.StatusExpired: TokenExpired, api.StatusInvalid: TokenLimitsMalformed}[best.Status]
		since := time.Time{}
		if state == TokenExpired {
			since = best.Expires
		}
		v.say(state, since, "%s, and no token for this name is usable; tokens %s: %s", nobody, kind, list)
		v.next(v.remedy(state))
	}
}

// few is how many tokens a sentence names.
const few = 5

func (v *view) list(all []api.TokenEvidence) string {
	var words []string
	for _, t := range all[:min(len(all), few)] {
		words = append(words, tokenWords(t, v.now))
	}
	if more := len(all) - few; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

func active(all []api.TokenEvidence) (n int) {
	for _, t := range all {
		if t.Status == api.StatusActive {
			n++
		}
	}
	return n
}

// discovery returns words that name the address that the machine must reach; empty if it is unknown.
func (v *view) discovery() string {
	if !v.readable(FactClusterInfo) || v.ClusterInfo.Server == "" {
		return ""
	}
	return fmt.Sprintf(", and whether it reaches %s and the HOST:PORT of its join command", clean(v.ClusterInfo.Server))
}
