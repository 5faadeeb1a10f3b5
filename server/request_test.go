package server_test

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// An unset shell variable gives an empty field. Catches an empty limit that is accepted as if it were omitted, which
// would mean no limit.
func TestRefusesEmptyFields(t *testing.T) {
	s := newSite(t)
	s.start(t)
	id, _, _ := strings.Cut(s.token(t, nil), ".")
	empty := map[string][]string{} // empty JSON values by field
	for _, field := range []string{"ttl", "expires", "certificateDuration", "role", "replaceNode", "wait", "format", "csr", "token"} {
		empty[field] = []string{`""`, "null"}
	}
	empty["maxNodes"] = []string{"0", "-0", "null"}
	empty["nodeNames"] = []string{"[]", "null", `["a",""]`, "[null]"}
	empty["usages"] = []string{"[]", "null", `["signing",""]`}
	empty["groups"] = []string{"null", `[""]`, `["system:bootstrappers:a",null]`}
	for _, field := range []string{"description", "dryRun", "shorten", "onlyExpired", "object"} {
		empty[field] = []string{"null"}
	}
	spec := []string{"ttl", "expires", "usages", "groups", "description", "maxNodes", "nodeNames", "certificateDuration", "role", "replaceNode"}
	for _, route := range []struct {
		method, path string
		fields       []string
	}{
		{"POST", tokenPath, append([]string{"token", "wait", "dryRun"}, spec...)},
		{"POST", commandPath, append([]string{"format"}, spec...)},
		{"POST", tokenPath + "/" + id + "/renew", []string{"ttl", "expires", "shorten", "dryRun"}},
		{"DELETE", tokenPath + "/" + id, []string{"onlyExpired", "dryRun"}},
		{"DELETE", "/v1/claim/worker-7", []string{"dryRun"}},
		{"POST", "/v1/explain", []string{"csr", "object"}},
	} {
		for _, field := range route.fields {
			for _, value := range empty[field] {
				body := `{"` + field + `":` + value + `}`
				_, p, got := askFor[api.Token](t, s, route.method, route.path, body)
				if got.status != 400 || !p.Named("invalid-field") || p.Field != field || !strings.HasPrefix(p.Detail, field+": ") ||
					!strings.Contains(p.Detail, "; leave it out for ") && !strings.Contains(p.Detail, "of the list is empty") {
					t.Errorf("%s %s %s: %d %s", route.method, route.path, body, got.status, got.body)
				}
			}
		}
	}
	for path, parameters := range map[string][]string{
		tokenPath:    {"ttl=", "expires=", "maxNodes=0", "maxNodes=00", "nodeNames=", "nodeNames=a,", "nodeNames=a&nodeNames=", "nodeNames=,", "usages=", "usages=signing,", "groups=,", "certificateDuration=", "role=", "replaceNode=", "wait="},
		commandPath:  {"maxNodes=0", "nodeNames=", "role=", "format="},
		"/v1/claim":  {"limit=0", "limit=", "continue="},
		"/v1/issued": {"limit=0", "tokenID=", "node=", "requester=", "signer=", "outcome=", "endsWithin=", "since=", "continue="},
		"/v1/ca":     {"format="},
	} {
		for _, parameter := range parameters {
			method := http.MethodGet
			if strings.HasPrefix(path, tokenPath) {
				method = http.MethodPost
			}
			field, _, _ := strings.Cut(parameter, "=")
			if _, p, got := askFor[api.Token](t, s, method, path+"?"+parameter, ""); got.status != 400 || !p.Named("invalid-field") || p.Field != field {
				t.Errorf("%s %s?%s: %d %s", method, path, parameter, got.status, got.body)
			}
		}
	}
	if _, p, _ := askFor[api.Token](t, s, "GET", tokenPath+"?limit=0", ""); p.Detail != "limit: 0 given, want 1 to 1000; leave it out for the default" {
		t.Error(p.Detail)
	}
	if _, p, _ := askFor[api.Token](t, s, "POST", tokenPath+"?maxNodes=0", ""); p.Detail != "maxNodes: 0 given, want 1 to 1000; leave it out for any number" {
		t.Error(p.Detail)
	}
	if _, p, _ := askFor[api.Token](t, s, "POST", tokenPath, `{"nodeNames":["a",""]}`); p.Detail != "nodeNames: item 2 of the list is empty" {
		t.Error(p.Detail)
	}
	if ids := s.ids(t); !slices.Equal(ids, []string{id}) {
		t.Errorf("tokens %v", ids)
	}
}

// Catches an empty parameter of a certificate request that is accepted as if it were omitted.
func TestRefusesEmptyCertificateParameters(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	for _, field := range []string{"signer", "duration", "usages"} {
		if _, p, got := askFor[struct{}](t, s, "POST", "/v1/certificate?"+field+"=", ""); got.status != 400 || p.Field != field || !strings.Contains(p.Detail, "is empty") {
			t.Errorf("%s: %d %s", field, got.status, got.body)
		}
	}
}

