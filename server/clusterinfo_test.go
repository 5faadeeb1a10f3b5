package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/tokens"
)

// Catches a kubeconfig that changes on its way to a client, and a CA that differs between the two formats.
func TestPublishesClusterInfoAndCAs(t *testing.T) {
	s := newSite(t)
	cas, kubeconfig := s.rotate(t)
	s.start(t)
	got := s.do(t, "GET", "/v1/cluster-info", "", "", "")
	if got.status != 200 || got.body != string(kubeconfig) || got.header.Get("Content-Type") != "application/yaml" || got.header.Get("Cache-Control") != "no-cache" {
		t.Errorf("%d %v\n%s", got.status, got.header, got.body)
	}
	got = s.do(t, "GET", "/v1/ca", "", "", "")
	if read, err := clusterinfo.ParseCAs([]byte(got.body)); err != nil || len(read) != 2 || !read[0].Equal(cas[0]) || !read[1].Equal(cas[1]) || got.header.Get("Content-Type") != "application/x-pem-file" {
		t.Errorf("%d %v %v\n%s", got.status, got.header, err, got.body)
	}
	got = s.do(t, "GET", "/v1/ca?format=json", "", "", "")
	var list api.CABundle
	if err := json.Unmarshal([]byte(got.body), &list); err != nil || len(list.Items) != 2 || list.Kind != api.KindCABundle || got.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v %v\n%s", got.status, got.header, err, got.body)
	}
	for i, ca := range list.Items {
		read, err := clusterinfo.ParseCAs([]byte(ca.Certificate))
		if err != nil || !read[0].Equal(cas[i]) || ca.Pin != clusterinfo.Pin(cas[i]) || ca.Subject != cas[i].Subject.String() || !ca.NotAfter.Equal(cas[i].NotAfter) || !ca.NotBefore.Equal(cas[i].NotBefore) {
			t.Errorf("CA %d: %+v %v", i, ca, err)
		}
	}

	h := s.Handler()
	for _, test := range []struct{ query, accept, want string }{
		{"", "*/*", "application/x-pem-file"},
		{"", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "application/x-pem-file"},
		{"", "application/json", "application/json"},
		{"", "application/json;q=0, */*", "application/x-pem-file"},
		{"", "text/plain, Application/JSON; q=0.5", "application/json"},
		{"?format=pem", "application/json", "application/x-pem-file"},
		{"?format=json", "application/x-pem-file", "application/json"},
		{"?format=der", "", "application/problem+json"},
	} {
		w := get(t, h, "/v1/ca"+test.query, "Accept", test.accept)
		if w.Header().Get("Content-Type") != test.want || (w.Code == 400) != (test.want == "application/problem+json") || w.Code == 200 && w.Header().Get("Vary") != "Accept, Accept-Encoding" {
			t.Errorf("%s %q: %d %v, want %s", test.query, test.accept, w.Code, w.Header(), test.want)
		}
	}
	if a, b := get(t, h, "/v1/ca").Header().Get("ETag"), get(t, h, "/v1/ca?format=json").Header().Get("ETag"); a == b || a == "" {
		t.Errorf("got ETags %s and %s, want different ones for the two formats", a, b)
	}
}

// Catches publication of a cluster-info that is malformed or that contains a credential.
func TestPublishesNoUnusableClusterInfo(t *testing.T) {
	s := newSite(t)
	kubeconfig := must.Value(s.ClusterInfo.Config(t.Context()))(t)
	withUser := bytes.Replace(kubeconfig, []byte("users: null"), []byte("users:\n- name: x\n  user: {token: hunter2}"), 1)
	if bytes.Equal(withUser, kubeconfig) {
		t.Fatal("the test could not insert a credential into the kubeconfig")
	}
	info := &fixedClusterInfo{}
	s.ClusterInfo = info
	h := s.Handler()
	for _, test := range []struct {
		name   string
		config []byte
		err    error
		status int
		want   string
	}{
		{"a credential", withUser, nil, 500, "malformed-cluster-info"},
		{"no kubeconfig", nil, nil, 500, "malformed-cluster-info"},
		{"nothing to sign", nil, clusterinfo.ErrNoKubeconfig, 500, "malformed-cluster-info"},
		{"edited", nil, fmt.Errorf("%w: users: 1 given", clusterinfo.ErrKubeconfig), 500, "malformed-cluster-info"},
		{"good again", kubeconfig, nil, 200, ""},
		{"none", nil, clusterinfo.ErrNotFound, 404, "no-cluster-info"},
		{"away", nil, errors.New("dial tcp 10.0.0.1:6443"), 503, "cluster-info-unavailable"},
	} {
		info.config, info.err = test.config, test.err
		for _, path := range []string{"/v1/cluster-info", "/v1/cluster-info", "/v1/ca", "/v1/ca?format=json"} { // the second response is cached
			w := get(t, h, path)
			// kubeadm before 1.37 ignores the status, and must not read an error as a kubeconfig.
			kind, kept, retry := w.Header().Get("Content-Type"), w.Header().Get("Cache-Control"), w.Header().Get("Retry-After")
			if w.Code != test.status || test.want != "" && !strings.Contains(w.Body.String(), "/"+test.want+`"`) || (kind == "application/problem+json") != (test.status != 200) ||
				(kept == "no-store") != (test.status != 200) || retry != map[bool]string{true: "5"}[test.status == 503] {
				t.Errorf("%s, %s: %d %v %s, want %d %s", test.name, path, w.Code, w.Header(), w.Body, test.status, test.want)
			}
			if said := w.Body.String() + s.logs.String(); strings.Contains(w.Body.String(), "10.0.0.1") || strings.Contains(said, "hunter2") {
				t.Errorf("%s, %s: response or log shows an internal detail: %s", test.name, path, w.Body)
			}
		}
		if test.err == nil {
			continue
		}
		if w := get(t, h, infoPath); w.Code != test.status || !strings.Contains(w.Body.String(), `"kind":"Status"`) || test.name == "edited" && !strings.Contains(w.Body.String(), "users: 1 given") {
			t.Errorf("%s: %d %s, want %d", test.name, w.Code, w.Body, test.status)
		}
	}
}

