package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// viewTimeout limits reading cluster-info and claims. A response about tokens does not need them.
const viewTimeout = 5 * time.Second

// A View has the data that responses about tokens show in addition to the record: signatures and claimed names.
// The zero View has none.
type View struct {
	// data is the data of the ConfigMap cluster-info. It is nil if cluster-info cannot be read, and empty if it does not exist.
	data map[string]string
	// claimed has the claimed node names by token UID.
	claimed map[string][]string
	// Unread lists the data that could not be read.
	Unread []Unread
}

// An Unread is data that a View lacks: a warning for the caller, and the cause.
type Unread struct {
	Warning string
	Err     error
}

// ClusterInfo provides the ConfigMap cluster-info as JSON. If it has a method Data, ReadView calls only that: decoding
// megabytes for one signature takes long.
type ClusterInfo interface {
	JSON(ctx context.Context) ([]byte, error)
}

// ReadView reads cluster-info and, if claims is not nil, the claims.
func ReadView(ctx context.Context, info ClusterInfo, claims tokens.Claims) View {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	v := View{claimed: map[string][]string{}}
	var err error
	if v.data, err = dataOf(ctx, info); errors.Is(err, clusterinfo.ErrNotFound) {
		v.data = map[string]string{}
	} else if err != nil {
		v.Unread = append(v.Unread, Unread{"cannot read cluster-info, so the status does not show whether tokens are signed", err})
	}
	if claims == nil {
		return v
	}
	all, err := claims.List(ctx)
	if err != nil {
		v.Unread = append(v.Unread, Unread{"cannot read claims, so the node names of tokens may be incomplete", err})
	}
	for _, c := range all {
		if !c.Released() {
			v.claimed[c.TokenUID] = append(v.claimed[c.TokenUID], c.Node)
		}
	}
	return v
}

func dataOf(ctx context.Context, info ClusterInfo) (map[string]string, error) {
	if live, found := info.(interface {
		Data(context.Context) (map[string]string, error)
	}); found {
		return live.Data(ctx)
	}
	body, err := info.JSON(ctx)
	if err != nil {
		return nil, err
	}
	var object struct{ Data map[string]string }
	err = json.Unmarshal(body, &object)
	return object.Data, err
}

// Token returns a record as the API shows it, without its secret.
func (v View) Token(r tokens.Record) api.Token {
	holds := r.Limits.Strictest()
	t := api.Token{
		APIVersion: api.GroupVersion, Kind: api.KindToken,
		ID: r.Token.ID(), Status: v.status(r), Problem: r.ProblemText(),
		Description: r.Description, Created: r.Created, Expires: r.Expires,
		Usages: []string{}, Groups: append([]string{}, r.Groups...),
		MaxNodes: holds.MaxNodes, NodeNames: holds.NodeNames, Role: holds.Role, Rejoin: holds.Rejoin,
		NodeLabels: tokens.SplitProperties(r.Limits.Node.Labels), NodeTaints: tokens.SplitProperties(r.Limits.Node.Taints), NodeReadyAfter: r.Limits.Node.ReadyAfter,
		Nodes: v.nodes(r),
	}
	if r.Owner != (tokens.Owner{}) {
		t.Owner = r.Owner.String()
	}
	if r.Authentication { // in kubeadm's order
		t.Usages = append(t.Usages, api.UsageAuthentication)
	}
	if r.Signing {
		t.Usages = append(t.Usages, api.UsageSigning)
	}
	for field, rule := range r.Limits.LimitedBy() {
		if t.LimitedBy == nil {
			t.LimitedBy = map[string]string{}
		}
		t.LimitedBy[cmp.Or(fieldNames[field], field)] = rule
	}
	if d := holds.CertificateDuration; d > 0 {
		t.CertificateDuration = d.String()
	}
	if n := r.Limits.Replaces; n != (tokens.NodeRef{}) {
		t.ReplacesNode = &api.Node{Name: n.Name, UID: n.UID}
	}
	return t
}

// Tokens returns records as the API shows them, without their secrets.
func (v View) Tokens(records []tokens.Record) api.TokenList {
	list := api.TokenList{APIVersion: api.GroupVersion, Kind: api.KindTokenList, Items: make([]api.Token, len(records))}
	for i, r := range records {
		list.Items[i] = v.Token(r)
	}
	return list
}

// Minted returns the token that a Minter created for a request, with its secret and join command.
func (v View) Minted(made mint.Minted, req mint.Creation) api.Token {
	t := v.Token(made.Record)
	if made.Record.Signing && req.Wait == 0 && !made.Existing && !req.DryRun {
		t.Status = api.StatusUnsigned
	}
	t.DryRun, t.Token, t.Warnings = req.DryRun, api.Secret(made.Record.Token.Reveal()), made.Warnings
	if line, err := made.Join.Line(); err == nil { // with an error, the token cannot be used to join
		t.JoinCommand = api.Secret(strings.TrimSpace(string(line)))
	}
	return t
}

// status returns the status of a record.
func (v View) status(r tokens.Record) string {
	switch {
	case r.ProblemText() != "":
		return api.StatusInvalid
	case r.Expired(time.Now()):
		return api.StatusExpired
	case r.Spent():
		return api.StatusSpent
	case r.Signing && v.data == nil && len(v.Unread) > 0: // the zero View is for a token whose creation waits for the signature
		return api.StatusUnknown
	case r.Signing && v.data != nil && !v.signed(r.Token):
		return api.StatusUnsigned
	}
	return api.StatusActive
}

func (v View) signed(t tokens.Token) bool {
	return clusterinfo.Verify([]byte(v.data[clusterinfo.KubeconfigKey]), v.data[clusterinfo.SignatureKey(t.ID())], t) == nil
}

// nodes returns the node names that machines have taken with a token: the names that the token counts, and
// names with a claim that are not counted yet.
func (v View) nodes(r tokens.Record) []string {
	nodes := slices.Clone(r.Nodes)
	for _, name := range v.claimed[r.UID] {
		if !slices.Contains(nodes, name) {
			nodes = append(nodes, name)
		}
	}
	return nodes
}
