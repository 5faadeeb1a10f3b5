package operations_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// info is a cluster-info with data, or one that cannot be read.
type info struct {
	data map[string]string
	err  error
}

func (i info) JSON(context.Context) ([]byte, error) {
	body, err := json.Marshal(map[string]any{"data": i.data})
	return body, errors.Join(err, i.err)
}

// live is a cluster-info with a method Data.
type live struct{ info }

func (l live) JSON(context.Context) ([]byte, error) {
	return nil, errors.New("JSON was called, want Data")
}

func (l live) Data(context.Context) (map[string]string, error) { return l.data, l.err }

const kubeconfig = "kind: Config\n"

// signedBy returns a cluster-info with the signature of each token.
func signedBy(t *testing.T, all ...tokens.Token) info {
	t.Helper()
	data := map[string]string{clusterinfo.KubeconfigKey: kubeconfig}
	for _, token := range all {
		jws := must.Value(clusterinfo.Sign([]byte(kubeconfig), token))(t)
		data[clusterinfo.SignatureKey(token.ID())] = jws
	}
	return info{data: data}
}

func TestTokenStatus(t *testing.T) {
	other := tokens.Generate()
	for _, test := range []struct {
		name    string
		change  func(*tokens.Record)
		info    func(*testing.T, tokens.Token) operations.ClusterInfo // nil: signed
		status  string
		problem string
	}{
		{name: "signed", status: api.StatusActive},
		{name: "expired", change: func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) }, status: api.StatusExpired},
		{name: "spent", change: func(r *tokens.Record) { r.Limits.MaxNodes, r.Nodes = 1, []string{"a"} }, status: api.StatusSpent},
		{name: "malformed", change: func(r *tokens.Record) { r.Problem = errors.New("a\nb") }, status: api.StatusInvalid, problem: "a; b"},
		{name: "malformed limits", change: func(r *tokens.Record) { r.Limits.Problem = errors.New("c") }, status: api.StatusInvalid, problem: "c"},
		{name: "unsigned", info: func(t *testing.T, _ tokens.Token) operations.ClusterInfo { return signedBy(t) }, status: api.StatusUnsigned},
		{name: "signature of another token", status: api.StatusUnsigned, info: func(t *testing.T, token tokens.Token) operations.ClusterInfo {
			i := signedBy(t, other)
			i.data[clusterinfo.SignatureKey(token.ID())] = i.data[clusterinfo.SignatureKey(other.ID())]
			return i
		}},
		{name: "not for signing", change: func(r *tokens.Record) { r.Signing = false }, info: func(t *testing.T, _ tokens.Token) operations.ClusterInfo { return signedBy(t) }, status: api.StatusActive},
		{name: "no cluster-info", info: func(*testing.T, tokens.Token) operations.ClusterInfo { return info{err: clusterinfo.ErrNotFound} }, status: api.StatusUnsigned},
		{name: "unreadable cluster-info", info: func(*testing.T, tokens.Token) operations.ClusterInfo { return info{err: errNode} }, status: api.StatusUnknown},
		{name: "unreadable cluster-info, not for signing", change: func(r *tokens.Record) { r.Signing = false }, info: func(*testing.T, tokens.Token) operations.ClusterInfo { return info{err: errNode} }, status: api.StatusActive},
		{name: "signed, by data", info: func(t *testing.T, token tokens.Token) operations.ClusterInfo { return live{signedBy(t, token)} }, status: api.StatusActive},
		{name: "unsigned, by data", info: func(t *testing.T, token tokens.Token) operations.ClusterInfo { return live{signedBy(t)} }, status: api.StatusUnsigned},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
			if test.change != nil {
				test.change(&r)
			}
			var from operations.ClusterInfo = signedBy(t, r.Token)
			if test.info != nil {
				from = test.info(t, r.Token)
			}
			if got := operations.ReadView(t.Context(), from, nil).Token(r); got.Status != test.status || got.Problem != test.problem || got.Token != "" {
				t.Errorf("got %+v, want %s and problem %q", got, test.status, test.problem)
			}
		})
	}
}

func TestTokenHasClaimedNodes(t *testing.T) {
	store := memdb.Open()
	r := must.Value(store.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())))(t)
	for node, uid := range map[string]string{"a": r.UID, "b": r.UID, "c": "of an earlier token"} {
		must.Value(storetest.CreateClaim(t.Context(), store.Claims(), tokens.Claim{Node: node, TokenID: r.Token.ID(), TokenUID: uid}))(t)
	}
	must.Value(storetest.CreateClaim(t.Context(), store.Claims(), tokens.Claim{Node: "released", Past: tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second)}}))(t)
	r.Nodes = []string{"b"}
	if got := operations.ReadView(t.Context(), signedBy(t), store.Claims()).Token(r).Nodes; !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("got nodes %q, want b and a", got)
	}
	v := operations.ReadView(t.Context(), info{err: errNode}, storetest.Fail(errNode).Claims(store.Claims()))
	if got := v.Token(r).Nodes; len(v.Unread) != 2 || !errors.Is(v.Unread[0].Err, errNode) || !errors.Is(v.Unread[1].Err, errNode) || !slices.Equal(got, []string{"b"}) {
		t.Errorf("got nodes %q without %v, want only the counted node", got, v.Unread)
	}
}

// A response shows the limits that apply, and the rule that sets each limit.
func TestTokenHasLimitsOfRules(t *testing.T) {
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits = tokens.Limits{MaxNodes: 5, Role: tokens.RoleControlPlane, Rules: []tokens.Rule{
		{Name: "scaler", Limits: tokens.Limits{MaxNodes: 1, NodeNames: []string{"auto-*"}, Rejoin: tokens.RejoinDeny}},
		{Name: "all", Worker: true, Limits: tokens.Limits{MaxNodes: 9, CertificateDuration: time.Hour}},
	}}
	r.Nodes = []string{"auto-1"}
	got := operations.ReadView(t.Context(), signedBy(t, r.Token), nil).Token(r)
	by := map[string]string{"maxNodes": "scaler", "nodeNames": "scaler", "rejoin": "scaler", "certificateDuration": "all", "role": "all"}
	if got.Status != api.StatusSpent || got.MaxNodes != 1 || !slices.Equal(got.NodeNames, []string{"auto-*"}) || got.Rejoin != "deny" || got.Role != "" || got.CertificateDuration != "1h0m0s" || !maps.Equal(got.LimitedBy, by) {
		t.Errorf("got %+v, want the strictest limits, by %v", got, by)
	}
}

// Catches a response with the status of a signed token, although nobody waited for the signature.
func TestMintedWithoutWaitIsUnsigned(t *testing.T) {
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	silent := r
	silent.Signing = false
	for name, test := range map[string]struct {
		made mint.Minted
		req  mint.Creation
		want string
	}{
		"no wait":         {mint.Minted{Record: r}, mint.Creation{}, api.StatusUnsigned},
		"waited":          {mint.Minted{Record: r}, mint.Creation{Wait: time.Second}, api.StatusActive},
		"existing":        {mint.Minted{Record: r, Existing: true}, mint.Creation{}, api.StatusActive},
		"dry run":         {mint.Minted{Record: r}, mint.Creation{DryRun: true}, api.StatusActive},
		"not for signing": {mint.Minted{Record: silent}, mint.Creation{}, api.StatusActive},
	} {
		got := operations.View{}.Minted(test.made, test.req)
		if got.Status != test.want || got.Token.Reveal() != r.Token.Reveal() || got.JoinCommand != "" || got.DryRun != test.req.DryRun {
			t.Errorf("%s: got %+v, want status %s", name, got, test.want)
		}
	}
}