// Catches a truncated body that is accepted because its first part is a complete JSON object.
func TestRefusesBodyThatEndsEarly(t *testing.T) {
	s := newSite(t)
	w := send(s.Handler(), tokenPath, adminBearer, "application/json", io.MultiReader(strings.NewReader("{}"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	if w.Code != 400 || !strings.Contains(w.Body.String(), "the body ended early") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if ids := s.ids(t); len(ids) > 0 {
		t.Errorf("tokens %v", ids)
	}
}

// Catches an error about a body that does not name the field, or that repeats a value that may be a secret.
func TestBodyErrorsNameFieldAndHoldNoSecret(t *testing.T) {
	s := newSite(t)
	s.start(t)
	secret := tokens.Generate()
	long := strings.Repeat("x", 60)
	for _, test := range []struct{ path, body, problem, field, detail string }{
		{tokenPath, `{"maxNodes":"1"}`, "invalid-field", "maxNodes", "maxNodes: a string given, want a whole number"},
		{tokenPath, `{"maxNodes":1.5}`, "invalid-field", "maxNodes", "maxNodes: 1.5 given, want a whole number"},
		{tokenPath, `{"maxNodes":1e400}`, "invalid-field", "maxNodes", "maxNodes: 1e400 given, want a whole number"},
		{tokenPath, `{"maxNodes":[1]}`, "invalid-field", "maxNodes", "maxNodes: a list given, want a whole number"},
		{tokenPath, `{"ttl":1}`, "invalid-field", "ttl", "ttl: a number given, want a string"},
		{tokenPath, `{"ttl":true}`, "invalid-field", "ttl", "ttl: true or false given, want a string"},
		{tokenPath, `{"nodeNames":"a"}`, "invalid-field", "nodeNames", "nodeNames: a string given, want a list of strings"},
		{tokenPath, `{"nodeNames":["a",1]}`, "invalid-field", "nodeNames", "nodeNames: a list of other values given, want a list of strings"},
		{tokenPath, `{"dryRun":"true"}`, "invalid-field", "dryRun", "dryRun: a string given, want true or false"},
		{tokenPath, `{"token":{"` + secret.Reveal() + `":1}}`, "invalid-field", "token", "token: an object given, want a string"},
		{tokenPath, `{"maxNodes":"` + secret.RevealSecret() + `"}`, "invalid-field", "maxNodes", "maxNodes: a string given, want a whole number"},
		{tokenPath, `{"ttl":"1h","ttl":"2h"}`, "invalid-field", "ttl", "ttl: given more than once"},
		{tokenPath, `{"TTL":"1h"}`, "invalid-field", "TTL", `unknown field "TTL"; known: token, ttl, `},
		{tokenPath, `{"` + long + `":1}`, "invalid-field", long[:40], `unknown field "` + long[:40] + `"; known: `},
		{tokenPath, `{"` + secret.Reveal() + `":1}`, "invalid-field", secret.ID() + ".<redacted>", `unknown field "` + secret.ID() + `.<redacted>"; known: `},
		{tokenPath, `{"` + long[:20] + " " + secret.Reveal() + `":1}`, "invalid-field", long[:20] + " " + secret.ID() + ".<redacted>", "unknown field"},
		{tokenPath, `{"ttl":"1h",}`, "invalid-body", "", "the body is not a JSON object: syntax error at byte 13 of 13"},
		{tokenPath, `{"ttl":"1h"`, "invalid-body", "", "the body is not a JSON object: syntax error at byte 11 of 11"},
		{tokenPath, `ttl=1h`, "invalid-body", "", "the body is not a JSON object: syntax error at byte 2 of 6"},
		{tokenPath, ` `, "invalid-body", "", "the body is not a JSON object: syntax error at byte 1 of 1"},
		{tokenPath, `["` + secret.Reveal() + `"]`, "invalid-body", "", "the body is a list, want a JSON object"},
		{tokenPath, "{\"description\":\"caf\xe9\"}", "invalid-body", "", "the body is not valid UTF-8, which JSON requires"},
		{tokenPath, "\nnull", "invalid-body", "", "the body is null, want a JSON object"},
		{tokenPath + "/abcdef/renew", `{"description":"x"}`, "invalid-field", "description", `unknown field "description"; known: ttl, expires, shorten and dryRun`},
		{tokenPath + "?maxnodes=1", "", "invalid-field", "maxnodes", `unknown query parameter "maxnodes"; known: ttl,`},
		{tokenPath + "?" + url.QueryEscape(long), "", "invalid-field", long[:40], `unknown query parameter "` + long[:40] + `"`},
		{tokenPath + "?" + secret.Reveal(), "", "invalid-field", secret.ID() + ".<redacted>", "unknown query parameter"},
	} {
		_, p, got := askFor[api.Token](t, s, "POST", test.path, test.body)
		if got.status != 400 || !p.Named(test.problem) || p.Field != test.field || !strings.Contains(p.Detail, test.detail) || strings.Contains(got.body, secret.RevealSecret()) {
			t.Errorf("%s: %d %s\nwant %q, %s", test.body, got.status, got.body, test.field, test.detail)
		}
	}
	if strings.Contains(s.logs.String(), secret.RevealSecret()) {
		t.Error("the secret is in the log")
	}
	if ids := s.ids(t); len(ids) > 0 {
		t.Errorf("tokens %v", ids)
	}
}
