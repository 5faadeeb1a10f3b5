package server_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

func TestNegativeUserTokensMeansUnlimited(t *testing.T) {
	s := newSite(t)
	s.Limits.UserTokens = -1
	s.start(t)
	made, _, got := askFor[api.Token](t, s, "POST", tokenPath, "")
	if got.status != 201 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if r := s.record(t, made.ID); r.Creator != "" {
		t.Errorf("got creator %q, want none without a limit", r.Creator)
	}
}

// Catches a new token that exceeds the size limits, and an older, larger token that cannot be read or renewed any more.
func TestBoundsSizeOfNewToken(t *testing.T) {
	s := newSite(t)
	s.start(t)
	list := func(n, length int, prefix string) []string {
		var all []string
		for i := range n {
			all = append(all, prefix+strings.Repeat("x", length)+fmt.Sprint(i))
		}
		return all
	}
	for name, c := range map[string]struct {
		body, field, want string
	}{
		"6,000 names":  {jsonOf(t, api.TokenSpec{NodeNames: list(6000, 0, "")}), "nodeNames", "6000 names given, 256 allowed"},
		"257 names":    {jsonOf(t, api.TokenSpec{NodeNames: list(257, 1, "")}), "nodeNames", "257 names given, 256 allowed"},
		"10 kB":        {jsonOf(t, api.TokenSpec{NodeNames: list(50, 200, "")}), "nodeNames", "bytes given, 8192 allowed"},
		"33 groups":    {jsonOf(t, api.TokenSpec{Groups: list(33, 1, "system:bootstrappers:")}), "groups", "33 given, 32 allowed"},
		"as allowed":   {jsonOf(t, api.TokenSpec{NodeNames: list(256, 25, ""), Groups: list(32, 1, "system:bootstrappers:")}), "", ""},
		"long as well": {jsonOf(t, api.TokenSpec{NodeNames: list(32, 250, "")}), "", ""},
	} {
		for _, path := range []string{tokenPath, commandPath} {
			if c.want == "" {
				if got := s.do(t, "POST", path, adminBearer, "application/json", c.body); got.status/100 != 2 {
					t.Errorf("%s: %s: %d %.300s", path, name, got.status, got.body)
				}
				continue
			}
			if _, p, got := askFor[api.Token](t, s, "POST", path, c.body); got.status != 400 || p.Field != c.field || !strings.Contains(p.Detail, c.want) {
				t.Errorf("%s: %s: %d %.300s", path, name, got.status, got.body)
			}
		}
	}

	// A larger token of an earlier version still works and keeps its limits.
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits.NodeNames = list(6000, 1, "n")
	if _, err := s.store.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	shown, _, got := askFor[api.Token](t, s, "GET", tokenPath+"/"+r.Token.ID(), "")
	if got.status != 200 || len(shown.NodeNames) != 6000 {
		t.Errorf("%d with %d names", got.status, len(shown.NodeNames))
	}
	if _, _, got := askFor[api.Token](t, s, "POST", tokenPath+"/"+r.Token.ID()+"/renew", `{"ttl":"2h"}`); got.status != 200 {
		t.Errorf("renewal: %d %.300s", got.status, got.body)
	}
	if now := s.record(t, r.Token.ID()); !now.Limits.Equal(r.Limits) || now.Limits.AllowsName("other") || !now.Limits.AllowsName("nx7") {
		t.Errorf("limits are others now, with %d names", len(now.Limits.NodeNames))
	}
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	content, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
