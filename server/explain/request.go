package explain

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// kubejoinName is the field manager of kubejoin's writes.
const kubejoinName = "kubejoin"

// usualDelay is the normal maximum time to approve and sign a request.
const usualDelay = 10 * time.Second

// refusals are the reasons of kubejoin that are also states.
var refusals = []api.NodeState{
	TokenSpent, TokenExpired, TokenRevoked, TokenReplaced, TokenLimitsMalformed, NodeNameNotAllowed,
	NodeNameReserved, NodeNameClaimed, NodeExists, NodeReplaced, TooManyKeys, NotForBootstrapToken, Revoked,
}

// refused explains a request that was denied or has failed.
func (v *view) refused(r api.RequestEvidence, c api.RequestCondition, s api.NodeState) {
	if slices.Contains(refusals, api.NodeState(c.Reason)) {
		s = api.NodeState(c.Reason)
	}
	v.tokenOf(r)
	verb := "refused"
	if s == Failed {
		verb = "failed"
	}
	if n := v.e.Evidence.Refused; n > 1 {
		v.say(s, c.At, "%s %d times, last %s: %s", verb, n, ago(c.At, v.now), conditionWords(c))
	} else {
		v.say(s, c.At, "%s %s: %s", verb, ago(c.At, v.now), conditionWords(c))
	}
	words, command := v.remedy(s)
	if strings.Contains(v.e.Sentence, ": kubejoin ") { // the message already names the command
		words = ""
	}
	v.next(words, command)
	v.next("", safetext.ShowCSR(r.Name, r.UID))
	if at := slices.IndexFunc(v.client, func(other api.RequestEvidence) bool { return other.Certificate != nil }); at >= 0 && v.Object == nil {
		v.e.Sentence += fmt.Sprintf("; an earlier request for the name was signed %s", ago(v.client[at].Certificate.At, v.now))
	}
}

// tokenOf adds the token of a request to the evidence.
func (v *view) tokenOf(r api.RequestEvidence) {
	for _, t := range v.Tokens {
		if id := tokens.IDOfUser(r.User); id != "" && t.Token.ID() == id {
			evidence := v.token(t)
			v.e.Evidence.Token = &evidence
		}
	}
}

// pending explains why a request is not approved.
func (v *view) pending(r api.RequestEvidence) {
	created := fmt.Sprintf("its certificate request was created %s%s and is not approved", ago(r.Created, v.now), v.refusedBefore())
	if state, why := v.diagnose(r); state != "" {
		v.say(state, r.Created, "%s: %s", created, why)
		v.next(v.remedy(state))
		return
	}
	switch {
	case r.Permitted != nil && !*r.Permitted:
		v.say(NotPermitted, r.Created, "%s: %q may not create certificatesigningrequests/%s, so a person has to approve it", created, clean(r.User), Subresource(v.Node, r.User))
		v.approve("approve it with", r)
		v.next("or allow automatic approval with", v.permit(r))
	case v.failedWrite(r) != "":
		v.say(NotApproved, r.Created, "%s", created+v.failedWrite(r))
		v.next("find what refuses it with", "kubejoin doctor")
	case v.now.Sub(r.Created) < usualDelay:
		v.say(NotApproved, r.Created, "%s yet", created)
		v.approve("", r)
	default:
		v.say(NotApproved, r.Created, "%s: %s", created, v.responsible("approve it", "csr-approver", "certificatesigningrequest-approving-controller"))
		v.verdict(r)
		v.approve("approve it with", r)
	}
	v.readable(FactPermission)
}

// failedWrite describes a write of kubejoin that this request needs and that has failed. The text is empty if no such
// write has failed. For a client certificate, kubejoin writes a Lease (the claim) and a Secret (the count), even if a
// person has approved the request.
func (v *view) failedWrite(r api.RequestEvidence) string {
	for _, w := range v.FailedWrites {
		if w.Request == r.Name || r.Signer == clientSigner && (w.Resource == "secrets" || w.Resource == "leases") {
			return fmt.Sprintf("; kubejoin could not %s %s: %s", w, ago(w.At, v.now), clean(w.Message))
		}
	}
	return ""
}

// refusedBefore describes how often earlier requests were refused.
func (v *view) refusedBefore() string {
	switch n := v.e.Evidence.Refused; n {
	case 0:
		return ""
	case 1:
		return " (after 1 refusal)"
	default:
		return fmt.Sprintf(" (after %d refusals)", n)
	}
}

// Subresource returns the subresource of certificatesigningrequests that RBAC must allow a user to create, so that the approver
// approves a request of this user for a node.
func Subresource(node, user string) string {
	if user == tokens.NodeUserPrefix+node {
		return "selfnodeclient"
	}
	return "nodeclient"
}

// permit returns the command that creates kubeadm's binding for automatic approval, for a group of the requester. It
// is empty if the request has no safe group name.
func (v *view) permit(r api.RequestEvidence) string {
	at := slices.IndexFunc(r.Groups, func(g string) bool {
		return strings.HasPrefix(g, tokens.BootstrappersGroup+":") && len(g) <= safetext.MaxName && strings.Trim(g, "abcdefghijklmnopqrstuvwxyz0123456789:-") == ""
	})
	if at < 0 {
		return ""
	}
	return "kubectl create clusterrolebinding kubeadm:node-autoapprove-bootstrap --clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient --group=" + r.Groups[at]
}

