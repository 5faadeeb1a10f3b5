package explain_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/sample"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
)

const (
	bootstrap = "system:bootstrap:abcdef"
	spent     = "token abcdef is spent: it allows 1 node, and worker-3 has joined with it; create another one: kubejoin token create --max-nodes 1 --node-name worker-7"
	another   = "kubejoin token create --max-nodes 1 --node-name worker-7"
	kubelet   = "journalctl -u kubelet -n 50 --no-pager"
)

// down is a write that fails because of a webhook.
func down(resource, request string) failedwrites.Write {
	return failedwrites.Write{Verb: "update", Resource: resource, Namespace: "kube-system", Request: request, At: before(9 * time.Second), Message: `failed calling webhook "x.example.com"`}
}

// Checks each state with its sentence, its time and its next commands.
func TestExplain(t *testing.T) {
	ca, other := newCA(t, "kubernetes"), newCA(t, "stranger")
	good, old := leafOf(t, ca, now.Add(time.Hour)), leafOf(t, ca, before(time.Minute))
	again := leafOf(t, ca, now.Add(time.Hour))
	plain, bound := token(t, "abcdef"), token(t, "bbbbbb", forNames("worker-*"))
	signed := info(t, ca, plain, bound)
	unsigned := info(t, ca)
	labeled := func(uid string) *tokens.Claim {
		c := claim("abcdef")
		c.NodeUID, c.Limits.Node = uid, tokens.NodeProperties{Labels: "a=b,c=,d=e,g=h", Taints: "f:NoSchedule", ReadyAfter: tokens.ReadyAfterServingCertificate}
		return c
	}
	gone := func(what api.Fact) api.UnreadFact { return api.UnreadFact{Fact: what, Reason: "forbidden"} }

	for about, c := range map[string]struct {
		facts    explain.Facts
		state    api.NodeState
		since    time.Time
		sentence string
		next     []string
	}{
		// Joined.
		"ready": {
			facts: explain.Facts{Object: node("True", "kubelet is posting ready status")},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago",
		},
		"ready and renewing": {
			facts: explain.Facts{Object: node("True", ""), Requests: []api.RequestEvidence{request(itself), request(bootstrap, made(4*time.Hour, "csr-0"), denied("X", "y"))}},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago",
		},
		"not ready": {
			facts: explain.Facts{Object: node("False", "container runtime network not ready.")},
			state: api.JoinedNotReady, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, NotReady since 2 h ago; the Node says \"container runtime network not ready\"",
			next:     []string{"kubectl describe node worker-7"},
		},
		"gone silent": {
			facts: explain.Facts{Object: node("Unknown", "Kubelet stopped posting node status.")},
			state: api.JoinedNotReady, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, NotReady, no status from its kubelet since 2 h ago; the Node says \"Kubelet stopped posting node status\"",
			next:     []string{"kubectl describe node worker-7"},
		},
		"registered a moment ago": {
			facts: explain.Facts{Object: &api.NodeEvidence{Created: before(time.Second)}},
			state: api.JoinedNotReady, since: before(time.Second),
			sentence: "joined 1 s ago, NotReady: its kubelet has reported nothing yet",
			next:     []string{"kubectl describe node worker-7"},
		},
		"serving certificate waits": {
			facts: explain.Facts{Object: node("True", ""), Requests: []api.RequestEvidence{request(itself, serving)}},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago; its request csr-serving for a serving certificate, created 40 s ago, waits for approval; see what kubejoin decides with: kubejoin explain --csr csr-serving; approve it with: kubectl certificate approve csr-serving",
			next:     []string{"kubejoin explain --csr csr-serving", "kubectl certificate approve csr-serving"},
		},
		"serving certificate refused": {
			facts: explain.Facts{Object: node("True", ""), Requests: []api.RequestEvidence{request(itself, serving, failed("SignerValidationFailure", "no IP"))}},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago; its request csr-serving for a serving certificate was refused 30 s ago: no IP",
		},
		"serving certificate unsigned": {
			facts: explain.Facts{Object: node("True", ""), Requests: []api.RequestEvidence{request(itself, serving, approved)}},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago; its request csr-serving for a serving certificate was approved 30 s ago and is not signed",
		},

		"ready, and two machines were let in": {
			facts: explain.Facts{Object: node("True", ""), Requests: []api.RequestEvidence{
				request(bootstrap, made(4*time.Hour, "csr-0"), issued("kubejoin", good)), request("system:bootstrap:bbbbbb", made(5*time.Hour, "csr-1"), issued("kubejoin", again)),
			}},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago; 2 initial certificates with different keys are valid for this name: several machines may use it, or one machine joined several times",
		},
		"ready, and the other certificates do not count": {
			facts: explain.Facts{Object: node("True", ""), Requests: []api.RequestEvidence{
				request(bootstrap, made(4*time.Hour, "csr-0"), issued("kubejoin", good)), request(bootstrap, made(5*time.Hour, "csr-1"), issued("kubejoin", good)),
				request(bootstrap, made(6*time.Hour, "csr-2"), issued("kubejoin", old)), request(itself, made(6*time.Hour, "csr-3"), issued("kubejoin", again)),
				request(bootstrap, made(6*time.Hour, "csr-4"), func(r *api.RequestEvidence) { r.Certificate = &api.CertificateEvidence{} }),
			}},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago",
		},

		// Refused.
		"spent": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, denied("TokenSpent", spent))}},
			state: explain.TokenSpent, since: before(30 * time.Second),
			sentence: "refused 30 s ago: " + spent,
			next:     []string{another, "kubectl describe csr csr-1"},
		},
		"refused often": {
			facts: explain.Facts{Requests: []api.RequestEvidence{
				request(bootstrap, made(90*time.Second, "csr-0"), denied("TokenExpired", "before")), request(bootstrap, failed("TokenSpent", spent)),
				request(bootstrap, made(95*time.Second, "csr-2"), failed("TokenSpent", "x")),
			}},
			state: explain.TokenSpent, since: before(30 * time.Second),
			sentence: "refused 3 times, last 30 s ago: " + spent,
			next:     []string{another, "kubectl describe csr csr-1"},
		},
		"refused without a word": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, denied("NodeNameNotAllowed", ""))}},
			state: explain.NodeNameNotAllowed, since: before(30 * time.Second),
			sentence: "refused 30 s ago: the reason given is NodeNameNotAllowed; create another token with: " + another,
			next:     []string{another, "kubectl describe csr csr-1"},
		},
		"refused after another was signed": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, denied("TooManyKeys", "three have asked")), request(bootstrap, made(time.Hour, "csr-0"), issued("kubejoin", good))}},
			state: explain.TooManyKeys, since: before(30 * time.Second),
			sentence: "refused 30 s ago: three have asked; if no other machine is to join with this name, release it with: kubejoin claim release worker-7; an earlier request for the name was signed 3 min ago",
			next:     []string{"kubejoin claim release worker-7", "kubectl describe csr csr-1"},
		},
		"refused by hand": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, denied("KubectlDeny", "This CSR was denied by\nkubectl certificate deny.\x1b[31m"))}},
			state: explain.Denied, since: before(30 * time.Second),
			sentence: "refused 30 s ago: This CSR was denied by kubectl certificate deny.�[31m",
			next:     []string{"kubectl describe csr csr-1"},
		},
		"failed": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, approved, failed("SignerValidationFailure", "not a request for it"))}},
			state: explain.Failed, since: before(30 * time.Second),
			sentence: "failed 30 s ago: not a request for it",
			next:     []string{"kubectl describe csr csr-1"},
		},
		"Node exists, and it is another machine that asks": {
			facts: explain.Facts{Object: node("False", "down"), Requests: []api.RequestEvidence{request(bootstrap, denied("NodeExists", "a Node worker-7 exists"))}},
			state: explain.NodeExists, since: before(30 * time.Second),
			sentence: "refused 30 s ago: a Node worker-7 exists; to replace it, create a token with: kubejoin token create --replace-node worker-7; the Node of that name is NotReady since 2 h ago; the Node says \"down\"",
			next:     []string{"kubejoin token create --replace-node worker-7", "kubectl describe csr csr-1"},
		},

		// Revoked.
		"revoked": {
			facts: explain.Facts{Object: node("True", "up"), Revocation: &api.RevocationEvidence{Since: before(2 * time.Hour), Reason: "stolen"},
				Requests: []api.RequestEvidence{request(bootstrap, made(4*time.Hour, "csr-0"), issued("kubejoin", good))}},
			state: explain.Revoked, since: before(2 * time.Hour),
			sentence: "joined 3 h ago, Ready since 2 h ago; its certificates were revoked 2 h ago: stolen; to let the machine come back, create a token with: kubejoin token create --replace-node worker-7",
			next:     []string{"kubejoin token create --replace-node worker-7"},
		},
		"revoked, and its certificate has expired": {
			facts: explain.Facts{Object: node("Unknown", ""), Revocation: &api.RevocationEvidence{Since: before(2 * time.Hour), Reason: "stolen"},
				Identity: tokens.Identity{NotAfter: before(time.Hour)}, Requests: []api.RequestEvidence{request(itself, denied("Revoked", "stolen"))}},
			state: explain.Revoked, since: before(2 * time.Hour),
			sentence: "joined 3 h ago, NotReady, no status from its kubelet since 2 h ago; its certificates were revoked 2 h ago: stolen; to let the machine come back, create a token with: kubejoin token create --replace-node worker-7",
			next:     []string{"kubectl describe node worker-7", "kubejoin token create --replace-node worker-7"},
		},
		"revoked, and its Node was deleted": {
			facts: explain.Facts{ClusterInfo: signed, Revocation: &api.RevocationEvidence{Since: before(2 * time.Hour)}},
			state: explain.Revoked, since: before(2 * time.Hour),
			sentence: "there is no certificate request for this name, and there is no token for this name; create one with: " + another + "; its certificates were revoked 2 h ago",
			next:     []string{another},
		},
		"revoked, and a token awaits the machine": {
			facts: explain.Facts{ClusterInfo: signed, Tokens: []tokens.Record{bound}, Revocation: &api.RevocationEvidence{Since: before(2 * time.Hour)}},
			state: explain.NothingArrived,
			sentence: "there is no certificate request for this name; tokens limited to it: bbbbbb (signed, expires in 23 h); check on the machine what kubeadm join prints, and whether it reaches https://api.example.com:6443 " +
				"and the HOST:PORT of its join command; its certificates were revoked 2 h ago",
		},
		"revoked, and another machine requests the name": {
			facts: explain.Facts{Object: node("Unknown", ""), Revocation: &api.RevocationEvidence{Since: before(2 * time.Hour)},
				Requests: []api.RequestEvidence{request(bootstrap, denied("TokenSpent", spent))}},
			state: explain.TokenSpent, since: before(30 * time.Second),
			sentence: "refused 30 s ago: " + spent + "; the Node of that name is NotReady, no status from its kubelet since 2 h ago; its certificates were revoked 2 h ago; " +
				"to let the machine come back, create a token with: kubejoin token create --replace-node worker-7",
			next: []string{another, "kubectl describe csr csr-1", "kubejoin token create --replace-node worker-7"},
		},
		"revoked, and came back": {
			facts: explain.Facts{Object: node("True", "up"), Revocation: &api.RevocationEvidence{Since: before(2 * time.Hour), Allowed: 2}},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago; its certificates were revoked 2 h ago; kubejoin has issued 2 valid certificates to it since",
		},

		// Not decided, because of the token or the name.
		"token unknown": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request("system:bootstrap:zzzzzz")}, Tokens: []tokens.Record{plain}, ClusterInfo: signed},
			state: explain.TokenUnknown, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: its token zzzzzz no longer exists; create another token with: " + another,
			next:     []string{another},
		},
		"token expired": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{token(t, "abcdef", expired)}, ClusterInfo: signed},
			state: explain.TokenExpired, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: its token abcdef expired 2 h ago; create another token with: " + another,
			next:     []string{another},
		},
		"token replaced": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{token(t, "abcdef", fresh)}, ClusterInfo: signed},
			state: explain.TokenReplaced, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: token abcdef was created 0 s ago, after the request: the token that the request was sent with was deleted; create another token with: " + another,
			next:     []string{another},
		},
		"token with limits that cannot be read": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, ClusterInfo: signed,
				Tokens: []tokens.Record{token(t, "abcdef", func(r *tokens.Record) { r.Limits.Problem = errors.New("max-nodes: want a number") })}},
			state: explain.TokenLimitsMalformed, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: the limits of its token abcdef are malformed (max-nodes: want a number), so no machine can join with it; create another token with: " + another,
			next:     []string{another},
		},
		"wrong name": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{token(t, "abcdef", forNames("a", "b", "c", "d"))}, ClusterInfo: signed},
			state: explain.NodeNameNotAllowed, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: its token abcdef is limited to other names (a, b, c and 1 more); create another token with: " + another,
			next:     []string{another},
		},
		"wrong name for a rule": { // the rule may also limit another token
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{token(t, "abcdef", byRule(tokens.Limits{NodeNames: []string{"auto-*"}}))}, ClusterInfo: signed},
			state: explain.NodeNameNotAllowed, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: rule scaler of --token-limits limits its token abcdef to other names (auto-*)",
		},
		"refused for a rule": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, denied("NodeNameNotAllowed", "rule scaler of --token-limits"))}, Tokens: []tokens.Record{token(t, "abcdef", byRule(tokens.Limits{NodeNames: []string{"auto-*"}}))}},
			state: explain.NodeNameNotAllowed, since: before(30 * time.Second),
			sentence: "refused 30 s ago: rule scaler of --token-limits",
			next:     []string{"kubectl describe csr csr-1"},
		},
		"token spent for a rule": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{token(t, "abcdef", byRule(tokens.Limits{MaxNodes: 1}), func(r *tokens.Record) { r.Nodes = []string{"worker-3"} })}, ClusterInfo: signed},
			state: explain.TokenSpent, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: its token abcdef is spent: it was for 1 node by rule scaler of --token-limits, and worker-3 used it; create another token with: " + another,
			next:     []string{another},
		},
		"token to replace another Node": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, ClusterInfo: signed,
				Tokens: []tokens.Record{token(t, "abcdef", func(r *tokens.Record) { r.Limits.Replaces = tokens.NodeRef{Name: "worker-8", UID: "u"} })}},
			state: explain.NodeNameNotAllowed, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: its token abcdef is limited to other names (worker-8); create another token with: " + another,
			next:     []string{another},
		},
		"token spent, not refused yet": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{token(t, "abcdef", usedUp("worker-3"))}, ClusterInfo: signed},
			state: explain.TokenSpent, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: its token abcdef is spent: it was for 1 node, and worker-3 used it; create another token with: " + another,
			next:     []string{another},
		},
		"name claimed": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{plain}, Claim: claim("cccccc"), ClusterInfo: signed},
			state: explain.NodeNameClaimed, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: another token, cccccc, claimed the name 10 min ago; if no other machine is to join with this name, release it with: kubejoin claim release worker-7",
			next:     []string{"kubejoin claim release worker-7"},
		},
		"name claimed, and the Node works": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{plain}, Claim: claim("cccccc"), Object: node("True", ""), ClusterInfo: signed},
			state: explain.NodeNameClaimed, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: another token, cccccc, claimed the name 10 min ago; the Node of that name is Ready since 2 h ago",
		},
		"Node exists, not refused yet": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{plain}, Object: node("True", ""), ClusterInfo: signed},
			state: explain.NodeExists, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: a Node with this name exists, and kubejoin does not issue its name again unless it runs with --existing-nodes=allow; " +
				"to replace it, create a token with: kubejoin token create --replace-node worker-7; the Node of that name is Ready since 2 h ago",
			next: []string{"kubejoin token create --replace-node worker-7"},
		},
		"Node to replace is another one": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Object: node("True", ""), ClusterInfo: signed,
				Tokens: []tokens.Record{token(t, "abcdef", func(r *tokens.Record) { r.Limits.Replaces = tokens.NodeRef{Name: name, UID: "u"} })}},
			state: explain.NodeReplaced, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: token abcdef was created to replace an earlier Node of this name, not the current one; " +
				"to replace it, create a token with: kubejoin token create --replace-node worker-7; the Node of that name is Ready since 2 h ago",
			next: []string{"kubejoin token create --replace-node worker-7"},
		},

		// Not decided, for another reason.
		"no permission": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, permitted(false))}, Tokens: []tokens.Record{plain}, Claim: claim("abcdef"), ClusterInfo: signed},
			state: explain.NotPermitted, since: before(40 * time.Second),
			sentence: `its certificate request was created 40 s ago and is not approved: "system:bootstrap:abcdef" may not create certificatesigningrequests/nodeclient, so a person has to approve it; ` +
				"approve it with: kubectl certificate approve csr-1; or allow automatic approval with: " + permitAll,
			next: []string{"kubectl certificate approve csr-1", permitAll},
		},
		"asked just now": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request("bob", permitted(true), made(2*time.Second, "csr-1"))}},
			state: explain.NotApproved, since: before(2 * time.Second),
			sentence: "its certificate request was created 2 s ago and is not approved yet",
			next:     []string{"kubectl certificate approve csr-1"},
		},
		"nobody approves": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request("bob", permitted(true))}},
			state: explain.NotApproved, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: kubejoin's csr-approver or kube-controller-manager's certificatesigningrequest-approving-controller should approve it, but no kubejoin has a Lease in this cluster; " +
				"see what kubejoin decides with: kubejoin explain --csr csr-1; approve it with: kubectl certificate approve csr-1",
			next: []string{"kubejoin explain --csr csr-1", "kubectl certificate approve csr-1"},
		},
		"approver is away": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request("bob", permitted(true))}, Leader: leader(5 * time.Minute)},
			state: explain.NotApproved, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: kubejoin's csr-approver or kube-controller-manager's certificatesigningrequest-approving-controller should approve it, " +
				"but no kubejoin is running (its Lease was last renewed 5 min ago); see what kubejoin decides with: kubejoin explain --csr csr-1; approve it with: kubectl certificate approve csr-1",
			next: []string{"kubectl -n kubejoin-system get lease kubejoin", "kubejoin explain --csr csr-1", "kubectl certificate approve csr-1"},
		},

		// Approved.
		"nobody signs": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request("bob", approved)}, Leader: leader(time.Second)},
			state: explain.NotSigned, since: before(30 * time.Second),
			sentence: "its request was approved 30 s ago and is not signed: kubejoin's csr-signer on cp-1_abc should sign it, unless --controllers leaves that to kube-controller-manager; see its log; see what kubejoin decides with: kubejoin explain --csr csr-1",
			next:     []string{"kubejoin explain --csr csr-1", "kubectl describe csr csr-1"},
		},
		"approved, and the token is gone": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, approved)}, ClusterInfo: signed},
			state: explain.TokenUnknown, since: before(30 * time.Second),
			sentence: "its request was approved 30 s ago and is not signed: its token abcdef no longer exists; create another token with: " + another,
			next:     []string{another, "kubectl describe csr csr-1"},
		},
		"approved a moment ago": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request("bob", func(r *api.RequestEvidence) { r.Approved = &api.RequestCondition{At: before(time.Second)} })}},
			state: explain.NotSigned, since: before(time.Second),
			sentence: "its request was approved 1 s ago and is not signed yet",
			next:     []string{"kubectl describe csr csr-1"},
		},

		// Issued.
		"issued": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, issued("kubejoin", good))}, Tokens: []tokens.Record{plain}, ClusterInfo: signed},
			state: explain.CertificateIssued, since: before(3 * time.Minute),
			sentence: "its certificate was issued 3 min ago and there is no Node; on the machine, check whether the kubelet runs and reaches https://api.example.com:6443: " + kubelet,
			next:     []string{kubelet},
		},
		"issued after refusals": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, issued("", good)), request(bootstrap, made(time.Hour, "csr-0"), denied("X", "y"))}, ClusterInfo: signed},
			state: explain.CertificateIssued, since: before(3 * time.Minute),
			sentence: "its certificate was issued 3 min ago and there is no Node; on the machine, check whether the kubelet runs and reaches https://api.example.com:6443: " + kubelet,
			next:     []string{kubelet},
		},
		"issued and expired": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, issued("kubejoin", old))}, ClusterInfo: signed},
			state: explain.CertificateExpired, since: before(time.Minute),
			sentence: "its certificate was issued 3 min ago and expired 60 s ago, and there is no Node; to let it join again, create a token with: " + another,
			next:     []string{another},
		},
		"signed by another signer": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, issued("kube-controller-manager", good))}, ClusterInfo: signed},
			state: explain.SignedByOther, since: before(3 * time.Minute),
			sentence: "its certificate was issued 3 min ago by kube-controller-manager and not by kubejoin, so the limits of its token did not apply, and there is no Node; on the machine, run: " + kubelet,
			next:     []string{kubelet},
		},
		"signed by another CA": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, issued("kube-controller-manager", leafOf(t, other, now.Add(time.Hour))))}, ClusterInfo: signed},
			state: explain.WrongIssuer, since: before(3 * time.Minute),
			sentence: `its certificate was issued 3 min ago by "CN=stranger", which is not a CA in cluster-info, so the API server may not trust it: kube-controller-manager signs with another CA`,
			next:     []string{"kubectl describe csr csr-1"},
		},
		"Node deleted, renewed": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(itself, issued("kubejoin", good))}, ClusterInfo: signed},
			state: explain.NodeDeleted, since: before(3 * time.Minute),
			sentence: "its Node was deleted: the machine's certificate was issued 3 min ago and there is no Node; to let it join again, create a token with: " + another,
			next:     []string{another},
		},
		"Node deleted, renewal waits": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(itself)}},
			state: explain.NodeDeleted, since: before(40 * time.Second),
			sentence: "its Node was deleted: the machine requested the renewal of its certificate 40 s ago, and the request waits for the Node; to let it join again, create a token with: " + another,
			next:     []string{another},
		},

		"Node deleted, kubelet runs": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, made(time.Hour, "csr-0"), issued("kubejoin", good)), request(itself, serving)}, ClusterInfo: signed},
			state: explain.NodeDeleted, since: before(40 * time.Second),
			sentence: "its Node was deleted, and its kubelet runs: its request csr-serving for a serving certificate, created 40 s ago, waits for the Node; " +
				"a kubelet registers its Node only when it starts; on the machine, run: systemctl restart kubelet",
			next: []string{"systemctl restart kubelet"},
		},
		"just about to register": {
			facts:    explain.Facts{Requests: []api.RequestEvidence{request(itself, serving, func(r *api.RequestEvidence) { r.Created = before(time.Second) })}, ClusterInfo: signed},
			state:    explain.NothingKnown,
			sentence: "there is no certificate request for this name, and there is no token for this name; create one with: " + another,
			next:     []string{another},
		},

		// A write of kubejoin fails.
		"webhook of Secrets down": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap)}, Tokens: []tokens.Record{plain}, ClusterInfo: signed, FailedWrites: []failedwrites.Write{down("secrets", "")}},
			state: explain.NotApproved, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved; kubejoin could not update secrets in kube-system 9 s ago: failed calling webhook \"x.example.com\"; find what refuses it with: kubejoin doctor",
			next:     []string{"kubejoin doctor"},
		},
		"webhook of Secrets down, approved": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, approved)}, Tokens: []tokens.Record{plain}, ClusterInfo: signed, FailedWrites: []failedwrites.Write{down("secrets", "")}},
			state: explain.NotSigned, since: before(30 * time.Second),
			sentence: "its request was approved 30 s ago and is not signed; kubejoin could not update secrets in kube-system 9 s ago: failed calling webhook \"x.example.com\"; find what refuses it with: kubejoin doctor",
			next:     []string{"kubejoin doctor", "kubectl describe csr csr-1"},
		},
		"write for this serving request fails": {
			facts: explain.Facts{Object: node("True", ""), Requests: []api.RequestEvidence{request(itself, serving)}, FailedWrites: []failedwrites.Write{down("secrets", ""), {Verb: "patch", Resource: "certificatesigningrequests", Request: "csr-other"}, down("certificatesigningrequests", "csr-serving")}},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago; its request csr-serving for a serving certificate, created 40 s ago, waits for approval; kubejoin could not update certificatesigningrequests in kube-system 9 s ago: failed calling webhook \"x.example.com\"; see what kubejoin decides with: kubejoin explain --csr csr-serving; approve it with: kubectl certificate approve csr-serving",
			next:     []string{"kubejoin explain --csr csr-serving", "kubectl certificate approve csr-serving"},
		},

		// No request has arrived, or all requests were deleted.
		"claimed": {
			facts: explain.Facts{Claim: claim("abcdef"), ClusterInfo: signed},
			state: explain.Claimed, since: before(10 * time.Minute),
			sentence: "token abcdef claimed the name 10 min ago, but there is no certificate request and no Node with this name; if no other machine is to join with this name, release it with: kubejoin claim release worker-7",
			next:     []string{"kubejoin claim release worker-7"},
		},
		"claimed, with labels": {
			facts: explain.Facts{Claim: labeled(""), ClusterInfo: signed},
			state: explain.Claimed, since: before(10 * time.Minute),
			sentence: "token abcdef claimed the name 10 min ago, but there is no certificate request and no Node with this name; if no other machine is to join with this name, release it with: kubejoin claim release worker-7; " +
				"from token abcdef, its Node gets labels a=b, c=, d=e and 1 more and taints f:NoSchedule; pods run on it after its serving certificate",
			next: []string{"kubejoin claim release worker-7"},
		},
		"joined, with labels": {
			facts: explain.Facts{Object: node("True", ""), Claim: labeled("u")},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago",
		},
		"joined, and waits": {
			facts: explain.Facts{Object: node("True", ""), Claim: labeled("u"), Joining: true, Waits: "its kubelet gets a serving certificate"},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago; no pods run on it without a toleration of its taint kubejoin.io/joining; for what its token asks for, it waits until its kubelet gets a serving certificate",
		},
		"claimed and deleted": {
			facts: explain.Facts{Claim: func() *tokens.Claim { c := claim("abcdef"); c.NodeUID = "u"; return c }(), ClusterInfo: signed},
			state: explain.NodeDeleted, since: before(10 * time.Minute),
			sentence: "joined with token abcdef, which claimed the name 10 min ago, but its Node was deleted; to let it join again, create a token with: " + another,
			next:     []string{another},
		},
		"no cluster-info": {
			facts: explain.Facts{Tokens: []tokens.Record{plain}, Leader: leader(time.Second)},
			state: explain.NoClusterInfo,
			sentence: "there is no certificate request for this name, and no machine can discover the cluster: there is no ConfigMap kube-public/cluster-info; " +
				"kubejoin's bootstrap-signer on cp-1_abc should publish it, unless --controllers leaves that to kube-controller-manager; see its log",
		},
		"token for it": {
			facts: explain.Facts{Tokens: []tokens.Record{plain, bound, token(t, "dddddd", forNames(name), expired)}, ClusterInfo: signed},
			state: explain.NothingArrived,
			sentence: "there is no certificate request for this name; tokens limited to it: bbbbbb (signed, expires in 23 h), dddddd (expired 2 h ago); " +
				"check on the machine what kubeadm join prints, and whether it reaches https://api.example.com:6443 and the HOST:PORT of its join command",
		},
		"unsigned token for it": {
			facts: explain.Facts{Tokens: []tokens.Record{plain, bound}, ClusterInfo: unsigned, Leader: leader(5 * time.Minute)},
			state: explain.TokenUnsigned,
			sentence: "there is no certificate request for this name, and it cannot discover the cluster, because cluster-info has no signature by its token; " +
				"tokens limited to it: bbbbbb (unsigned); kubejoin's bootstrap-signer or kube-controller-manager's bootstrap-signer-controller should sign it, but no kubejoin is running (its Lease was last renewed 5 min ago)",
			next: []string{"kubectl -n kubejoin-system get lease kubejoin", "kubectl -n kube-public get configmap cluster-info -o yaml"},
		},
		"expired token for it": {
			facts: explain.Facts{Tokens: []tokens.Record{plain, token(t, "dddddd", forNames(name), expired)}, ClusterInfo: signed},
			state: explain.TokenExpired, since: before(2 * time.Hour),
			sentence: "there is no certificate request for this name, and no token for this name is usable; tokens limited to it: dddddd (expired 2 h ago); create another token with: " + another,
			next:     []string{another},
		},
		"spent token whose signature was removed": {
			facts: explain.Facts{Tokens: []tokens.Record{token(t, "dddddd", forNames("worker-*"), usedUp("worker-1", name))}, ClusterInfo: unsigned},
			state: explain.TokenSpent,
			sentence: "there is no certificate request for this name, and no token for this name is usable; " +
				"tokens limited to it: dddddd (spent by worker-1, " + name + "); create another token with: " + another,
			next: []string{another},
		},
		"spent token that signs for others, and its claim has ended": {
			facts: explain.Facts{Tokens: []tokens.Record{token(t, "bbbbbb", forNames("worker-*"), usedUp("worker-1", name))}, ClusterInfo: signed},
			state: explain.TokenSpent,
			sentence: "there is no certificate request for this name, and no token for this name is usable; " +
				"tokens limited to it: bbbbbb (spent by worker-1, " + name + "); create another token with: " + another,
			next: []string{another},
		},
		"spent token for it": {
			facts: explain.Facts{Tokens: []tokens.Record{token(t, "dddddd", forNames("worker-*"), usedUp("worker-1", "worker-2"))}, ClusterInfo: signed},
			state: explain.TokenSpent,
			sentence: "there is no certificate request for this name, and no token for this name is usable; " +
				"tokens limited to it: dddddd (spent by worker-1, worker-2); create another token with: " + another,
			next: []string{another},
		},
		"invalid token for any": {
			facts: explain.Facts{Tokens: []tokens.Record{token(t, "dddddd", func(r *tokens.Record) { r.Limits.Problem = errors.New("x") })}, ClusterInfo: signed},
			state: explain.TokenLimitsMalformed,
			sentence: "there is no certificate request for this name, and no token for this name is usable; tokens for any name: dddddd (invalid); create another token with: " +
				another,
			next: []string{another},
		},
		"token for any": {
			facts: explain.Facts{Tokens: []tokens.Record{plain, token(t, "dddddd", forNames("x"))}, ClusterInfo: signed},
			state: explain.NothingKnown,
			sentence: "there is no certificate request for this name; no token is limited to it (active tokens for any name: 1); " +
				"check on the machine what kubeadm join prints, and whether it reaches https://api.example.com:6443 and the HOST:PORT of its join command",
			next: []string{"kubejoin token list"},
		},
		"no token": {
			facts: explain.Facts{Tokens: []tokens.Record{token(t, "dddddd", forNames("x")), token(t, "eeeeee", func(r *tokens.Record) { r.Authentication = false })}, ClusterInfo: signed},
			state: explain.NothingKnown,
			sentence: "there is no certificate request for this name, and there is no token for this name; " +
				"create one with: " + another,
			next: []string{another},
		},

		// Facts that cannot be read are named in the sentence.
		"requests unread": {
			facts: explain.Facts{Tokens: []tokens.Record{plain}, ClusterInfo: signed, Unread: []api.UnreadFact{gone(explain.FactRequests)}},
			state: explain.Unknown, sentence: "its state is unknown without its certificate requests (could not be read: certificate requests)",
		},
		"Node unread, issued": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, issued("kubejoin", good))}, ClusterInfo: signed, Unread: []api.UnreadFact{gone(explain.FactNode)}},
			state: explain.CertificateIssued, since: before(3 * time.Minute),
			sentence: "its certificate was issued 3 min ago and no Node is known; on the machine, check whether the kubelet runs and reaches https://api.example.com:6443: " + kubelet +
				" (could not be read: the Node)",
			next: []string{kubelet},
		},
		"tokens and claim unread, pending": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request(bootstrap, permitted(true))}, Leader: leader(time.Second),
				Unread: []api.UnreadFact{gone(explain.FactTokens), gone(explain.FactClaim), gone(explain.FactClusterInfo)}},
			state: explain.NotApproved, since: before(40 * time.Second),
			sentence: "its certificate request was created 40 s ago and is not approved: kubejoin's csr-approver on cp-1_abc should approve it, unless --controllers leaves that to kube-controller-manager; see its log; " +
				"see what kubejoin decides with: kubejoin explain --csr csr-1; approve it with: kubectl certificate approve csr-1 (could not be read: tokens, the claim of the name)",
			next: []string{"kubejoin explain --csr csr-1", "kubectl certificate approve csr-1"},
		},
		"waits for its turn": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request("bob", approved)}, Turn: turn("control-2", time.Second, name)},
			state: explain.WaitsForTurn, since: before(2 * time.Minute),
			sentence: "has waited 2 min for its turn to join as a control plane; control-2 has been joining for 3 min",
		},
		"waits for a silent machine": {
			facts: explain.Facts{Turn: turn("control-2", 25*time.Second, name)},
			state: explain.WaitsForTurn, since: before(2 * time.Minute),
			sentence: "has waited 2 min for its turn to join as a control plane; control-2 has been joining for 3 min, but has not renewed its turn for 25 s; the turn ends after 30 s",
		},
		"waits for a learner": {
			facts: explain.Facts{Turn: &api.TurnEvidence{Learner: "https://192.0.2.9:2380", Waiting: turn("", 0, name).Waiting}},
			state: explain.WaitsForTurn, since: before(2 * time.Minute),
			sentence: "has waited 2 min for its turn to join as a control plane; the etcd member https://192.0.2.9:2380 is still a learner; if no machine joins with that address, remove the member",
		},
		"others wait": {
			facts: explain.Facts{Turn: turn(name, time.Second, "control-3", "control-4"), Object: node("True", "")},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago; it has been joining as a control plane for 3 min; machines that wait for it: control-3, control-4",
		},
		"turn of a dead machine": {
			facts: explain.Facts{Turn: turn(name, time.Hour, "control-3"), Object: node("True", "")},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago",
		},
		"joined while listed as waiting": {
			facts: explain.Facts{Turn: turn("control-2", time.Second, name), Object: node("True", "")},
			state: api.Joined, since: before(2*time.Hour + time.Minute),
			sentence: "joined 3 h ago, Ready since 2 h ago",
		},
		"leader unread": {
			facts: explain.Facts{Requests: []api.RequestEvidence{request("bob", approved)}, Unread: []api.UnreadFact{gone(explain.FactLeader)}},
			state: explain.NotSigned, since: before(30 * time.Second),
			sentence: "its request was approved 30 s ago and is not signed: kubejoin's csr-signer or kube-controller-manager's certificatesigningrequest-signing-controller should sign it; " +
				"see what kubejoin decides with: kubejoin explain --csr csr-1 (could not be read: kubejoin's Lease)",
			next: []string{"kubejoin explain --csr csr-1", "kubectl describe csr csr-1"},
		},
		"tokens unread, quiet": {
			facts: explain.Facts{ClusterInfo: signed, Unread: []api.UnreadFact{gone(explain.FactTokens)}},
			state: explain.NothingKnown,
			sentence: "there is no certificate request for this name; check on the machine what kubeadm join prints, and whether it reaches https://api.example.com:6443 and the HOST:PORT of its join command, " +
				"and whether its token is still valid (could not be read: tokens)",
			next: []string{"kubejoin token list"},
		},
		"cluster-info unread, quiet": {
			facts: explain.Facts{Tokens: []tokens.Record{bound}, Unread: []api.UnreadFact{gone(explain.FactClusterInfo)}},
			state: explain.NothingArrived,
			sentence: "there is no certificate request for this name; tokens limited to it: bbbbbb (active, expires in 23 h); check on the machine what kubeadm join prints " +
				"(could not be read: cluster-info)",
		},
	} {
		t.Run(about, func(t *testing.T) {
			c.facts.Node = name
			e := explain.Explain(c.facts, now)
			if e.Node != name || e.State != c.state {
				t.Errorf("got node %s in state %s, want %s in %s", e.Node, e.State, name, c.state)
			}
			if want := name + ": " + c.sentence; e.Sentence != want {
				t.Errorf("got sentence\n%s\nwant\n%s", e.Sentence, want)
			}
			if page := map[string]string{"spent": "docs/troubleshooting.md", "waits for its turn": "docs/control-planes.md"}[about]; page != "" {
				sample.Check(t, page, strings.Replace(e.Text(), name+": has", "control-3: has", 1))
			}
			if !slices.Equal(e.Next, c.next) {
				t.Errorf("got next %q, want %q", e.Next, c.next)
			}
			if strings.Contains(e.Text(), "undo") { // a thief would profit from an undo
				t.Errorf("got %s, want no way to undo a revocation", e.Text())
			}
			if !e.Since.Equal(c.since) {
				t.Errorf("got since %s, want %s", e.Since, c.since)
			}
			if want := c.state == api.Joined || c.state == api.JoinedNotReady; e.HasJoined() != want {
				t.Errorf("got HasJoined %t, want %t", e.HasJoined(), want)
			}
			text := must.Value(json.Marshal(e))(t)
			if strings.Contains(string(text)+e.Text(), secret) {
				t.Error("the explanation shows a token secret")
			}
			if n := len(c.facts.Requests); e.Evidence.RequestCount != n || n > 0 && len(e.Evidence.Requests) == 0 {
				t.Errorf("got %d requests as evidence, want %d", e.Evidence.RequestCount, n)
			}
		})
	}
}

