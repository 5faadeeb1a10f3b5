package server_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var errReset = errors.New("connection reset")

// failingStore returns a store whose calls fail.
func failingStore(s tokens.Store, err error) tokens.Store {
	return storetest.Fail(err, "Store.Create", "Store.Get", "Store.Delete").Store(s)
}

// fullClusterInfo is a cluster-info without space for a signature.
type fullClusterInfo struct{ server.ClusterInfo }

func (fullClusterInfo) Capacity() (free, signatures int) { return 0, 20 }
func (fullClusterInfo) HasSignature(string) bool         { return false }

// Catches a reason of package mint that gets another problem, status or Retry-After, and a cause in a response.
func TestReasonsOfMintAreProblems(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "x", errReset)
	own := tokens.Generate()
	body := `{"token":"` + own.Reveal() + `","ttl":"1h"}`
	for name, test := range map[string]struct {
		change     func(*site)
		path, body string
		twice      bool // only the second request fails
		status     int
		problem    string
		detail     string
		retry      bool
		named      bool // TokenID is set
	}{
		"exists":     {nil, tokenPath, body, true, 409, api.ProblemExists, "it differs in ttl", false, false},
		"full":       {func(s *site) { s.ClusterInfo = fullClusterInfo{s.ClusterInfo} }, commandPath, "", false, 507, api.ProblemFull, "signatures of 20 tokens", false, false},
		"quota":      {func(s *site) { s.Limits.UserTokens = 1 }, commandPath, "", true, 507, api.ProblemTooManyTokens, "at most 1 are allowed", false, false},
		"not stored": {func(s *site) { s.Tokens = failingStore(s.store, errReset) }, tokenPath, body, false, 503, "token-not-stored", "was stored nevertheless, it expires at", true, true},
		"join not stored": {func(s *site) { s.Tokens = failingStore(s.store, errReset) }, commandPath, "", false, 503, "token-not-stored",
			"was stored nevertheless, no client received it, and it expires at", true, false},
		"forbidden":      {func(s *site) { s.Tokens = failingStore(s.store, forbidden) }, tokenPath, body, false, 503, "store-refuses", "the log of kubejoin has the reason", false, false},
		"join forbidden": {func(s *site) { s.Tokens = failingStore(s.store, forbidden) }, commandPath, "", false, 503, "token-not-stored", "could not be stored", true, false},
		"unavailable":    {func(s *site) { s.Tokens = failingStore(s.store, errReset) }, tokenPath + "?dryRun", body, false, 503, "store-unavailable", "retry", true, false},
		"unsigned":       {func(s *site) { s.ClusterInfo = neverSigned{s.ClusterInfo} }, tokenPath, body, false, 504, api.ProblemNotSigned, "the one who sleeps. Token " + own.ID() + " was created nevertheless", false, true},
		"join unsigned":  {func(s *site) { s.ClusterInfo = neverSigned{s.ClusterInfo} }, commandPath, "", false, 504, api.ProblemNotSigned, "was deleted, because no client received it", false, false},
		"join not deleted": {func(s *site) {
			s.ClusterInfo, s.Tokens = neverSigned{s.ClusterInfo}, storetest.Fail(errReset, "Store.Delete").Store(s.store)
		}, commandPath, "", false, 504, api.ProblemNotSigned, "could not be deleted; no client received it, and it expires at", false, false},
		"expired meanwhile": {func(s *site) {
			s.Cluster.Node = func(context.Context, string) (tokens.NodeRef, error) {
				time.Sleep(time.Minute)
				return tokens.NodeRef{Name: "worker-1", UID: "u"}, nil
			}
		}, tokenPath, `{"ttl":"1s","replaceNode":"worker-1"}`, false, 400, "invalid-field", "want a time in the future", false, false},
		"malformed":  {func(s *site) { s.ClusterInfo = &fixedClusterInfo{config: []byte("kind: Config")} }, commandPath, "", false, 500, "malformed-cluster-info", "kubectl -n kube-public edit configmap cluster-info", false, false},
		"unreadable": {func(s *site) { s.ClusterInfo = &fixedClusterInfo{err: errReset} }, commandPath, "", false, 500, "internal", "kubejoin could not create the join command; the log of kubejoin has the reason under this request ID. Token ", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.Minting.Advertise, s.Minting.SignedBy = "192.0.2.1:9443", "the one who sleeps"
				if test.change != nil {
					test.change(s)
				}
				h := s.Handler()
				post := func(body string) (p api.Problem, w *httptest.ResponseRecorder) {
					w = send(h, test.path, adminBearer, "application/json", strings.NewReader(body))
					_ = json.Unmarshal(w.Body.Bytes(), &p) // fails for a join command
					return p, w
				}
				if test.twice {
					if _, w := post(strings.Replace(test.body, `"1h"`, `"2h"`, 1)); w.Code/100 != 2 {
						t.Fatalf("%d %s", w.Code, w.Body)
					}
				}
				p, w := post(test.body)
				if w.Code != test.status || !p.Named(test.problem) || !strings.Contains(p.Detail, test.detail) {
					t.Errorf("got %d %s, want %d %s: %s", w.Code, w.Body, test.status, test.problem, test.detail)
				}
				if retry := w.Header().Get("Retry-After") != ""; retry != test.retry || (p.TokenID == own.ID()) != test.named {
					t.Errorf("got Retry-After %t and token %q, want %t and %t", retry, p.TokenID, test.retry, test.named)
				}
				if name == "join not deleted" && !strings.Contains(s.logs.String(), errReset.Error()) {
					t.Errorf("the log does not say why the token could not be deleted:\n%s", s.logs)
				}
				if strings.Contains(w.Body.String(), errReset.Error()) || strings.Contains(w.Body.String(), own.RevealSecret()) {
					t.Errorf("the response has the cause or the secret: %s", w.Body)
				}
			})
		})
	}
}

