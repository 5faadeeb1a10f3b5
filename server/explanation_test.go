package server_test

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
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
	got, err := asking.Explain(t.Context(), "worker-7")
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := explained(t.Context(), "worker-7"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	var p *api.Problem
	if _, err := asking.Explain(t.Context(), "No Node"); !errors.As(err, &p) || p.Status != http.StatusBadRequest || p.Field != "node" {
		t.Errorf("error %v", err)
	}
}

func TestExplainProblems(t *testing.T) {
	s := newSite(t)
	s.Cluster.Explain = explained
	s.start(t)
	bare := newSite(t)
	bare.start(t)
	for about, c := range map[string]struct {
		site         *site
		path, bearer string
		status       int
		problem      string
	}{
		"nobody":       {s, "/v1/explain/worker-7", "", http.StatusUnauthorized, "unauthorized"},
		"somebody":     {s, "/v1/explain/worker-7", viewerBearer, http.StatusForbidden, "forbidden"},
		"no name":      {s, "/v1/explain/", adminBearer, http.StatusNotFound, "not-found"},
		"no good name": {s, "/v1/explain/Worker_7", adminBearer, http.StatusBadRequest, "invalid-field"},
		"other format": {s, "/v1/explain/worker-7?format=xml", adminBearer, http.StatusBadRequest, "invalid-field"},
		"other query":  {s, "/v1/explain/worker-7?name=x", adminBearer, http.StatusBadRequest, "invalid-field"},
		"cluster away": {s, "/v1/explain/away", adminBearer, http.StatusServiceUnavailable, "cluster-unavailable"},
		"no cluster":   {bare, "/v1/explain/worker-7", adminBearer, http.StatusNotFound, "no-cluster"},
		"other method": {s, "/v1/explain/worker-7/x", adminBearer, http.StatusNotFound, "not-found"},
	} {
		t.Run(about, func(t *testing.T) {
			r := c.site.do(t, http.MethodGet, c.path, c.bearer, "", "")
			if r.status != c.status || !strings.Contains(r.body, api.ProblemType+c.problem+`"`) {
				t.Errorf("%d %s, want %d %s", r.status, r.body, c.status, c.problem)
			}
			if strings.Contains(r.body, "192.0.2.1") {
				t.Errorf("the response shows the internal cause: %s", r.body)
			}
		})
	}
	pasted := tokens.Generate()
	if r := s.do(t, http.MethodGet, "/v1/explain/"+pasted.Reveal(), adminBearer, "", ""); r.status != http.StatusOK {
		t.Errorf("%d %s", r.status, r.body)
	}
	if log := s.logs.String(); !strings.Contains(log, "192.0.2.1") || !strings.Contains(log, "node=away") || strings.Contains(log, pasted.RevealSecret()) {
		t.Errorf("the log lacks the cause or the node name, or shows a pasted token:\n%s", log)
	}
}

// Catches a token secret in the log or a response after it was pasted into another field.
func TestPastedTokensAreInNoLogAndNoResponse(t *testing.T) {
	s := newSite(t)
	s.Claims = s.store.Claims()
	s.start(t)
	pasted := tokens.Generate()
	for _, request := range []struct{ method, path, body string }{
		{http.MethodGet, "/v1/token/" + pasted.Reveal(), ""},
		{http.MethodDelete, "/v1/claim/" + pasted.Reveal(), ""},
		{http.MethodGet, "/v1/explain/" + pasted.Reveal(), ""},
		{http.MethodPost, "/v1/token?ttl=" + pasted.Reveal(), ""},
		{http.MethodPost, "/v1/token?role=" + pasted.Reveal(), ""},
		{http.MethodPost, "/v1/token?wait=" + pasted.Reveal(), ""},
		{http.MethodPost, "/v1/token?token=" + pasted.Reveal(), ""},
		{http.MethodPost, "/v1/token?" + pasted.Reveal(), ""},
		{http.MethodPost, "/v1/token?replaceNode=" + pasted.Reveal(), ""},
		{http.MethodPost, "/v1/token", `{"groups": ["` + pasted.Reveal() + `"]}`},
		{http.MethodPost, "/v1/token", `{"certificateDuration": "` + pasted.Reveal() + `"}`},
		{http.MethodPost, commandPath + "?expires=" + pasted.Reveal(), ""},
	} {
		r := s.do(t, request.method, request.path, adminBearer, "application/json", request.body)
		if r.status < 400 || strings.Contains(r.body, pasted.RevealSecret()) {
			t.Errorf("%s %.20s: %d %s", request.method, request.path, r.status, strings.ReplaceAll(r.body, pasted.RevealSecret(), "SECRET"))
		}
	}
	s.http.CloseIdleConnections()
	s.waitFor(t, "connections are left", func() int { return int(s.gauge(t, "kubejoin_http_connections", "")) })
	if strings.Contains(s.logs.String(), pasted.RevealSecret()) || !strings.Contains(s.logs.String(), "release-claim") {
		t.Error("the log shows the token secret, or lacks the request release-claim")
	}
}
