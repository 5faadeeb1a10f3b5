package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
)

const joinsPath = "/v1/join"

// listed lists one machine that is stuck and one that has joined. For the node "away" it fails, and there is no token "absent".
func listed(_ context.Context, node, token string) (api.JoinList, error) {
	if node == "away" {
		return api.JoinList{}, errors.New("dial tcp 192.0.2.1:6443: no route to host")
	}
	if token == "absent" {
		return api.JoinList{}, tokens.ErrNotFound
	}
	asked := time.Date(2025, 3, 14, 15, 9, 26, 0, time.UTC)
	refused := explain.Join(explain.Facts{Node: "worker-7", Requests: []api.RequestEvidence{{
		Name: "csr-1", UID: "u", Signer: "kubernetes.io/kube-apiserver-client-kubelet", User: "system:bootstrap:abcdef", Created: asked,
		Denied: &api.RequestCondition{Reason: "TokenSpent", Message: "token abcdef was for 1 node and worker-3 took it", At: asked},
	}}}, asked.Add(40*time.Second))
	ready := explain.Join(explain.Facts{Node: "worker-3", Object: &api.NodeEvidence{UID: "n", Created: asked, Ready: "True", Since: asked}}, asked.Add(time.Minute))
	list := explain.JoinList([]api.Join{ready, refused})
	list.Nodes = map[bool]int{true: 1}[token != ""]
	return list, nil
}

// cursorOf returns the cursor of all machines.
func cursorOf(t testing.TB, h http.Handler) string {
	t.Helper()
	_, after, _ := strings.Cut(from(t, h, "192.0.2.9:1", "GET", joinsPath, adminBearer, nil).Body.String(), `"cursor":"`)
	cursor, _, _ := strings.Cut(after, `"`)
	return cursor
}

func TestListJoins(t *testing.T) {
	s := newSite(t)
	s.Cluster.Joins = listed
	s.start(t)
	r := s.do(t, http.MethodGet, joinsPath+"?state=stuck", adminBearer, "", "")
	if r.status != http.StatusOK || r.header.Get("Cache-Control") != "no-store" ||
		!strings.HasPrefix(r.body, `{"apiVersion":"output.kubejoin.io/v1alpha1","kind":"JoinList","items":[{"node":"worker-7","state":"stuck","since":"2025-03-14T15:09:26Z","reason":"TokenSpent","tokenID":"abcdef",`+
			`"steps":[{"name":"token","state":"unknown"},{"name":"requested","state":"done","at":"2025-03-14T15:09:26Z"}`) ||
		!strings.Contains(r.body, `"sentence":"worker-7: refused 40 s ago: token abcdef was for 1 node`) || strings.Contains(r.body, "worker-3\",\"state") {
		t.Errorf("%d %v %s", r.status, r.header, r.body)
	}

	// The client sends each field of a request, and decodes the list.
	asking := s.by(adminBearer)
	first := must.Value(asking.ListJoins(t.Context(), api.ListJoins{Node: "worker-7", Token: "abcdef", Limit: 1}))(t)
	if len(first.Items) != 1 || first.Items[0].Node != "worker-7" || first.Counts[api.JoinJoined] != 1 || first.Nodes != 1 || first.Order != nil || first.Continue == "" {
		t.Errorf("%+v", first)
	}
	again := must.Value(asking.ListJoins(t.Context(), api.ListJoins{Token: "abcdef", Limit: 1, After: first.Cursor, Wait: "10ms"}))(t)
	if len(again.Items) != 0 || !reflect.DeepEqual(again.Order, []string{"worker-7"}) || again.Cursor != first.Cursor {
		t.Errorf("unchanged: %+v", again)
	}
	second := must.Value(asking.ListJoins(t.Context(), api.ListJoins{Token: "abcdef", Limit: 1, Continue: first.Continue}))(t)
	if len(second.Items) != 1 || second.Items[0].Node != "worker-3" || second.Continue != "" {
		t.Errorf("second page: %+v", second)
	}
}

func TestListJoinsProblems(t *testing.T) {
	s := newSite(t)
	s.Cluster.Joins = listed
	s.start(t)
	bare := newSite(t)
	bare.start(t)
	for query, want := range map[string]string{
		"node=away": "503 cluster-unavailable", "token=absent": "404 no-token", "node=Worker_7": `400 "field":"node"`,
		"token=abcdef.0123456789abcdef": `400 "field":"token"`, "state=Stuck": `400 "field":"state"`, "limit=0": `400 "field":"limit"`, "limit=201": `400 "field":"limit"`,
		"continue=x": `400 "field":"continue"`, "after=x": `400 "field":"after"`, "wait=1s": `400 "field":"wait"`, "after=AAAAAAAAAAA&wait=61s": `400 "field":"wait"`,
	} {
		r := s.do(t, http.MethodGet, joinsPath+"?"+query, adminBearer, "", "")
		status, problem, _ := strings.Cut(want, " ")
		if !strings.Contains(r.body, `"status":`+status) || !strings.Contains(r.body, problem) || strings.Contains(r.body, "192.0.2.1") || strings.Contains(r.body, "0123456789abcdef") {
			t.Errorf("%s: got %d %s, want %s", query, r.status, r.body, want)
		}
	}
	if r := bare.do(t, http.MethodGet, joinsPath, adminBearer, "", ""); r.status != 404 || !strings.Contains(r.body, "no-cluster") {
		t.Errorf("without a cluster: %d %s", r.status, r.body)
	}
	if log := s.logs.String(); strings.Count(log, "192.0.2.1") != 1 || strings.Contains(log, "0123456789abcdef") {
		t.Errorf("the log lacks the cause, or has a secret:\n%s", log)
	}
}

