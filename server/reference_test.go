package server_test

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/reference"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	certificates "k8s.io/api/certificates/v1"
	"sigs.k8s.io/yaml"
)

func TestServesOpenAPIInBothFormats(t *testing.T) {
	h := newSite(t).Handler()
	inYAML, inJSON := get(t, h, "/openapi.yaml", "Accept", "*/*"), get(t, h, "/openapi.json", "Accept", "*/*")
	if inYAML.Body.String() != string(server.OpenAPI()) {
		t.Error("/openapi.yaml differs from openapi.yaml")
	}
	var one, other any
	must.OK(t, errors.Join(yaml.Unmarshal(inYAML.Body.Bytes(), &one), json.Unmarshal(inJSON.Body.Bytes(), &other)))
	if !reflect.DeepEqual(one, other) {
		t.Error("/openapi.json differs from /openapi.yaml")
	}
	for _, path := range []string{"/openapi.yaml", "/openapi.json", "/"} {
		if w := get(t, h, path, "If-None-Match", get(t, h, path).Header().Get("ETag")); w.Code != 304 || w.Body.Len() > 0 {
			t.Errorf("%s with its ETag: got %d %s, want 304", path, w.Code, w.Body)
		}
	}
}

var policyStyle = regexp.MustCompile(`style-src '(sha256-[^']+)'`)

// Catches a page that is malformed, lacks an operation or a problem, links to another server, or loads or runs
// anything.
func TestReferencePageIsCompleteAndSelfContained(t *testing.T) {
	h := newSite(t).Handler()
	w := get(t, h, "/", "Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	page := w.Body.String()
	if media := w.Header().Get("Content-Type"); w.Code != 200 || media != "text/html; charset=utf-8" {
		t.Errorf("%d, content type %s", w.Code, media)
	}
	ids, links, style := map[string]bool{}, map[string]bool{}, ""
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = true, []string{"meta", "link", "br"}, xml.HTMLEntity
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v near %.80q", err, page[max(0, d.InputOffset()-80):])
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch name := start.Name.Local; name {
		case "script", "img", "iframe", "form", "object", "base":
			t.Errorf("the page has an element %s, want none", name)
		case "style":
			if text, err := d.Token(); err == nil {
				style = string(text.(xml.CharData))
			}
		}
		for _, a := range start.Attr {
			switch name := a.Name.Local; {
			case name == "id":
				if ids[a.Value] {
					t.Errorf("the page has id %s twice", a.Value)
				}
				ids[a.Value] = true
			case name == "href":
				links[a.Value] = true
			case name == "style", name == "src", strings.HasPrefix(name, "on"):
				t.Errorf("the page has an attribute %s, want none", name)
			}
		}
	}
	for link := range links {
		if to, found := strings.CutPrefix(link, "#"); found && !ids[to] {
			t.Errorf("the page links to %s, which it does not have", link)
		} else if !found && link != "data:," && link != "openapi.yaml" && link != "openapi.json" {
			t.Errorf("the page links to %s, want only links to itself and openapi.yaml or .json", link)
		}
	}
	for _, op := range document(t).Operations {
		if !ids[op.ID] || !links["#"+op.ID] {
			t.Errorf("the page lacks operation %s or a link to it", op.ID)
		}
		for _, p := range op.Problems {
			if !links["#problem-"+p] {
				t.Errorf("the page has no link to problem %s", p)
			}
		}
	}
	for _, wrong := range []string{"**", "](", "ZgotmplZ", "map[", "&lt;nil&gt;", "`", "127.0.0.1"} {
		if at := strings.Index(page, wrong); at >= 0 {
			t.Errorf("the page has %q: %q", wrong, page[max(0, at-60):at+10])
		}
	}
	policy := w.Header().Get("Content-Security-Policy")
	sum := sha256.Sum256([]byte(style))
	if m := policyStyle.FindStringSubmatch(policy); m == nil || m[1] != "sha256-"+base64.StdEncoding.EncodeToString(sum[:]) || !strings.HasPrefix(policy, "default-src 'none';") {
		t.Errorf("got policy %s, want one that allows the style of the page", policy)
	}
	for _, none := range []string{"default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} {
		if !slices.Contains(strings.Split(policy, "; "), none) {
			t.Errorf("got policy %s, want %s in it", policy, none)
		}
	}
}

func TestReferenceIsUpToDate(t *testing.T) {
	page, text, err := reference.Page(server.OpenAPI(), must.Get(os.ReadFile("console/page.css")))
	if err != nil {
		t.Fatal(err)
	}
	h := newSite(t).Handler()
	if get(t, h, "/", "Accept", "text/html").Body.String() != string(page) || get(t, h, "/", "Accept", "").Body.String() != string(text) {
		t.Error("the page is older than openapi.yaml or page.css; update it with: go generate ./server")
	}
}

