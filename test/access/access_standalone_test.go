package access

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := harness.Serve(t, dir, filepath.Join(dataDir, "ca.crt"), curlrc, "--data-dir="+dataDir, "--token-auth-file="+operators, "--client-qps=0", "--rejoin-window=1h",
		"--signer-config="+kubeadmSigners(t, filepath.Join(dir, "pki")))
	ca, err := signer.LoadCA(filepath.Join(dataDir, "ca.pem"), filepath.Join(dataDir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
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
	node := 0
	w := tableCheck{p: p, callers: callers}
	w.prepare = func(t *testing.T, route, column string, allowed bool) (path, contentType, body string, status int) {
		t.Helper()
		_, path, _ = strings.Cut(route, " ")
		switch {
		case route == "POST /v1/token":
			return path, "", "", 201
		case strings.HasPrefix(path, "/v1/token/ID"):
			id := free.ID()
			if route == "DELETE /v1/token/ID" && allowed {
				_, spare := p.JoinArgs(t, "")
				id = spare.ID()
			}
			return strings.Replace(path, "ID", id, 1), "", "", 200
		case route == "DELETE /v1/claim/NODE":
			if allowed {
				node++
				_, limited := p.JoinArgs(t, "?maxNodes=1")
				if _, err := newNodeCertClient(t, s, limited.Reveal(), fmt.Sprintf("claimed-%d", node)).request(t, ""); err != nil {
					t.Fatal(err)
				}
			}
			return fmt.Sprintf("/v1/claim/claimed-%d", node), "", "", 200
		case route == "POST /v1/revocation":
			return path, "application/json", `{"node":"other-worker"}`, 201
		case path == "/v1/revocation/REVOKED":
			if allowed {
				if status, body := sendAs(t, p, callers["admin"][0], "POST", "/v1/revocation?node=other-worker", "", ""); status != 201 {
					t.Fatalf("%d %s", status, body)
				}
			}
			return "/v1/revocation/other-worker", "", "", 200
		case strings.HasSuffix(path, "/subjectaccessreviews"):
			return path, "application/json", `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1"}`, 200
		case path == "/v1/issued/SERIAL":
			return "/v1/issued/1", "", "", 404
		case path == "/v1/rejoin/key":
			return path, "", "", 400 // the key in the body is missing
		case path == "/v1/explain":
			return path, "application/json", `{"csr":"walk"}`, 404
		case path == "/v1/explain/NODE":
			return "/v1/explain/worker-1", "", "", 404
		case path == "/v1/certificate":
			query, request := certificateFor(t, column)
			return path + query, "application/pkcs10", request, 200
		case strings.HasSuffix(path, "/tokenreviews"):
			return path, "application/json", `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"x"}}`, 200
		}
		return path, "", "", 200
	}
	every := func(string) bool { return true }
	w.all(t, readTable(t, "docs/http-api.md", "bad bearer"), every)
	w.prepare = func(t *testing.T, route, _ string, _ bool) (path, contentType, body string, status int) {
		return kubeadmRequest(t, route)
	}
	w.all(t, readTable(t, "docs/credentials.md", "other audience").only(callers), every)
	p.CheckSecrets(t)
}
