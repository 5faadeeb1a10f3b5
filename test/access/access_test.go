package access

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A caller is the credential that a request carries: a bearer token, a client certificate, or neither.
type caller struct {
	bearer      string
	certificate *tls.Certificate
}

// A table holds the expected result for each caller, by the first cell of the row and by column.
type table struct {
	columns []string
	rows    []string
	cells   map[string]map[string]string
}

// readTable reads the table of a docs page whose last column is named last. The first cell of a row names one or more
// requests with the same results.
func readTable(t *testing.T, page, last string) table {
	t.Helper()
	var found table
	for line := range strings.Lines(string(harness.ReadFile(t, harness.RepositoryFile(t, page)))) {
		if !strings.HasPrefix(line, "|") {
			if found.columns != nil {
				break
			}
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case found.columns == nil:
			if cells[len(cells)-1] == last {
				found = table{columns: cells, cells: map[string]map[string]string{}}
			}
		case strings.HasPrefix(cells[0], "-"):
		default:
			if len(cells) != len(found.columns) {
				t.Fatalf("%s: the row of %s has %d cells, want %d", page, cells[0], len(cells), len(found.columns))
			}
			rows := strings.Split(strings.Trim(cells[0], "`"), "`, `")
			for n, row := range rows {
				found.rows, found.cells[row] = append(found.rows, row), map[string]string{}
				for i, column := range found.columns {
					cell := cells[i]
					if each := strings.Split(cell, "`, `"); i > 0 && len(each) == len(rows) { // the cell has one value for each request
						cell = each[n]
					}
					found.cells[row][column] = cell
				}
			}
		}
	}
	if len(found.rows) == 0 {
		t.Fatalf("%s has no table that ends with %q", page, last)
	}
	return found
}

// unauthenticated are the callers that get 401 for requests that they may not send.
var unauthenticated = []string{"nobody", "other CA", "bad bearer", "other audience"}

// readAccess reads the table of a docs page that says which callers may send a request. It returns the result for each
// caller: yes, 401 or 403.
func readAccess(t *testing.T, page string, callers map[string][]caller) table {
	t.Helper()
	documented := readTable(t, page, "allowed")
	gets := table{columns: slices.Sorted(maps.Keys(callers)), rows: documented.rows, cells: documented.cells}
	for _, row := range gets.cells {
		names := func(column, who string) bool {
			everyone, but, _ := strings.Cut(row[column], " but ")
			return everyone == "everyone" && who != but || slices.Contains(strings.Split(row[column], ", "), who)
		}
		for who := range callers {
			switch {
			case names("allowed", who):
				row[who] = "yes"
			case names("also 401", who), slices.Contains(unauthenticated, who):
				row[who] = "401"
			default:
				row[who] = "403"
			}
		}
	}
	return gets
}

// A tableCheck sends a request for every cell of a table.
type tableCheck struct {
	p       *harness.Program
	callers map[string][]caller
	// prepare returns a request for a route, and the status of the response if the request is allowed.
	prepare func(t *testing.T, route, column string, allowed bool) (path, contentType, body string, status int)
}

// sendAs sends a request with the caller's credential and returns status and body.
func sendAs(t *testing.T, p *harness.Program, who caller, method, path, contentType, body string) (int, string) {
	t.Helper()
	r := must.Value(http.NewRequestWithContext(t.Context(), method, "https://"+p.Endpoint+path, strings.NewReader(body)))(t)
	if who.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+who.bearer)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	client := p.HTTP
	if who.certificate != nil {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.Roots, Certificates: []tls.Certificate{*who.certificate}}}
		defer transport.CloseIdleConnections()
		client = &http.Client{Transport: transport}
	}
	response := must.Value(client.Do(r))(t)
	defer func() { _ = response.Body.Close() }()
	content := must.Value(io.ReadAll(response.Body))(t)
	return response.StatusCode, string(content)
}

