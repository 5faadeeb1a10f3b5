package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	corev1 "k8s.io/api/core/v1"
)

// A webServer serves the API for commands.
type webServer struct {
	store *boltstore.Store
	// rotations are the rotations of CAs, and seen are the observations of these rotations. later is how far the clock of
	// rotations is ahead.
	rotations *rotationtest.Memory
	seen      observations
	later     time.Duration
	joins     func(node, token string) (api.JoinList, error)
	url       string
	dir       string // the folder with the CA and the bearer token
}

// newWebServer starts a server with the handler that around returns for the handler of the API.
func newWebServer(t *testing.T, around func(http.Handler) http.Handler) *webServer {
	t.Helper()
	store := must.Value(boltstore.Open(filepath.Join(t.TempDir(), "tokens.db")))(t)
	t.Cleanup(func() { _ = store.Close() })
	ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	kubeconfig := must.Value(clusterinfo.Kubeconfig("https://api.example.com:6443", ca.Bundle()))(t)
	const bearer = "bearer-0123456789abcdef"
	operators := must.Value(auth.ParseTokenFile([]byte(bearer + ",ada,1,kubejoin:admins\n")))(t)
	started := &webServer{store: store, rotations: &rotationtest.Memory{}, dir: t.TempDir()}
	web := httptest.NewTLSServer(around(must.Value(server.Server{
		Rotations: &operations.Rotations{
			Desk: &rotation.Desk{
				Store: started.rotations, Keys: started.rotations, Observer: &started.seen, Now: func() time.Time { return time.Now().Add(started.later) },
				Trusted: func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return ca.Bundle(), nil },
			},
			Cross: func(_ rotation.CA, fresh *x509.Certificate) (*x509.Certificate, error) { return ca.CrossSign(fresh) },
		},
		Cluster: server.Cluster{Joins: func(_ context.Context, node, token string) (api.JoinList, error) { return started.joins(node, token) }},
		Tokens:  store, ClusterInfo: &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig},
		Callers: server.Callers{Authenticate: operators.Authenticate, Authorize: auth.AllowGroup("kubejoin:admins")},
	}.Handler())(t)))
	t.Cleanup(web.Close)
	for file, content := range map[string][]byte{
		"ca": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), "bearer": []byte(bearer),
	} {
		must.OK(t, os.WriteFile(filepath.Join(started.dir, file), content, 0o600))
	}
	started.url = web.URL
	return started
}

// run runs a command against the server, with a path appended to its URL.
func (w *webServer) run(t *testing.T, path string, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = run(t.Context(), w.args(path, args...), &out, &errs)
	return out.String(), err
}

// args adds the flags of the server to arguments.
func (w *webServer) args(path string, args ...string) []string {
	return append(args, "--url", w.url+path, "--ca-file", filepath.Join(w.dir, "ca"), "--bearer-file", filepath.Join(w.dir, "bearer"))
}

// With many tokens, the signatures in cluster-info exceed the response limit of the client. The command must request
// only the kubeconfig.
func TestRequestsOnlyKubeconfigOfClusterInfo(t *testing.T) {
	web := newWebServer(t, func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/configmaps/cluster-info") {
				api.ServeHTTP(w, r)
				return
			}
			r.Header.Del("Accept-Encoding")
			answer := httptest.NewRecorder()
			api.ServeHTTP(answer, r)
			var info corev1.ConfigMap
			if err := json.Unmarshal(answer.Body.Bytes(), &info); err != nil {
				t.Error(err)
			}
			info.Data["jws-kubeconfig-000000"] = strings.Repeat("s", 5<<20)
			_ = json.NewEncoder(w).Encode(info) // fails only if the client is gone
		})
	})
	out, err := web.run(t, "", "token", "create", "--print-join-command", "--format", "yaml")
	if err != nil || !strings.Contains(out, "kind: JoinConfiguration") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = web.run(t, "", "kubeconfig", "bootstrap")
	if err != nil || !strings.Contains(out, "server: https://api.example.com:6443") {
		t.Errorf("%v\n%s", err, out)
	}
}
