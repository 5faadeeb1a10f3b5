package client_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/servingcert"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

const bearer = "admin-bearer-0123456789"

// newServer returns a real server with the file store, and the CA of its cluster.
func newServer(t *testing.T) (server.Server, *boltstore.Store, *signer.CA) {
	t.Helper()
	store := must.Value(boltstore.Open(filepath.Join(t.TempDir(), "kubejoin.db")))(t)
	t.Cleanup(func() { _ = store.Close() })
	ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	kubeconfig := must.Value(clusterinfo.Kubeconfig("https://api.example.com:6443", ca.Bundle()))(t)
	operators := must.Value(auth.ParseTokenFile([]byte(bearer + ",ada,1,kubejoin:admins\n")))(t)
	return server.Server{
		Tokens: store, Claims: store.Claims(), ClusterInfo: &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig},
		Callers: server.Callers{Authenticate: operators.Authenticate, Authorize: auth.AllowGroup("kubejoin:admins")},
		Minting: server.Minting{Advertise: "join.example.com:9443"},
	}, store, ca
}

// overTLS serves s over TLS and returns a client of it.
func overTLS(t *testing.T, s server.Server, ca *signer.CA) *client.Client {
	t.Helper()
	certificate := &servingcert.Source{CA: func() *signer.CA { return ca }, Names: []string{"127.0.0.1"}}
	must.Value(certificate.Step(t.Context()))(t)
	listener := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	web := must.Value(s.HTTPServer(&tls.Config{GetCertificate: certificate.GetCertificate}))(t)
	go func() { _ = web.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = web.Close() })
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return &client.Client{URL: "https://" + listener.Addr().String() + "/", Bearer: bearer, HTTP: &http.Client{Transport: transport}}
}

// Creates, lists, renews, releases and deletes at a real server.
func TestTokenAndClaim(t *testing.T) {
	s, store, ca := newServer(t)
	c := overTLS(t, s, ca)
	ctx := t.Context()
	own := tokens.Generate()
	made := must.Value(c.CreateToken(ctx, api.CreateToken{
		Token:     api.Secret(own.Reveal()),
		TokenSpec: api.TokenSpec{TTL: "1h", Groups: []string{}, MaxNodes: 2, NodeNames: []string{"worker-*"}, CertificateDuration: "48h"},
	}))(t)
	if made.Token.Reveal() != own.Reveal() || made.MaxNodes != 2 || len(made.Groups) != 0 || !strings.Contains(made.JoinCommand.Reveal(), "kubeadm join join.example.com:9443 --token "+own.Reveal()) {
		t.Errorf("made %+v", made)
	}
	list, err := c.ListTokens(ctx)
	if err != nil || len(list.Items) != 1 || list.Items[0].ID != own.ID() || list.Items[0].Token != "" {
		t.Errorf("list %+v, %v", list, err)
	}
	got, err := c.GetToken(ctx, own.ID())
	if err != nil || got.ID != own.ID() || got.Status != api.StatusActive {
		t.Errorf("get %+v, %v", got, err)
	}
	renewed, err := c.RenewToken(ctx, own.ID(), api.RenewToken{TTL: "5h"})
	if err != nil || time.Until(renewed.Expires) < 4*time.Hour {
		t.Errorf("renewed %+v, %v", renewed, err)
	}
	record := must.Value(store.Update(ctx, own.ID(), func(r *tokens.Record) error { r.Nodes = []string{"worker-1"}; return nil }))(t)
	must.Value(storetest.CreateClaim(ctx, store.Claims(), tokens.Claim{Node: "worker-1", TokenID: own.ID(), TokenUID: record.UID, Limits: record.Limits}))(t)
	claims, err := c.ListClaims(ctx)
	if err != nil || len(claims.Items) != 1 || claims.Items[0].Node != "worker-1" || claims.Items[0].Token != own.ID() {
		t.Errorf("claims %+v, %v", claims, err)
	}
	if released, err := c.ReleaseClaim(ctx, "worker-1", api.ReleaseClaim{}); err != nil || released.Node != "worker-1" {
		t.Errorf("released %+v, %v", released, err)
	}
	if now, err := store.Get(ctx, own.ID(), tokens.Live); err != nil || len(now.Nodes) != 0 {
		t.Errorf("nodes %v, %v", now.Nodes, err)
	}
	command, err := c.PrintJoinCommand(ctx, api.PrintJoinCommand{TokenSpec: api.TokenSpec{MaxNodes: 1}})
	if err != nil || !strings.HasPrefix(command.Reveal(), "kubeadm join join.example.com:9443 --token ") || strings.HasSuffix(command.Reveal(), "\n") {
		t.Errorf("command %q, %v", command.Reveal(), err)
	}
	if gone, err := c.DeleteToken(ctx, own.ID(), api.DeleteToken{}); err != nil || gone.ID != own.ID() {
		t.Errorf("deleted %+v, %v", gone, err)
	}
	var p *api.Problem
	if _, err := c.GetToken(ctx, own.ID()); !errors.As(err, &p) || p.Status != 404 || !p.Named("no-token") || p.RequestID == "" {
		t.Errorf("after its deletion: %v", err)
	}
	if _, err := c.RenewToken(ctx, "no/../way?x#y", api.RenewToken{}); !errors.As(err, &p) || p.Status != 400 && p.Status != 404 {
		t.Errorf("invalid token ID: got %v, want problem 400 or 404", err)
	}
}