func (w tableCheck) all(t *testing.T, in table, rows func(route string) bool) {
	t.Helper()
	requests := 0
	for _, route := range in.rows {
		if !rows(route) {
			continue
		}
		method, _, _ := strings.Cut(route, " ")
		for _, column := range in.columns {
			want := in.cells[route][column]
			for i, who := range w.callers[column] {
				path, contentType, body, passed := w.prepare(t, route, column, want == "yes")
				status, answer := sendAs(t, w.p, who, method, path, contentType, body)
				requests++
				switch want {
				case "yes":
					if status != passed {
						t.Errorf("%s as %s %d: got %d %.500s, want %d", route, column, i, status, answer, passed)
					}
				case "401", "403":
					kind := map[string]string{"401": "unauthorized", "403": "forbidden"}[want]
					if strconv.Itoa(status) != want || !strings.Contains(strings.ToLower(answer), kind) {
						t.Errorf("%s as %s %d: got %d %.500s, want %s", route, column, i, status, answer, want)
					}
					permission := in.cells[route]["permission"]
					names := func(one string) bool {
						return strings.Contains(answer, " may not "+strings.Trim(one, "`")+".kubejoin.io")
					}
					if want == "403" && permission != "" && !slices.ContainsFunc(strings.Split(permission, ", "), names) {
						t.Errorf("%s as %s %d: got %.500s, want it to name %s", route, column, i, answer, permission)
					}
				}
			}
		}
	}
	if requests == 0 {
		t.Error("no request was sent: want one for each cell")
	}
	t.Logf("%d requests", requests)
}

// routes prepares the requests of the tables in docs/http-api.md.
type routes struct {
	s        *harness.Site
	admin    caller
	victim   string // ID of a token that no test deletes
	newToken func() tokens.Token
	status   map[string]int // by path, for paths whose status differs between a cluster and a standalone kubejoin
	claimed  int
}

func (r *routes) prepare(t *testing.T, route, column string, allowed bool) (path, contentType, body string, status int) {
	t.Helper()
	_, path, _ = strings.Cut(route, " ")
	status = cmp.Or(r.status[path], 200)
	switch {
	case route == "POST /v1/machine" || strings.HasSuffix(path, "/v1/machine/NODE"):
		added := `{"items":[{"node":"walked","key":"lusab-babad-gutih-tugad","ttl":"1h"}]}`
		if route == "POST /v1/machine" {
			return path, "application/json", added, status
		}
		if status, body := sendAs(t, r.s.Program, r.admin, "POST", "/v1/machine", "application/json", added); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		return "/v1/machine/walked", "", "", status
	case path == "/v1/machine/NODE/join":
		return "/v1/machine/walked/join", "", "", status
	case path == "/v1/machine/print-join-command":
		return path, "", "", status
	case strings.HasSuffix(route, "print-join-command"):
		return path + "?maxNodes=1", "", "", status
	case route == "POST /v1/token":
		return path, "application/json", `{"maxNodes":1}`, 201
	case route == "DELETE /v1/token/ID" && allowed:
		return "/v1/token/" + r.newToken().ID(), "", "", status
	case strings.HasPrefix(path, "/v1/token/ID"):
		return strings.Replace(path, "ID", r.victim, 1), "", "", status
	case route == "DELETE /v1/claim/NODE":
		if !allowed {
			return "/v1/claim/worker-1", "", "", status
		}
		r.claimed++
		name := fmt.Sprintf("claimed-%d", r.claimed)
		must.Value(newNodeCertClient(t, r.s, r.newToken().Reveal(), name).request(t, ""))(t)
		return "/v1/claim/" + name, "", "", status
	case route == "POST /v1/revocation":
		return path, "application/json", `{"node":"other-worker"}`, 201
	case path == "/v1/revocation/REVOKED":
		if allowed {
			if status, body := sendAs(t, r.s.Program, r.admin, "POST", "/v1/revocation?node=other-worker", "", ""); status != 201 {
				t.Fatalf("%d %s", status, body)
			}
		}
		return "/v1/revocation/other-worker", "", "", status
	case path == "/v1/ca/CA/rotation":
		return "/v1/ca/cluster/rotation", "", "", status
	case path == "/v1/ca/CA/rotation/prepare":
		return "/v1/ca/cluster/rotation/prepare?dryRun", "", "", status
	case strings.HasPrefix(path, "/v1/ca/CA/rotation/"):
		return strings.Replace(path, "CA", "cluster", 1), "", "", 409 // because there is no rotation
	case path == "/v1/issued/SERIAL":
		return "/v1/issued/1", "", "", 404
	case path == "/v1/rejoin/key":
		return path, "", "", 400 // because the body has no key
	case path == "/v1/explain":
		return path, "application/json", `{"csr":"walk"}`, status
	case path == "/v1/explain/NODE":
		return "/v1/explain/worker-1", "", "", status
	case path == "/console/FILE":
		return "/console/app.js", "", "", status
	case path == "/v1/certificate":
		query, request := certificateFor(t, column)
		return path + query, "application/pkcs10", request, status
	case strings.HasSuffix(path, "/subjectaccessreviews"):
		return path, "application/json", `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1"}`, status
	case strings.HasSuffix(path, "/tokenreviews"):
		version := strings.Split(path, "/")[3]
		return path, "application/json", `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/` + version + `","spec":{"token":"x"}}`, status
	}
	return path, "", "", status
}

