package test

import (
	"bytes"
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
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A caller is who sends a request: at most one of both.
type caller struct {
	bearer      string
	certificate *tls.Certificate
}

// A table is one of docs/access.md: what callers get, by the first cell of the row and the column.
type table struct {
	columns []string
	rows    []string
	cells   map[string]map[string]string
}

// readTable reads the table of docs/access.md whose header ends with a column.
func readTable(t *testing.T, last string) table {
	t.Helper()
	var found table
	for line := range strings.Lines(string(readFile(t, "../docs/access.md"))) {
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
			row := strings.Trim(cells[0], "`")
			found.rows, found.cells[row] = append(found.rows, row), map[string]string{}
			if len(cells) != len(found.columns) {
				t.Fatalf("docs/access.md: the row of %s has %d cells, want %d", row, len(cells), len(found.columns))
			}
			for i, column := range found.columns {
				found.cells[row][column] = cells[i]
			}
		}
	}
	if len(found.rows) == 0 {
		t.Fatalf("docs/access.md has no table that ends with %q", last)
	}
	return found
}

// A walk asks for every cell of a table.
type walk struct {
	p       *program
	callers map[string][]caller
	// send makes a call of a route that is let through if it is, and says what it is answered with then.
	send func(t *testing.T, route, column string, letThrough bool) (path, contentType, body string, status int)
}

// sends asks as a caller, and gives status and body.
func (p *program) sends(t *testing.T, who caller, method, path, contentType, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+p.address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if who.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+who.bearer)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	client := p.http
	if who.certificate != nil {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots, Certificates: []tls.Certificate{*who.certificate}}}
		defer transport.CloseIdleConnections()
		client = &http.Client{Transport: transport}
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

func (w walk) all(t *testing.T, in table, rows func(route string) bool) {
	t.Helper()
	walked := 0
	for _, route := range in.rows {
		if !rows(route) {
			continue
		}
		method, _, _ := strings.Cut(route, " ")
		for _, column := range in.columns {
			if column == "" || column == "permission" {
				continue
			}
			if len(w.callers[column]) == 0 {
				t.Fatalf("docs/access.md has a column %q of which this test knows nothing", column)
			}
			want := in.cells[route][column]
			for i, who := range w.callers[column] {
				path, contentType, body, passed := w.send(t, route, column, want == "yes")
				status, answer := w.p.sends(t, who, method, path, contentType, body)
				walked++
				switch want {
				case "yes":
					if status != passed {
						t.Errorf("%s as %s %d: %d %.500s, want it to be let through, with %d", route, column, i, status, answer, passed)
					}
				case "401", "403":
					kind := map[string]string{"401": "unauthorized", "403": "forbidden"}[want]
					if itoa(status) != want || !strings.Contains(strings.ToLower(answer), kind) {
						t.Errorf("%s as %s %d: %d %.500s, want %s", route, column, i, status, answer, want)
					}
					if permission := strings.Trim(in.cells[route]["permission"], "`"); want == "403" && permission != "" && !strings.Contains(answer, " may not "+permission+".kubejoin.io") {
						t.Errorf("%s as %s %d: %.500s does not name %s", route, column, i, answer, permission)
					}
				default:
					t.Errorf("docs/access.md: %s as %s is %q, want yes, 401 or 403", route, column, want)
				}
			}
		}
	}
	if walked == 0 {
		t.Error("no cell was walked")
	}
	t.Logf("%d cells and callers", walked)
}