// Catches a repeated request whose response differs from the first response, except in the status.
func TestRepeatedCreateIsOK(t *testing.T) {
	s := newSite(t)
	s.start(t)
	body := `{"token":"` + tokens.Generate().Reveal() + `","expires":"2031-01-02T03:04:05Z"}`
	first, _, got := askFor[api.Token](t, s, "POST", tokenPath, body)
	if got.status != 201 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, query := range []string{"", "?dryRun"} {
		again, _, got := askFor[api.Token](t, s, "POST", tokenPath+query, strings.Replace(body, "03:04:05Z", "04:04:05+01:00", 1))
		if got.status != 200 || got.header.Get("Location") != "" || again.Token != first.Token || again.JoinCommand != first.JoinCommand || again.Status != api.StatusActive {
			t.Errorf("%s: %d %s, first %+v", query, got.status, got.body, first)
		}
	}
}

// A client that disconnects does not keep the token of its request.
func TestDeletesTokenOfCanceledRequest(t *testing.T) {
	s := newSite(t)
	s.ClusterInfo = neverSigned{s.ClusterInfo}
	handler := s.Handler()
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, "POST", commandPath, nil)
	r.Header.Set("Authorization", "Bearer "+adminBearer)
	done := make(chan struct{})
	go func() { defer close(done); handler.ServeHTTP(httptest.NewRecorder(), r) }()
	for range s.store.Watch(t.Context()) { // until the token is stored
		if len(s.ids(t)) == 1 {
			break
		}
	}
	cancel()
	<-done
	if ids := s.ids(t); len(ids) != 0 || !strings.Contains(s.logs.String(), "canceled before a signature of the new token appeared in cluster-info") {
		t.Errorf("tokens %v are left, log:\n%s", ids, s.logs)
	}
}

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
	return must.Get(s.store.Get(t.Context(), id, tokens.Live))
}

