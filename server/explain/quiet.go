package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server/api"
)

// noRequest tells of a name under which nothing has arrived, or nothing is left of it.
func (v *view) noRequest() {
	const nobody = "no machine has asked for a certificate under this name"
	claimed := v.readable(FactClaim) && v.Claim != nil
	if claimed {
		c := v.Claim
		if c.NodeUID != "" && v.readable(FactNode) {
			v.say(NodeDeleted, c.Created, "joined on token %s, which took the name %s, and its Node was deleted", c.TokenID, ago(c.Created, v.now))
			v.next(v.remedy(NodeDeleted))
			return
		}
		v.say(Claimed, c.Created, "token %s took the name %s, and neither a certificate request nor a Node is left of it", c.TokenID, ago(c.Created, v.now))
		v.next(v.remedy(Claimed))
		return
	}
	if v.readable(FactClusterInfo) && len(v.ClusterInfo) == 0 {
		v.say(NoClusterInfo, time.Time{}, "%s, and none can discover the cluster: there is no ConfigMap kube-public/cluster-info; %s", nobody,
			v.responsible("bootstrap-signer", "bootstrap-signer-controller after 'kubeadm init phase bootstrap-token'"))
		return
	}
	if !v.readable(FactTokens) {
		v.say(NothingKnown, time.Time{}, "%s; see on the machine what kubeadm join says%s, and whether its token is alive", nobody, v.discovery())
		v.next("", "kubejoin token list")
		return
	}
	bound, general := v.usable()
	v.e.Evidence.TokenCount = len(bound)
	v.e.Evidence.Tokens = bound[:min(len(bound), api.MaxEvidence)]
	usable, kind := bound, "limited to it"
	if len(bound) == 0 {
		usable, kind = general, "good for any name"
	}
	if len(usable) == 0 {
		v.say(NothingKnown, time.Time{}, "%s, and there is no token that it could join with", nobody)
		v.next("make one with", v.ofNode("kubejoin token create --node-name"))
		return
	}
	list := v.list(usable)
	switch best := usable[0]; {
	case best.Status == api.StatusActive && len(bound) > 0:
		v.say(NothingArrived, time.Time{}, "%s; tokens limited to it: %s; see on the machine what kubeadm join says%s", nobody, list, v.discovery())
	case best.Status == api.StatusActive:
		v.say(NothingKnown, time.Time{}, "%s; no token is limited to it, %d good for any: see on the machine what kubeadm join says%s", nobody, active(general), v.discovery())
		v.next("", "kubejoin token list")
	case best.Status == api.StatusUnsigned:
		v.say(TokenUnsigned, time.Time{}, "%s, and with its token it cannot discover the cluster, since cluster-info has no signature by it; tokens %s: %s; %s", nobody, kind, list,
			v.responsible("bootstrap-signer", "bootstrap-signer-controller"))
		v.next("", "kubectl -n "+clusterinfo.Namespace+" get configmap "+clusterinfo.Name+" -o yaml")
	default:
		state := map[string]api.NodeState{api.StatusSpent: TokenSpent, api.StatusExpired: TokenExpired, api.StatusInvalid: TokenLimitsMalformed}[best.Status]
		since := time.Time{}
		if state == TokenExpired {
			since = best.Expires
		}
		v.say(state, since, "%s, and no token is left that it could join with; tokens %s: %s", nobody, kind, list)
		v.next(v.remedy(state))
	}
}

// few tokens are named in a sentence.
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

// discovery says what the machine has to reach, and adds the command that shows whether it does.
func (v *view) discovery() string {
	if !v.readable(FactClusterInfo) {
		return ""
	}
	server, _, err := clusterinfo.ParseKubeconfig([]byte(v.ClusterInfo[clusterinfo.KubeconfigKey]))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(", and whether it reaches %s and the HOST:PORT of its join command", clean(server))
}
