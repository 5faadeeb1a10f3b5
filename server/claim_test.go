package server_test

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// claimed returns a site with a token for three nodes, two of which have joined.
func claimed(t *testing.T) (*site, tokens.Record) {
	t.Helper()
	s := newSite(t)
	s.Claims = s.store.Claims()
	r := s.stored(t, func(r *tokens.Record) { r.Limits.MaxNodes, r.Nodes = 3, []string{"worker-1", "worker-2"} })
	for _, node := range r.Nodes {
		c := tokens.Claim{Node: node, TokenID: r.Token.ID(), TokenUID: r.UID, Limits: r.Limits, Keys: []string{"sha256:" + strings.Repeat("0", 64)}}
		must.Value(storetest.CreateClaim(t.Context(), s.Claims, c))(t)
	}
	return s, r
}

// Catches a released claim being listed, or shown with its token. Package tokens tests releases.
func TestClaimsAreListedAndReleased(t *testing.T) {
	s, r := claimed(t)
	must.Value(storetest.UpdateClaim(t.Context(), s.Claims, "worker-2", func(c *tokens.Claim) error { c.NodeUID = "u2"; return nil }))(t)
	s.MaxRemainingLifetime = func() time.Duration { return 24 * time.Hour }
	s.start(t)
	wantList := func(nodes ...string) api.ClaimList {
		t.Helper()
		list, _, got := askFor[api.ClaimList](t, s, "GET", "/v1/claim", "")
		names := []string{}
		for _, c := range list.Items {
			names = append(names, c.Node+c.NodeUID)
		}
		if got.status != 200 || list.Kind != api.KindClaimList || !slices.Equal(names, nodes) || strings.Contains(got.body, r.Token.RevealSecret()) {
			t.Fatalf("%d %s, want %q", got.status, got.body, nodes)
		}
		return list
	}
	if c := wantList("worker-1", "worker-2u2").Items[0]; c.Token != r.Token.ID() || c.Keys != 1 || c.Created.IsZero() {
		t.Errorf("claim %+v", c)
	}
	const path = "/v1/claim/worker-1"
	if c, _, got := askFor[api.Claim](t, s, "DELETE", path+"?dryRun=true", ""); got.status != 200 || !c.DryRun {
		t.Errorf("dry run: %d %s", got.status, got.body)
	}
	wantList("worker-1", "worker-2u2")
	c, _, got := askFor[api.Claim](t, s, "DELETE", path, "")
	if got.status != 200 || c.Node != "worker-1" || c.Token != r.Token.ID() || !strings.Contains(strings.Join(c.Warnings, ""), "has a free slot again and expires at") {
		t.Errorf("%d %s", got.status, got.body)
	}
	wantList("worker-2u2")
	if c, err := s.Claims.Get(t.Context(), "worker-1", tokens.Live); err != nil || !c.Released() || c.Past.Until.Before(time.Now().Add(24*time.Hour)) {
		t.Errorf("got %+v, %v, want a past of 24 h", c, err)
	}
	if got := s.do(t, "GET", "/v1/token/"+r.Token.ID(), adminBearer, "", ""); got.status != 200 || strings.Contains(got.body, "worker-1") {
		t.Errorf("%d %s", got.status, got.body)
	}
	for path, status := range map[string]int{path: 404, "/v1/claim/Worker%2F1": 400} {
		if got := s.do(t, "DELETE", path, adminBearer, "", ""); got.status != status {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// Catches a list of claims without the names of machines, and a release that seems to free such a name.
func TestMachineHoldsName(t *testing.T) {
	s, r := claimed(t)
	m := tokens.Machine{Key: "lusab-babad-gutih-tugad"}
	must.Value(storetest.UpdateClaim(t.Context(), s.Claims, "worker-1", func(c *tokens.Claim) error { c.Machine = m; return nil }))(t)
	must.Value(storetest.CreateClaim(t.Context(), s.Claims, tokens.Claim{Node: "worker-3", Machine: m}))(t)
	s.start(t)
	wantList := func(want ...string) {
		t.Helper()
		list, _, _ := askFor[api.ClaimList](t, s, "GET", "/v1/claim", "")
		held := []string{}
		for _, c := range list.Items {
			held = append(held, c.Node+" "+c.Token+" "+c.Machine)
		}
		if !slices.Equal(held, want) {
			t.Errorf("got %q, want %q", held, want)
		}
	}
	id := r.Token.ID()
	wantList("worker-1 "+id+" "+m.Key, "worker-2 "+id+" ", "worker-3  "+m.Key)
	c, _, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1", "")
	if got.status != 200 || !slices.Contains(c.Warnings, "node name worker-1 still belongs to its machine; to free the name: kubejoin machine delete worker-1") {
		t.Errorf("release: %d %s", got.status, got.body)
	}
	wantList("worker-1  "+m.Key, "worker-2 "+id+" ", "worker-3  "+m.Key)
	for _, node := range []string{"worker-1", "worker-3"} {
		if got := s.do(t, "DELETE", "/v1/claim/"+node, adminBearer, "", ""); got.status != 404 || !strings.Contains(got.body, "a machine with a key of its own does; to free the name: kubejoin machine delete "+node) {
			t.Errorf("release of %s: %d %s", node, got.status, got.body)
		}
	}
	must.Value(s.store.Update(t.Context(), id, func(r *tokens.Record) error { r.Nodes = append(r.Nodes, "worker-3"); return nil }))(t)
	if c, _, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-3", ""); got.status != 200 || len(c.Warnings) != 2 || !strings.Contains(c.Warnings[1], "machine delete worker-3") {
		t.Errorf("release of a counted name: %d %s", got.status, got.body)
	}
}

func TestClaimPathsNeedClaims(t *testing.T) {
	s := newSite(t)
	s.start(t)
	for _, route := range [][2]string{{"GET", "/v1/claim"}, {"DELETE", "/v1/claim/worker-1"}} {
		if got := s.do(t, route[0], route[1], adminBearer, "", ""); got.status != 404 || !strings.Contains(got.body, "does not store claims of node names") {
			t.Errorf("%s %s: %d %s", route[0], route[1], got.status, got.body)
		}
	}
}

// Catches a list of claims that does not show which nodes are revoked.
func TestClaimsShowRevokedNodes(t *testing.T) {
	s, _ := revoking(t)
	handler := s.Handler()
	token := s.token(t, func(r *tokens.Record) { r.Limits.MaxNodes = 2 })
	s.join(t, handler, token, "worker-1")
	s.join(t, handler, token, "worker-2")
	revoke(t, handler, 201, `{"node":"worker-1"}`)
	_, body := served(handler, asAdmin(newRequest("GET", "/v1/claim", "")))
	var list api.ClaimList
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != 2 || !list.Items[0].Revoked || list.Items[1].Revoked {
		t.Errorf("got %s, %v, want worker-1 revoked", body, err)
	}
	// A release must not free a slot of a token that a stolen machine may have.
	for node, want := range map[string]int{"worker-1": 409, "worker-2": 200} {
		status, body := served(handler, asAdmin(newRequest("DELETE", "/v1/claim/"+node+"?dryRun", "")))
		if status != want || want == 409 && (!strings.Contains(body, "problems/token-works") || !strings.Contains(body, "kubejoin token delete "+token[:6])) {
			t.Errorf("release %s: %d %s, want %d", node, status, body, want)
		}
	}
	s.Revocations.Guard.Store = noResponse(errAway)
	if status, body := served(handler, asAdmin(newRequest("DELETE", "/v1/claim/worker-2", ""))); status != 503 || !strings.Contains(body, "problems/revocations-unavailable") {
		t.Errorf("release without revocations: %d %s, want 503", status, body)
	}
}

// Catches an item that is on no page or on two pages because other items were created or deleted between the pages.
func TestPagesListEachItemOnce(t *testing.T) {
	s := newSite(t)
	s.Claims = s.store.Claims()
	s.start(t)
	put := func(id string) string {
		token := must.Get(tokens.New(id, tokens.Generate().RevealSecret()))
		must.Get(s.store.Create(t.Context(), tokens.NewRecord(token, time.Hour, time.Now())))
		must.Get(storetest.CreateClaim(t.Context(), s.Claims, tokens.Claim{Node: "node-" + id, TokenID: id, TokenUID: "u"}))
		return id
	}
	remove := func(id string) {
		must.OK(t, errors.Join(s.store.Delete(t.Context(), s.record(t, id)), storetest.DeleteClaim(t.Context(), s.Claims, must.Get(s.Claims.Get(t.Context(), "node-"+id, tokens.Live)))))
	}
	var stay []string
	for i := range 25 {
		stay = append(stay, put(fmt.Sprintf("t%05d", 10*i)))
	}
	list := func(path, query string) (ids []string, next string) {
		list, _, got := askFor[struct {
			Items    []struct{ ID, Token string }
			Continue string
		}](t, s, "GET", path+query, "")
		if got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		for _, item := range list.Items {
			ids = append(ids, cmp.Or(item.ID, item.Token))
		}
		return ids, list.Continue
	}
	cursors := map[string]string{}
	for _, path := range []string{tokenPath, "/v1/claim"} {
		n := len(stay)
		for _, query := range []string{"", fmt.Sprint("?limit=", n)} {
			if all, next := list(path, query); !slices.Equal(all, stay) || next != "" {
				t.Errorf("%s: %v, %q", path, all, next)
			}
		}
		first, next := list(path, fmt.Sprint("?limit=", n-1))
		if rest, last := list(path, "?continue="+url.QueryEscape(next)); !slices.Equal(first, stay[:n-1]) || !slices.Equal(rest, stay[n-1:]) || last != "" {
			t.Errorf("%s: %v and %v, %q", path, first, rest, last)
		}
		seen, next := list(path, "?limit=7")
		for _, id := range []string{"t00005", "t00065", "t00095"} { // some sort before the cursor, some after
			put(id)
		}
		page, next := list(path, "?limit=7&continue="+url.QueryEscape(next))
		seen = append(seen, page...)
		for _, id := range []string{page[6], "t00005", "t00065", "t00095"} { // the last item of the page is the cursor
			remove(id)
		}
		stay = slices.DeleteFunc(stay, func(id string) bool { return id == page[6] })
		cursors[path] = next
		page, _ = list(path, "?continue="+url.QueryEscape(next))
		seen = append(seen, page...)
		if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) || slices.ContainsFunc(stay, func(id string) bool { return !slices.Contains(seen, id) }) {
			t.Errorf("%s: got %v, want %v", path, seen, stay)
		}
	}
	for path, other := range map[string]string{tokenPath: "/v1/claim", "/v1/claim": tokenPath} {
		for query, field := range map[string]string{
			"?limit=-1": "limit", "?limit=1001": "limit", "?limit=x": "limit",
			"?continue=x": "continue", "?continue=" + cursors[path] + "!": "continue", "?continue=" + cursors[other]: "continue",
			"?continue=" + base64.RawURLEncoding.EncodeToString([]byte(api.KindTokenList+"/")): "continue",
		} {
			if _, p, got := askFor[struct{}](t, s, "GET", path+query, ""); got.status != 400 || p.Field != field {
				t.Errorf("%s%s: %d %s, want field %s", path, query, got.status, got.body, field)
			}
		}
	}
}