// Catches an error of another server, or of the connection, that is returned as a problem of kubejoin.
func TestReturnsProblemsOnlyOfKubejoin(t *testing.T) {
	s, _, ca := newServer(t)
	c := overTLS(t, s, ca)
	var p *api.Problem
	if _, err := c.CreateToken(t.Context(), api.CreateToken{TokenSpec: api.TokenSpec{MaxNodes: -1}}); !errors.As(err, &p) || p.Status != 400 || p.Field != "maxNodes" || err.Error() != p.Detail {
		t.Errorf("%v", err)
	}
	stranger := *c
	stranger.Bearer = "hunter2-hunter2-hunter2"
	if _, err := stranger.ListTokens(t.Context()); !errors.As(err, &p) || p.Status != 401 || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
	if text := fmt.Sprintf("%v %+v %#v", stranger, stranger, stranger); strings.Contains(text, "hunter2") {
		t.Errorf("got %s, want no bearer token in it", text)
	}
	untrusting := *c
	untrusting.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()}}}
	if _, err := untrusting.ListTokens(t.Context()); err == nil || errors.As(err, &p) && p.Status == 0 || !strings.Contains(err.Error(), "certificate") || !strings.HasPrefix(err.Error(), c.URL) {
		t.Errorf("%v", err)
	}

	for name, answer := range map[string]http.HandlerFunc{
		"a web server": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
		},
		"a redirect":    func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNotModified) },
		"empty problem": func(w http.ResponseWriter, _ *http.Request) { problem(w, `{}`) },
		"broken":        func(w http.ResponseWriter, _ *http.Request) { problem(w, `{`) },
		"wrong type":    func(w http.ResponseWriter, _ *http.Request) { problem(w, `{"detail": "x", "status": "500"}`) },
		"JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(500)
			_, _ = io.WriteString(w, `{"detail": "x"}`)
		},
		"no JSON": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") },
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(200)
		},
	} {
		other := httptest.NewServer(answer)
		_, err := (&client.Client{URL: other.URL}).ListTokens(t.Context())
		if err == nil || errors.As(err, new(*api.Problem)) || !strings.HasPrefix(err.Error(), other.URL+": ") {
			t.Errorf("%s: %v", name, err)
		}
		other.Close()
		if _, err := (&client.Client{URL: other.URL}).ListTokens(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") || strings.Count(err.Error(), other.URL) != 1 {
			t.Errorf("closed: %v", err)
		}
	}
}

// Catches a client that returns a truncated join command, which a person would paste.
func TestJoinCommandThatWasCutOffIsAnError(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "kubeadm join 192.0.2.1:6443 --token")
	}))
	defer other.Close()
	command, err := (&client.Client{URL: other.URL}).PrintJoinCommand(t.Context(), api.PrintJoinCommand{})
	if err == nil || !strings.Contains(err.Error(), "ended early") || command != "" {
		t.Errorf("%q, %v", command.Reveal(), err)
	}
}

func TestMalformedURLIsAnError(t *testing.T) {
	if _, err := (&client.Client{URL: "https://[::1"}).ListTokens(t.Context()); err == nil || !strings.Contains(err.Error(), "[::1") {
		t.Errorf("%v", err)
	}
}

func problem(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(500)
	_, _ = io.WriteString(w, body)
}

// Catches a secret in logs and formatted values.
func TestSecretIsShownOnlyInJSON(t *testing.T) {
	held := struct{ S api.Secret }{"hunter2"}
	if content, err := json.Marshal(held); err != nil || string(content) != `{"S":"hunter2"}` {
		t.Errorf("%s, %v", content, err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", held.S)
	for _, text := range []string{fmt.Sprint(held), fmt.Sprintf("%+v %#v %s %q", held, held, held.S, held.S), log.String()} {
		if strings.Contains(text, "hunter2") || !strings.Contains(text, "redacted") {
			t.Errorf("%s", text)
		}
	}
	if api.Secret("").String() != "" {
		t.Errorf("got %q for the empty secret, want an empty string", api.Secret(""))
	}
}