// clientCertificate is one for a user.
func clientCertificate(t *testing.T, ca *signer.CA, name string, organizations ...string) *tls.Certificate {
	t.Helper()
	key, request := keyAndRequest(t, name, organizations...)
	parsed, err := pkcs10.Parse([]byte(request))
	if err != nil {
		t.Fatal(err)
	}
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	chain, err := signer.Profile{Usages: usages}.Issue(ca, signer.Template{CSR: parsed, Usages: usages}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(chain, pemKey(t, key))
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

func keyAndRequest(t *testing.T, name string, organizations ...string) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: organizations}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// certificateFor is what a caller of a column asks for at /v1/certificate: machines for a node's, others
// for a user's of a signer that they name.
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
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// ending is a service account's token as it was given out, but for its end.
func (s *site) ending(t *testing.T, token string, end time.Time) string {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%d parts", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	claims["exp"], claims["iat"], claims["nbf"] = end.Unix(), end.Add(-time.Hour).Unix(), end.Add(-time.Hour).Unix()
	if payload, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(readFile(t, filepath.Join(s.Dir, "pki", "sa.key")))
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	text := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(text))
	r, rest, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), rest.FillBytes(make([]byte, 32))...) // RFC 7518, section 3.4
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// operator adds a user to the token file, which is read when kubejoin starts.
func (s *site) operator(t *testing.T, user string) (bearer string) {
	t.Helper()
	file := filepath.Join(s.dir, "operators.csv")
	bearer = rand.Text()
	s.known.add("operator "+user, bearer)
	if err := os.WriteFile(file, append(readFile(t, file), fmt.Sprintf("%s,%s\n", bearer, user)...), 0o600); err != nil {
		t.Fatal(err)
	}
	return bearer
}

// account makes a service account, bound to a ClusterRole if one is given, and gives a token of it as
// docs/access.md has it.
func (s *site) account(t *testing.T, name, role string) (token string) {
	t.Helper()
	s.kubectl(t, "create", "serviceaccount", name)
	if role != "" {
		s.kubectl(t, "create", "clusterrolebinding", name, "--clusterrole", role, "--serviceaccount", "default:"+name)
	}
	token = s.kubectl(t, "create", "token", name, "--audience", "kubejoin")
	s.known.add("service account "+name, token)
	return token
}

