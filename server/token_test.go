package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
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
	return must.Get(s.store.Create(t.Context(), r))
}

// Package operations tests each field. Catches a response that shows a secret, or that lacks a claim.
func TestTokenStatusAndFields(t *testing.T) {
	s := newSite(t)
	s.Claims = s.store.Claims()
	r := s.stored(t, func(r *tokens.Record) { r.Description, r.Limits.MaxNodes, r.Nodes = "rack 7", 1, []string{"b"} })
	must.Value(storetest.CreateClaim(t.Context(), s.Claims, tokens.Claim{Node: "a", TokenID: r.Token.ID(), TokenUID: r.UID}))(t)
	s.start(t)
	list, _, got := askFor[api.TokenList](t, s, "GET", tokenPath, "")
	one, _, again := askFor[api.Token](t, s, "GET", tokenPath+"/"+r.Token.ID(), "")
	if got.status != 200 || list.Kind != api.KindTokenList || len(list.Items) != 1 || len(list.Warnings) != 0 || again.status != 200 || strings.Contains(got.body+again.body, r.Token.RevealSecret()) {
		t.Fatalf("%d %s, %d %s", got.status, got.body, again.status, again.body)
	}
	for where, shown := range map[string]api.Token{"get": one, "list": list.Items[0]} {
		if shown.Status != api.StatusSpent || !slices.Equal(slices.Sorted(slices.Values(shown.Nodes)), []string{"a", "b"}) || shown.Token != "" || shown.JoinCommand != "" ||
			shown.Description != "rack 7" || !shown.Expires.Equal(r.Expires) || !shown.Created.Equal(r.Created) {
			t.Errorf("%s: %+v", where, shown)
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
	want := []string{"cannot read cluster-info, so the status does not show whether tokens are signed: the log says why", "cannot read claims, so the node names of tokens may be incomplete: the log says why"}
	if len(list.Items) != 1 || list.Items[0].Status != api.StatusUnknown || !slices.Equal(list.Warnings, want) {
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
	s.start(t)
	r, old := s.stored(t, nil), s.stored(t, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
	if shown, _, got := askFor[api.Token](t, s, "DELETE", tokenPath+"/"+r.Token.ID()+"?dryRun=true", ""); got.status != 200 || !shown.DryRun || len(s.ids(t)) != 2 {
		t.Errorf("dry run: %d %s", got.status, got.body)
	}
	for path, id := range map[string]string{r.Token.ID(): r.Token.ID(), old.Token.ID() + "?onlyExpired": old.Token.ID()} {
		if shown, _, got := askFor[api.Token](t, s, "DELETE", tokenPath+"/"+path, ""); got.status != 200 || shown.ID != id || slices.Contains(s.ids(t), id) {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// Package mint tests renewals. Catches a renewal with another expiration than the request describes.
func TestRenewToken(t *testing.T) {
	s := newSite(t)
	s.start(t)
	hours := func(n int) time.Time { return time.Now().Add(time.Duration(n) * time.Hour) }
	for body, want := range map[string]time.Time{
		"": hours(24), `{"ttl":"0"}`: {}, `{"expires":"` + hours(5).UTC().Format(time.RFC3339) + `"}`: hours(5), `{"ttl":"1h","shorten":true}`: hours(1), `{"ttl":"48h","dryRun":true}`: hours(2),
	} {
		r := s.stored(t, func(r *tokens.Record) { r.Expires = hours(2) })
		shown, _, got := askFor[api.Token](t, s, "POST", tokenPath+"/"+r.Token.ID()+"/renew", body)
		if now := s.record(t, r.Token.ID()).Expires; got.status != 200 || shown.ID != r.Token.ID() || now.IsZero() != want.IsZero() || now.Sub(want).Abs() > time.Minute {
			t.Errorf("%s: %d %s, expires at %s, want %s", body, got.status, got.body, now, want)
		}
	}
}

// Catches a reason of a refused change, or an error of a store, that gets another problem or status.
func TestErrorsOfStoresAreProblems(t *testing.T) {
	t.Parallel()
	spent := func(r *tokens.Record) { r.Limits.MaxNodes, r.Nodes = 1, []string{"worker-3"} }
	upload := func(r *tokens.Record) {
		r.Description, r.Signing, r.Authentication, r.Groups = tokens.UploadDescription, false, false, nil
	}
	type fault = func(*site, tokens.Record) storetest.Faulty
	fails := func(err error, methods ...string) fault {
		return func(*site, tokens.Record) storetest.Faulty { return storetest.Fail(err, methods...) }
	}
	away := fails(errReset, "Store.List", "Store.Get", "Claims.List", "Claims.Get")
	const token, claim = tokenPath + "/ID", "/v1/claim/worker-1"
	for name, test := range map[string]struct {
		record         func(*tokens.Record)
		faulty         fault
		method, path   string
		status         int
		problem, field string
	}{
		"spent":       {spent, nil, "POST", token + "/renew", 409, api.ProblemSpent, ""},
		"shorter":     {nil, nil, "POST", token + "/renew?ttl=1s", 409, api.ProblemWouldShorten, "shorten"},
		"negative":    {nil, nil, "POST", token + "/renew?ttl=-1s", 400, "invalid-field", "ttl"},
		"upload":      {upload, nil, "POST", token + "/renew", 409, "token-owns-upload", ""},
		"not expired": {nil, nil, "DELETE", token + "?onlyExpired", 409, api.ProblemNotExpired, ""},
		"malformed": {nil, func(*site, tokens.Record) storetest.Faulty {
			return func(c *storetest.Call, do func() error) error {
				if c.Method == "Store.Update.change" {
					c.Records[0].Problem = errors.New("token-secret is missing")
				}
				return do()
			}
		}, "POST", token + "/renew", 409, "token-invalid", ""},
		"replaced": {nil, func(s *site, r tokens.Record) storetest.Faulty {
			return storetest.Before(sync.OnceValue(func() error {
				err := s.store.Delete(context.Background(), r)
				if err == nil {
					_, err = s.store.Create(context.Background(), r)
				}
				return err
			}), "Store.Delete")
		}, "DELETE", token, 409, "token-replaced", ""},
		"replaced claim": {nil, func(s *site, _ tokens.Record) storetest.Faulty {
			return storetest.Before(func() error {
				c, err := s.store.Claims().Get(context.Background(), "worker-1", tokens.Live)
				if err == nil {
					err = storetest.DeleteClaim(context.Background(), s.store.Claims(), c)
				}
				if err == nil {
					_, err = storetest.CreateClaim(context.Background(), s.store.Claims(), c)
				}
				return err
			}, "Claims.Commit")
		}, "DELETE", claim, 409, "claim-replaced", ""},
		"refused release":    {nil, fails(tokens.ErrRefused, "Claims.Commit"), "DELETE", claim, 503, "store-refuses", ""},
		"field of a release": {nil, fails(fmt.Errorf("stored: %w", &tokens.FieldError{Field: "nodes", Err: errReset}), "Claims.Commit"), "DELETE", claim, 503, "store-unavailable", ""},

		"release":     {nil, away, "DELETE", claim, 503, "store-unavailable", ""},
		"list claims": {nil, away, "GET", "/v1/claim", 503, "store-unavailable", ""},
		"list tokens": {nil, away, "GET", tokenPath, 503, "store-unavailable", ""},
		"get token":   {nil, away, "GET", token, 503, "store-unavailable", ""},
		"delete":      {nil, away, "DELETE", token, 503, "store-unavailable", ""},
		"renew":       {nil, fails(errReset, "Store.Update"), "POST", token + "/renew", 503, "store-unavailable", ""},
	} {
		s := newSite(t)
		s.Claims = s.store.Claims()
		r := s.stored(t, test.record)
		must.Value(storetest.CreateClaim(t.Context(), s.Claims, tokens.Claim{Node: "worker-1", TokenID: r.Token.ID(), TokenUID: r.UID}))(t)
		if test.faulty != nil {
			f := test.faulty(s, r)
			s.Tokens, s.Claims = f.Store(s.store), f.Claims(s.Claims)
		}
		s.start(t)
		_, p, got := askFor[struct{}](t, s, test.method, strings.Replace(test.path, "ID", r.Token.ID(), 1), "")
		if got.status != test.status || !p.Named(test.problem) || p.Field != test.field || strings.Contains(got.body, errReset.Error()) || (got.header.Get("Retry-After") != "") != (test.problem == "store-unavailable") {
			t.Errorf("%s: %d %s, want problem %s", name, got.status, got.body, test.problem)
		}
	}
}

// Catches a route that checks no permission, or that checks it without a credential. The tables of docs/http-api.md have
// the permission of each route.
func TestEachRouteNeedsItsPermission(t *testing.T) {
	s, _ := revoking(t)
	s.Status.Metrics = http.NotFoundHandler()
	var asked []string
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		asked = append(asked, a.String())
		return auth.ErrForbidden
	}
	s.start(t)
	closed := 0
	for _, on := range s.Routes() {
		if on.Access == (auth.Access{}) {
			continue
		}
		closed++
		path := parameter.ReplaceAllString(on.Path, "abcdef")
		asked = nil
		if got := s.do(t, on.Method, path, "", "", ""); got.status != 401 || len(asked) != 0 {
			t.Errorf("%s %s without a credential: got %d and permission checks %q, want 401 and none", on.Method, path, got.status, asked)
		}
		if got := s.do(t, on.Method, path, viewerBearer, "", ""); got.status != 403 || !slices.Equal(asked, []string{on.Access.String()}) {
			t.Errorf("%s %s: got %d and permission checks %q, want 403 and %q", on.Method, path, got.status, asked, on.Access)
		}
	}
	if closed < 16 {
		t.Errorf("got %d routes with a permission, want more", closed)
	}
}