// Catches a watch that goes on with a permission or a credential that the caller no longer has.
func TestEachWaitChecksTheCaller(t *testing.T) {
	s := newSite(t)
	s.Cluster.Joins = listed
	known, allowed := true, true
	s.Callers.Authenticate = func(*http.Request) (auth.User, error) {
		if !known {
			return auth.User{}, auth.ErrBadCredentials
		}
		return auth.User{Name: "ada"}, nil
	}
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if !allowed || a != (auth.Access{Verb: "list", Resource: "explanations"}) {
			return auth.ErrForbidden
		}
		return nil
	}
	h := s.Handler()
	path := joinsPath + "?wait=10ms&after=" + cursorOf(t, h)
	for _, test := range []struct {
		known, allowed bool
		status         int
	}{{true, true, 200}, {true, false, 403}, {true, true, 200}, {false, true, 401}} {
		known, allowed = test.known, test.allowed
		if w := get(t, h, path, "Authorization", "Bearer x"); w.Code != test.status {
			t.Errorf("%+v: got %d %s", test, w.Code, w.Body)
		}
	}
}

// Catches calls of one client that take all slots of those that wait, and a shutdown that waits for them.
func TestWaitingCallsAreLimitedAndEndAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Cluster.Joins, s.Limits.ClientRate, s.Limits.UserRate = listed, server.Rate{}, server.Rate{}
		web := s.HTTPServer(&tls.Config{})
		if limit := api.MaxJoinsWait + 10*time.Second; web.WriteTimeout < limit {
			t.Errorf("got a write timeout of %s, want at least %s", web.WriteTimeout, limit)
		}
		begin, path := time.Now(), joinsPath+"?wait=1m&after="+url.QueryEscape(cursorOf(t, web.Handler))
		var waiting sync.WaitGroup
		for range httplimit.MaxWatches / 2 {
			waiting.Go(func() {
				if w := from(t, web.Handler, "192.0.2.1:1", "GET", path, adminBearer, nil); w.Code != 200 || !strings.Contains(w.Body.String(), `"items":[],"order":["worker-7","worker-3"]`) {
					t.Errorf("got %d %s", w.Code, w.Body)
				}
			})
		}
		time.Sleep(10 * time.Second)
		wantTooMany(t, "more than half", from(t, web.Handler, "192.0.2.1:2", "GET", joinsPath, adminBearer, nil))
		if w := from(t, web.Handler, "192.0.2.2:1", "GET", joinsPath, adminBearer, nil); w.Code != 200 {
			t.Errorf("another client: %d %s", w.Code, w.Body)
		}
		if w := from(t, web.Handler, "192.0.2.1:1", "GET", "/v1/explain/worker-7", adminBearer, nil); w.Code != 404 { // without a cluster
			t.Errorf("another class: %d %s", w.Code, w.Body)
		}
		must.OK(t, web.Shutdown(t.Context()))
		waiting.Wait()
		if took := time.Since(begin); took > 11*time.Second {
			t.Errorf("the calls ended after %s, want at the shutdown", took)
		}
		must.OK(t, web.Shutdown(t.Context())) // again
	})
}

// Catches a client that closes its connection, as a page that is closed does, and counts as an error of kubejoin.
func TestClientThatNoLongerWaitsIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Cluster.Joins = listed
		h := must.Get(s.Server.Handler())
		ctx, leave := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer leave()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, asAdmin(httptest.NewRequestWithContext(ctx, "GET", joinsPath+"?wait=1m&after="+cursorOf(t, h), nil)))
		if w.Code >= 500 || strings.Contains(s.logs.String(), "level=ERROR") {
			t.Errorf("got %d, log:\n%s", w.Code, s.logs)
		}
		if body := w.Body.String(); !strings.Contains(body, `"kind":"JoinList","items":[],"counts":{},"cursor":"`) {
			t.Errorf("got %s, want a list as in the description of the API", body)
		}
	})
}

// Catches a timeout of the server that ends a wait. The timeout of a request and that of a response are 10 s.
func TestWaitOutlastsTimeouts(t *testing.T) {
	need.Long(t)
	t.Parallel()
	s := newSite(t)
	s.Cluster.Joins, s.strict = listed, true
	s.start(t)
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %t", http2), func(t *testing.T) {
			t.Parallel()
			asking := s.by(adminBearer)
			asking.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots()}, ForceAttemptHTTP2: http2}}
			defer asking.HTTP.CloseIdleConnections()
			cursor := must.Value(asking.ListJoins(t.Context(), api.ListJoins{}))(t).Cursor
			if list, err := asking.ListJoins(t.Context(), api.ListJoins{After: cursor, Wait: "15s"}); err != nil || list.Cursor != cursor {
				t.Errorf("got %+v %v, want the same list after the wait", list, err)
			}
		})
	}
}