func TestCreateTokenLeadsToDiscovery(t *testing.T) {
	s := newSite(t)
	s.start(t)
	own := tokens.Generate()
	made, _, got := askFor[api.Token](t, s, "POST", tokenPath, `{"token":"`+own.Reveal()+`","ttl":"2h","description":"rack 7"}`)
	at := must.Get(must.Get(url.Parse(s.url + tokenPath)).Parse(got.header.Get("Location")))
	if got.status != 201 || at.String() != s.url+tokenPath+"/"+own.ID() || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Type") != "application/json" ||
		made.Kind != api.KindToken || made.ID != own.ID() || made.Token.Reveal() != own.Reveal() || made.Status != api.StatusActive || made.Description != "rack 7" {
		t.Fatalf("%d %v %s", got.status, got.header, got.body)
	}
	endpoint, token, pins := parseLine(t, made.JoinCommand.Reveal()+"\n")
	if _, err := clusterinfo.Discover(t.Context(), endpoint, token, pins); err != nil || token != own {
		t.Errorf("the join command does not work: %v", err)
	}
	if strings.Contains(s.logs.String(), own.RevealSecret()) || !strings.Contains(s.logs.String(), "token="+own.ID()) {
		t.Errorf("got log\n%s\nwant the token ID and not the secret in it", s.logs)
	}
}

