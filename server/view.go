package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// viewTimeout limits reading cluster-info and claims. A response about tokens can do without them.
const viewTimeout = 5 * time.Second

// A view is the data beside tokens that responses about tokens need.
type view struct {
	now time.Time
	// data is the data of cluster-info: nil if it cannot be read, empty if there is none.
	data map[string]string
	// claimed has the claimed node names by token UID.
	claimed  map[string][]string
	warnings []string
}

// view reads cluster-info and claims. What it cannot read becomes a warning.
func (h *handler) view(ctx context.Context, now time.Time) view {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	v := view{now: now, claimed: map[string][]string{}}
	var err error
	if v.data, err = h.clusterInfo(ctx); errors.Is(err, clusterinfo.ErrNotFound) {
		v.data = map[string]string{}
	} else if err != nil {
		v.warnings = append(v.warnings, h.warning("cannot read cluster-info, so the status does not show whether tokens are signed", err))
	}
	if h.Claims == nil {
		return v
	}
	claims, err := h.Claims.List(ctx)
	if err != nil {
		v.warnings = append(v.warnings, h.warning("cannot read claims, so the node names of tokens may be incomplete", err))
	}
	for _, c := range slices.DeleteFunc(claims, tokens.Claim.Released) {
		v.claimed[c.TokenUID] = append(v.claimed[c.TokenUID], c.Node)
	}
	return v
}

func (h *handler) warning(text string, err error) string {
	h.log.Warn(text, "error", foreign.Text(err.Error(), foreign.MaxMessage))
	if h.ShowCauses {
		return text + ": " + err.Error()
	}
	return text
}

// clusterInfo returns the current data of cluster-info.
func (h *handler) clusterInfo(ctx context.Context) (map[string]string, error) {
	if live, found := h.ClusterInfo.(interface {
		Data(context.Context) (map[string]string, error)
	}); found { // avoids decoding megabytes for one signature
		return live.Data(ctx)
	}
	body, err := h.ClusterInfo.JSON(ctx)
	if err != nil {
		return nil, err
	}
	var object struct{ Data map[string]string }
	err = json.Unmarshal(body, &object)
	return object.Data, err
}

// Show returns a record as the API shows it, without its secret and without reading cluster-info and claims.
func Show(r tokens.Record) api.Token { return view{now: time.Now()}.token(r) }

// token returns a record as the API shows it, without its secret.
func (v view) token(r tokens.Record) api.Token {
	t := api.Token{
		APIVersion: api.Version, Kind: api.KindToken,
		ID: r.Token.ID(), Status: v.status(r), Problem: r.ProblemText(),
		Description: r.Description, Created: r.Created, Expires: r.Expires,
		Usages: []string{}, Groups: append([]string{}, r.Groups...),
		MaxNodes: r.Limits.MaxNodes, NodeNames: r.Limits.NodeNames, Role: r.Limits.Role, Rejoin: r.Limits.Rejoin,
		Nodes: v.nodes(r),
	}
	if r.Authentication { // in kubeadm's order
		t.Usages = append(t.Usages, api.UsageAuthentication)
	}
	if r.Signing {
		t.Usages = append(t.Usages, api.UsageSigning)
	}
	if d := r.Limits.CertificateDuration; d > 0 {
		t.CertificateDuration = d.String()
	}
	if n := r.Limits.Replaces; n != (tokens.NodeRef{}) {
		t.ReplacesNode = &api.Node{Name: n.Name, UID: n.UID}
	}
	return t
}

// status returns the status of a record.
func (v view) status(r tokens.Record) string {
	switch {
	case r.Problem != nil || r.Limits.Problem != nil:
		return api.StatusInvalid
	case r.Expired(v.now):
		return api.StatusExpired
	case r.Spent():
		return api.StatusSpent
	case r.Signing && v.data != nil && !v.signed(r.Token):
		return api.StatusUnsigned
	}
	return api.StatusActive
}

func (v view) signed(t tokens.Token) bool {
	return clusterinfo.Verify([]byte(v.data[clusterinfo.KubeconfigKey]), v.data[clusterinfo.SignatureKey(t.ID())], t) == nil
}

// nodes returns the node names taken with a token: those that the token counts, and those that have a claim
// but are not counted yet.
func (v view) nodes(r tokens.Record) []string {
	nodes := slices.Clone(r.Nodes)
	for _, name := range v.claimed[r.UID] {
		if !slices.Contains(nodes, name) {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

func decimal(n int) string { return strconv.Itoa(n) }

// page returns the requested part of a list, and the Continue of the next part. The list must be sorted by
// key. Continue encodes the last key of a part, so that items added or deleted meanwhile do not repeat or
// hide others. Without a limit, page returns the rest of the list.
func page[T any](list []T, kind string, key func(T) string, req api.ListPage) (part []T, next string, err error) {
	if req.Limit < 0 || req.Limit > api.MaxPage {
		return nil, "", badField("limit", "%d given, want 1 to %d", req.Limit, api.MaxPage)
	}
	if req.Continue != "" {
		last, known := readCursor(kind, req.Continue)
		if !known {
			return nil, "", badField("continue", "malformed; want the continue value of another page of this list")
		}
		at, found := slices.BinarySearchFunc(list, last, func(item T, last string) int { return cmp.Compare(key(item), last) })
		if found {
			at++
		}
		list = list[at:]
	}
	if req.Limit == 0 || len(list) <= req.Limit {
		return list, "", nil
	}
	list = list[:req.Limit]
	return list, cursor(kind, key(list[len(list)-1])), nil
}

// cursor returns the Continue for a key. It is opaque to clients, and valid only for lists of that kind.
func cursor(kind, key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind + "/" + key))
}

func readCursor(kind, cursor string) (key string, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return "", false
	}
	key, ok = strings.CutPrefix(string(b), kind+"/")
	return key, ok && key != ""
}