func TestReferenceIsTextForOtherClients(t *testing.T) {
	h := newSite(t).Handler()
	for _, accept := range []string{"", "*/*", "application/json", "text/html;q=0"} {
		w := get(t, h, "/", "Accept", accept)
		text := w.Body.String()
		if w.Header().Get("Content-Type") != "text/plain; charset=utf-8" || w.Header().Get("Vary") != "Accept, Accept-Encoding" || strings.Contains(text, "<") {
			t.Errorf("%q: %v %s", accept, w.Header(), text)
		}
		for _, op := range document(t).Operations {
			if !strings.Contains(text, op.Path) {
				t.Errorf("%q: the text lacks %s", accept, op.Path)
			}
		}
	}
}

// Runs the commands of the page in a shell. Catches a command that fails or that uses another path than its operation.
// It does not run in parallel with other tests: net/http closes a connection of HTTP/2 whose goroutines get no CPU for
// 2 seconds, which happens among the floods of other tests.
func TestReferenceCommandsRunInShell(t *testing.T) {
	need.Programs(t, "curl", "openssl")
	s, _ := revoking(t)
	s.Status.Metrics = promhttp.HandlerFor(s.registry(), promhttp.HandlerOpts{})
	s.Cluster.Explain = func(_ context.Context, node string) (api.NodeExplanation, error) {
		return explain.Explain(explain.Facts{Node: node}, time.Now()), nil
	}
	s.Cluster.Joins = listed
	s.Cluster.ExplainRequest = func(_ context.Context, name string, _ *certificates.CertificateSigningRequest) (api.RequestExplanation, error) {
		return explain.OfRequest(approval.Request{Name: name}, api.RequestPending, errors.New("the request is no PKCS 10"), nil), nil
	}
	s.Minting.UploadCertificates = func(context.Context) (joinformat.Upload, error) { return newUpload(), nil }
	s.Cluster.Turns, s.Console = &fakeTurns{}, true
	memory := s.rotating()
	stages := map[string]rotation.Stage{"prepare-ca": rotation.Finish, "trust-ca": rotation.Prepare, "switch-ca": rotation.Trust, "finish-ca": rotation.Switch, "abort-ca": rotation.Finish} // before the sample
	s.start(t)
	folder := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
	write("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.ca.Certificate().Raw})))
	write("curlrc", "cacert = \"ca.crt\"\nheader = \"Authorization: Bearer "+adminBearer+"\"\nsilent\nshow-error\n")
	write("token-header", "Authorization: Bearer "+s.token(t, func(r *tokens.Record) {
		r.Limits.NodeNames, r.Limits.Role = []string{"worker-7"}, tokens.RoleControlPlane
	})+"\n")
	off := s.machine(t, "worker-6")
	der := must.Get(x509.MarshalPKCS8PrivateKey(off.key))
	write("kubelet-client-current.pem", string(off.chain)+string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	write("machine.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	_, key := publicPEM(t, off.key)
	must.Get(storetest.CreateClaim(t.Context(), s.Claims, tokens.Claim{Node: "worker-9", Machine: tokens.Machine{Key: key}}))
	public, _ := publicPEM(t, csrtest.Ed25519())
	write("bind.json", jsonOf(t, api.BindKey{Key: api.Text(public)}))
	entries := must.Get(s.by(adminBearer).ListIssued(t.Context(), api.ListIssued{}))
	id, _, _ := strings.Cut(s.token(t, nil), ".")
	for _, op := range document(t).Operations {
		_, said := document(t).Resolve(op.Pointer)
		samples := listOf(said["x-codeSamples"])
		if len(samples) == 0 && !strings.HasPrefix(op.ID, "tokenreview") && op.ID != "subjectaccessreview" {
			t.Errorf("%s has no sample command", op.ID)
		}
		if stage := stages[op.ID]; stage != "" {
			r := s.newRotation(t)
			if op.ID == "prepare-ca" { // the last rotation has ended
				r.Ended = r.Since
			}
			memory.set(t, r, stage)
		}
		for _, sample := range samples {
			line := sample.(map[string]any)["source"].(string)
			prefix, _, _ := strings.Cut(op.Path, "{")
			if !strings.Contains(line, "$KUBEJOIN"+prefix) {
				t.Errorf("%s: got sample command %s, want path %s in it", op.ID, line, prefix)
			}
			sh := exec.CommandContext(t.Context(), "sh", "-euc", strings.ReplaceAll(line, "curl ", "curl --fail-with-body -sS "))
			sh.Dir = folder
			sh.Env = append(os.Environ(), "KUBEJOIN="+s.url, "ID="+id, "SERIAL="+entries.Items[0].Serial)
			out, err := sh.CombinedOutput()
			if err != nil || len(out) == 0 && !strings.Contains(line, " -o ") {
				t.Errorf("%s: %v\n%s", line, err, tokens.Redact(string(out)))
			}
		}
	}
}