// Package operations tests each field. Catches a request with another result over HTTP.
func TestCreateTokenRequests(t *testing.T) {
	s := newSite(t)
	s.Limits.UserTokens = -1 // unlimited: tokens have no creator
	s.Cluster.Node = func(_ context.Context, name string) (tokens.NodeRef, error) {
		if name == "worker-3" {
			return tokens.NodeRef{Name: name, UID: "uid-3"}, nil
		}
		return tokens.NodeRef{}, errors.New("etcd is on fire")
	}
	s.Minting.Warnings = func(_ context.Context, made tokens.Record) []string {
		if made.Limits.IsZero() {
			return nil
		}
		return []string{"no replica leads"}
	}
	s.Cluster.NodeProperties = func(context.Context, string) error { return nil }
	s.start(t)
	for _, test := range []struct {
		query, body string
		limits      tokens.Limits
		groups      []string
		onlyAuth    bool
		warning     string
	}{
		{"", "", tokens.Limits{}, []string{tokens.DefaultGroup}, false, ""},
		{"", `{"description":"","dryRun":false,"wait":"0"}`, tokens.Limits{}, []string{tokens.DefaultGroup}, false, ""},
		{"?usages=authentication", "", tokens.Limits{}, []string{tokens.DefaultGroup}, true, ""},
		{"?groups=system:bootstrappers:a,system:bootstrappers:b", "", tokens.Limits{}, []string{"system:bootstrappers:a", "system:bootstrappers:b"}, false, ""},
		{"?groups=", "", tokens.Limits{}, nil, false, "has no group"},
		{"", `{"groups":[]}`, tokens.Limits{}, nil, false, "has no groups: kubeadm's role bindings do not apply"},
		{
			"", `{"maxNodes":3,"nodeNames":["worker-*","gw"],"certificateDuration":"720h","role":"control-plane"}`,
			tokens.Limits{MaxNodes: 3, NodeNames: []string{"worker-*", "gw"}, CertificateDuration: 720 * time.Hour, Role: "control-plane"}, []string{tokens.DefaultGroup}, false, "no replica leads",
		},
		{"?maxNodes=1&nodeNames=a,b&nodeNames=c", "", tokens.Limits{MaxNodes: 1, NodeNames: []string{"a", "b", "c"}}, []string{tokens.DefaultGroup}, false, "no replica leads"},
		{
			"?nodeLabels=a.example/b=c,node-role.kubernetes.io/gpu=&nodeTaints=e=f:NoExecute&nodeTaints=d:NoSchedule&nodeReadyAfter=labels", "",
			tokens.Limits{Node: tokens.NodeProperties{Labels: "a.example/b=c,node-role.kubernetes.io/gpu=", Taints: "d:NoSchedule,e=f:NoExecute", ReadyAfter: "labels"}},
			[]string{tokens.DefaultGroup}, false, "no replica leads",
		},
		{"", `{"replaceNode":"worker-3"}`, tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-3", UID: "uid-3"}}, []string{tokens.DefaultGroup}, false, "no replica leads"},
	} {
		made, _, got := askFor[api.Token](t, s, "POST", tokenPath+test.query, test.body)
		if got.status != 201 {
			t.Fatalf("%s %s: %d %s", test.query, test.body, got.status, got.body)
		}
		r := s.record(t, made.ID)
		if left := time.Until(r.Expires); r.Creator != "" || left > tokens.DefaultTTL+time.Second || left < tokens.DefaultTTL-time.Minute || !r.Authentication || r.Signing == test.onlyAuth ||
			!r.Limits.Equal(test.limits) || !slices.Equal(r.Groups, test.groups) || made.Token.Reveal() != r.Token.Reveal() || (made.JoinCommand == "") != test.onlyAuth {
			t.Errorf("%s %s: record %+v", test.query, test.body, r)
		}
		if warnings := strings.Join(made.Warnings, "\n"); !strings.Contains(warnings, test.warning) || test.warning == "" && warnings != "" {
			t.Errorf("%s %s: warnings %q, want %q", test.query, test.body, warnings, test.warning)
		}
	}
	before := s.ids(t)
	if _, p, got := askFor[api.Token](t, s, "POST", tokenPath, `{"replaceNode":"away"}`); got.status != 503 || !strings.Contains(p.Detail, "Node away cannot be read now") || strings.Contains(got.body, "on fire") || len(s.ids(t)) != len(before) {
		t.Errorf("%d %s", got.status, got.body)
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

// Package tokens tests the limits on the size. Catches a larger token of an earlier version that can no longer be read
// or renewed.
func TestBoundsSizeOfNewToken(t *testing.T) {
	s := newSite(t)
	s.start(t)
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	for i := range 6000 {
		r.Limits.NodeNames = append(r.Limits.NodeNames, fmt.Sprint("nx", i))
	}
	for _, path := range []string{tokenPath, commandPath} {
		if _, p, got := askFor[api.Token](t, s, "POST", path, jsonOf(t, api.TokenSpec{NodeNames: r.Limits.NodeNames})); got.status != 400 || p.Field != "nodeNames" || !strings.Contains(p.Detail, "6000 names given, 256 allowed") {
			t.Errorf("%s: %d %.300s", path, got.status, got.body)
		}
	}
	must.Value(s.store.Create(t.Context(), r))(t)
	shown, _, got := askFor[api.Token](t, s, "GET", tokenPath+"/"+r.Token.ID(), "")
	if got.status != 200 || len(shown.NodeNames) != 6000 {
		t.Errorf("%d with %d names", got.status, len(shown.NodeNames))
	}
	if _, _, got := askFor[api.Token](t, s, "POST", tokenPath+"/"+r.Token.ID()+"/renew", `{"ttl":"2h"}`); got.status != 200 {
		t.Errorf("renewal: %d %.300s", got.status, got.body)
	}
	if now := s.record(t, r.Token.ID()); !now.Limits.Equal(r.Limits) {
		t.Errorf("limits are others now, with %d names", len(now.Limits.NodeNames))
	}
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	return string(must.Get(json.Marshal(v)))
}

// Catches a format that differs from package joinformat, or that ignores a field of the query or the body.
func TestJoinFormats(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Cluster.NodeProperties = func(context.Context, string) error { return nil }
	s.start(t)
	types := map[string]string{
		"": "text/plain", "text": "text/plain", "json": "application/json", "yaml": "application/yaml", "kubeconfig": "application/yaml",
		"cloud-config": "text/cloud-config", "ignition": "application/vnd.coreos.ignition+json", "script": "text/x-shellscript",
	}
	limits := tokens.Limits{MaxNodes: 2, NodeNames: []string{"worker-1", "rack-*"}, CertificateDuration: 72 * time.Hour, Role: tokens.RoleControlPlane}
	for _, name := range append(joinformat.Formats(), "") { // no format means text
		for query, body := range map[string]string{
			"?maxNodes=2&nodeNames=worker-1,rack-*&certificateDuration=72h&ttl=1h&role=control-plane&format=" + name: "",
			"": `{"format":"` + name + `","maxNodes":2,"nodeNames":["worker-1","rack-*"],"certificateDuration":"72h","ttl":"1h","role":"control-plane"}`,
		} {
			before := s.ids(t)
			query, body = strings.TrimSuffix(query, "&format="), strings.Replace(body, `"format":"",`, "", 1)
			r := s.do(t, "POST", commandPath+query, adminBearer, "application/json", body)
			if r.status != 200 || r.header.Get("Cache-Control") != "no-store" || !strings.Contains(r.header.Get("Server-Timing"), "sign") {
				t.Fatalf("%s: %d %v %s", name, r.status, r.header, r.body)
			}
			if media, _, err := mime.ParseMediaType(r.header.Get("Content-Type")); err != nil || media != types[name] {
				t.Errorf("%s: Content-Type %q, %v", name, r.header.Get("Content-Type"), err)
			}
			record := s.minted(t, before)
			if !record.Limits.Equal(limits) || time.Until(record.Expires) > time.Hour+time.Second {
				t.Errorf("%s: %+v, want limits %+v", name, record, limits)
			}
			want, err := joinformat.Join{
				Endpoint: s.Minting.Advertise, Token: record.Token, Server: "https://api.example.com:6443", CAs: s.ca.Bundle(), Expires: record.Expires,
			}.Write(name)
			if err != nil || r.body != string(want) || strings.Contains(s.logs.String(), record.Token.RevealSecret()) {
				t.Errorf("%s: %v, answered\n%s\nwant\n%s and no secret in the log", name, err, r.body, want)
			}
		}
	}
	for _, name := range []string{"yaml", "script"} { // the others have it in compressed form
		if r := s.do(t, "POST", commandPath+"?nodeReadyAfter=serving-certificate&format="+name, adminBearer, "", ""); r.status != 200 || !strings.Contains(r.body, tokens.JoiningTaint) {
			t.Errorf("%s: got %d without the taint of joining", name, r.status)
		}
		if r := s.do(t, "POST", commandPath+"?nodeLabels=a=b&format="+name, adminBearer, "", ""); r.status != 200 || strings.Contains(r.body, tokens.JoiningTaint) {
			t.Errorf("%s with labels alone: got %d, want no taint of joining", name, r.status)
		}
	}
}

// Catches a field that only one of the two types has: joinformat cannot import the API.
func TestJSONFormatHasFieldsOfAPI(t *testing.T) {
	j := joinformat.Join{Endpoint: "api.example.com:6443", Server: "https://api.example.com:6443", Token: tokens.Generate(), Expires: time.Now(),
		CAs: []*x509.Certificate{newSite(t).ca.Certificate()}, CertificateKey: joinformat.GenerateCertificateKey(), Warnings: []string{"a warning"}}
	body := must.Value(j.JSON())(t)
	var got map[string]any
	must.OK(t, json.Unmarshal(body, &got))
	var want []string
	for f := range reflect.TypeFor[api.JoinCommand]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		want = append(want, name)
	}
	slices.Sort(want)
	if fields := slices.Sorted(maps.Keys(got)); !slices.Equal(fields, want) {
		t.Errorf("got fields %q, want those of api.JoinCommand, %q", fields, want)
	}
}

// minted returns the only token whose ID is not in before.
func (s *site) minted(t *testing.T, before []string) tokens.Record {
	t.Helper()
	var found []tokens.Record
	for _, r := range must.Get(s.store.List(t.Context())) {
		if !slices.Contains(before, r.Token.ID()) {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d new tokens, want 1", len(found))
	}
	return found[0]
}

// Catches a format that names no discovery endpoint when --advertise is not set: it must be the API server.
func TestJoinFormatsNameTheAPIServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Minting.Advertise = ""
	h := s.Handler()
	for name, want := range map[string]string{
		"text": "kubeadm join api.example.com:6443 ", "yaml": "apiServerEndpoint: api.example.com:6443\n",
		"json": `"endpoint":"api.example.com:6443"`, "script": "endpoint='api.example.com:6443'\n",
	} {
		if status, body := served(h, asAdmin(newRequest("POST", commandPath+"?format="+name, ""))); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %q in it", name, status, body, want)
		}
	}
}