// clientCertificate issues a client certificate with this common name and these organizations.
func clientCertificate(t *testing.T, ca *signer.CA, name string, organizations ...string) *tls.Certificate {
	t.Helper()
	key, request := keyAndRequest(t, name, organizations...)
	parsed := must.Value(pkcs10.Parse([]byte(request)))(t)
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	chain := must.Value(must.Get(signer.NewProfile(signer.ProfileConfig{Usages: usages})).Issue(ca, signer.Template{CSR: parsed, Usages: usages}, time.Now()))(t)
	pair := must.Value(tls.X509KeyPair(chain, pemKey(t, key)))(t)
	return &pair
}

func keyAndRequest(t *testing.T, name string, organizations ...string) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: organizations}}, key))(t)
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// certificateFor returns the query and the CSR that the callers of a column send to /v1/certificate: nodes and bootstrap
// tokens request a node's certificate, others request a user's certificate from a named signer.
func certificateFor(t *testing.T, column string) (query, request string) {
	t.Helper()
	name, organization, query := "jane", "dev", "?signer="+certificates.KubeAPIServerClientSignerName
	switch column {
	case "node":
		name, organization, query = "system:node:walker", "system:nodes", ""
	case "bootstrap token":
		name, organization, query = "system:node:new-"+strings.ToLower(rand.Text()[:10]), "system:nodes", ""
	}
	_, request = keyAndRequest(t, name, organization)
	return query, request
}

func otherCA(t *testing.T) *signer.CA {
	t.Helper()
	return must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
}

// withExpiry returns the same service account token, signed again with another expiry time.
func withExpiry(t *testing.T, s *harness.Site, token string, end time.Time) string {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("the token has %d parts, want 3", len(parts))
	}
	payload := must.Value(base64.RawURLEncoding.DecodeString(parts[1]))(t)
	var claims map[string]any
	must.OK(t, json.Unmarshal(payload, &claims))
	claims["exp"], claims["iat"], claims["nbf"] = end.Unix(), end.Add(-time.Hour).Unix(), end.Add(-time.Hour).Unix()
	payload = must.Value(json.Marshal(claims))(t)
	block, _ := pem.Decode(harness.ReadFile(t, filepath.Join(s.Dir, "pki", "sa.key")))
	key := must.Value(x509.ParseECPrivateKey(block.Bytes))(t)
	text := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(text))
	r, rest, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), rest.FillBytes(make([]byte, 32))...) // RFC 7518, section 3.4
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// addOperator adds a user to the token file. kubejoin reads this file when it starts.
func addOperator(t *testing.T, s *harness.Site, user string) (bearer string) {
	t.Helper()
	file := filepath.Join(s.WorkDir, "operators.csv")
	bearer = rand.Text()
	s.Secrets.Add("operator "+user, bearer)
	must.OK(t, os.WriteFile(file, append(harness.ReadFile(t, file), fmt.Sprintf("%s,%s\n", bearer, user)...), 0o600))
	return bearer
}