// Every cell of the table in docs/access.md, on a real cluster.
func TestAccess(t *testing.T) {
	t.Parallel()
	s := prepare(t, cluster.Options{})
	s.flags = append(s.flags, "--client-ca-file="+s.CAFile(), "--client-qps=0") // many bad credentials come from here
	other := s.operator(t, `vic,2,"dev"`)
	s.start(t)
	s.leads(t)
	ctx, admin := t.Context(), s.Client()
	ca, err := signer.LoadCA(s.CAFile(), s.CAKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"walker", "worker-1"} {
		if _, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	victim := s.mint(t, tokens.Limits{MaxNodes: 1})
	free := s.mint(t, tokens.Limits{})
	s.ask(t, "walk", certificates.KubeAPIServerClientSignerName)

	accounts := map[string]string{"join-issuer": "kubejoin:join-issuer", "viewer": "kubejoin:viewer", "token-admin": "kubejoin:token-admin", "no rights": ""}
	callers := map[string][]caller{
		"nobody":          {{}},
		"bootstrap token": {{bearer: free.Reveal()}},
		"node":            {{certificate: clientCertificate(t, ca, "system:node:walker", "system:nodes")}},
		"user":            {{certificate: clientCertificate(t, ca, "jane", "dev")}, {certificate: clientCertificate(t, ca, "jim", "kubejoin:admins")}},
		"other CA":        {{certificate: clientCertificate(t, otherCA(t), "jane", "kubejoin:admins")}},
		"admin":           {{bearer: s.bearer(t)}},
		"other":           {{bearer: other}},
	}
	for name, role := range accounts {
		callers[name] = []caller{{bearer: s.account(t, strings.ReplaceAll(name, " ", "-"), role)}}
	}
	forServer, forOther := s.kubectl(t, "create", "token", "token-admin"), s.kubectl(t, "create", "token", "token-admin", "--audience", "other")
	callers["other audience"] = []caller{{bearer: forServer}, {bearer: forOther}}
	callers["bad bearer"] = []caller{
		{bearer: "garbage-that-nobody-has-given-out"}, {bearer: tokens.Generate().Reveal()}, {bearer: s.ending(t, callers["token-admin"][0].bearer, time.Now().Add(-time.Minute))},
		{bearer: strings.TrimRight(callers["token-admin"][0].bearer, "=") + "x"},
	}
	for name, path := range map[string]string{"join-issuer": "/v1/token?maxNodes=1&dryRun=true", "viewer": "/v1/token", "token-admin": "/v1/token"} {
		method := map[bool]string{true: "POST", false: "GET"}[strings.Contains(path, "?")]
		wait(t, "the rights of "+name, func() error {
			if status, body := s.sends(t, callers[name][0], method, path, "", ""); status != 200 {
				return fmt.Errorf("%d %s", status, body)
			}
			return nil
		})
	}

	node := 0
	w := walk{p: s.program, callers: callers}
	w.send = func(t *testing.T, route, column string, letThrough bool) (path, contentType, body string, status int) {
		t.Helper()
		_, path, _ = strings.Cut(route, " ")
		status = 200
		switch {
		case strings.HasSuffix(route, "print-join-command"):
			return path + "?maxNodes=1", "", "", 200
		case route == "POST /v1/token":
			return path, "application/json", `{"maxNodes":1}`, 201
		case route == "DELETE /v1/token/ID" && letThrough:
			return "/v1/token/" + s.mint(t, tokens.Limits{MaxNodes: 1}).ID(), "", "", 200
		case strings.HasPrefix(path, "/v1/token/ID"):
			return strings.Replace(path, "ID", victim.ID(), 1), "", "", 200
		case route == "DELETE /v1/claim/NODE":
			if !letThrough {
				return "/v1/claim/worker-1", "", "", 200
			}
			node++
			name := fmt.Sprintf("claimed-%d", node)
			if _, err := s.machine(t, s.mint(t, tokens.Limits{MaxNodes: 1}).Reveal(), name).asks(t, ""); err != nil {
				t.Fatal(err)
			}
			return "/v1/claim/" + name, "", "", 200
		case path == "/v1/issued":
			return path, "", "", 404 // the record is not asked on a cluster
		case path == "/v1/issued/SERIAL":
			return "/v1/issued/1", "", "", 404
		case path == "/v1/explain":
			return path, "application/json", `{"csr":"walk"}`, 200
		case path == "/v1/explain/NODE":
			return "/v1/explain/worker-1", "", "", 200
		case path == "/v1/certificate":
			query, request := certificateFor(t, column)
			return path + query, "application/pkcs10", request, 200
		case strings.HasSuffix(path, "/tokenreviews"):
			version := strings.Split(path, "/")[3]
			return path, "application/json", `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/` + version + `","spec":{"token":"x"}}`, 200
		}
		return path, "", "", 200
	}
	reviews := func(route string) bool { return strings.HasSuffix(route, "/tokenreviews") }
	routes := readTable(t, "other audience")
	w.all(t, routes, func(route string) bool { return !reviews(route) })
	if _, err := admin.CoreV1().Secrets("kube-system").Get(ctx, "bootstrap-token-"+victim.ID(), metav1.GetOptions{}); err != nil {
		t.Errorf("a token that nobody who may was to delete: %v", err)
	}

	// TokenReviews are answered where tokens are in a file.
	second := *s
	second.program = serve(t, s.dir, s.CAFile(), s.curlrc(), append(slices.Clone(s.flags), "--token-store=file", "--data-dir="+filepath.Join(s.dir, "data"), "--controllers=token-cleaner", "--leader-elect=false")...)
	second.program.secrets = s.known
	w.p = second.program
	w.all(t, routes, reviews)
	w.p = s.program

	// What a token may be.
	minted := readTable(t, "admin")
	for _, query := range minted.rows {
		for _, column := range minted.columns[2:] {
			for _, path := range []string{"/v1/token", "/v1/token/print-join-command"} {
				status, body := s.sends(t, callers[column][0], "POST", path+query, "", "")
				permission := strings.Trim(strings.TrimSuffix(minted.cells[query]["permission"], ", of that name"), "`")
				switch want := minted.cells[query][column]; {
				case want == "yes" && status/100 == 2, want == "403" && status == 403 && strings.Contains(body, "may not "+permission+".kubejoin.io"):
				default:
					t.Errorf("%s%s as %s: %d %.500s, want %s %s", path, query, column, status, body, want, permission)
				}
			}
		}
	}
	for column, want := range map[string]int{"token-admin": 200, "admin": 200} {
		if status, body := s.sends(t, callers[column][0], "POST", "/v1/token/"+victim.ID()+"/renew?ttl=0", "", ""); status != want {
			t.Errorf("renewal for ever as %s: %d %s", column, status, body)
		}
	}
	s.oneGroup(t)

	// By which of two things sent a caller is known.
	clusterAdmin, err := tls.X509KeyPair(s.AdminConfig().CertData, s.AdminConfig().KeyData)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		who  caller
		want int
	}{
		{"a cluster-admin's certificate", caller{certificate: &clusterAdmin}, 200},
		{"it beside a bad bearer", caller{"garbage-that-nobody-has-given-out", &clusterAdmin}, 401},
		{"it beside a bearer without rights", caller{callers["no rights"][0].bearer, &clusterAdmin}, 403},
		{"a bearer that has not expired", caller{bearer: s.ending(t, callers["viewer"][0].bearer, time.Now().Add(time.Minute))}, 200},
		{"a good bearer beside a node's certificate", caller{callers["viewer"][0].bearer, callers["node"][0].certificate}, 200},
		{"a good bearer beside another CA's", caller{s.bearer(t), callers["other CA"][0].certificate}, 200},
	} {
		if status, body := s.sends(t, test.who, "GET", "/v1/token", "", ""); status != test.want {
			t.Errorf("%s: %d %s, want %d", test.name, status, body, test.want)
		}
	}
	s.asInTheDocs(t, callers["join-issuer"][0].bearer)
	metrics := s.checkSecrets(t)
	for _, sample := range []string{`review="access",result="no"`, `review="access",result="yes"`, `review="token",result="no"`, `review="token",result="yes"`} {
		review, result, _ := strings.Cut(sample, ",")
		if metric(t, metrics, "kubejoin_access_reviews_total{"+result+","+review+"}") == 0 {
			t.Errorf("no review with %s", sample)
		}
	}
	s.known.Lock()
	defer s.known.Unlock()
	for what, secret := range s.known.list {
		if strings.Contains(second.program.Log(), secret) {
			t.Errorf("the log of the second one has the secret of %s", what)
		}
	}
}

