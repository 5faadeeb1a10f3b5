package server_test

import (
	"errors"
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

// Catches a slot that is lost because kubejoin stopped before the claim, or somebody deleted the claim.
func TestReleaseFreesSlotWithoutClaim(t *testing.T) {
	s, r := claimed(t)
	c, err := s.Claims.Get(t.Context(), "worker-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Claims.Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	if got := s.do(t, "DELETE", "/v1/claim/worker-1", adminBearer, "", ""); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if now := s.record(t, r.Token.ID()); !slices.Equal(now.Nodes, []string{"worker-2"}) {
		t.Errorf("got nodes %v, want only worker-2", now.Nodes)
	}
}

// Catches the record of a released claim being listed, released again, or shown with its token.
func TestReleasedClaimIsKeptAsPast(t *testing.T) {
	for name, test := range map[string]struct {
		duration, longest, lasts time.Duration
	}{
		"no lifetime to wait for":  {},
		"short certificates":       {duration: time.Hour, lasts: time.Hour},
		"no Nodes":                 {longest: 24 * time.Hour, lasts: 24 * time.Hour},
		"no Nodes, short":          {duration: time.Hour, longest: 24 * time.Hour, lasts: 24 * time.Hour},
		"longer than the signer's": {duration: 48 * time.Hour, longest: 24 * time.Hour, lasts: 48 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := claimed(t)
			if test.longest > 0 {
				s.MaxRemainingLifetime = func() time.Duration { return test.longest }
			}
			if _, err := s.Claims.Update(t.Context(), "worker-1", func(c *tokens.Claim) error { c.Limits.CertificateDuration = test.duration; return nil }); err != nil {
				t.Fatal(err)
			}
			s.start(t)
			if got := s.do(t, "DELETE", "/v1/claim/worker-1", adminBearer, "", ""); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			c, err := s.Claims.Get(t.Context(), "worker-1")
			if remembered := err == nil; remembered != (test.lasts > 0) {
				t.Fatalf("%+v %v", c, err)
			}
			if least := time.Now().Add(test.lasts); test.lasts > 0 && (!c.Released() || c.Past.CertificateDuration != test.duration || c.Past.Until.Before(least) || c.Past.Until.After(least.Add(72*time.Hour))) {
				t.Errorf("got claim %+v, want it kept until shortly after %s", c, least)
			}
			list, _, got := askFor[api.ClaimList](t, s, "GET", "/v1/claim", "")
			if len(list.Items) != 1 || list.Items[0].Node != "worker-2" {
				t.Errorf("got list %s, want only worker-2", got.body)
			}
			if got := s.do(t, "DELETE", "/v1/claim/worker-1", adminBearer, "", ""); got.status != 404 || !strings.Contains(got.body, "no-claim") {
				t.Errorf("%d %s", got.status, got.body)
			}
			if got := s.do(t, "GET", "/v1/token/"+r.Token.ID(), adminBearer, "", ""); got.status != 200 || strings.Contains(got.body, "worker-1") {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
}

// Catches a claim that cannot be released because its token was deleted, and a token with the same ID that does not
// get its slot back.
func TestReleasesClaimOfDeletedOrReplacedToken(t *testing.T) {
	s, r := claimed(t)
	if err := s.store.Delete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	if got := s.do(t, "DELETE", "/v1/claim/worker-1", adminBearer, "", ""); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if _, err := s.store.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if got := s.do(t, "DELETE", "/v1/claim/worker-2", adminBearer, "", ""); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if now := s.record(t, r.Token.ID()); !slices.Equal(now.Nodes, []string{"worker-1"}) || len(s.claims(t)) != 0 {
		t.Errorf("got claims %v and nodes %v, want no claims and node worker-1", s.claims(t), now.Nodes)
	}
}

// A token with malformed limits lets nobody join. Catches a release that changes its node count.
func TestReleaseLeavesCountOfMalformedToken(t *testing.T) {
	s, r := claimed(t)
	s.Tokens = storetest.Alter(func(r *tokens.Record) { r.Limits.Problem = errors.New("max-nodes: many") }).Store(s.store)
	s.start(t)
	c, _, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1", "")
	if got.status != 200 || !strings.Contains(strings.Join(c.Warnings, ""), "still counts the name: max-nodes: many") || len(s.claims(t)) != 1 || len(s.record(t, r.Token.ID()).Nodes) != 2 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// deleting returns the claims of a site. They call before for each deletion, and fail if it returns an error.
func (s *site) deleting(before func(call int, c tokens.Claim) error) tokens.Claims {
	calls := 0
	return storetest.Faulty(func(c *storetest.Call, do func() error) error {
		if c.Method == "Claims.Delete" {
			calls++
			if err := before(calls, c.Claims[0]); err != nil {
				return err
			}
		}
		return do()
	}).Claims(s.store.Claims())
}

// Catches a slot that is free before the claim is: a machine with the claim could take the slot, which would then count a name
// without a claim.
func TestReleaseGivesSlotBackLast(t *testing.T) {
	s, r := claimed(t)
	s.Claims = s.deleting(func(int, tokens.Claim) error {
		if now := s.record(t, r.Token.ID()); !slices.Contains(now.Nodes, "worker-1") {
			t.Errorf("got nodes %v before the claim is deleted, want worker-1 too", now.Nodes)
		}
		return nil
	})
	s.start(t)
	if got := s.do(t, "DELETE", "/v1/claim/worker-1", adminBearer, "", ""); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if now := s.record(t, r.Token.ID()); !slices.Equal(now.Nodes, []string{"worker-2"}) || !slices.Equal(s.claims(t), []string{"worker-2"}) {
		t.Errorf("left are claims %v and nodes %v", s.claims(t), now.Nodes)
	}
}

// Catches a failed release that cannot be repeated.
func TestFailedReleaseIsRepeated(t *testing.T) {
	for name, fail := range map[string]func(*site){
		"claim is not released": func(s *site) {
			s.Claims = s.deleting(func(call int, _ tokens.Claim) error {
				if call == 1 {
					return errors.New("connection reset")
				}
				return nil
			})
		},
		"slot is not given back": func(s *site) {
			failed := false
			s.Tokens = storetest.Before(func() error {
				if failed {
					return nil
				}
				failed = true
				return errors.New("connection reset")
			}, "Store.Update").Store(s.store)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := claimed(t)
			fail(s)
			s.start(t)
			for i, want := range []struct {
				query         string
				status, nodes int
			}{{"", 503, 2}, {"?dryRun", 200, 2}, {"", 200, 1}, {"", 404, 1}} {
				c, _, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1"+want.query, "")
				if got.status != want.status || want.status == 200 && c.Token != r.Token.ID() || len(s.record(t, r.Token.ID()).Nodes) != want.nodes {
					t.Errorf("call %d: %d %s", i+1, got.status, got.body)
				}
			}
			if now := s.record(t, r.Token.ID()); !slices.Equal(now.Nodes, []string{"worker-2"}) || !slices.Equal(s.claims(t), []string{"worker-2"}) {
				t.Errorf("left are claims %v and nodes %v", s.claims(t), now.Nodes)
			}
		})
	}
}

// A machine is admitted with another key while its claim is released. Catches a release of a claim that nobody has read.
func TestReleaseRereadsChangedClaim(t *testing.T) {
	s, r := claimed(t)
	store := s.store.Claims()
	s.Claims = s.deleting(func(call int, c tokens.Claim) error {
		if call > 1 {
			return nil
		}
		if _, err := store.Update(t.Context(), c.Node, func(c *tokens.Claim) error { c.Keys = append(c.Keys, "sha256:"+strings.Repeat("1", 64)); return nil }); err != nil {
			t.Error(err)
		}
		return nil
	})
	s.start(t)
	c, _, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1", "")
	if got.status != 200 || c.Keys != 2 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if now := s.record(t, r.Token.ID()); !slices.Equal(now.Nodes, []string{"worker-2"}) || !slices.Equal(s.claims(t), []string{"worker-2"}) {
		t.Errorf("left are claims %v and nodes %v", s.claims(t), now.Nodes)
	}
}

// Catches the deletion of a claim that was created again during the release.
func TestReleaseKeepsReplacedClaim(t *testing.T) {
	s, _ := claimed(t)
	store := s.store.Claims()
	s.Claims = s.deleting(func(call int, c tokens.Claim) error {
		if call > 1 {
			return nil
		}
		if err := store.Delete(t.Context(), c); err != nil {
			t.Error(err)
		}
		if _, err := store.Create(t.Context(), tokens.Claim{Node: c.Node, TokenID: c.TokenID, TokenUID: c.TokenUID}); err != nil {
			t.Error(err)
		}
		return nil
	})
	s.start(t)
	if _, p, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1", ""); got.status != 409 || !p.Named("claim-replaced") || len(s.claims(t)) != 2 {
		t.Errorf("%d with claims %v: %s", got.status, s.claims(t), got.body)
	}
}

// Catches a success although a slow request has claimed the name again.
func TestReleaseReportsNewClaimOfToken(t *testing.T) {
	s, _ := claimed(t)
	claims := s.store.Claims()
	s.Claims = storetest.Faulty(func(c *storetest.Call, do func() error) error {
		err := do()
		if err == nil && c.Method == "Claims.Delete" {
			given := c.Claims[0]
			_, err = claims.Create(c.Context, tokens.Claim{Node: given.Node, TokenID: given.TokenID, TokenUID: given.TokenUID})
		}
		return err
	}).Claims(claims)
	s.start(t)
	if _, p, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1", ""); got.status != 409 || !p.Named("claim-replaced") || len(s.claims(t)) != 2 {
		t.Errorf("%d with claims %v: %s", got.status, s.claims(t), got.body)
	}
}

func TestReleasesClaimThatAnotherCallerReleases(t *testing.T) {
	s, r := claimed(t)
	store := s.store.Claims()
	s.Claims = s.deleting(func(_ int, c tokens.Claim) error { return store.Delete(t.Context(), c) })
	s.start(t)
	if got := s.do(t, "DELETE", "/v1/claim/worker-1", adminBearer, "", ""); got.status != 200 || !slices.Equal(s.record(t, r.Token.ID()).Nodes, []string{"worker-2"}) {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestReleasesClaimOfTokenDeletedMeanwhile(t *testing.T) {
	s, _ := claimed(t)
	s.Tokens = deletedBeforeUpdate(s.store)
	s.start(t)
	if got := s.do(t, "DELETE", "/v1/claim/worker-1", adminBearer, "", ""); got.status != 200 || !slices.Equal(s.claims(t), []string{"worker-2"}) {
		t.Errorf("%d with claims %v: %s", got.status, s.claims(t), got.body)
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
