package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// explained explains every node as refused. For the node "away" it fails.
func explained(_ context.Context, node string) (api.NodeExplanation, error) {
	if node == "away" {
		return api.NodeExplanation{}, errors.New("dial tcp 192.0.2.1:6443: no route to host")
	}
	asked := time.Date(2025, 3, 14, 15, 9, 26, 0, time.UTC)
	return explain.Explain(explain.Facts{Node: node, Requests: []api.RequestEvidence{{
		Name: "csr-1", UID: "u", Signer: "kubernetes.io/kube-apiserver-client-kubelet", User: "system:bootstrap:abcdef", Created: asked,
		Denied: &api.RequestCondition{Reason: "TokenSpent", Message: "token abcdef was for 1 node and worker-3 took it", At: asked},
	}}}, asked.Add(40*time.Second)), nil
}

func TestExplain(t *testing.T) {
	s := newSite(t)
	s.Cluster.Explain = explained
	s.start(t)
	const sentence = "worker-7: refused 40 s ago: token abcdef was for 1 node and worker-3 took it; create another token with: kubejoin token create --max-nodes 1 --node-name worker-7"

	r := s.do(t, http.MethodGet, "/v1/explain/worker-7", adminBearer, "", "")
	if r.status != http.StatusOK || r.header.Get("Content-Type") != "application/json" ||
		!strings.HasPrefix(r.body, `{"apiVersion":"output.kubejoin.io/v1alpha1","kind":"NodeExplanation","node":"worker-7","state":"TokenSpent","since":"2025-03-14T15:09:26Z","sentence":"`+sentence+`"`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	r = s.do(t, http.MethodGet, "/v1/explain/worker-7?format=text", adminBearer, "", "")
	if want := sentence + "\n  kubectl describe csr csr-1\n"; r.status != http.StatusOK || r.body != want {
		t.Errorf("%d %q, want %q", r.status, r.body, want)
	}

	// The client decodes the explanation.
	asking := &client.Client{URL: s.url, Bearer: adminBearer, HTTP: s.http}
	got := must.Value(asking.Explain(t.Context(), "worker-7"))(t)
	if want, _ := explained(t.Context(), "worker-7"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	var p *api.Problem
	if _, err := asking.Explain(t.Context(), "No Node"); !errors.As(err, &p) || p.Status != http.StatusBadRequest || p.Field != "node" {
		t.Errorf("error %v", err)
	}
}

// explainedRequest explains every object, and no stored request. For the request "away" it fails.
func explainedRequest(_ context.Context, name string, object *certificates.CertificateSigningRequest) (api.RequestExplanation, error) {
	switch {
	case object != nil:
		return explain.OfRequest(approval.Request{Name: object.Name}, api.RequestPending, errors.New("unread"), nil), nil
	case name == "away":
		return api.RequestExplanation{}, errors.New("dial tcp 192.0.2.1:6443: no route to host")
	}
	return api.RequestExplanation{}, fmt.Errorf("certificate request %s: %w", name, tokens.ErrNotFound)
}

func TestExplainProblems(t *testing.T) {
	s := newSite(t)
	s.Cluster.Explain, s.Cluster.ExplainRequest = explained, explainedRequest
	s.start(t)
	bare := newSite(t)
	bare.start(t)
	const node, request = "/v1/explain/", "/v1/explain"
	for _, c := range []struct {
		site    *site
		path    string
		body    string // empty: GET
		status  int
		problem string // part of the body
	}{
		{s, node, "", 404, "not-found"},
		{s, node + "worker-7/x", "", 404, "not-found"},
		{s, node + "Worker_7", "", 400, `"field":"node"`},
		{s, node + "worker-7?format=xml", "", 400, `"field":"format"`},
		{s, node + "away", "", 503, "cluster-unavailable"},
		{bare, node + "worker-7", "", 404, "no-cluster"},

		{s, request, `{"object": {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "x"}}}`, 200, `"name":"x"`},
		{s, request, `{}`, 400, "want either csr, the name of a CertificateSigningRequest, or object"},
		{s, request, `{"csr": "x", "object": {}}`, 400, "want either csr, the name of a CertificateSigningRequest, or object"},
		{s, request, `{"csr": "a/../b"}`, 400, "given, want the name of a CertificateSigningRequest"},
		{s, request, `{"object": {"apiVersion": "v1", "kind": "Secret"}}`, 400, `kind \"Secret\" given`},
		{s, request, `{"object": [1]}`, 400, "want a CertificateSigningRequest in JSON"},
		{s, request, `{"csr": "x"}`, 404, "no-such-request"},
		{s, request, `{"csr": "away"}`, 503, "cluster-unavailable"},
		{s, request + "?object={}", `{}`, 400, "invalid-field"}, // the object is in the URL
		{bare, request, `{"csr": "x"}`, 404, "no-cluster"},
	} {
		method := map[bool]string{true: http.MethodGet, false: http.MethodPost}[c.body == ""]
		r := c.site.do(t, method, c.path, adminBearer, "application/json", c.body)
		if r.status != c.status || !strings.Contains(r.body, c.problem) || strings.Contains(r.body, "192.0.2.1") {
			t.Errorf("%s %s: %d %s, want %d and %s", c.path, c.body, r.status, r.body, c.status, c.problem)
		}
	}
	if log := s.logs.String(); strings.Count(log, "192.0.2.1") != 2 || !strings.Contains(log, "node=away") {
		t.Errorf("the log lacks the cause or the node name:\n%s", log)
	}
}

// Catches a caller that learns the permissions of any user by explaining an invented request of that user.
func TestExplainObjectNeedsImpersonation(t *testing.T) {
	s := newSite(t)
	s.Cluster.ExplainRequest = explainedRequest
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
				t.Errorf("explain as %s about user %q in groups %s: got %d %s, want 200, or 403 if refused", caller, test.name, test.groups, r.status, r.body)
			}
			if refused && (!strings.Contains(r.body, "impersonate explanations.kubejoin.io") || asked[len(asked)-1] != (auth.Access{Verb: "impersonate", Resource: "explanations", Name: test.name})) {
				t.Errorf("%s about %q: got permission checks %v and response %s, want impersonate explanations.kubejoin.io refused", caller, test.name, asked, r.body)
			}
		}
	}
}