// unsigned explains why an approved request has no certificate.
func (v *view) unsigned(r api.RequestEvidence) {
	approved := fmt.Sprintf("its request was approved %s and is not signed", ago(r.Approved.At, v.now))
	if state, why := v.diagnose(r); state != "" {
		v.say(state, r.Approved.At, "%s: %s", approved, why)
		v.next(v.remedy(state))
	} else if why := v.failedWrite(r); why != "" {
		v.say(NotSigned, r.Approved.At, "%s", approved+why)
		v.next("find what refuses it with", "kubejoin doctor")
	} else if v.now.Sub(r.Approved.At) < usualDelay {
		v.say(NotSigned, r.Approved.At, "%s yet", approved)
	} else {
		v.say(NotSigned, r.Approved.At, "%s: %s", approved, v.responsible("sign it", "csr-signer", "certificatesigningrequest-signing-controller"))
		v.verdict(r)
	}
	v.next("", safetext.ShowCSR(r.Name, r.UID))
}

// responsible describes which controller should act, for example "sign it", and whether it can be running.
func (v *view) responsible(act, kubejoins, kcms string) string {
	either := fmt.Sprintf("kubejoin's %s or kube-controller-manager's %s should %s", kubejoins, kcms, act)
	if !v.readable(FactLeader) {
		return either
	}
	l := v.Leader
	v.e.Evidence.Leader = l
	switch {
	case l == nil:
		return either + ", but no kubejoin has a Lease in this cluster"
	case v.Leaderless(v.now):
		v.next("", fmt.Sprintf("kubectl -n %s get lease %s", l.Namespace, l.Lease))
		return fmt.Sprintf("%s, but no kubejoin is running (its Lease was last renewed %s)", either, ago(l.Renewed, v.now))
	}
	return fmt.Sprintf("kubejoin's %s on %s should %s, unless --controllers leaves that to kube-controller-manager; see its log", kubejoins, clean(l.Holder), act)
}

// issued explains a certificate without a Node object.
func (v *view) issued(r api.RequestEvidence) {
	c := r.Certificate
	v.tokenOf(r)
	onMachine := "journalctl -u kubelet -n 50 --no-pager"
	var leaf *x509.Certificate
	if len(c.Chain) > 0 {
		leaf = c.Chain[0]
	}
	switch {
	case leaf != nil && v.now.After(leaf.NotAfter):
		v.say(CertificateExpired, leaf.NotAfter, "its certificate was issued %s and expired %s, and there is no Node", ago(c.At, v.now), ago(leaf.NotAfter, v.now))
		v.next(v.remedy(NodeDeleted))
	case leaf != nil && !v.trusts(c.Chain):
		v.say(WrongIssuer, c.At, "its certificate was issued %s by %s, which is not a CA in cluster-info, so the API server may not trust it: %s signs with another CA",
			ago(c.At, v.now), clean(fmt.Sprintf("%q", leaf.Issuer.String())), cmp.Or(clean(c.Writer), "its signer"))
		v.next("", safetext.ShowCSR(r.Name, r.UID))
	case v.readable(FactNode) && (r.User == tokens.NodeUserPrefix+v.Node || v.Claim != nil && v.Claim.NodeUID != ""):
		v.say(NodeDeleted, c.At, "its Node was deleted: the machine's certificate was issued %s and there is no Node", ago(c.At, v.now))
		v.next(v.remedy(NodeDeleted))
	case c.Writer != "" && c.Writer != kubejoinName:
		v.say(SignedByOther, c.At, "its certificate was issued %s by %s and not by kubejoin, so the limits of its token did not apply, and there is no Node; on the machine, run: %s", ago(c.At, v.now), clean(c.Writer), onMachine)
		v.next("", onMachine)
	default:
		v.say(CertificateIssued, c.At, "its certificate was issued %s and there is no Node; on the machine, check whether the kubelet runs%s: %s", ago(c.At, v.now), v.reaching(), onMachine)
		v.next("", onMachine)
	}
	if slices.Contains(v.missing, string(FactNode)) {
		v.e.Sentence = strings.Replace(v.e.Sentence, "there is no Node", "no Node is known", 1)
	}
}

// reaching returns words that name the API server that kubelets must reach; empty if it is unknown.
func (v *view) reaching() string {
	if !v.readable(FactClusterInfo) || v.ClusterInfo.Server == "" {
		return ""
	}
	return " and reaches " + clean(v.ClusterInfo.Server)
}

// trusts reports whether a CA in cluster-info issued the chain, or cluster-info names no CA. It ignores expiration. The name and
// the key ID of the CA are enough here: the answer is only for a sentence, and only a signer could have written another certificate
// with them. To check a signature for each of 10,000 machines would take a second.
func (v *view) trusts(chain []*x509.Certificate) bool {
	cas := v.ClusterInfo.CAs
	if !v.readable(FactClusterInfo) || len(cas) == 0 || slices.ContainsFunc(cas, func(ca *x509.Certificate) bool {
		return len(ca.SubjectKeyId) > 0 && bytes.Equal(ca.SubjectKeyId, chain[0].AuthorityKeyId) && bytes.Equal(ca.RawSubject, chain[0].RawIssuer)
	}) {
		return true
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: pemfile.PoolOf(cas), Intermediates: pemfile.PoolOf(chain[1:]), CurrentTime: chain[0].NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err == nil
}
