package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

const tokenPath = "/v1/token"

// askFor sends JSON and decodes the response into T, or into a problem.
func askFor[T any](t *testing.T, s *site, method, path, body string) (T, api.Problem, reply) {
	t.Helper()
	var object T
	var p api.Problem
	got := s.do(t, method, path, adminBearer, "application/json", body)
	var into any = &object
	if got.status >= 400 {
		into = &p
	}
	if err := json.Unmarshal([]byte(got.body), into); err != nil {
		t.Fatalf("%s %s: %d %s: %v", method, path, got.status, got.body, err)
	}
	return object, p, got
}

func (s *site) record(t *testing.T, id string) tokens.Record {
	t.Helper()
	r, err := s.store.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// locate resolves the Location header of a response to a request of the URL asked.
func locate(t *testing.T, asked string, got reply) string {
	t.Helper()
	base, err := url.Parse(asked)
	if err != nil {
		t.Fatal(err)
	}
	at, err := base.Parse(got.header.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	return at.String()
}

func TestCreateTokenLeadsToDiscovery(t *testing.T) {
	s := newSite(t)
	s.start(t)
	own := tokens.Generate()
	made, _, got := askFor[api.Token](t, s, "POST", tokenPath, `{"token":"`+own.Reveal()+`","ttl":"2h","description":"rack 7"}`)
	if got.status != 201 || locate(t, s.url+tokenPath, got) != s.url+tokenPath+"/"+own.ID() || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v %s", got.status, got.header, got.body)
	}
	if made.Kind != api.KindToken || made.APIVersion != api.Version || made.ID != own.ID() || made.Token.Reveal() != own.Reveal() || made.Status != api.StatusActive ||
		made.Description != "rack 7" || !slices.Equal(made.Usages, []string{"authentication", "signing"}) || !slices.Equal(made.Groups, []string{tokens.DefaultGroup}) {
		t.Errorf("answer %s", got.body)
	}
	endpoint, token, pins := parseLine(t, made.JoinCommand.Reveal()+"\n")
	if token != own {
		t.Error("the join command does not have the new token")
	}
	if _, err := clusterinfo.Discover(t.Context(), endpoint, token, pins); err != nil {
		t.Error(err)
	}
	if strings.Contains(s.logs.String(), own.RevealSecret()) || !strings.Contains(s.logs.String(), "token="+own.ID()) {
		t.Errorf("got log\n%s\nwant the token ID and not the secret in it", s.logs)
	}
	if text := fmt.Sprintf("%v %+v %#v %q", made, made, made, made.Token); strings.Contains(text, own.RevealSecret()) {
		t.Errorf("the formatted response shows the token secret: %s", text)
	}
}

// Package convert tests each field. Catches a request that is read or answered in another way over HTTP.
func TestCreateTokenRequests(t *testing.T) {
	s := newSite(t)
	s.Cluster.Node = func(_ context.Context, name string) (tokens.NodeRef, error) {
		switch name {
		case "worker-3":
			return tokens.NodeRef{Name: name, UID: "uid-3"}, nil
		case "away":
			return tokens.NodeRef{}, errors.New("etcd is on fire")
		}
		return tokens.NodeRef{}, fmt.Errorf("node: %w", tokens.ErrNotFound)
	}
	s.Minting.Warnings = func(_ context.Context, made tokens.Record) []string {
		if made.Limits.IsZero() {
			return nil
		}
		return []string{"nobody is at work"}
	}
	s.start(t)
	both := func(r tokens.Record) bool {
		return r.Signing && r.Authentication && slices.Equal(r.Groups, []string{tokens.DefaultGroup})
	}
	limited := func(want tokens.Limits) func(tokens.Record) bool {
		return func(r tokens.Record) bool { return both(r) && r.Limits.Equal(want) }
	}
	for _, test := range []struct {
		name, query, body string
		status            int
		field, detail     string
		want              func(tokens.Record) bool
		warning           string
	}{
		{name: "nothing asked", want: func(r tokens.Record) bool {
			left := time.Until(r.Expires)
			return both(r) && r.Limits.IsZero() && left < tokens.DefaultTTL+time.Second && left > tokens.DefaultTTL-time.Minute
		}},
		{name: "never expires", body: `{"ttl":"0"}`, want: func(r tokens.Record) bool { return both(r) && r.Expires.IsZero() }, warning: "never expires"},
		{name: "for authentication", query: "?usages=authentication", want: func(r tokens.Record) bool { return !r.Signing && r.Authentication && len(r.Groups) == 1 }},
		{name: "no usage", body: `{"usages":[]}`, status: 400, field: "usages", detail: "is empty"},
		{name: "own groups", query: "?groups=system:bootstrappers:a,system:bootstrappers:b", want: func(r tokens.Record) bool {
			return slices.Equal(r.Groups, []string{"system:bootstrappers:a", "system:bootstrappers:b"})
		}},
		{name: "no groups", body: `{"groups":[]}`, want: func(r tokens.Record) bool { return r.Authentication && len(r.Groups) == 0 }, warning: "has no groups: kubeadm's role bindings do not apply"},
		{name: "no groups in the query", query: "?groups=", want: func(r tokens.Record) bool { return r.Authentication && len(r.Groups) == 0 }, warning: "has no group"},
		{name: "no description", body: `{"description":"","dryRun":false}`, want: both},
		{
			name: "limits", body: `{"maxNodes":3,"nodeNames":["worker-*","gw"],"certificateDuration":"720h","role":"control-plane"}`,
			want:    limited(tokens.Limits{MaxNodes: 3, NodeNames: []string{"worker-*", "gw"}, CertificateDuration: 720 * time.Hour, Role: "control-plane"}),
			warning: "nobody is at work",
		},
		{name: "limits in the query", query: "?maxNodes=1&nodeNames=a,b&nodeNames=c", want: limited(tokens.Limits{MaxNodes: 1, NodeNames: []string{"a", "b", "c"}}), warning: "nobody is at work"},
		{name: "short certificates", query: "?certificateDuration=1h", want: limited(tokens.Limits{CertificateDuration: time.Hour}), warning: "off for longer cannot renew its certificate"},
		{name: "no number", query: "?maxNodes=many", status: 400, field: "maxNodes", detail: `"many" is not a number`},
		{name: "two at once", body: `{"maxNodes":-1,"role":"king"}`, status: 400, field: "maxNodes", detail: `role: "king" given`},
		{name: "in place of a Node", body: `{"replaceNode":"worker-3"}`, want: limited(tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-3", UID: "uid-3"}}), warning: "nobody is at work"},
		{name: "Nodes cannot be read", body: `{"replaceNode":"away"}`, status: 503, detail: "Node away cannot be read now"},
		{name: "no wait", body: `{"wait":"0"}`, want: both},
		{name: "a token in the URL", query: "?token=qwertz.0123456789abcdef", status: 400, detail: `unknown query parameter "token"; known: ttl,`},
		{name: "a malformed token", body: `{"token":"qwertz.hunter2"}`, status: 400, field: "token", detail: "malformed token of 14 characters"},
		{name: "unknown field", body: `{"maxnodes":1}`, status: 400, field: "maxnodes", detail: `unknown field "maxnodes"; known: token, ttl, expires,`},
		{name: "field of another kind", body: `{"maxNodes":"1"}`, status: 400, field: "maxNodes", detail: "a string given, want a whole number"},
		{name: "in both", query: "?maxNodes=1", body: `{"maxNodes":1}`, status: 400, field: "maxNodes", detail: "more than once"},
		{name: "neither true nor false", query: "?dryRun=maybe", status: 400, field: "dryRun", detail: `"maybe" given, want true or false`},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := s.ids(t)
			made, p, got := askFor[api.Token](t, s, "POST", tokenPath+test.query, test.body)
			if test.status == 0 {
				test.status = 201
			}
			if got.status != test.status {
				t.Fatalf("%d %s, want %d", got.status, got.body, test.status)
			}
			if test.status != 201 {
				if p.Field != test.field && test.field != "" || !strings.Contains(p.Detail, test.detail) || strings.Contains(got.body, "hunter2") || strings.Contains(got.body, "on fire") || p.TokenID != "" {
					t.Errorf("problem %+v, want %q: %s", p, test.field, test.detail)
				}
				if now := s.ids(t); len(now) != len(before) {
					t.Errorf("got %d new tokens after a refused request, want none", len(now)-len(before))
				}
				return
			}
			r := s.record(t, made.ID)
			if !test.want(r) || made.Token.Reveal() != r.Token.Reveal() {
				t.Errorf("record %+v", r)
			}
			if joins := made.JoinCommand != ""; joins != (r.Signing && r.Authentication) {
				t.Errorf("got join command %t with usage signing %t and authentication %t, want one for both usages only", joins, r.Signing, r.Authentication)
			}
			if warnings := strings.Join(made.Warnings, "\n"); !strings.Contains(warnings, test.warning) || test.warning == "" && warnings != "" {
				t.Errorf("warnings %q, want %q", warnings, test.warning)
			}
		})
	}
}

// Catches a join command whose token lacks a limit that the request has.
func TestJoinCommandHasAllLimits(t *testing.T) {
	s := newSite(t)
	s.Minting.Warnings = func(context.Context, tokens.Record) []string { return []string{`nobody "works"`} }
	s.start(t)
	got := s.do(t, "POST", commandPath+"?maxNodes=1&nodeNames=worker-7&certificateDuration=48h", adminBearer, "", "")
	if warning := got.header.Get("Warning"); warning != `299 - "nobody \"works\""` {
		t.Errorf("Warning: %s", warning)
	}
	_, token, _ := parseLine(t, got.body)
	if r := s.record(t, token.ID()); !r.Limits.Equal(tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-7"}, CertificateDuration: 48 * time.Hour}) {
		t.Errorf("limits %+v", r.Limits)
	}
	for _, usage := range []string{"signing", "authentication"} {
		if _, p, got := askFor[struct{}](t, s, "POST", commandPath, `{"usages":["`+usage+`"]}`); got.status != 400 || p.Field != "usages" {
			t.Errorf("join command with only usage %s: got %d %+v, want 400", usage, got.status, p)
		}
	}
	for _, query := range []string{"?wait=1s", "?dryRun=true", "?token=x"} {
		if got := s.do(t, "POST", commandPath+query, adminBearer, "", ""); got.status != 400 || !strings.Contains(got.body, "unknown query parameter") {
			t.Errorf("%s: %d %s", query, got.status, got.body)
		}
	}
}

func TestCreateTokenDryRun(t *testing.T) {
	s := newSite(t)
	s.start(t)
	made, _, got := askFor[api.Token](t, s, "POST", tokenPath+"?dryRun", `{"ttl":"1h","maxNodes":2}`)
	if got.status != 200 || !made.DryRun || made.MaxNodes != 2 || made.Token == "" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if _, token, _ := parseLine(t, made.JoinCommand.Reveal()+"\n"); token.Reveal() != made.Token.Reveal() {
		t.Error("the join command does not have the token of the response")
	}
	if ids := s.ids(t); len(ids) != 0 {
		t.Errorf("got stored tokens %v, want none", ids)
	}
}
