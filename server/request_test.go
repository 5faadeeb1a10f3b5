package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/sample"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/tokens"
)

func TestProblemNamesField(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	got := s.do(t, "POST", tokenPath+"?ttl=1y", adminBearer, "application/json", "")
	sample.Check(t, "docs/http-api.md", got.body)
}

// An unset shell variable gives an empty field. Catches an operation that treats an empty field as omitted: an empty
// limit would mean no limit.
func TestRefusesEmptyFields(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	turn := controlPlaneToken(t, s)
	for _, op := range document(t).Operations {
		if asked[op.ID] == nil {
			continue
		}
		want := func(field, query, body, detail string) {
			t.Helper()
			var p api.Problem
			got := s.do(t, op.Method, pathOf(op)+query, map[bool]string{true: turn, false: adminBearer}[op.Path == turnPath], "application/json", body)
			if err := json.Unmarshal([]byte(got.body), &p); err != nil || got.status != 400 || !p.Named("invalid-field") || p.Field != field || !strings.Contains(p.Detail, detail) {
				t.Errorf("%s%s %s: %d %s", op.ID, query, body, got.status, got.body)
			}
		}
		for _, f := range fieldsOf(reflect.TypeOf(asked[op.ID])) {
			var inBody, inQuery []string
			switch v := reflect.Zero(f.of).Interface().(type) {
			case int:
				inBody, inQuery = []string{"0", "-0"}, []string{"0", "00", ""}
			case []string:
				inBody, inQuery = []string{`["a",""]`}, []string{"a,", ","}
				if f.name != "groups" { // a token may have no groups
					inBody, inQuery = append(inBody, "[]"), append(inQuery, "")
				}
			case bool, json.RawMessage:
			default:
				if f.name != "description" {
					inBody, inQuery = []string{fmt.Sprintf("%q", v)}, []string{""}
				}
			}
			for _, value := range append(inBody, "null") {
				if op.Method != http.MethodGet && op.ID != "certificate" {
					want(f.name, "", `{"`+f.name+`":`+value+`}`, map[bool]string{true: "item 2 of the list is empty", false: "; leave it out for "}[len(value) > 4])
				}
			}
			for _, value := range inQuery {
				if slices.Contains(op.Query, f.name) {
					want(f.name, "?"+f.name+"="+value, "", "")
				}
			}
		}
	}
	if ids := s.ids(t); len(ids) != 1 {
		t.Errorf("tokens %v", ids)
	}
}