// oneGroup is the role of docs/access.md for one group and no other.
func (s *site) oneGroup(t *testing.T) {
	t.Helper()
	if _, err := s.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "rack-7"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"kubejoin.io"}, Resources: []string{"tokens"}, Verbs: []string{"create"}},
			{APIGroups: []string{"kubejoin.io"}, Resources: []string{"tokens/groups"}, ResourceNames: []string{"system:bootstrappers:rack-7"}, Verbs: []string{"create"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	who := caller{bearer: s.account(t, "rack-7", "rack-7")}
	mint := func(query string) (int, string) {
		return s.sends(t, who, "POST", "/v1/token/print-join-command?"+query, "", "")
	}
	wait(t, "the rights of rack-7", func() error {
		if status, body := mint("maxNodes=1&groups=system:bootstrappers:rack-7"); status != 200 {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	for _, query := range []string{"maxNodes=1&groups=system:bootstrappers:rack-8", "maxNodes=1&groups=system:bootstrappers:rack-7,system:bootstrappers:rack-8", "groups=system:bootstrappers:rack-7"} {
		if status, body := mint(query); status != 403 {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}

// asInTheDocs is what docs/access.md does with curl and with kubejoin's own commands.
func (s *site) asInTheDocs(t *testing.T, bearer string) {
	t.Helper()
	token, curlrc := filepath.Join(s.dir, "installer.token"), filepath.Join(s.dir, "installer.curlrc")
	for file, content := range map[string]string{token: bearer + "\n", curlrc: fmt.Sprintf("header = \"Authorization: Bearer %s\"\n", bearer)} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
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
	line, err := run("curl", "-sS", "--cacert", s.CAFile(), "-K", curlrc, "-X", "POST", "https://"+s.address+"/v1/token/print-join-command?maxNodes=1")
	if err != nil || !strings.HasPrefix(line, "kubeadm join ") {
		t.Errorf("curl: %v %s", err, line)
	}
	flags := []string{"token", "create", "--url", "https://" + s.address, "--ca-file", s.CAFile(), "--bearer-file", token}
	made, err := run(binary, append(flags, "--max-nodes", "1")...)
	if _, parse := tokens.Parse(strings.TrimSpace(made)); err != nil || parse != nil {
		t.Errorf("kubejoin token create: %v %v", err, parse)
	}
	if _, err := run(binary, flags...); err == nil || !strings.Contains(err.Error(), "may not create tokens/unlimited.kubejoin.io, which a token for any number of nodes needs") {
		t.Errorf("kubejoin token create without a limit: %v", err)
	}
}
