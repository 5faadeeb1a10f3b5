package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

var tokenStates = []string{api.StatusActive, api.StatusUnsigned, api.StatusSpent, api.StatusExpired, api.StatusInvalid}

// token returns the evidence of a token, with its status for this node.
func (v *view) token(r tokens.Record) api.TokenEvidence {
	t := api.TokenEvidence{
		ID: r.Token.ID(), Expires: r.Expires, MaxNodes: r.Limits.NodeLimit(),
		NodeNames: slices.Clone(r.Limits.Strictest().NodeNames), Nodes: slices.Clone(r.Nodes),
	}
	if !v.isUnread(FactClusterInfo) {
		signed := r.Token.HasSecret() && clusterinfo.Verify([]byte(v.ClusterInfo.Data[clusterinfo.KubeconfigKey]), v.ClusterInfo.Data[clusterinfo.SignatureKey(t.ID)], r.Token) == nil
		t.Signed = &signed
	}
	switch {
	case r.Problem != nil || r.Limits.Problem != nil:
		t.Status = api.StatusInvalid
	case r.Expired(v.now):
		t.Status = api.StatusExpired
	// The signature may be removed already, or stay for other names.
	case r.Spent() && (!slices.Contains(r.Nodes, v.Node) || t.Signed != nil && !*t.Signed || v.Claim == nil && !v.isUnread(FactClaim)):
		t.Status = api.StatusSpent
	case t.Signed != nil && !*t.Signed:
		t.Status = api.StatusUnsigned
	default:
		t.Status = api.StatusActive
	}
	return t
}

// tokenWords describes the status of a token.
func tokenWords(t api.TokenEvidence, now time.Time) string {
	switch t.Status {
	case api.StatusActive:
		signed := "signed"
		if t.Signed == nil {
			signed = "active"
		}
		if t.Expires.IsZero() {
			return t.ID + " (" + signed + ", never expires)"
		}
		return fmt.Sprintf("%s (%s, expires in %s)", t.ID, signed, span(t.Expires.Sub(now)))
	case api.StatusSpent:
		return fmt.Sprintf("%s (spent by %s)", t.ID, safetext.Few(t.Nodes))
	case api.StatusExpired:
		return fmt.Sprintf("%s (expired %s)", t.ID, ago(t.Expires, now))
	}
	return fmt.Sprintf("%s (%s)", t.ID, t.Status)
}

// usable returns the tokens that allow the name: tokens limited to it (bound), and tokens for any name (general).
// Each list is sorted by status, the best first, then newest first.
func (v *view) usable() (bound, general []api.TokenEvidence) {
	created := map[string]time.Time{}
	for _, r := range v.Tokens {
		if !r.Authentication && r.Problem == nil || !r.Limits.AllowsName(v.Node) {
			continue
		}
		created[r.Token.ID()] = r.Created
		if len(r.Limits.Strictest().NodeNames) > 0 || r.Limits.Replaces != (tokens.NodeRef{}) {
			bound = append(bound, v.token(r))
		} else {
			general = append(general, v.token(r))
		}
	}
	best := func(a, b api.TokenEvidence) int {
		return cmp.Or(
			cmp.Compare(slices.Index(tokenStates, a.Status), slices.Index(tokenStates, b.Status)),
			created[b.ID].Compare(created[a.ID]),
			cmp.Compare(a.ID, b.ID),
		)
	}
	slices.SortFunc(bound, best)
	slices.SortFunc(general, best)
	return bound, general
}