const permitAll = "kubectl create clusterrolebinding kubeadm:node-autoapprove-bootstrap --clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient " +
	"--group=system:bootstrappers:kubeadm:default-node-token"

// Catches an explanation without the facts it is based on.
func TestExplanationHoldsItsEvidence(t *testing.T) {
	ca := newCA(t, "kubernetes")
	used := token(t, "abcdef", usedUp("worker-3"), forNames("worker-*"))
	f := explain.Facts{
		Node: name, Tokens: []tokens.Record{used}, ClusterInfo: info(t, ca), Claim: claim("cccccc"),
		Unread: []api.UnreadFact{{Fact: explain.FactNode, Reason: "forbidden"}, {Fact: explain.FactLeader, Reason: "forbidden"}},
	}
	for i := range 2 * api.MaxEvidence {
		f.Requests = append(f.Requests, request(bootstrap, made(time.Duration(i+60)*time.Second, "csr-old"), denied("TokenSpent", "x")))
	}
	f.Requests = append(f.Requests, request(bootstrap, denied("TokenSpent", spent)))
	e := explain.Explain(f, now)
	if e.Evidence.RequestCount != len(f.Requests) || e.Evidence.Refused != len(f.Requests) || len(e.Evidence.Requests) != api.MaxEvidence || e.Evidence.Requests[0].Name != "csr-1" {
		t.Errorf("requests: %+v", e.Evidence)
	}
	if got := e.Evidence.Token; got == nil || got.ID != "abcdef" || got.Status != api.StatusSpent || got.Signed == nil || *got.Signed || got.MaxNodes != 1 || !slices.Equal(got.Nodes, []string{"worker-3"}) {
		t.Errorf("token: %+v", got)
	}
	if got := e.Evidence.Claim; got == nil || got.TokenID != "cccccc" || got.Keys != 1 {
		t.Errorf("claim: %+v", got)
	}
	want := []api.UnreadFact{{Fact: explain.FactLeader, Reason: "forbidden"}, {Fact: explain.FactNode, Reason: "forbidden"}}
	if !slices.Equal(e.Unread, want) {
		t.Errorf("unread: %v", e.Unread)
	}
	text := e.Text()
	if !strings.HasPrefix(text, e.Sentence+"\n") || !strings.Contains(text, "\n  kubectl describe csr csr-1\n") || !strings.HasSuffix(text, "  the Node could not be read: forbidden\n") ||
		strings.Contains(text, "\n  "+another) {
		t.Errorf("text:\n%s", text)
	}
}

