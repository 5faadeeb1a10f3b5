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

func TestTokenStatusAndFields(t *testing.T) {
	s := newSite(t)
	s.Claims = s.store.Claims()
	plain := s.stored(t, func(r *tokens.Record) { r.Description = "rack 7" })
	expired := s.stored(t, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
	spent := s.stored(t, func(r *tokens.Record) { r.Limits.MaxNodes, r.Nodes = 2, []string{"b", "a"} })
	limited := s.stored(t, func(r *tokens.Record) {
		r.Expires = time.Time{}
		r.Limits = tokens.Limits{Replaces: tokens.NodeRef{Name: "c", UID: "u"}, CertificateDuration: time.Hour, Role: "control-plane"}
	})
	unsigned := s.stored(t, nil)
	forged := s.stored(t, nil)
	silent := s.stored(t, func(r *tokens.Record) { r.Signing = false })
	bad := s.stored(t, nil)
	badLimits := s.stored(t, nil)
	for _, c := range []tokens.Claim{
		{Node: "c", TokenID: limited.Token.ID(), TokenUID: limited.UID},
		{Node: "d", TokenID: plain.Token.ID(), TokenUID: "of an earlier one"},
	} {
		if _, err := s.Claims.Create(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	s.Tokens = storetest.Alter(func(r *tokens.Record) {
		switch r.Token {
		case bad.Token:
			r.Problem = errors.New("token-secret is missing")
		case badLimits.Token:
			r.Limits.Problem = errors.New("max-nodes: many")
		}
	}).Store(s.store)
	s.ClusterInfo = withoutSignature{s.ClusterInfo, unsigned.Token.ID(), forged.Token.ID()}
	s.start(t)

	list, _, got := askFor[api.TokenList](t, s, "GET", tokenPath, "")
	if got.status != 200 || list.Kind != api.KindTokenList || len(list.Items) != 9 || len(list.Warnings) != 0 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, r := range []tokens.Record{plain, expired, spent, limited, unsigned, forged, silent, bad, badLimits} {
		if strings.Contains(got.body, r.Token.RevealSecret()) {
			t.Error("the list shows a token secret")
		}
	}
	for _, test := range []struct {
		name    string
		record  tokens.Record
		status  string
		problem string
		nodes   []string
		check   func(api.Token) bool
	}{
		{name: "plain", record: plain, status: api.StatusActive, check: func(t api.Token) bool {
			return t.Description == "rack 7" && t.Expires.Equal(plain.Expires) && t.Created.Equal(plain.Created) && slices.Equal(t.Groups, plain.Groups)
		}},
		{name: "expired", record: expired, status: api.StatusExpired},
		{name: "spent", record: spent, status: api.StatusSpent, nodes: []string{"b", "a"}, check: func(t api.Token) bool { return t.MaxNodes == 2 }},
		{name: "limited", record: limited, status: api.StatusActive, nodes: []string{"c"}, check: func(t api.Token) bool {
			return t.Expires.IsZero() && *t.ReplacesNode == api.Node{Name: "c", UID: "u"} && t.CertificateDuration == "1h0m0s" && t.Role == "control-plane"
		}},
		{name: "unsigned", record: unsigned, status: api.StatusUnsigned},
		{name: "with the signature of another", record: forged, status: api.StatusUnsigned},
		{name: "not for signing", record: silent, status: api.StatusActive, check: func(t api.Token) bool { return slices.Equal(t.Usages, []string{"authentication"}) }},
		{name: "bad", record: bad, status: api.StatusInvalid, problem: "token-secret is missing"},
		{name: "bad limits", record: badLimits, status: api.StatusInvalid, problem: "max-nodes: many"},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := test.record.Token.ID()
			one, _, got := askFor[api.Token](t, s, "GET", tokenPath+"/"+id, "")
			if got.status != 200 || strings.Contains(got.body, test.record.Token.RevealSecret()) {
				t.Fatalf("%d %s", got.status, got.body)
			}
			at := slices.IndexFunc(list.Items, func(t api.Token) bool { return t.ID == id })
			for where, shown := range map[string]api.Token{"get": one, "list": list.Items[at]} {
				if shown.Status != test.status || shown.Problem != test.problem || !slices.Equal(shown.Nodes, test.nodes) || shown.Token != "" || shown.JoinCommand != "" ||
					test.check != nil && !test.check(shown) {
					t.Errorf("%s: %+v", where, shown)
				}
			}
		})
	}
}

// withoutSignature is a cluster-info where the signature of token id stands under the ID of the token other.
type withoutSignature struct {
	server.ClusterInfo
	id, other string
}

func (c withoutSignature) JSON(ctx context.Context) ([]byte, error) {
	body, err := c.ClusterInfo.JSON(ctx)
	text := strings.ReplaceAll(string(body), "jws-kubeconfig-"+c.other, "jws-kubeconfig-xxxxxx")
	return []byte(strings.ReplaceAll(text, "jws-kubeconfig-"+c.id, "jws-kubeconfig-"+c.other)), err
}

// undecoded is a cluster-info with Data, whose JSON must not be called.
type undecoded struct {
	server.ClusterInfo
	t *testing.T
}

func (u undecoded) JSON(context.Context) ([]byte, error) {
	u.t.Error("JSON was called, want only Data")
	return nil, errors.New("not to be asked for")
}

func (undecoded) Data(context.Context) (map[string]string, error) { return map[string]string{}, nil }

// Catches a token list that encodes and decodes all of cluster-info, which may have megabytes of signatures.
func TestListReadsSignaturesWithoutDecoding(t *testing.T) {
	s := newSite(t)
	s.stored(t, nil)
	s.ClusterInfo = undecoded{s.ClusterInfo, t}
	s.start(t)
	if list, _, got := askFor[api.TokenList](t, s, "GET", tokenPath, ""); len(list.Items) != 1 || list.Items[0].Status != api.StatusUnsigned {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// unreadable is a cluster-info that cannot be read.
type unreadable struct{ server.ClusterInfo }

func (unreadable) JSON(context.Context) ([]byte, error) { return nil, errors.New("on fire") }

// Catches a token list that fails without cluster-info or claims, or that shows internal causes unless ShowCauses is
// set.
func TestListWarnsOfUnreadableFacts(t *testing.T) {
	for causes, want := range map[bool]string{false: "cannot read cluster-info, so the status does not show whether tokens are signed\ncannot read claims, so the node names of tokens may be incomplete", true: "on fire\nflooded"} {
		s := newSite(t)
		s.stored(t, nil)
		s.ClusterInfo, s.ShowCauses = unreadable{}, causes
		s.Claims = storetest.Fail(errors.New("flooded"), "Claims.List").Claims(s.store.Claims())
		s.start(t)
		list, _, got := askFor[api.TokenList](t, s, "GET", tokenPath, "")
		if len(list.Items) != 1 || list.Items[0].Status != api.StatusActive || len(list.Warnings) != 2 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		for i, part := range strings.Split(want, "\n") {
			if !strings.HasSuffix(list.Warnings[i], part) {
				t.Errorf("warning %q, want %q", list.Warnings[i], part)
			}
		}
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

// Renewing the token would keep the certificate key valid, and deleting it would delete the certificates that machines are
// about to download.
func TestRefusesToChangeTokenOfUpload(t *testing.T) {
	s := newSite(t)
	s.start(t)
	owner := func(expires time.Duration) tokens.Record {
		return s.stored(t, func(r *tokens.Record) {
			r.Description, r.Signing, r.Authentication, r.Groups, r.Expires = tokens.UploadDescription, false, false, nil, time.Now().Add(expires)
		})
	}
	r := owner(time.Hour)
	path := tokenPath + "/" + r.Token.ID()
	for _, test := range []struct{ method, path, body, instead string }{
		{"DELETE", path, "", "kubejoin certs delete"},
		{"DELETE", path + "?dryRun=true", "", "kubejoin certs delete"},
		{"POST", path + "/renew", `{"ttl":"8000h"}`, "kubejoin certs upload"},
		{"POST", path + "/renew", `{"ttl":"0"}`, "kubejoin certs upload"},
		{"POST", path + "/renew", `{"ttl":"1m","shorten":true}`, "kubejoin certs upload"},
		{"POST", path + "/renew", `{"ttl":"8000h","dryRun":true}`, "kubejoin certs upload"},
	} {
		if _, p, got := askFor[api.Token](t, s, test.method, test.path, test.body); got.status != 409 || !p.Named("token-owns-upload") || !strings.Contains(p.Detail, test.instead) {
			t.Errorf("%s %s %s: %d %s", test.method, test.path, test.body, got.status, got.body)
		}
	}
	if now := s.record(t, r.Token.ID()); !now.Expires.Equal(r.Expires) {
		t.Errorf("the token expires at %s, want it unchanged: %s", now.Expires, r.Expires)
	}
	expired := owner(-time.Minute)
	if got := s.do(t, "DELETE", tokenPath+"/"+expired.Token.ID(), adminBearer, "", ""); got.status != 200 {
		t.Errorf("an expired one: %d %s", got.status, got.body)
	}
	same := s.stored(t, func(r *tokens.Record) { r.Description = tokens.UploadDescription })
	if got := s.do(t, "DELETE", tokenPath+"/"+same.Token.ID(), adminBearer, "", ""); got.status != 200 {
		t.Errorf("a token that machines use, with the same description: %d %s", got.status, got.body)
	}
}

// Catches a deletion that fails because the token changed, and one that deletes a token that was created again or, with
// onlyExpired, renewed.
func TestDeleteRereadsChangedToken(t *testing.T) {
	down := false // reads fail
	for _, test := range []struct {
		name, query string
		expires     time.Duration
		then        func(t *testing.T, s *site, r tokens.Record)
		status      int
		left        int
	}{
		{name: "a node joins", expires: time.Hour, status: 200, then: func(t *testing.T, s *site, r tokens.Record) {
			if _, err := s.store.Update(t.Context(), r.Token.ID(), func(r *tokens.Record) error { r.Nodes = []string{"a"}; return nil }); err != nil {
				t.Error(err)
			}
		}},
		{name: "renewed", query: "?onlyExpired=true", expires: -time.Minute, status: 409, left: 1, then: func(t *testing.T, s *site, r tokens.Record) {
			if _, err := s.store.Update(t.Context(), r.Token.ID(), func(r *tokens.Record) error { r.Expires = time.Now().Add(time.Hour); return nil }); err != nil {
				t.Error(err)
			}
		}},
		{name: "another one", expires: time.Hour, status: 409, left: 1, then: func(t *testing.T, s *site, r tokens.Record) {
			if err := s.store.Delete(t.Context(), r); err != nil {
				t.Error(err)
			}
			if _, err := s.store.Create(t.Context(), r); err != nil {
				t.Error(err)
			}
		}},
		{name: "a node joins, and the store is away", expires: time.Hour, status: 503, left: 1, then: func(t *testing.T, s *site, r tokens.Record) {
			if _, err := s.store.Update(t.Context(), r.Token.ID(), func(r *tokens.Record) error { r.Nodes = []string{"a"}; return nil }); err != nil {
				t.Error(err)
			}
			down = true
		}},
		{name: "deleted", expires: time.Hour, status: 200, then: func(t *testing.T, s *site, r tokens.Record) {
			if err := s.store.Delete(t.Context(), r); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t)
			r := s.stored(t, func(r *tokens.Record) { r.Limits.MaxNodes, r.Expires = 3, time.Now().Add(test.expires) })
			down = false
			happen := sync.OnceFunc(func() { test.then(t, s, r) })
			s.Tokens = storetest.Faulty(func(c *storetest.Call, do func() error) error {
				if c.Method == "Store.Delete" {
					happen()
				} else if down {
					return errStore
				}
				return do()
			}).Store(s.store)
			s.start(t)
			got := s.do(t, "DELETE", tokenPath+"/"+r.Token.ID()+test.query, adminBearer, "", "")
			if got.status != test.status || len(s.ids(t)) != test.left {
				t.Errorf("%d with %d tokens left: %s", got.status, len(s.ids(t)), got.body)
			}
		})
	}
}

func TestRenewToken(t *testing.T) {
	hours := func(n int) *time.Time {
		at := time.Now().Add(time.Duration(n) * time.Hour)
		return &at
	}
	for _, test := range []struct {
		name, body string
		record     func(*tokens.Record)
		status     int
		expires    *time.Time // nil: never
		problem    string
		detail     string
	}{
		{name: "by default", expires: hours(24)},
		{name: "longer", body: `{"ttl":"48h"}`, expires: hours(48)},
		{name: "to a time", body: `{"expires":"` + hours(5).UTC().Format(time.RFC3339) + `"}`, expires: hours(5)},
		{name: "for ever", body: `{"ttl":"0"}`},
		{name: "for ever again", body: `{"ttl":"0"}`, record: func(r *tokens.Record) { r.Expires = time.Time{} }},
		{name: "expired", body: `{"ttl":"1h"}`, record: func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) }, expires: hours(1)},
		{name: "shorter", body: `{"ttl":"1m"}`, status: 409, problem: api.ProblemWouldShorten, detail: "would make it expire sooner, at", expires: hours(2)},
		{name: "shorter on purpose", body: `{"ttl":"1h","shorten":true}`, expires: hours(1)},
		{name: "shorter than for ever", body: `{"ttl":"87000h"}`, record: func(r *tokens.Record) { r.Expires = time.Time{} }, status: 409, problem: api.ProblemWouldShorten, detail: "never expires, and this renewal would make it expire at"},
		{name: "dry run", body: `{"ttl":"48h","dryRun":true}`, expires: hours(2)},
		{name: "negative", body: `{"ttl":"-1s"}`, status: 400, problem: "invalid-field", detail: "ttl: -1s given", expires: hours(2)},
		{
			name: "spent", status: 409, problem: api.ProblemSpent, expires: hours(2),
			record: func(r *tokens.Record) {
				r.Limits, r.Nodes = tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-*"}, CertificateDuration: 48 * time.Hour}, []string{"worker-3"}
			},
			detail: "is spent (used by worker-3), so renewing it has no effect; create another token with: kubejoin token create --max-nodes 1 --node-name 'worker-*' --certificate-duration 48h0m0s",
		},
		{
			name: "spent on a Node", status: 409, problem: api.ProblemSpent, expires: hours(2),
			record: func(r *tokens.Record) {
				r.Limits, r.Nodes = tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-3", UID: "u"}}, []string{"worker-3"}
			},
			detail: "kubejoin token create --replace-node worker-3",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t)
			s.start(t)
			r := s.stored(t, func(r *tokens.Record) {
				r.Expires = time.Now().Add(2 * time.Hour)
				if test.record != nil {
					test.record(r)
				}
			})
			shown, p, got := askFor[api.Token](t, s, "POST", tokenPath+"/"+r.Token.ID()+"/renew", test.body)
			if test.status == 0 {
				test.status = 200
			}
			if got.status != test.status || test.problem != "" && !p.Named(test.problem) || !strings.Contains(p.Detail, test.detail) || test.status == 200 && shown.ID != r.Token.ID() {
				t.Fatalf("%d %s", got.status, got.body)
			}
			now := s.record(t, r.Token.ID()).Expires
			if test.expires == nil {
				if !now.IsZero() {
					t.Errorf("expires at %s, want never", now)
				}
			} else if off := now.Sub(*test.expires); off < -time.Minute || off > time.Minute {
				t.Errorf("expires at %s, want %s", now, *test.expires)
			}
		})
	}
}

