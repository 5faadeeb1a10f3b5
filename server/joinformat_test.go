package server_test

import (
	"crypto/x509"
	"encoding/json"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// Catches a format that differs from package joinformat, or that ignores a field of the query or the body.
func TestJoinFormats(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(t)
	types := map[string]string{
		"text": "text/plain", "json": "application/json", "yaml": "application/yaml", "kubeconfig": "application/yaml",
		"cloud-config": "text/cloud-config", "ignition": "application/vnd.coreos.ignition+json", "script": "text/x-shellscript",
	}
	if len(types) != len(joinformat.Formats()) {
		t.Errorf("formats %q", joinformat.Formats())
	}
	for _, name := range append(joinformat.Formats(), "") { // none is text
		for _, inBody := range []bool{false, true} {
			before := s.ids(t)
			var r reply
			switch {
			case inBody:
				r = s.do(t, "POST", commandPath, adminBearer, "application/json", strings.Replace(`{"format":"`+name+`","maxNodes":2,"nodeNames":["worker-1","rack-*"],"certificateDuration":"72h","ttl":"1h","role":"control-plane"}`, `"format":"",`, "", 1))
			case name == "":
				r = s.do(t, "POST", commandPath+"?maxNodes=2&nodeNames=worker-1,rack-*&certificateDuration=72h&ttl=1h&role=control-plane", adminBearer, "", "")
			default:
				r = s.do(t, "POST", commandPath+"?maxNodes=2&nodeNames=worker-1,rack-*&certificateDuration=72h&ttl=1h&role=control-plane&format="+name, adminBearer, "", "")
			}
			if r.status != 200 || r.header.Get("Cache-Control") != "no-store" {
				t.Fatalf("%s: %d, Cache-Control %q: %s", name, r.status, r.header.Get("Cache-Control"), r.body)
			}
			if media, _, err := mime.ParseMediaType(r.header.Get("Content-Type")); err != nil || media != types[name] && name != "" {
				t.Errorf("%s: Content-Type %q, %v", name, r.header.Get("Content-Type"), err)
			}
			record := s.minted(t, before)
			want := tokens.Limits{MaxNodes: 2, NodeNames: []string{"worker-1", "rack-*"}, CertificateDuration: 72 * time.Hour, Role: tokens.RoleControlPlane}
			if l := record.Limits; l.MaxNodes != want.MaxNodes || !slices.Equal(l.NodeNames, want.NodeNames) || l.CertificateDuration != want.CertificateDuration || l.Role != want.Role {
				t.Errorf("%s: limits %+v, want %+v", name, l, want)
			}
			body, err := joinformat.Join{
				Endpoint: s.Minting.Advertise, Token: record.Token, Server: "https://api.example.com:6443", CAs: s.ca.Bundle(), Expires: record.Expires,
			}.Write(name)
			if err != nil || r.body != string(body) {
				t.Errorf("%s: %v, answered\n%s\nwant\n%s", name, err, r.body, body)
			}
			if name == api.FormatJSON {
				checkJoinObject(t, s, r.body, record)
			}
			if !strings.Contains(r.header.Get("Server-Timing"), "sign") {
				t.Errorf("%s: Server-Timing %q", name, r.header.Get("Server-Timing"))
			}
			if strings.Contains(s.logs.String(), record.Token.RevealSecret()) {
				t.Errorf("%s: the secret is in the log", name)
			}
		}
	}
}

func checkJoinObject(t *testing.T, s *site, body string, record tokens.Record) {
	t.Helper()
	var j api.JoinCommand
	if err := json.Unmarshal([]byte(body), &j); err != nil {
		t.Fatal(err)
	}
	cas, err := clusterinfo.ParseCAs([]byte(j.CABundle))
	if err != nil || len(cas) != 1 || !cas[0].Equal(s.ca.Certificate()) {
		t.Errorf("%d CAs, %v", len(cas), err)
	}
	line, err := clusterinfo.ParseJoinCommand(j.JoinCommand.Reveal())
	if err != nil || line.Token != record.Token || line.Endpoint != j.Endpoint || !slices.Equal(line.Pins, j.CACertHashes) {
		t.Errorf("joinCommand %v, %v", line, err)
	}
	if j.Kind != api.KindJoinCommand || j.APIVersion != api.Version || j.ID != record.Token.ID() || j.Token.Reveal() != record.Token.Reveal() || !j.Expires.Equal(record.Expires) {
		t.Errorf("%+v", j)
	}
}

// Catches a field of one of the two types that the other lacks: joinformat cannot import the API.
func TestJSONFormatHasFieldsOfAPI(t *testing.T) {
	j := joinformat.Join{Endpoint: "api.example.com:6443", Server: "https://api.example.com:6443", Token: tokens.Generate(), Expires: time.Now(),
		CAs: []*x509.Certificate{newSite(t).ca.Certificate()}, CertificateKey: joinformat.GenerateCertificateKey(), Warnings: []string{"a warning"}}
	body, err := j.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
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

// minted returns the one token that was created since before.
func (s *site) minted(t *testing.T, before []string) tokens.Record {
	t.Helper()
	var found []tokens.Record
	records, err := s.store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if !slices.Contains(before, r.Token.ID()) {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got %d new tokens, want 1", len(found))
	}
	return found[0]
}

// Catches a request with an invalid format that leaves a token behind.
func TestRefusesInvalidJoinFormats(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(t)
	for _, test := range []struct{ query, body, field, want string }{
		{"?format=toml", "", "format", `"toml" given, want text, json, yaml, kubeconfig, cloud-config, ignition or script`},
		{"?format=YAML", "", "format", "want text"},
		{"?format=", "", "format", "is empty"},
		{"?format=text&format=yaml", "", "format", "more than once"},
		{"?format=yaml", `{"format":"yaml"}`, "format", "more than once"},
		{"", `{"format":"../script"}`, "format", "want text"},
		{"", `{"Format":"yaml"}`, "Format", `unknown field "Format"; known: ttl`},
		{"?formats=yaml", "", "formats", "format, controlPlane and rejoinURL"},
		{"?format=yaml&certificateKey=00", "", "certificateKey", "unknown"},
		{"?format=script&usages=signing", "", "usages", "signing and authentication"},
		{"?format=script&maxNodes=0x1", "", "maxNodes", "not a number"},
		{"?format=script&rejoinURL=http://x", "", "rejoinURL", "want https://HOST:PORT"},
		{"?format=script&rejoinURL=https://x:99999", "", "rejoinURL", "want 1 to 65535"},
		{"?format=script&rejoinURL=https://x_y", "", "rejoinURL", "DNS name"},
		{"?format=script&rejoinURL=https://x/%24(id)", "", "rejoinURL", "want https://HOST:PORT"},
		{"?format=text&rejoinURL=https://x", "", "rejoinURL", "only the format script"},
	} {
		contentType := ""
		if test.body != "" {
			contentType = "application/json"
		}
		r := s.do(t, "POST", commandPath+test.query, adminBearer, contentType, test.body)
		var p api.Problem
		if err := json.Unmarshal([]byte(r.body), &p); err != nil || r.status != 400 || p.Field != test.field || !strings.Contains(p.Detail, test.want) {
			t.Errorf("%s %s: %d, %v: %s", test.query, test.body, r.status, err, r.body)
		}
	}
	if ids := s.ids(t); len(ids) > 0 {
		t.Errorf("got tokens %v, want none", ids)
	}
	// A user who may not create tokens gets no script either.
	if r := s.do(t, "POST", commandPath+"?format=script", viewerBearer, "", ""); r.status != 403 {
		t.Errorf("viewer: got %d, want 403", r.status)
	}
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
		if body := serveOnce(t, h, commandPath+"?format="+name); !strings.Contains(body, want) {
			t.Errorf("%s: %s, want %q in it", name, body, want)
		}
	}
}

// serveOnce sends a POST as the admin and returns the body of the 200 response.
func serveOnce(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "POST", path, nil)
	r.Header.Set("Authorization", "Bearer "+adminBearer)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}