// createServiceAccount creates a service account, binds it to role unless role is empty, and returns a token for the account.
func createServiceAccount(t *testing.T, s *harness.Site, name, role string) (token string) {
	t.Helper()
	s.RunKubectl(t, "create", "serviceaccount", name)
	if role != "" {
		s.RunKubectl(t, "create", "clusterrolebinding", name, "--clusterrole", role, "--serviceaccount", "default:"+name)
	}
	token = s.RunKubectl(t, "create", "token", name, "--audience", "kubejoin")
	s.Secrets.Add("service account "+name, token)
	return token
}

// TestAccessMatchesDocumentedTable sends a request for every cell of the documented table on a real cluster. It catches
// a caller that may do more or less than documented.
func TestAccessMatchesDocumentedTable(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	pki := filepath.Join(s.Dir, "pki")
	s.Flags = append(s.Flags, "--client-ca-file="+s.CAFile(), "--client-qps=0") // this test sends many bad credentials
	s.Flags = append(s.Flags, "--pki-dir="+pki, "--signer-config="+kubeadmSigners(t, pki))
	other := addOperator(t, s, `vic,2,"dev"`)
	s.RunKubectl(t, "create", "clusterrole", "patch-nodes", "--verb=patch", "--resource=nodes") // for labels and taints of tokens
	s.RunKubectl(t, "create", "clusterrolebinding", "patch-nodes", "--clusterrole=patch-nodes", "--serviceaccount=kubejoin-system:kubejoin")
	s.Start(t, "--rejoin-window=1h")
	s.WaitLeader(t)
	ctx, admin := t.Context(), s.Client()
	ca := must.Value(signer.LoadCA(s.CAFile(), s.CAKeyFile()))(t)
	for _, node := range []string{"walker", "worker-1"} {
		must.Value(admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}))(t)
	}
	victim := s.CreateToken(t, tokens.Limits{MaxNodes: 1})
	free := s.CreateToken(t, tokens.Limits{})
	s.RequestCertificate(t, "walk", certificates.KubeAPIServerClientSignerName)

	accounts := map[string]string{"join-issuer": "kubejoin:join-issuer", "viewer": "kubejoin:viewer", "token-admin": "kubejoin:token-admin", "no rights": ""}
	callers := map[string][]caller{
		"nobody":          {{}},
		"bootstrap token": {{bearer: free.Reveal()}},
		"node":            {{certificate: clientCertificate(t, ca, "system:node:walker", "system:nodes")}},
		"user":            {{certificate: clientCertificate(t, ca, "jane", "dev")}, {certificate: clientCertificate(t, ca, "jim", "kubejoin:admins")}},
		"other CA":        {{certificate: clientCertificate(t, otherCA(t), "jane", "kubejoin:admins")}},
		"admin":           {{bearer: s.Bearer(t)}},
		"other":           {{bearer: other}},
	}
	for name, role := range accounts {
		callers[name] = []caller{{bearer: createServiceAccount(t, s, strings.ReplaceAll(name, " ", "-"), role)}}
	}
	forServer, forOther := s.RunKubectl(t, "create", "token", "token-admin"), s.RunKubectl(t, "create", "token", "token-admin", "--audience", "other")
	callers["other audience"] = []caller{{bearer: forServer}, {bearer: forOther}}
	callers["bad bearer"] = []caller{
		{bearer: "unknown-bearer-token-of-this-test"}, {bearer: tokens.Generate().Reveal()}, {bearer: withExpiry(t, s, callers["token-admin"][0].bearer, time.Now().Add(-time.Minute))},
		{bearer: strings.TrimRight(callers["token-admin"][0].bearer, "=") + "x"},
	}
	for name, path := range map[string]string{"join-issuer": "/v1/token?maxNodes=1&dryRun=true", "viewer": "/v1/token", "token-admin": "/v1/token"} {
		method := map[bool]string{true: "POST", false: "GET"}[strings.Contains(path, "?")]
		harness.Wait(t, "the rights of "+name, func() error {
			if status, body := sendAs(t, s.Program, callers[name][0], method, path, "", ""); status != 200 {
				return fmt.Errorf("%d %s", status, body)
			}
			return nil
		})
	}

	w := tableCheck{p: s.Program, callers: callers, prepare: (&routes{
		s: s, admin: callers["admin"][0], victim: victim.ID(), newToken: func() tokens.Token { return s.CreateToken(t, tokens.Limits{MaxNodes: 1}) },
		status: map[string]int{"/v1/issued": 404}, // the issuance record exists only with --token-store=file
	}).prepare}
	reviews := func(route string) bool {
		return strings.HasSuffix(route, "/tokenreviews") || strings.HasSuffix(route, "/subjectaccessreviews")
	}
	documented := readAccess(t, "docs/http-api.md", callers)
	w.all(t, documented, func(route string) bool { return !reviews(route) })
	if _, err := admin.CoreV1().Secrets("kube-system").Get(ctx, "bootstrap-token-"+victim.ID(), metav1.GetOptions{}); err != nil {
		t.Errorf("got %v, want the token to exist: only callers without permission tried to delete it", err)
	}

	// kubejoin accepts TokenReviews only if it stores tokens in a file. The bearer token for TokenReviews is also valid for
	// access reviews.
	second := *s
	second.Program = harness.Serve(t, s.WorkDir, s.CAFile(), s.Curlrc(), append(slices.Clone(s.Flags), "--token-store=file", "--data-dir="+filepath.Join(s.WorkDir, "data"), "--controllers=token-cleaner", "--leader-elect=false")...)
	second.Program.Secrets = s.Secrets
	w.p = second.Program
	w.all(t, documented, reviews)
	w.p = s.Program

	// Check which permissions each kind of token needs.
	minted := readTable(t, "docs/tokens.md", "admin")
	for _, query := range minted.rows {
		for _, column := range minted.columns[2:] {
			for _, path := range []string{"/v1/token", "/v1/token/print-join-command"} {
				status, body := sendAs(t, s.Program, callers[column][0], "POST", path+query, "", "")
				permission := strings.Trim(strings.TrimSuffix(minted.cells[query]["permission"], ", of that name"), "`")
				switch want := minted.cells[query][column]; {
				case want == "yes" && status/100 == 2, want == "403" && status == 403 && strings.Contains(body, "may not "+permission+".kubejoin.io"):
				default:
					t.Errorf("%s%s as %s: got %d %.500s, want %s %s", path, query, column, status, body, want, permission)
				}
			}
		}
	}
	for column, want := range map[string]int{"token-admin": 200, "admin": 200} {
		if status, body := sendAs(t, s.Program, callers[column][0], "POST", "/v1/token/"+victim.ID()+"/renew?ttl=0", "", ""); status != want {
			t.Errorf("renewal without expiry as %s: got %d %s, want %d", column, status, body, want)
		}
	}
	checkRoleForOneGroup(t, s)
	checkControlPlanes(t, s, w)

	// Check which credential kubejoin uses if a request has a bearer token and a certificate.
	clusterAdmin := must.Value(tls.X509KeyPair(s.AdminConfig().CertData, s.AdminConfig().KeyData))(t)
	for _, test := range []struct {
		name string
		who  caller
		want int
	}{
		{"a cluster-admin's certificate", caller{certificate: &clusterAdmin}, 200},
		{"a cluster-admin's certificate and a bad bearer", caller{"unknown-bearer-token-of-this-test", &clusterAdmin}, 401},
		{"a cluster-admin's certificate and a bearer without rights", caller{callers["no rights"][0].bearer, &clusterAdmin}, 403},
		{"a bearer that has not expired", caller{bearer: withExpiry(t, s, callers["viewer"][0].bearer, time.Now().Add(time.Minute))}, 200},
		{"a valid bearer and a node's certificate", caller{callers["viewer"][0].bearer, callers["node"][0].certificate}, 200},
		{"a valid bearer and a certificate of another CA", caller{s.Bearer(t), callers["other CA"][0].certificate}, 200},
	} {
		if status, body := sendAs(t, s.Program, test.who, "GET", "/v1/token", "", ""); status != test.want {
			t.Errorf("%s: got %d %s, want %d", test.name, status, body, test.want)
		}
	}
	checkDocumentedCommands(t, s, callers["join-issuer"][0].bearer)
	metrics := s.CheckSecrets(t)
	for _, sample := range []string{`review="access",result="no"`, `review="access",result="yes"`, `review="token",result="no"`, `review="token",result="yes"`} {
		review, result, _ := strings.Cut(sample, ",")
		if harness.Metric(t, metrics, "kubejoin_access_reviews_total{"+result+","+review+"}") == 0 {
			t.Errorf("got no kubejoin_access_reviews_total with %s, want some", sample)
		}
	}
	s.Secrets.CheckAbsent(t, "the log", second.Program.Log())
}