// Catches a cached cluster-info that is served after its source changed.
func TestPublishesCurrentClusterInfo(t *testing.T) {
	s := newSite(t)
	config := func(server string) []byte { return must.Get(clusterinfo.Kubeconfig(server, s.ca.Bundle())) }
	now := config("https://one.example:6443")
	s.ClusterInfo = &clusterinfo.Computed{Tokens: s.store, Follow: func(context.Context) ([]byte, error) { return now, nil }}
	h := s.Handler()
	first := get(t, h, "/v1/cluster-info")
	now = config("https://two.example:6443")
	second := get(t, h, "/v1/cluster-info", "If-None-Match", first.Header().Get("ETag"))
	if second.Code != http.StatusOK || second.Body.String() != string(now) {
		t.Errorf("%d %s", second.Code, second.Body)
	}
	if third := get(t, h, "/v1/cluster-info", "If-None-Match", second.Header().Get("ETag")); third.Code != http.StatusNotModified {
		t.Errorf("%d", third.Code)
	}
}

// While a machine may repeat its join with a spent token, the served cluster-info must have the signature. Once the
// machine has used its certificate, the token admits nobody: the signature must be removed, and must appear again as
// soon as the token has a free slot.
func TestServesNoSignatureOfSpentToken(t *testing.T) {
	s, _ := certifying(t)
	ahead := time.Duration(0) // how far the clock of cluster-info is ahead
	s.ClusterInfo = &clusterinfo.Computed{
		Tokens: s.store, Spent: &clusterinfo.Spent{Claims: s.Claims}, Kubeconfig: must.Value(s.ClusterInfo.Config(t.Context()))(t),
		Now: func() time.Time { return time.Now().Add(ahead) },
	}
	s.Certificates.Authority.Nodes.Retention = 24 * time.Hour
	lasting := func(r *tokens.Record) { r.Expires = time.Time{} }
	token := must.Value(tokens.Parse(s.token(t, func(r *tokens.Record) { lasting(r); once(r) })))(t)
	other := must.Value(tokens.Parse(s.token(t, lasting)))(t)
	s.start(t)
	signed := func(what string, want bool) {
		t.Helper()
		body := s.do(t, "GET", infoPath, "", "", "").body
		if got := strings.Contains(body, clusterinfo.SignatureKey(token.ID())); got != want {
			t.Errorf("%s: got a signature: %t, want %t", what, got, want)
		}
		if !strings.Contains(body, clusterinfo.SignatureKey(other.ID())) {
			t.Errorf("%s: got no signature of another token", what)
		}
	}
	change := func(change func(*tokens.Record)) {
		t.Helper()
		must.Value(s.store.Update(t.Context(), token.ID(), func(r *tokens.Record) error { change(r); return nil }))(t)
	}
	signed("new", true)
	m := machine{node: "worker-1", key: csrtest.NewKey()}
	join := signing("", csr(t, ofNode(m.node), m.key))
	m.chain = must.Value(s.by(token.Reveal()).Certificate(t.Context(), join))(t)
	signed("spent", true)
	ahead = 10 * time.Hour
	signed("spent for long, and the machine has not used its certificate", true)
	must.Value(s.by(token.Reveal()).Certificate(t.Context(), join))(t) // the machine repeats its join

	ahead = 0
	if got, p := s.post(t, s.showing(t, m.valid(t)), certificatePath, "", csr(t, ofNode(m.node), m.key)); got.status != 200 {
		t.Fatalf("got %d %+v, want a renewed certificate", got.status, p)
	}
	_, err := s.by(token.Reveal()).Certificate(t.Context(), join)
	wantProblem(t, err, 403, api.ProblemCertificateRefused, admission.ReasonNodeExists)
	ahead = 9 * time.Minute
	signed("joined less than 10 minutes ago", true)
	ahead = 11 * time.Minute
	signed("joined 10 minutes ago", false)
	if _, err := s.ClusterInfo.WaitSigned(t.Context(), token); !errors.Is(err, clusterinfo.ErrUnsigned) || !strings.Contains(err.Error(), "is spent") {
		t.Errorf("got %v, want an error that says that the token is spent", err)
	}
	change(func(r *tokens.Record) { r.Limits.MaxNodes = 2 })
	signed("a slot is free", true)
	change(once)
	ahead += time.Minute
	signed("spent again", false)
	change(func(r *tokens.Record) { r.Description = "rack 7" })
	signed("changed, before a look", true)
	ahead += time.Minute
	signed("changed", false)
	must.OK(t, tokens.Release(t.Context(), s.Claims, must.Value(s.Claims.Get(t.Context(), m.node, tokens.Live))(t), tokens.ReleasedClaim{}))
	ahead += time.Minute
	signed("its claim has ended", false)
	change(func(r *tokens.Record) { r.Nodes = nil })
	signed("its slot is free", true)
}

var _ server.ClusterInfo = (*fixedClusterInfo)(nil)