// diagnose checks the token and the node name of a request that is not decided or signed yet. It returns why
// kubejoin will refuse the request. The state is empty if it finds no reason.
func (v *view) diagnose(r api.RequestEvidence) (api.NodeState, string) {
	id := tokens.IDOfUser(r.User)
	if id == "" || !v.readable(FactTokens) {
		return v.diagnoseName(r, tokens.Record{})
	}
	at := slices.IndexFunc(v.Tokens, func(t tokens.Record) bool { return t.Token.ID() == id })
	if at < 0 {
		return TokenUnknown, fmt.Sprintf("its token %s no longer exists", id)
	}
	t := v.Tokens[at]
	evidence := v.token(t)
	v.e.Evidence.Token = &evidence
	switch {
	case t.Limits.Problem != nil:
		return TokenLimitsMalformed, fmt.Sprintf("the limits of its token %s are malformed (%s), so no machine can join with it", id, clean(t.Limits.Problem.Error()))
	case t.Expired(v.now):
		return TokenExpired, fmt.Sprintf("its token %s expired %s", id, ago(t.Expires, v.now))
	case t.Created.After(r.Created):
		return TokenReplaced, fmt.Sprintf("token %s was created %s, after the request: the token that the request was sent with was deleted", id, ago(t.Created, v.now))
	case !t.Limits.AllowsName(v.Node):
		allowed, rule := t.Limits.NamesInstead(v.Node)
		if rule != "" {
			return NodeNameNotAllowed, fmt.Sprintf("rule %s of --token-limits limits its token %s to other names (%s)", rule, id, safetext.Few(allowed))
		}
		return NodeNameNotAllowed, fmt.Sprintf("its token %s is limited to other names (%s)", id, safetext.Few(allowed))
	case t.Spent() && !slices.Contains(t.Nodes, v.Node):
		limit := nodeCount(t.Limits.NodeLimit())
		if rule := t.Limits.LimitedBy()["max-nodes"]; rule != "" {
			limit += " by rule " + rule + " of --token-limits"
		}
		return TokenSpent, fmt.Sprintf("its token %s is spent: it was for %s, and %s used it", id, limit, safetext.Few(t.Nodes))
	}
	return v.diagnoseName(r, t)
}

func (v *view) diagnoseName(r api.RequestEvidence, t tokens.Record) (api.NodeState, string) {
	if r.User == tokens.NodeUserPrefix+v.Node {
		return "", ""
	}
	c, readable := v.Claim, v.readable(FactClaim)
	switch {
	case v.belongs(r, t):
		return NodeNameClaimed, "the name belongs to a machine with a key of its own"
	case readable && v.Machine.IsZero() && c != nil && (c.TokenID != tokens.IDOfUser(r.User) || t.UID != "" && c.TokenUID != "" && c.TokenUID != t.UID):
		return NodeNameClaimed, fmt.Sprintf("another token, %s, claimed the name %s", c.TokenID, ago(c.Created, v.now))
	}
	if v.readable(FactNode) && v.Object != nil {
		replaces := t.Limits.Replaces
		switch {
		case replaces == (tokens.NodeRef{}):
			return NodeExists, "a Node with this name exists, and kubejoin does not issue its name again unless it runs with --existing-nodes=allow"
		case replaces.UID != v.Object.UID:
			return NodeReplaced, fmt.Sprintf("token %s was created to replace an earlier Node of this name, not the current one", t.Token.ID())
		}
	}
	return "", ""
}

func nodeCount(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// remedy returns the command that fixes a state and the words that introduce it; both are empty if there is none.
func (v *view) remedy(s api.NodeState) (words, command string) {
	another := v.ofNode("kubejoin token create --max-nodes 1 --node-name")
	if s == NodeNameNotAllowed && slices.ContainsFunc(v.Tokens, func(t tokens.Record) bool {
		_, rule := t.Limits.NamesInstead(v.Node)
		return rule != "" && v.e.Evidence.Token != nil && v.e.Evidence.Token.ID == t.Token.ID()
	}) {
		return "", "" // the rule may also limit another token
	}
	if !v.Machine.IsZero() { // only the token of this machine can take the name
		if s != NodeNameClaimed {
			return "", ""
		}
		return "to give the name to another machine", v.ofNode("kubejoin machine delete")
	}
	switch s {
	case TokenSpent, TokenExpired, TokenRevoked, TokenReplaced, TokenUnknown, TokenLimitsMalformed, NodeNameNotAllowed, NothingKnown:
		return "create another token with", another
	case NodeDeleted:
		return "to let it join again, create a token with", another
	case NodeNameReserved:
		return "create a control-plane token with", v.ofNode("kubejoin token create --role control-plane --max-nodes 1 --node-name")
	case NodeNameClaimed, Claimed, TooManyKeys:
		if v.Object != nil && v.Object.Ready == "True" { // the machine that holds the name works
			return "", ""
		}
		return "if no other machine is to join with this name, release it with", v.ofNode("kubejoin claim release")
	case Revoked:
		if v.Object == nil {
			return "to let the machine come back, create a token with", another
		}
		return "to let the machine come back, create a token with", v.ofNode("kubejoin token create --replace-node")
	case CertificateExpired:
		return "", v.ofNode("kubejoin token create --replace-node")
	case NodeExists, NodeReplaced:
		return "to replace it, create a token with", v.ofNode("kubejoin token create --replace-node")
	}
	return "", ""
}
