package server_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/tokens"
)

func TestJoinCommandLeadsToDiscovery(t *testing.T) {
	s := newSite(t)
	s.start(t)
	got := s.do(t, "POST", commandPath+"?ttl=2h", adminBearer, "application/x-www-form-urlencoded", `{"description":"rack 7"}`) // as curl -d sends it
	if got.status != 200 || got.header.Get("Content-Type") != "text/plain; charset=utf-8" || got.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v", got.status, got.header)
	}
	endpoint, token, pins := parseLine(t, got.body)
	found := must.Value(clusterinfo.Discover(t.Context(), endpoint, token, pins))(t)
	if found.Server != "https://api.example.com:6443" {
		t.Errorf("discovered server %s", found.Server)
	}
	record := s.record(t, token.ID())
	if left := time.Until(record.Expires); left < 119*time.Minute || left > 2*time.Hour+time.Second {
		t.Errorf("expires in %v, want 2h", left)
	}
	if record.Description != "rack 7" || !record.Signing || !record.Authentication || len(record.Groups) != 1 || record.Groups[0] != tokens.DefaultGroup {
		t.Errorf("record %+v", record)
	}
	for name, secret := range map[string]string{"token": token.RevealSecret(), "bearer": adminBearer} {
		if strings.Contains(s.logs.String(), secret) {
			t.Errorf("the %s is in the log", name)
		}
	}
	if !strings.Contains(s.logs.String(), "user=ada token="+token.ID()) {
		t.Errorf("the log does not name the creator of token %s:\n%s", token.ID(), s.logs)
	}
}

// Catches a join command that lacks a CA during a CA rotation.
func TestJoinCommandPinsEveryCA(t *testing.T) {
	s := newSite(t)
	cas, _ := s.rotate(t)
	s.start(t)
	endpoint, token, pins := parseLine(t, s.do(t, "POST", commandPath, adminBearer, "", "").body)
	if !slices.Equal(pins, clusterinfo.Pins(cas)) {
		t.Errorf("pins %v, want those of both CAs, %v", pins, clusterinfo.Pins(cas))
	}
	if _, err := clusterinfo.Discover(t.Context(), endpoint, token, pins); err != nil {
		t.Error(err)
	}
}

// rotate adds a CA to cluster-info. It returns all CAs and the kubeconfig.
func (s *site) rotate(t *testing.T) ([]*x509.Certificate, []byte) {
	t.Helper()
	cas := append(s.ca.Bundle(), newSite(t).ca.Bundle()...)
	kubeconfig := must.Get(clusterinfo.Kubeconfig("https://api.example.com:6443", cas))
	s.ClusterInfo = &clusterinfo.Computed{Tokens: s.store, Kubeconfig: kubeconfig}
	return cas, kubeconfig
}

// neverSigned is a cluster-info that never gets a signature.
type neverSigned struct{ server.ClusterInfo }

func (neverSigned) WaitSigned(ctx context.Context, _ tokens.Token) ([]byte, error) {
	<-ctx.Done()
	return nil, errors.New("cluster-info has no signature of it")
}

// Catches a Server that panics at the first request because a required field is missing.
func TestHandlerRefusesServerThatLacksAPart(t *testing.T) {
	s, _ := revoking(t)
	s.rotating()
	s.Status.Checks = []server.Check{{Name: "tokens", Ready: func(context.Context) error { return nil }}}
	whole := s.Server
	must.Value(whole.Handler())(t)
	for field, remove := range map[string]func(s *server.Server){
		"Tokens":                         func(s *server.Server) { s.Tokens = nil },
		"ClusterInfo":                    func(s *server.Server) { s.ClusterInfo = nil },
		"Certificates.Authority":         func(s *server.Server) { s.Certificates = &server.Certificates{} },
		"Certificates.Authority.Facts":   func(s *server.Server) { s.Certificates = &server.Certificates{Authority: &signer.Authority{}} },
		"Webhooks.Authorization.Revoked": func(s *server.Server) { s.Webhooks.Authorization = &server.Authorization{} },
		"Revocations.Guard, Revocations.Tokens, Revocations.ClusterInfo, Revocations.Claims, Revocations.IssuanceRecord": func(s *server.Server) { s.Revocations = &desk.Revoker{} },
		"Rotations.Desk.Store, Rotations.Desk.Keys, Rotations.Desk.Observer, Rotations.Desk.Trusted":                     func(s *server.Server) { s.Rotations = &operations.Rotations{} },
		"Status.Checks: Ready of tokens": func(s *server.Server) { s.Status.Checks = []server.Check{{Name: "tokens"}} },
	} {
		lacking := whole
		remove(&lacking)
		for name, build := range map[string]func() error{
			"Handler":    func() error { _, err := lacking.Handler(); return err },
			"HTTPServer": func() error { _, err := lacking.HTTPServer(nil); return err },
		} {
			if err := build(); err == nil || !strings.HasSuffix(err.Error(), "required fields: "+field) {
				t.Errorf("%s without %s: got %v, want an error that names it", name, field, err)
			}
		}
	}
}

func TestAuthenticationAndAuthorization(t *testing.T) {
	broken := func(*http.Request) (auth.User, error) { return auth.User{}, errors.New("reviewer down") }
	for _, test := range []struct {
		name, bearer string
		change       func(*server.Server)
		status       int
	}{
		{name: "admin", bearer: adminBearer, status: 200},
		{name: "another user", bearer: viewerBearer, status: 403},
		{name: "no bearer", status: 401},
		{name: "unknown bearer", bearer: adminBearer + "x", status: 401},
		{name: "no authenticator", bearer: adminBearer, change: func(s *server.Server) { s.Callers.Authenticate = nil }, status: 403},
		{name: "no authorizer", bearer: adminBearer, change: func(s *server.Server) { s.Callers.Authorize = nil }, status: 403},
		{name: "no authorizer and no bearer", change: func(s *server.Server) { s.Callers.Authorize = nil }, status: 403},
		{name: "authenticator away", bearer: adminBearer, change: func(s *server.Server) { s.Callers.Authenticate = broken }, status: 503},
		{name: "authorizer away", bearer: adminBearer, change: func(s *server.Server) {
			s.Callers.Authorize = func(*http.Request, auth.User, auth.Access) error { return errors.New("reviewer down") }
		}, status: 503},
		{name: "no group at all", bearer: viewerBearer, change: func(s *server.Server) { s.Callers.Authorize = auth.AllowGroup("") }, status: 403},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t)
			s.Status.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/plain")
				_, _ = io.WriteString(w, "metrics")
			})
			if test.change != nil {
				test.change(&s.Server)
			}
			s.start(t)
			for _, route := range [][2]string{{"POST", commandPath}, {"GET", "/metrics"}} {
				got := s.do(t, route[0], route[1], test.bearer, "", "")
				if got.status != test.status {
					t.Errorf("%s: status %d, want %d: %s", route[1], got.status, test.status, got.body)
				}
				if strings.Contains(got.body, "reviewer down") {
					t.Errorf("%s: the response shows an internal error: %s", route[1], got.body)
				}
				if (got.status == 401) != (got.header.Get("WWW-Authenticate") != "") || (got.status == 503) != (got.header.Get("Retry-After") != "") {
					t.Errorf("%s: status %d with headers %v", route[1], got.status, got.header)
				}
			}
			for _, path := range []string{infoPath, "/healthz", "/readyz", "/version"} {
				if got := s.do(t, "GET", path, "", "", ""); got.status != 200 {
					t.Errorf("%s without a credential: got %d, want 200", path, got.status)
				}
			}
		})
	}
}