// checkRoleForOneGroup checks a role that allows tokens for one group and one label only, as documented.
func checkRoleForOneGroup(t *testing.T, s *harness.Site) {
	t.Helper()
	must.Value(s.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "rack-7"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"kubejoin.io"}, Resources: []string{"tokens"}, Verbs: []string{"create"}},
			{APIGroups: []string{"kubejoin.io"}, Resources: []string{"tokens/groups"}, ResourceNames: []string{"system:bootstrappers:rack-7"}, Verbs: []string{"create"}},
			{APIGroups: []string{"kubejoin.io"}, Resources: []string{"tokens/labels"}, ResourceNames: []string{"node-restriction.kubernetes.io/tenant=blue"}, Verbs: []string{"create"}},
		},
	}, metav1.CreateOptions{}))(t)
	who := caller{bearer: createServiceAccount(t, s, "rack-7", "rack-7")}
	mint := func(query string) (int, string) {
		return sendAs(t, s.Program, who, "POST", "/v1/token/print-join-command?"+query, "", "")
	}
	harness.Wait(t, "the rights of rack-7", func() error {
		if status, body := mint("maxNodes=1&groups=system:bootstrappers:rack-7"); status != 200 {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	const blue = "maxNodes=1&nodeLabels=node-restriction.kubernetes.io/tenant=blue"
	if status, body := mint(blue); status != 200 {
		t.Errorf("%s: got %d %s, want 200", blue, status, body)
	}
	for _, query := range []string{
		"maxNodes=1&groups=system:bootstrappers:rack-8", "maxNodes=1&groups=system:bootstrappers:rack-7,system:bootstrappers:rack-8", "groups=system:bootstrappers:rack-7",
		"maxNodes=1&nodeLabels=node-restriction.kubernetes.io/tenant=red", blue + ",node-role.kubernetes.io/gpu=", blue + "&nodeTaints=a:NoSchedule",
	} {
		if status, body := mint(query); status != 403 {
			t.Errorf("%s: got %d %s, want 403", query, status, body)
		}
	}
}

// checkDocumentedCommands runs the documented commands with curl and with kubejoin.
func checkDocumentedCommands(t *testing.T, s *harness.Site, bearer string) {
	t.Helper()
	token, curlrc := filepath.Join(s.WorkDir, "installer.token"), filepath.Join(s.WorkDir, "installer.curlrc")
	for file, content := range map[string]string{token: bearer + "\n", curlrc: fmt.Sprintf("header = \"Authorization: Bearer %s\"\n", bearer)} {
		must.OK(t, os.WriteFile(file, []byte(content), 0o600))
	}
	run := func(name string, args ...string) (string, error) {
		var stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%w: %s%s", err, out, &stderr)
		}
		return string(out), err
	}
	line, err := run("curl", "-sS", "--cacert", s.CAFile(), "-K", curlrc, "-X", "POST", "https://"+s.Endpoint+"/v1/token/print-join-command?maxNodes=1")
	if err != nil || !strings.HasPrefix(line, "kubeadm join ") {
		t.Errorf("curl: got %q, %v, want a join command", line, err)
	}
	flags := []string{"token", "create", "--url", "https://" + s.Endpoint, "--ca-file", s.CAFile(), "--bearer-file", token}
	made, err := run(harness.Kubejoin(), append(flags, "--max-nodes", "1")...)
	if _, parse := tokens.Parse(strings.TrimSpace(made)); err != nil || parse != nil {
		t.Errorf("kubejoin token create: %v, %v, want a token", err, parse)
	}
	if _, err := run(harness.Kubejoin(), flags...); err == nil || !strings.Contains(err.Error(), "may not create tokens/unlimited.kubejoin.io, which a token without a node limit requires") {
		t.Errorf("kubejoin token create without a limit: got %v, want a refusal", err)
	}
}
