package server_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// stored creates a token in the store and returns its record.
func (s *site) stored(t *testing.T, change func(*tokens.Record)) tokens.Record {
	t.Helper()
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	if change != nil {
		change(&r)
	}
	r, err := s.store.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Catches a list or a response about one token that lacks what the store has, or shows a secret.
func TestTokenStatusAndFields(t *testing.T) {
	s := newSite(t)
	s.Claims = s.store.Claims()
	plain := s.stored(t, func(r *tokens.Record) { r.Description = "rack 7" })
	spent := s.stored(t, func(r *tokens.Record) { r.Limits.MaxNodes, r.Nodes = 2, []string{"b", "a"} })
	limited := s.stored(t, func(r *tokens.Record) {
		r.Expires = time.Time{}
		r.Limits = tokens.Limits{Replaces: tokens.NodeRef{Name: "c", UID: "u"}, CertificateDuration: time.Hour, Role: "control-plane"}
	})
	if _, err := s.Claims.Create(t.Context(), tokens.Claim{Node: "c", TokenID: limited.Token.ID(), TokenUID: limited.UID}); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	list, _, got := askFor[api.TokenList](t, s, "GET", tokenPath, "")
	if got.status != 200 || list.Kind != api.KindTokenList || len(list.Items) != 3 || len(list.Warnings) != 0 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, test := range []struct {
		record tokens.Record
		status string
		nodes  []string
		check  func(api.Token) bool
	}{
		{plain, api.StatusActive, nil, func(t api.Token) bool {
			return t.Description == "rack 7" && t.Expires.Equal(plain.Expires) && t.Created.Equal(plain.Created) && slices.Equal(t.Groups, plain.Groups) &&
				slices.Equal(t.Usages, []string{"authentication", "signing"})
		}},
		{spent, api.StatusSpent, []string{"b", "a"}, func(t api.Token) bool { return t.MaxNodes == 2 }},
		{limited, api.StatusActive, []string{"c"}, func(t api.Token) bool {
			return t.Expires.IsZero() && *t.ReplacesNode == api.Node{Name: "c", UID: "u"} && t.CertificateDuration == "1h0m0s" && t.Role == "control-plane"
		}},
	} {
		id := test.record.Token.ID()
		one, _, again := askFor[api.Token](t, s, "GET", tokenPath+"/"+id, "")
		if again.status != 200 || strings.Contains(got.body+again.body, test.record.Token.RevealSecret()) {
			t.Fatalf("%d %s", again.status, again.body)
		}
		at := slices.IndexFunc(list.Items, func(t api.Token) bool { return t.ID == id })
		for where, shown := range map[string]api.Token{"get": one, "list": list.Items[at]} {
			if shown.Status != test.status || !slices.Equal(shown.Nodes, test.nodes) || shown.Token != "" || shown.JoinCommand != "" || !test.check(shown) {
				t.Errorf("%s: %+v", where, shown)
			}
		}
	}
}

// unreadable is a cluster-info that cannot be read.
type unreadable struct{ server.ClusterInfo }

func (unreadable) JSON(context.Context) ([]byte, error) { return nil, errors.New("on fire") }

// Catches a token list that fails without cluster-info or claims, or that shows internal causes.
func TestListWarnsOfUnreadableFacts(t *testing.T) {
	s := newSite(t)
	s.stored(t, nil)
	s.ClusterInfo = unreadable{}
	s.Claims = storetest.Fail(errors.New("flooded"), "Claims.List").Claims(s.store.Claims())
	s.start(t)
	list, _, got := askFor[api.TokenList](t, s, "GET", tokenPath, "")
	want := []string{"cannot read cluster-info, so the status does not show whether tokens are signed", "cannot read claims, so the node names of tokens may be incomplete"}
	if len(list.Items) != 1 || list.Items[0].Status != api.StatusActive || !slices.Equal(list.Warnings, want) {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestMissingTokenIsAProblem(t *testing.T) {
	s := newSite(t)
	s.start(t)
	for _, route := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/renew"}} {
		for id, status := range map[string]int{"nonono": 404, "no": 400, "ABCDEF": 400, "qwertz.0123456789abcdef": 400} {
			_, p, got := askFor[api.Token](t, s, route[0], tokenPath+"/"+id+route[1], "")
			if got.status != status || status == 404 && !strings.Contains(p.Detail, "there is no token nonono") || strings.Contains(got.body+s.logs.String(), "0123456789abcdef") {
				t.Errorf("%s %s%s: %d %s", route[0], id, route[1], got.status, got.body)
			}
		}
	}
}

func TestDeleteToken(t *testing.T) {
	s := newSite(t)
	failures := 0
	s.Tokens = s.failingDelete(&failures)
	s.start(t)
	r := s.stored(t, nil)
	path := tokenPath + "/" + r.Token.ID()
	if shown, _, got := askFor[api.Token](t, s, "DELETE", path+"?dryRun=true", ""); got.status != 200 || !shown.DryRun || len(s.ids(t)) != 1 {
		t.Errorf("dry run: %d %s", got.status, got.body)
	}
	if _, p, got := askFor[api.Token](t, s, "DELETE", path, `{"onlyExpired":true}`); got.status != 409 || !p.Named(api.ProblemNotExpired) || len(s.ids(t)) != 1 {
		t.Errorf("only if expired: %d %s", got.status, got.body)
	}
	failures = 1
	if _, _, got := askFor[api.Token](t, s, "DELETE", path, ""); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("the store is away: %d %s", got.status, got.body)
	}
	if shown, _, got := askFor[api.Token](t, s, "DELETE", path, ""); got.status != 200 || shown.ID != r.Token.ID() || len(s.ids(t)) != 0 {
		t.Errorf("%d %s", got.status, got.body)
	}
	old := s.stored(t, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
	if _, _, got := askFor[api.Token](t, s, "DELETE", tokenPath+"/"+old.Token.ID()+"?onlyExpired", ""); got.status != 200 || len(s.ids(t)) != 0 {
		t.Errorf("expired: %d %s", got.status, got.body)
	}
}

// Catches a renewal with another expiration than the request describes.
func TestRenewToken(t *testing.T) {
	hours := func(n int) time.Time { return time.Now().Add(time.Duration(n) * time.Hour) }
	for name, test := range map[string]struct {
		body    string
		status  int
		expires time.Time // zero: never
	}{
		"by default": {"", 200, hours(24)},
		"longer":     {`{"ttl":"48h"}`, 200, hours(48)},
		"to a time":  {`{"expires":"` + hours(5).UTC().Format(time.RFC3339) + `"}`, 200, hours(5)},
		"never":      {`{"ttl":"0"}`, 200, time.Time{}},
		"shorter":    {`{"ttl":"1h","shorten":true}`, 200, hours(1)},
		"dry run":    {`{"ttl":"48h","dryRun":true}`, 200, hours(2)},
		"negative":   {`{"ttl":"-1s"}`, 400, hours(2)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.start(t)
			r := s.stored(t, func(r *tokens.Record) { r.Expires = hours(2) })
			shown, _, got := askFor[api.Token](t, s, "POST", tokenPath+"/"+r.Token.ID()+"/renew", test.body)
			if got.status != test.status || test.status == 200 && shown.ID != r.Token.ID() {
				t.Fatalf("%d %s", got.status, got.body)
			}
			if now := s.record(t, r.Token.ID()).Expires; now.IsZero() != test.expires.IsZero() || now.Sub(test.expires).Abs() > time.Minute {
				t.Errorf("expires at %s, want %s", now, test.expires)
			}
		})
	}
}

// Catches a reason of a refused change that gets another problem or status.
func TestRefusedChangesAreProblems(t *testing.T) {
	spent := func(r *tokens.Record) { r.Limits.MaxNodes, r.Nodes = 1, []string{"worker-3"} }
	upload := func(r *tokens.Record) {
		r.Description, r.Signing, r.Authentication, r.Groups = tokens.UploadDescription, false, false, nil
	}
	for name, test := range map[string]struct {
		record       func(*tokens.Record)
		faulty       func(*site, tokens.Record) storetest.Faulty
		method, path string
		problem      string
		field        string
	}{
		"spent":       {spent, nil, "POST", "/renew", api.ProblemSpent, ""},
		"shorter":     {nil, nil, "POST", "/renew?ttl=1s", api.ProblemWouldShorten, "shorten"},
		"upload":      {upload, nil, "POST", "/renew", "token-owns-upload", ""},
		"not expired": {nil, nil, "DELETE", "?onlyExpired", api.ProblemNotExpired, ""},
		"malformed": {nil, func(*site, tokens.Record) storetest.Faulty {
			return func(c *storetest.Call, do func() error) error {
				if c.Method == "Store.Update.change" {
					c.Records[0].Problem = errors.New("token-secret is missing")
				}
				return do()
			}
		}, "POST", "/renew", "token-invalid", ""},
		"replaced": {nil, func(s *site, r tokens.Record) storetest.Faulty {
			return storetest.Before(sync.OnceValue(func() error {
				err := s.store.Delete(context.Background(), r)
				if err == nil {
					_, err = s.store.Create(context.Background(), r)
				}
				return err
			}), "Store.Delete")
		}, "DELETE", "", "token-replaced", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			r := s.stored(t, test.record)
			if test.faulty != nil {
				s.Tokens = test.faulty(s, r).Store(s.store)
			}
			s.start(t)
			if _, p, got := askFor[api.Token](t, s, test.method, tokenPath+"/"+r.Token.ID()+test.path, ""); got.status != 409 || !p.Named(test.problem) || p.Field != test.field {
				t.Errorf("%d %s, want problem %s", got.status, got.body, test.problem)
			}
		})
	}
}

