package access

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
)

// TestStandaloneAccessMatchesDocumentedTable tests every cell of the documented table with a request to a standalone
// kubejoin. It catches a caller that may do more or less than documented.
func TestStandaloneAccessMatchesDocumentedTable(t *testing.T) {
	harness.Parallel(t)
	dataDir, dir := filepath.Join(t.TempDir(), "data"), t.TempDir()
	operators := filepath.Join(dir, "operators.csv")
	admin, other := rand.Text(), rand.Text()
	curlrc := filepath.Join(dir, "curlrc")
	for file, content := range map[string]string{
		operators: admin + `,ada,1,"kubejoin:admins"` + "\n" + other + ",vic,2,dev\n",
		curlrc:    fmt.Sprintf("cacert = %q\nheader = \"Authorization: Bearer %s\"\nsilent\nshow-error\nfail-with-body\n", filepath.Join(dataDir, "ca.crt"), admin),
	} {
		must.OK(t, os.WriteFile(file, []byte(content), 0o600))
	}
	p := harness.Serve(t, dir, filepath.Join(dataDir, "ca.crt"), curlrc, "--data-dir="+dataDir, "--token-auth-file="+operators, "--client-qps=0", "--rejoin-window=1h",
		"--signer-config="+kubeadmSigners(t, filepath.Join(dir, "pki")))
	ca := must.Value(signer.LoadCA(filepath.Join(dataDir, "ca.pem"), filepath.Join(dataDir, "ca.pem")))(t)
	_, free := p.JoinArgs(t, "")
	s := &harness.Site{Program: p}
	callers := map[string][]caller{
		"nobody":          {{}},
		"bootstrap token": {{bearer: free.Reveal()}},
		"node":            {{certificate: clientCertificate(t, ca, "system:node:walker", "system:nodes")}, {certificate: clientCertificate(t, ca, "system:node:walker", "system:nodes", "kubejoin:admins")}},
		"user":            {{certificate: clientCertificate(t, ca, "jane", "kubejoin:admins")}, {certificate: clientCertificate(t, ca, "ada", "dev")}},
		"other CA":        {{certificate: clientCertificate(t, otherCA(t), "jane", "kubejoin:admins")}},
		"admin":           {{bearer: admin}},
		"other":           {{bearer: other}},
		"bad bearer":      {{bearer: "unknown-bearer-token-of-this-test"}, {bearer: tokens.Generate().Reveal()}},
	}
	w := tableCheck{p: p, callers: callers, prepare: (&routes{
		s: s, admin: callers["admin"][0], victim: free.ID(), newToken: func() tokens.Token { _, one := p.JoinArgs(t, "?maxNodes=1"); return one },
		status: map[string]int{"/v1/explain": 404, "/v1/explain/NODE": 404, "/v1/join": 404},
	}).prepare}
	every := func(string) bool { return true }
	w.all(t, readAccess(t, "docs/http-api.md", callers), every)
	w.prepare = func(t *testing.T, route, _ string, _ bool) (path, contentType, body string, status int) {
		return kubeadmRequest(t, route)
	}
	w.all(t, readAccess(t, "docs/credentials.md", callers), every)
	p.CheckSecrets(t)
}