// Catches evidence from requests of other signers.
func TestIgnoresRequestsOfOtherSigners(t *testing.T) {
	foreign := request(itself, denied("X", "y"), func(r *api.RequestEvidence) { r.Signer, r.Name = "example.com/x", "csr-x" })
	e := explain.Explain(explain.Facts{Node: name, Requests: []api.RequestEvidence{foreign, request("bob")}}, now)
	if e.Evidence.RequestCount != 1 || e.Evidence.Refused != 0 {
		t.Errorf("%s: %+v", e.Sentence, e.Evidence)
	}
}

// Catches a command that names a group that was shortened for display.
func TestCommandsOmitLongGroup(t *testing.T) {
	long := request(bootstrap, permitted(false), func(r *api.RequestEvidence) {
		r.Groups = []string{"system:bootstrappers:" + strings.Repeat("a", 10_000)}
	})
	e := explain.Explain(explain.Facts{Node: name, Tokens: []tokens.Record{token(t, "abcdef")}, Requests: []api.RequestEvidence{long}}, now)
	if e.State != explain.NotPermitted || slices.ContainsFunc(e.Next, func(c string) bool { return strings.Contains(c, "--group=") }) {
		t.Errorf("%s, next %.300q", e.State, e.Next)
	}
}

func TestGranted(t *testing.T) {
	for _, test := range []struct {
		status, verdict string
		want            bool
	}{
		{api.RequestIssued, "", true},
		{api.RequestIssued, "deny", true},
		{api.RequestPending, "approve", true},
		{api.RequestApproved, "approve", true},
		{api.RequestPending, "deny", false},
		{api.RequestApproved, "wait", false},
		{api.RequestPending, "", false},
		{api.RequestDenied, "approve", false},
		{api.RequestFailed, "approve", false},
	} {
		if got := (api.RequestExplanation{Status: test.status, Verdict: test.verdict}).Granted(); got != test.want {
			t.Errorf("%s, verdict %q: granted %t", test.status, test.verdict, got)
		}
	}
}

