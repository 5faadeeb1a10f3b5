package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

func TestExplainRequestProblems(t *testing.T) {
	s := newSite(t)
	s.Cluster.ExplainRequest = func(_ context.Context, name string, object *certificates.CertificateSigningRequest) (api.RequestExplanation, error) {
		switch {
		case object != nil:
			return explain.OfRequest(approval.Request{Name: object.Name}, api.RequestPending, errors.New("unread"), nil), nil
		case name == "away":
			return api.RequestExplanation{}, errors.New("dial tcp 192.0.2.1:6443: no route to host")
		}
		return api.RequestExplanation{}, fmt.Errorf("certificate request %s: %w", name, tokens.ErrNotFound)
	}
	s.start(t)
	bare := newSite(t)
	bare.start(t)
	pasted := tokens.Generate()
	for about, c := range map[string]struct {
		site         *site
		bearer, body string
		status       int
		problem      string // part of the body
	}{
		"an object":         {s, adminBearer, `{"object": {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "x"}}}`, http.StatusOK, `"name":"x"`},
		"nobody":            {s, "", `{"csr": "x"}`, http.StatusUnauthorized, "unauthorized"},
		"somebody":          {s, viewerBearer, `{"csr": "x"}`, http.StatusForbidden, "forbidden"},
		"neither":           {s, adminBearer, `{}`, http.StatusBadRequest, "want either csr, the name of a CertificateSigningRequest, or object"},
		"both":              {s, adminBearer, `{"csr": "x", "object": {}}`, http.StatusBadRequest, "want either csr, the name of a CertificateSigningRequest, or object"},
		"no name":           {s, adminBearer, `{"csr": "a/../b"}`, http.StatusBadRequest, "given, want the name of a CertificateSigningRequest"},
		"another kind":      {s, adminBearer, `{"object": {"apiVersion": "v1", "kind": "Secret"}}`, http.StatusBadRequest, `kind \"Secret\" given`},
		"another version":   {s, adminBearer, `{"object": {"apiVersion": "certificates.k8s.io/v1beta1", "kind": "CertificateSigningRequest"}}`, http.StatusBadRequest, `certificates.k8s.io/v1beta1`},
		"kind of the group": {s, adminBearer, `{"object": {"apiVersion": "certificates.k8s.io/v1", "kind": "Secret"}}`, http.StatusBadRequest, `kind \"Secret\" given`},
		"no object":         {s, adminBearer, `{"object": [1]}`, http.StatusBadRequest, "want a CertificateSigningRequest in JSON"},
		"unknown field":     {s, adminBearer, `{"name": "x"}`, http.StatusBadRequest, "known: csr and object"},
		"none there":        {s, adminBearer, `{"csr": "x"}`, http.StatusNotFound, "no-such-request"},
		"a pasted token":    {s, adminBearer, `{"csr": "` + pasted.Reveal() + `"}`, http.StatusNotFound, "no-such-request"},
		"cluster away":      {s, adminBearer, `{"csr": "away"}`, http.StatusServiceUnavailable, "cluster-unavailable"},
		"no cluster":        {bare, adminBearer, `{"csr": "x"}`, http.StatusNotFound, "no-cluster"},
		"too large":         {s, adminBearer, `{"csr": "` + strings.Repeat("x", 70<<10) + `"}`, http.StatusRequestEntityTooLarge, "body-too-large"},
	} {
		t.Run(about, func(t *testing.T) {
			r := c.site.do(t, http.MethodPost, "/v1/explain", c.bearer, "application/json", c.body)
			if r.status != c.status || !strings.Contains(r.body, c.problem) {
				t.Errorf("%d %s, want %d and %s", r.status, r.body, c.status, c.problem)
			}
			if strings.Contains(r.body, "192.0.2.1") || strings.Contains(r.body, pasted.RevealSecret()) {
				t.Errorf("the response shows the internal cause or a token secret: %s", r.body)
			}
		})
	}
	if log := s.logs.String(); !strings.Contains(log, "192.0.2.1") || strings.Contains(log, pasted.RevealSecret()) {
		t.Errorf("the log lacks the cause or shows a pasted token:\n%s", log)
	}
	if r := s.do(t, http.MethodPost, "/v1/explain?object={}", adminBearer, "", ""); r.status != http.StatusBadRequest || !strings.Contains(r.body, api.ProblemType+"invalid-field") {
		t.Errorf("an object in the URL: %d %s", r.status, r.body)
	}
}

// Catches a caller that learns the permissions of any user by explaining an invented request of that user.
func TestExplainObjectNeedsImpersonation(t *testing.T) {
	s := newSite(t)
	s.Cluster.ExplainRequest = func(_ context.Context, _ string, object *certificates.CertificateSigningRequest) (api.RequestExplanation, error) {
		return explain.OfRequest(approval.Request{Name: object.Name}, api.RequestPending, errors.New("unread"), nil), nil
	}
	var asked []auth.Access
	s.Callers.Authenticate = func(r *http.Request) (auth.User, error) {
		bearer, err := auth.Bearer(r)
		return auth.User{Name: bearer, Groups: []string{"dev"}}, err
	}
	s.Callers.Authorize = func(_ *http.Request, u auth.User, a auth.Access) error {
		asked = append(asked, a)
		if u.Name == "admin" || a == (auth.Access{Verb: "get", Resource: "explanations"}) {
			return nil
		}
		return auth.ErrForbidden
	}
	s.start(t)
	for _, test := range []struct {
		name, groups string
		refused      bool
	}{
		{name: "", groups: ""},
		{name: "", groups: `"system:masters"`, refused: true},
		{name: "vic", groups: `"dev","system:authenticated"`},
		{name: "vic", groups: `"dev","ops"`, refused: true},
		{name: "ada", groups: `"system:authenticated"`, refused: true},
		{name: "ada", groups: "", refused: true},
		{name: "system:serviceaccount:kube-system:x", groups: "", refused: true},
		{name: "system:node:worker-1", groups: `"system:nodes","system:authenticated"`},
		{name: "system:node:worker-1", groups: `"system:nodes","ops"`, refused: true},
		{name: "system:bootstrap:abcdef", groups: `"system:bootstrappers","system:bootstrappers:rack-7","system:authenticated"`},
		{name: "system:bootstrap:abcdef", groups: `"system:masters"`, refused: true},
	} {
		object := fmt.Sprintf(`{"object": {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "x"}, "spec": {"username": %q, "groups": [%s]}}}`, test.name, test.groups)
		for caller, refused := range map[string]bool{"vic": test.refused, "admin": false} {
			if caller == "admin" && test.name == "vic" {
				continue
			}
			asked = nil
			r := s.do(t, http.MethodPost, "/v1/explain", caller, "application/json", object)
			if (r.status == 403) != refused || !refused && r.status != 200 {
				t.Errorf("%s about %q in %s: %d %s", caller, test.name, test.groups, r.status, r.body)
			}
			if refused && (!strings.Contains(r.body, "impersonate explanations.kubejoin.io") || asked[len(asked)-1] != (auth.Access{Verb: "impersonate", Resource: "explanations", Name: test.name})) {
				t.Errorf("%s about %q: got permission checks %v and response %s, want impersonate explanations.kubejoin.io refused", caller, test.name, asked, r.body)
			}
		}
	}
}