// Catches a malformed token that is renewed, as if it could then be used.
func TestRefusesToRenewMalformedToken(t *testing.T) {
	for problem, alter := range map[string]func(*tokens.Record){
		"max-nodes: many":         func(r *tokens.Record) { r.Limits.Problem = errors.New("max-nodes: many") },
		"token-secret is missing": func(r *tokens.Record) { r.Problem = errors.New("token-secret is missing") },
	} {
		s := newSite(t)
		r := s.stored(t, nil)
		s.Tokens = storetest.Faulty(func(c *storetest.Call, do func() error) error {
			if c.Method == "Store.Update.change" {
				alter(&c.Records[0])
			}
			return do()
		}).Store(s.store)
		s.start(t)
		if _, p, got := askFor[api.Token](t, s, "POST", tokenPath+"/"+r.Token.ID()+"/renew", ""); got.status != 409 || !strings.Contains(p.Detail, "is malformed, and renewing it does not help: "+problem) {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
}

// deletedBeforeUpdate returns a store where another caller deletes the record before each update.
func deletedBeforeUpdate(s tokens.Store) tokens.Store {
	return storetest.Faulty(func(c *storetest.Call, do func() error) error {
		if c.Method == "Store.Update" {
			r, err := s.Get(c.Context, c.Key)
			if err == nil {
				err = s.Delete(c.Context, r)
			}
			if err != nil {
				return err
			}
		}
		return do()
	}).Store(s)
}

func TestRefusesToRenewTokenDeletedMeanwhile(t *testing.T) {
	s := newSite(t)
	r := s.stored(t, nil)
	s.Tokens = deletedBeforeUpdate(s.store)
	s.start(t)
	if _, p, got := askFor[api.Token](t, s, "POST", tokenPath+"/"+r.Token.ID()+"/renew", ""); got.status != 404 || !p.Named("no-token") {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// Catches a route that checks the permission of another route, or none.
func TestEachRouteNeedsItsPermission(t *testing.T) {
	s := newSite(t)
	s.Claims = s.store.Claims()
	var asked []string
	s.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
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
