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

// viewTimeout is how long cluster-info and claims may take to be read, which a look at tokens can
// do without.
const viewTimeout = 5 * time.Second

// A view is what is known beside the tokens themselves when they are shown.
type view struct {
	now time.Time
	// data is that of cluster-info; nil if it cannot be read.
	data map[string]string
	// claimed are the names that were taken, by the UID of the token.
	claimed  map[string][]string
	warnings []string
}

// view looks at cluster-info and claims.
func (h *handler) view(ctx context.Context, now time.Time) view {
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	v := view{now: now, claimed: map[string][]string{}}
	var err error
	if v.data, err = h.clusterInfo(ctx); errors.Is(err, clusterinfo.ErrNotFound) {
		v.data = map[string]string{}
	} else if err != nil {
		v.warnings = append(v.warnings, h.warning("whether tokens are signed is not known, since cluster-info cannot be read", err))
	}
	if h.Claims == nil {
		return v
	}
	claims, err := h.Claims.List(ctx)
	if err != nil {
		v.warnings = append(v.warnings, h.warning("which nodes have joined may be incomplete, since claims cannot be read", err))
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

// clusterInfo is the data of cluster-info now.
func (h *handler) clusterInfo(ctx context.Context) (map[string]string, error) {
	if live, found := h.ClusterInfo.(interface {
		Data(context.Context) (map[string]string, error)
	}); found { // megabytes are not decoded to look at one signature
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

// token is a record as it is shown: without its secret.
func (v view) token(r tokens.Record) api.Token {
	t := api.Token{
		APIVersion: api.Version, Kind: api.KindToken,
		ID: r.Token.ID(), Status: v.status(r), Problem: problemOf(r),
		Description: r.Description, Created: r.Created, Expires: r.Expires,
		Usages: []string{}, Groups: append([]string{}, r.Groups...),
		MaxNodes: r.Limits.MaxNodes, NodeNames: r.Limits.NodeNames, Role: r.Limits.Role,
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

// status is a record in one word.
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

// nodes are the names that were taken with a token: those that are counted, and those that are
// about to be.
func (v view) nodes(r tokens.Record) []string {
	nodes := slices.Clone(r.Nodes)
	for _, name := range v.claimed[r.UID] {
		if !slices.Contains(nodes, name) {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// problemOf is what is wrong with a record, in one line.
func problemOf(r tokens.Record) string {
	err := errors.Join(r.Problem, r.Limits.Problem)
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func decimal(n int) string { return strconv.Itoa(n) }

// page is the part of a list that is asked for, and the Continue of the one behind it. The list is
// in the order of its keys, and what continues it is the last key that was shown: what comes and
// goes meanwhile neither repeats nor hides anything else. Without a limit it is all that is left.
func page[T any](list []T, kind string, key func(T) string, req api.ListPage) (part []T, next string, err error) {
	if req.Limit < 0 || req.Limit > api.MaxPage {
		return nil, "", badField("limit", "%d given, want 1 to %d", req.Limit, api.MaxPage)
	}
	if req.Continue != "" {
		last, known := readCursor(kind, req.Continue)
		if !known {
			return nil, "", badField("continue", "want what a page of this list ended with")
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

// cursor says nothing to whoever has it, and fits no list of another kind.
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