// Catches a sentence that grows with the number of tokens.
func TestCountsManyTokensAndNamesFew(t *testing.T) {
	ca := newCA(t, "kubernetes")
	var many []tokens.Record
	for _, c := range "abcdefghijklmnop" {
		many = append(many, token(t, strings.Repeat(string(c), 6), forNames(name)))
	}
	e := explain.Explain(explain.Facts{Node: name, Tokens: many, ClusterInfo: info(t, ca, many...)}, now)
	if e.Evidence.TokenCount != len(many) || len(e.Evidence.Tokens) != api.MaxEvidence || !strings.Contains(e.Sentence, "eeeeee (signed, expires in 23 h), and 11 more;") {
		t.Errorf("%d of %d tokens: %s", len(e.Evidence.Tokens), e.Evidence.TokenCount, e.Sentence)
	}
}

// Catches a message of another program that makes the sentence long or puts a line break into it.
func TestLongMessageStaysOneLine(t *testing.T) {
	e := explain.Explain(explain.Facts{Node: name, Requests: []api.RequestEvidence{request(bootstrap, denied("X", strings.Repeat("long\n", 10000)))}}, now)
	if len(e.Sentence) > 1000 || strings.Contains(e.Sentence, "\n") {
		t.Errorf("%d bytes: %s", len(e.Sentence), e.Sentence)
	}
}