// Catches a truncated body that is accepted because its first part is a complete JSON object.
func TestRefusesBodyThatEndsEarly(t *testing.T) {
	s := newSite(t)
	w := send(s.Handler(), tokenPath, adminBearer, "application/json", io.MultiReader(strings.NewReader("{}"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	if ids := s.ids(t); w.Code != 400 || !strings.Contains(w.Body.String(), "the body ended early") || len(ids) > 0 {
		t.Errorf("%d %s, tokens %v", w.Code, w.Body, ids)
	}
}

// Catches an error that does not name the field, that repeats a value that may be a secret, or that leaves a token behind.
func TestRequestErrorsNameFieldAndHoldNoSecret(t *testing.T) {
	s := newSite(t)
	s.start(t)
	secret := tokens.Generate()
	long := strings.Repeat("x", 60)
	const create, join, script = tokenPath, commandPath, commandPath + "?format=script&"
	for _, test := range []struct{ path, body, field, detail string }{
		{create, `{"maxNodes":"1"}`, "maxNodes", "maxNodes: a string given, want a whole number"},
		{create, `{"maxNodes":1.5}`, "maxNodes", "maxNodes: 1.5 given, want a whole number"},
		{create, `{"maxNodes":1e400}`, "maxNodes", "maxNodes: 1e400 given, want a whole number"},
		{create, `{"maxNodes":[1]}`, "maxNodes", "maxNodes: a list given, want a whole number"},
		{create, `{"ttl":1}`, "ttl", "ttl: a number given, want a string"},
		{create, `{"ttl":true}`, "ttl", "ttl: true or false given, want a string"},
		{create, `{"nodeNames":"a"}`, "nodeNames", "nodeNames: a string given, want a list of strings"},
		{create, `{"nodeNames":["a",1]}`, "nodeNames", "nodeNames: a list of other values given, want a list of strings"},
		{create, `{"dryRun":"true"}`, "dryRun", "dryRun: a string given, want true or false"},
		{create, `{"token":{"` + secret.Reveal() + `":1}}`, "token", "token: an object given, want a string"},
		{create, `{"token":"qwertz.` + secret.RevealSecret() + `1"}`, "token", "malformed token of 24 characters"},
		{create, `{"maxNodes":"` + secret.RevealSecret() + `"}`, "maxNodes", "maxNodes: a string given, want a whole number"},
		{create, `{"maxNodes":-1,"role":"king"}`, "maxNodes", `role: "king" given`}, // two errors at once
		{create, `{"ttl":"24"}`, "ttl", `ttl: "24" given; want a duration`},
		{create, `{"ttl":"-1h"}`, "ttl", "ttl: -1h given; want 1s to"},
		{create, `{"description":"a\nb"}`, "description", "description: want one line"},
		{create, `{"ttl":"1h","ttl":"2h"}`, "ttl", "ttl: given more than once"},
		{create, `{"TTL":"1h"}`, "TTL", `unknown field "TTL"; known: token, ttl, `},
		{create, `{"` + long + `":1}`, long[:40], `unknown field "` + long[:40] + `"; known: `},
		{create, `{"` + secret.Reveal() + `":1}`, secret.ID() + ".<redacted>", `unknown field "` + secret.ID() + `.<redacted>"; known: `},
		{create, `{"` + long[:20] + " " + secret.Reveal() + `":1}`, long[:20] + " " + secret.ID() + ".<redacted>", "unknown field"},
		{create, `{"ttl":"1h",}`, "", "the body is not a JSON object: syntax error at byte 13 of 13"},
		{create, `ttl=1h`, "", "the body is not a JSON object: syntax error at byte 2 of 6"},
		{create, `{}{}`, "", "the body is not a JSON object: syntax error at byte 3 of 4"},
		{create, ` `, "", "the body is not a JSON object: syntax error at byte 1 of 1"},
		{create, `["` + secret.Reveal() + `"]`, "", "the body is a list, want a JSON object"},
		{create, "{\"description\":\"caf\xe9\"}", "", "the body is not valid UTF-8, which JSON requires"},
		{create, "\nnull", "", "the body is null, want a JSON object"},
		{create + "?maxNodes=many", "", "maxNodes", `"many" is not a number`},
		{create + "?maxNodes=0", "", "maxNodes", "maxNodes: 0 given, want 1 to 1000; leave it out for any number"},
		{create + "?dryRun=maybe", "", "dryRun", `"maybe" given, want true or false`},
		{create + "?ttl=1h&ttl=2h", "", "ttl", "ttl: given more than once"},
		{create + "?maxNodes=1", `{"maxNodes":1}`, "maxNodes", "more than once"},
		{create + "?maxnodes=1", "", "maxnodes", `unknown query parameter "maxnodes"; known: ttl,`},
		{create + "?token=x", "", "token", `unknown query parameter "token"; known: ttl,`},
		{create + "?" + long, "", long[:40], `unknown query parameter "` + long[:40] + `"`},
		{create + "?" + secret.Reveal(), "", secret.ID() + ".<redacted>", "unknown query parameter"},

		{join, `{"usages":["signing"]}`, "usages", "signing and authentication"},
		{join, `{"usages":["authentication"]}`, "usages", "signing and authentication"},
		{join + "?wait=1s", "", "wait", "unknown query parameter"},
		{join + "?format=toml", "", "format", `"toml" given, want text, json, yaml, kubeconfig, cloud-config, ignition or script`},
		{join, `{"format":"../script"}`, "format", "want text"},
		{script + "rejoinURL=http://x", "", "rejoinURL", "want https://HOST:PORT"},
		{script + "rejoinURL=https://x/%24(id)", "", "rejoinURL", "want https://HOST:PORT"},
		{join + "?rejoinURL=https://x", "", "rejoinURL", "only the format script"},
		{join + "?nodeReadyAfter=serving-certificate", "", "nodeReadyAfter", "format text has no place for the taint kubejoin.io/joining, want one of yaml,"},
		{join, `{"nodeReadyAfter":"serving-certificate","format":"kubeconfig"}`, "nodeReadyAfter", "format kubeconfig has no place"},
	} {
		_, p, got := askFor[api.Token](t, s, "POST", test.path, test.body)
		problem := map[bool]string{true: "invalid-field", false: "invalid-body"}[test.field != ""]
		if got.status != 400 || !p.Named(problem) || p.Field != test.field || !strings.Contains(p.Detail, test.detail) || strings.Contains(got.body, secret.RevealSecret()) {
			t.Errorf("%s %s: %d %s\nwant %q, %s", test.path, test.body, got.status, got.body, test.field, test.detail)
		}
	}
	if ids := s.ids(t); len(ids) > 0 || strings.Contains(s.logs.String(), secret.RevealSecret()) {
		t.Errorf("tokens %v are left, or the secret is in the log", ids)
	}
}

// Catches a response that stops at the first kind of mistake: a caller would have to correct a request in several
// attempts.
func TestBadRequestNamesAllFields(t *testing.T) {
	s := newSite(t)
	s.IssuanceRecord = rowrecord.New(s.store.Issued())
	s.start(t)
	for _, test := range []struct{ method, path, body, want string }{
		{"POST", tokenPath + "?nonsense=1&maxNodes=2", `{"TTL":"1h","maxNodes":"1","wait":"","dryRun":true,"dryRun":true,"role":null}`, "dryRun TTL maxNodes role wait nonsense"},
		{"POST", tokenPath, `{"maxNodes":"1","nonsense":1,"ttl":"5x","usages":["sign"],"role":"king"}`, "maxNodes nonsense ttl usages role"},
		{"POST", commandPath, `{"controlPlane":1,"ttl":"5x","replaceNode":"worker-1"}`, "controlPlane ttl"},
		{"POST", commandPath, `{"format":"x","rejoinURL":"x","ttl":"5x"}`, "format rejoinURL ttl"},
		{"GET", "/v1/issued?tokenID=x&ca=x&notCA=y&outcome=z&limit=-1&endsWithin=5x&since=y", "", "tokenID ca notCA outcome limit endsWithin since"},
		{"POST", tokenPath, `{"ttl":"5x","usages":["sign"],"certificateDuration":"x","replaceNode":"a","wait":"1y","token":"x","role":"king","maxNodes":-1}`,
			"wait token ttl usages certificateDuration replaceNode maxNodes role"},
	} {
		_, p, got := askFor[api.Token](t, s, test.method, test.path, test.body)
		var fields []string
		for _, e := range p.Errors {
			fields = append(fields, e.Field)
		}
		if got.status != 400 || strings.Join(fields, " ") != test.want {
			t.Errorf("%s: got %d, fields %q, want %q: %s", test.body, got.status, fields, test.want, p.Detail)
		}
	}
}

// Catches an error "want a or b" that suggests a value which the server refuses.
func TestAcceptsWhatErrorsName(t *testing.T) {
	s := newSite(t)
	s.IssuanceRecord = rowrecord.New(s.store.Issued())
	s.start(t)
	for _, test := range []struct {
		method, path, field string
		values              int
	}{
		{"POST", commandPath, "format", 7}, {"POST", tokenPath, "role", 1}, {"POST", tokenPath, "rejoin", 2}, {"POST", tokenPath, "usages", 2},
		{"POST", tokenPath, "ttl", 6}, {"POST", tokenPath, "certificateDuration", 2}, {"POST", tokenPath, "dryRun", 2},
		{"GET", "/v1/issued", "outcome", 3}, {"GET", "/v1/issued", "since", 3}, {"GET", "/v1/issued", "endsWithin", 5}, {"GET", "/v1/ca", "format", 2},
	} {
		ask := func(value string) (p api.Problem, got reply) {
			if got = s.do(t, test.method, test.path+"?"+test.field+"="+url.QueryEscape(value), adminBearer, "", ""); got.status == 400 {
				must.OK(t, json.Unmarshal([]byte(got.body), &p))
			}
			return p, got
		}
		p, _ := ask("?")
		_, want, _ := strings.Cut(p.Detail, "want ")
		named := 0
		for _, value := range regexp.MustCompile(`,? (such as|or|from|to) |[,;] `).Split(want, -1) {
			if strings.Contains(value, " ") {
				continue // a description
			}
			named++
			if p, got := ask(value); p.Field == test.field {
				t.Errorf("%s?%s: the error names %q: %d %s", test.path, test.field, value, got.status, got.body)
			}
		}
		if named < test.values {
			t.Errorf("%s?%s: %q names %d values, want %d", test.path, test.field, p.Detail, named, test.values)
		}
	}
}
