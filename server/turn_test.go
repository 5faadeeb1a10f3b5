package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/controlplane"
	"github.com/kubejoin/kubejoin/tokens"
)

const turnPath = "/v1/controlplane/turn"

// A fakeTurns keeps the turn in memory. It never expires.
type fakeTurns struct {
	mu    sync.Mutex
	state controlplane.Turn
	// learner is in etcd.
	learner string
	err     error
}

func (f *fakeTurns) Take(_ context.Context, m controlplane.Machine) (controlplane.Turn, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var granted bool
	f.state, granted = f.state.Take(m, false, f.learner, time.Now().UTC().Truncate(time.Second))
	return f.state, granted, f.err
}

func (f *fakeTurns) GiveBack(_ context.Context, m controlplane.Machine) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = f.state.GiveBack(m, time.Now())
	return f.err
}

func turnBody(node, digit string) string {
	return `{"node":"` + node + `","id":"` + strings.Repeat(digit, 32) + `"}`
}

func controlPlaneToken(t *testing.T, s *site) string {
	t.Helper()
	return s.token(t, func(r *tokens.Record) { r.Limits.MaxNodes, r.Limits.Role = 1, tokens.RoleControlPlane })
}

func TestControlPlanesTakeTurns(t *testing.T) {
	s, turns := newSite(t), &fakeTurns{}
	s.Cluster.Turns = turns
	s.start(t)
	first, second := controlPlaneToken(t, s), controlPlaneToken(t, s)
	got := s.do(t, "POST", turnPath, first, "application/json", turnBody("control-2", "2"))
	var made api.Turn
	if err := json.Unmarshal([]byte(got.body), &made); got.status != 200 || err != nil || made.Kind != api.KindTurn || made.Node != "control-2" || made.Since.IsZero() || made.RenewSeconds != 10 {
		t.Errorf("%d %s, %v", got.status, got.body, err)
	}
	// Another machine, with its own token or the same.
	for _, token := range []string{second, first} {
		got := s.do(t, "POST", turnPath, token, "application/json", turnBody("control-3", "3"))
		if got.status != 409 || !strings.Contains(got.body, "/"+api.ProblemTurnTaken) || !strings.Contains(got.body, "control-2 has been joining as a control plane since ") ||
			!strings.Contains(got.body, "control-3 waits") || got.header.Get("Retry-After") != "5" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
	}
	if got := s.do(t, "DELETE", turnPath, first, "application/json", turnBody("control-2", "2")); got.status != 200 || strings.Contains(got.body, "since") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := s.do(t, "POST", turnPath, second, "application/json", turnBody("control-3", "3")); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	turns.state, turns.learner = controlplane.Turn{}, "https://192.0.2.9:2380"
	if got := s.do(t, "POST", turnPath, second, "application/json", turnBody("control-3", "3")); got.status != 409 || !strings.Contains(got.body, "the etcd member https://192.0.2.9:2380 is still a learner; control-3 waits") {
		t.Errorf("%d %s", got.status, got.body)
	}
	turns.learner = ""
	if got := s.do(t, "POST", turnPath, second, "application/json", strings.Replace(turnBody("control-3", "3"), "}", `,"address":"192.0.2.3"}`, 1)); got.status != 200 || turns.state.Holder.Address != "192.0.2.3" {
		t.Errorf("%d %s, %+v", got.status, got.body, turns.state)
	}
	turns.err = errors.New("leaderless")
	for _, method := range []string{"POST", "DELETE"} {
		if got := s.do(t, method, turnPath, second, "application/json", turnBody("control-3", "3")); got.status != 503 || strings.Contains(got.body, "leaderless") || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", method, got.status, got.body)
		}
	}
}

// Only a usable token for control planes may take or give back a turn. The reason of a refused token is only in the log.
func TestTurnNeedsControlPlaneToken(t *testing.T) {
	s, turns := newSite(t), &fakeTurns{}
	s.Cluster.Turns = turns
	s.start(t)
	good := controlPlaneToken(t, s)
	role := func(change func(*tokens.Record)) string {
		return s.token(t, func(r *tokens.Record) {
			r.Limits.MaxNodes, r.Limits.Role = 1, tokens.RoleControlPlane
			change(r)
		})
	}
	for name, c := range map[string]struct {
		bearer string
		status int
	}{
		"nobody":           {"", 401},
		"administrator":    {adminBearer, 401},
		"worker":           {s.token(t, func(r *tokens.Record) { r.Limits.MaxNodes = 1 }), 403},
		"unlimited":        {s.token(t, func(*tokens.Record) {}), 403},
		"wrong secret":     {good[:7] + "0000000000000000", 401},
		"unknown":          {"aaaaaa.0000000000000000", 401},
		"expired":          {role(func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) }), 401},
		"discovery only":   {role(func(r *tokens.Record) { r.Authentication, r.Groups = false, nil }), 401},
		"control plane":    {good, 200},
		"without any role": {s.token(t, func(r *tokens.Record) { r.Limits.NodeNames = []string{"control-2"} }), 403},
	} {
		for _, method := range []string{"POST", "DELETE"} {
			if got := s.do(t, method, turnPath, c.bearer, "application/json", turnBody("control-2", "2")); got.status != c.status {
				t.Errorf("%s: %s: got %d %s, want %d", name, method, got.status, got.body, c.status)
			}
			if c.status != 200 && turns.state.Holder != (controlplane.Machine{}) {
				t.Fatalf("%s took the turn", name)
			}
		}
	}
}

func TestTurnRefusesMalformedRequests(t *testing.T) {
	s := newSite(t)
	s.start(t)
	token := controlPlaneToken(t, s)
	for body, want := range map[string]string{
		``:                          `"field":"node"`,
		`{"node":"control-2"}`:      `"field":"id"`,
		turnBody("Control", "2"):    `"field":"node"`,
		turnBody("control-2", "G"):  `"field":"id"`,
		turnBody("control-2", "22"): `"field":"id"`,
		turnBody("control-2", "A"):  `"field":"id"`,
		`{"node":"a","id":"` + strings.Repeat("2", 32) + `","address":"a"}`: `"field":"address"`,
		turnBody("control-2", "2")[:20]:                                     "syntax error",
		`{"node":"control-2","id":1}`:                                       `"field":"id"`,
		`{"node":"a","holder":""}`:                                          "unknown field",
		turnBody(strings.Repeat("a", 300), "2"):                             `"field":"node"`,
	} {
		if got := s.do(t, "POST", turnPath, token, "application/json", body); got.status != 400 || !strings.Contains(got.body, want) {
			t.Errorf("%s: got %d %s, want %s", body, got.status, got.body, want)
		}
	}
	if got := s.do(t, "POST", turnPath, token, "application/json", turnBody("control-2", "2")); got.status != 404 || !strings.Contains(got.body, "no-turns") {
		t.Errorf("without a cluster: %d %s", got.status, got.body)
	}
}
