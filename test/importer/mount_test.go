package importer_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/tokens"
)

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// testMountServer runs the commands in the README of mount-server, and checks the behaviour on which an installer relies.
func (b build) testMountServer(t *testing.T) {
	needCurlAndOpenSSL(t)
	s, dir, listen := newSite(t), t.TempDir(), freeAddress(t)
	must(t, os.Symlink(s.dir, filepath.Join(dir, "kubejoin-data")))
	readme := the(os.ReadFile("../../examples/mount-server/README.md"))(t)
	blocks := shellBlock.FindAllStringSubmatch(string(readme), -1)
	if len(blocks) != 4 || blocks[1][1] != "go run ./examples/mount-server\n" {
		t.Fatalf("got %d shell blocks in the README, want 4, the second with go run: %q", len(blocks), blocks)
	}
	shell := func(block string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", strings.ReplaceAll(block, "127.0.0.1:9445", listen))
		cmd.Dir = dir
		out, err := cmd.Output()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			t.Fatalf("%v: %s", err, exit.Stderr)
		} else if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	shell(blocks[0][1])
	if made, err := os.ReadDir(dir); err != nil || len(made) != 1 {
		t.Errorf("the README creates %v, %v, want only files in kubejoin-data, which git ignores", made, err)
	}
	in := func(name string) string { return filepath.Join(dir, "kubejoin-data", name) }
	stop := start(t, b.program("mount-server"), "-listen", listen, "-api-server", "https://api.example.com:6443",
		"-ca", in("ca.crt"), "-cert", in("mount-server.crt"), "-key", in("mount-server.key"), "-keys", in("keys.txt"))
	web := s.client(t)
	fetch := func(method, path, key string) (*http.Response, string) {
		t.Helper()
		r := the(http.NewRequestWithContext(t.Context(), method, "https://"+listen+path, nil))(t)
		r.Header.Set("X-Rack-Key", key)
		answer := the(web.Do(r))(t)
		defer func() { _ = answer.Body.Close() }()
		body := the(io.ReadAll(answer.Body))(t)
		return answer, string(body)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if connection, err := tls.Dial("tcp", listen, &tls.Config{RootCAs: pool(s)}); err == nil {
			_ = connection.Close()
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}

	// A technician may create only limited tokens.
	minted := parseLine(t, shell(blocks[2][1]))
	if found := discover(t, minted); found.Server != "https://api.example.com:6443" {
		t.Errorf("discovered %s", found.Server)
	}
	var p api.Problem
	if refused := shell(blocks[3][1]); json.Unmarshal([]byte(refused), &p) != nil || p.Status != 403 || p.Field != "maxNodes" {
		t.Errorf("a technician's unlimited token: got %s, want 403 for maxNodes", refused)
	}

	keys := the(os.ReadFile(in("keys.txt")))(t)
	words := strings.Fields(string(keys)) // words of the file: KEY ada planner KEY bob technician
	ada, bob := words[0], words[3]
	for _, test := range []struct {
		method, path, key string
		status            int
		want              string
	}{
		{"GET", "/", "", 200, "racks, machines"},
		{"GET", "/healthz", "", 200, "the racks are fine"},
		{"GET", "/join/healthz", "", 200, "ok\n"},
		{"GET", "/join/readyz", "", 200, "ok\n"},
		{"GET", "/join/", "", 200, "kubejoin: "},
		{"GET", "/join/openapi.yaml", "", 200, "openapi: 3.1"}, // the link on the page
		{"GET", "/join/v1/cluster-info", "", 200, "apiVersion: v1"},
		{"GET", "/join/v1/ca?format=json", "", 200, `{"apiVersion":"output.kubejoin.io/v1alpha1","kind":"CABundle"`},
		{"GET", "/v1/ca", "", 404, "404 page not found"}, // response of the mux
		{"GET", "/join/v1/nothing", "", 404, `{"type":"https://kubejoin.io/problems/not-found"`},
		{"GET", "/api/v1/namespaces/kube-public/configmaps/cluster-info", "", 200, `{"kind":"ConfigMap"`},
		{"GET", "/api/v1/namespaces/kube-public/secrets", "", 404, `{"kind":"Status"`},
		{"GET", "/join/v1/token", "", 401, ""},
		{"GET", "/join/v1/token", bob, 403, ""},
		{"GET", "/join/v1/token", ada + "x", 401, ""},
	} {
		answer, body := fetch(test.method, test.path, test.key)
		if answer.StatusCode != test.status || !strings.HasPrefix(body, test.want) {
			t.Errorf("%s %s: got %d %s, want %d %s", test.method, test.path, answer.StatusCode, body, test.status, test.want)
		}
	}
	if answer, _ := fetch("POST", "/join/v1/token/print-join-command?maxNodes=1", bob); answer.Header.Get("Warning") != `299 - "the signer of this cluster does not enforce limits"` {
		t.Errorf("Warning: %s", answer.Header.Get("Warning"))
	}
	answer, body := fetch("POST", "/join/v1/token?maxNodes=1", ada)
	var made api.Token
	if err := json.Unmarshal([]byte(body), &made); err != nil || answer.StatusCode != 201 {
		t.Fatalf("%d %v", answer.StatusCode, err)
	}
	if at, err := answer.Location(); err != nil || at.String() != "https://"+listen+"/join/v1/token/"+made.ID {
		t.Errorf("got Location %v, %v, want the URL of the token", at, err)
	}

	// The client must work with a path prefix, and with a key instead of a bearer token.
	c := client.Client{URL: "https://" + listen + "/join", HTTP: &http.Client{Transport: keyed{web.Transport, ada}}}
	own := tokens.Generate()
	for range 2 {
		if _, err := c.CreateToken(t.Context(), api.CreateToken{Token: api.Secret(own.Reveal())}); err != nil {
			t.Error(err)
		}
	}
	list, err := c.ListTokens(t.Context())
	if err != nil || len(list.Items) != 4 {
		t.Errorf("got %d tokens, %v, want 4", len(list.Items), err)
	}
	if _, err := c.DeleteToken(t.Context(), own.ID(), api.DeleteToken{}); err != nil {
		t.Error(err)
	}
	log := stop()
	for what, secret := range map[string]string{"a token": minted.Token.RevealSecret(), "another": own.RevealSecret(), "ada's key": ada, "bob's key": bob} {
		if strings.Contains(log, secret) {
			t.Errorf("the log contains %s", what)
		}
	}
	if !strings.Contains(log, "user=bob") || !strings.Contains(log, "pattern=/join/") {
		t.Errorf("the log does not contain the user or the pattern:\n%s", log)
	}
}

func pool(s site) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(s.ca.Certificate())
	return roots
}

// keyed sends a key with each request.
type keyed struct {
	next http.RoundTripper
	key  string
}

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Rack-Key", k.key)
	return k.next.RoundTrip(r)
}
