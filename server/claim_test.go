package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
		if _, err := s.Claims.Create(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	return s, r
}

func (s *site) claims(t *testing.T) []string {
	t.Helper()
	list, err := s.store.Claims().List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, c := range list {
		names = append(names, c.Node)
	}
	return names
}

func TestListClaims(t *testing.T) {
	s, r := claimed(t)
	if _, err := s.Claims.Update(t.Context(), "worker-2", func(c *tokens.Claim) error { c.NodeUID = "u2"; return nil }); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	list, _, got := askFor[api.ClaimList](t, s, "GET", "/v1/claim", "")
	if got.status != 200 || list.Kind != api.KindClaimList || len(list.Items) != 2 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for i, want := range []api.Claim{{Node: "worker-1"}, {Node: "worker-2", NodeUID: "u2"}} {
		if c := list.Items[i]; c.Node != want.Node || c.NodeUID != want.NodeUID || c.Token != r.Token.ID() || c.Keys != 1 || c.Created.IsZero() {
			t.Errorf("claim %+v, want %+v", c, want)
		}
	}
	if strings.Contains(got.body, r.Token.RevealSecret()) {
		t.Error("the secret of the token is in the list")
	}
}

func TestReleaseClaim(t *testing.T) {
	s, r := claimed(t)
	s.start(t)
	const path = "/v1/claim/worker-1"
	if c, _, got := askFor[api.Claim](t, s, "DELETE", path+"?dryRun=true", ""); got.status != 200 || !c.DryRun || len(s.claims(t)) != 2 || len(s.record(t, r.Token.ID()).Nodes) != 2 {
		t.Errorf("dry run: %d %s", got.status, got.body)
	}
	c, _, got := askFor[api.Claim](t, s, "DELETE", path, "")
	if got.status != 200 || c.Node != "worker-1" || c.Token != r.Token.ID() || !strings.Contains(strings.Join(c.Warnings, ""), "has a free slot again and expires at") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if now := s.record(t, r.Token.ID()); !slices.Equal(now.Nodes, []string{"worker-2"}) || !slices.Equal(s.claims(t), []string{"worker-2"}) {
		t.Errorf("got claims %v and nodes %v, want only worker-2", s.claims(t), now.Nodes)
	}
	for path, status := range map[string]int{path: 404, "/v1/claim/Worker%2F1": 400, "/v1/claim/" + strings.Repeat("a", 300): 400} {
		if got := s.do(t, "DELETE", path, adminBearer, "", ""); got.status != status {
			t.Errorf("%.40s: %d %s", path, got.status, got.body)
		}
	}
}

// Catches an error of a release that becomes another problem.
func TestReleaseClaimProblems(t *testing.T) {
	for _, test := range []struct {
		status  int
		problem string
		fault   func(s *site) storetest.Faulty
	}{
		{503, "store-unavailable", func(*site) storetest.Faulty { return storetest.Fail(errReset, "Claims.Get") }},
		{503, "store-refuses", func(*site) storetest.Faulty { return storetest.Fail(tokens.ErrRefused, "Claims.Commit") }},
		{503, "store-unavailable", func(*site) storetest.Faulty {
			return storetest.Fail(fmt.Errorf("stored: %w", &tokens.FieldError{Field: "nodes", Err: errReset}), "Claims.Commit")
		}},
		{409, "claim-replaced", func(s *site) storetest.Faulty {
			return func(c *storetest.Call, do func() error) error {
				if c.Method == "Claims.Commit" {
					claim, err := s.store.Claims().Get(c.Context, "worker-1")
					if err == nil {
						err = s.store.Claims().Delete(c.Context, claim)
					}
					if err == nil {
						_, err = s.store.Claims().Create(c.Context, claim)
					}
					if err != nil {
						return err
					}
				}
				return do()
			}
		}},
	} {
		s, _ := claimed(t)
		s.Claims = test.fault(s).Claims(s.store.Claims())
		s.start(t)
		if _, p, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1", ""); got.status != test.status || !p.Named(test.problem) || len(s.claims(t)) != 2 {
			t.Errorf("got %d with claims %v: %s, want %d %s", got.status, s.claims(t), got.body, test.status, test.problem)
		}
	}
}

// Catches the record of a released claim being listed, or shown with its token.
func TestReleasedClaimIsNotListed(t *testing.T) {
	s, r := claimed(t)
	s.MaxRemainingLifetime = func() time.Duration { return 24 * time.Hour }
	s.start(t)
	if got := s.do(t, "DELETE", "/v1/claim/worker-1", adminBearer, "", ""); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if c, err := s.Claims.Get(t.Context(), "worker-1"); err != nil || !c.Released() || c.Past.Until.Before(time.Now().Add(24*time.Hour)) {
		t.Errorf("got %+v, %v, want a past of 24 h", c, err)
	}
	list, _, got := askFor[api.ClaimList](t, s, "GET", "/v1/claim", "")
	if len(list.Items) != 1 || list.Items[0].Node != "worker-2" {
		t.Errorf("got list %s, want only worker-2", got.body)
	}
	if got := s.do(t, "GET", "/v1/token/"+r.Token.ID(), adminBearer, "", ""); got.status != 200 || strings.Contains(got.body, "worker-1") {
		t.Errorf("%d %s", got.status, got.body)
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

// Callers choose token IDs. An ID that still has claims is refused.
func TestRefusesTokenIDWithClaims(t *testing.T) {
	s, r := claimed(t)
	s.start(t)
	body := `{"token":"` + tokens.Generate().Reveal() + `","maxNodes":1}`
	body = strings.Replace(body, body[10:16], r.Token.ID(), 1)
	// While the token exists, the response is about the token.
	if _, p, got := askFor[api.Token](t, s, "POST", tokenPath, body); got.status != 409 || !p.Named(api.ProblemExists) || !strings.Contains(p.Detail, "already exists and does not match") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if err := s.store.Delete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for _, dryRun := range []string{`"dryRun":true`, `"dryRun":false`} {
		_, p, got := askFor[api.Token](t, s, "POST", tokenPath, strings.TrimSuffix(body, "}")+","+dryRun+"}")
		if got.status != 409 || !p.Named(api.ProblemExists) || !strings.Contains(p.Detail, "kubejoin claim release worker-1") {
			t.Errorf("%s: %d %s", dryRun, got.status, got.body)
		}
	}
	for _, c := range s.claims(t) {
		if got := s.do(t, "DELETE", "/v1/claim/"+c, adminBearer, "", ""); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if got := s.do(t, "POST", tokenPath, adminBearer, "application/json", body); got.status != 201 {
		t.Errorf("%d %s", got.status, got.body)
	}
}