// Catches a route that checks the permission of another route, or none.
func TestEachRouteNeedsItsPermission(t *testing.T) {
	s := newSite(t)
	s.Claims = s.store.Claims()
	var asked []string
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		asked = append(asked, a.String())
		return auth.ErrForbidden
	}
	s.start(t)
	for _, test := range []struct{ method, path, right string }{
		{"POST", commandPath, "create tokens.kubejoin.io"},
		{"POST", tokenPath, "create tokens.kubejoin.io"},
		{"GET", tokenPath, "list tokens.kubejoin.io"},
		{"GET", tokenPath + "/qwertz", "get tokens.kubejoin.io"},
		{"DELETE", tokenPath + "/qwertz", "delete tokens.kubejoin.io"},
		{"POST", tokenPath + "/qwertz/renew", "update tokens.kubejoin.io"},
		{"GET", "/v1/claim", "list claims.kubejoin.io"},
		{"DELETE", "/v1/claim/worker-3", "delete claims.kubejoin.io"},
		{"GET", "/v1/issued", "list issued.kubejoin.io"},
		{"GET", "/v1/issued/1f", "get issued.kubejoin.io"},
	} {
		asked = nil
		if got := s.do(t, test.method, test.path, "", "", ""); got.status != 401 || len(asked) != 0 {
			t.Errorf("%s %s without a credential: got %d and permission checks %q, want 401 and none", test.method, test.path, got.status, asked)
		}
		if got := s.do(t, test.method, test.path, viewerBearer, "", ""); got.status != 403 || !slices.Equal(asked, []string{test.right}) {
			t.Errorf("%s %s: got %d and permission checks %q, want 403 and %q", test.method, test.path, got.status, asked, test.right)
		}
	}
}
