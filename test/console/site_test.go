package console

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// joined is how many real kubelets the control plane has.
const joined = 11

// refusals are requests for node names that kubejoin refuses, by reason. prepare returns the ID of the token that requests.
var refusals = map[string]struct {
	node    string
	prepare func(t *testing.T, s *harness.Site) string
}{
	"TokenSpent": {"spent", func(t *testing.T, s *harness.Site) string {
		id := s.CreateToken(t, tokens.Limits{MaxNodes: 1}).ID()
		request(t, s, id, "first-of-spent", "first-of-spent")
		s.WaitIssued(t, "first-of-spent")
		return id
	}},
	"TokenRevoked": {"no-token", func(*testing.T, *harness.Site) string { return "000000" }},
	"TokenLimitsMalformed": {"malformed", func(t *testing.T, s *harness.Site) string {
		must.OK(t, harness.StoreToken(t.Context(), s.Client(), "badbad", map[string]string{"kubejoin.io/max-nodes": "many"}))
		return "badbad"
	}},
	"NodeNameNotAllowed": {"other-name", func(t *testing.T, s *harness.Site) string {
		return s.CreateToken(t, tokens.Limits{NodeNames: []string{"rack-a-*"}}).ID()
	}},
	"NodeNameReserved": {"cp-1", unlimited},
	"NodeNameClaimed": {"claimed", func(t *testing.T, s *harness.Site) string {
		request(t, s, s.CreateToken(t, tokens.Limits{MaxNodes: 1}).ID(), "claimer", "claimed")
		s.WaitIssued(t, "claimer")
		return unlimited(t, s)
	}},
	"NodeExists": {"existing", func(t *testing.T, s *harness.Site) string {
		must.Value(s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "existing"}}, metav1.CreateOptions{}))(t)
		return unlimited(t, s)
	}},
	"NodeReplaced": {"replaced", func(t *testing.T, s *harness.Site) string {
		must.Value(s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "replaced"}}, metav1.CreateOptions{}))(t)
		return s.CreateToken(t, tokens.Limits{Replaces: tokens.NodeRef{Name: "replaced", UID: "of-an-earlier-node"}}).ID()
	}},
	"TooManyKeys": {"many-keys", func(t *testing.T, s *harness.Site) string {
		id := s.CreateToken(t, tokens.Limits{MaxNodes: 1}).ID()
		for i := range tokens.MaxKeys {
			name := fmt.Sprintf("many-keys-%d", i)
			request(t, s, id, name, "many-keys")
			s.WaitIssued(t, name)
		}
		return id
	}},
}

// unlimited returns the ID of a token without limits.
func unlimited(t *testing.T, s *harness.Site) string {
	t.Helper()
	return s.CreateToken(t, tokens.Limits{}).ID()
}

// request creates a request with the token of this ID.
func request(t *testing.T, s *harness.Site, id, name, node string) {
	t.Helper()
	must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, id), name, certificates.KubeAPIServerClientKubeletSignerName, node))
}

// signIn signs in with a bearer token.
func (p *page) signIn(bearer string) {
	p.Helper()
	run(p, chromedp.SendKeys("input[type=password]", bearer+"\r"))
}

// visit shows the view of a fragment.
func (p *page) visit(fragment string) {
	p.Helper()
	eval[string](p, "location.hash = "+quote(fragment))
}

// tabTo presses the Tab key until the element with this text has the focus.
func (p *page) tabTo(text string) {
	p.Helper()
	for range 100 {
		run(p, chromedp.KeyEvent("\t"))
		if eval[string](p, "document.activeElement.textContent") == text {
			return
		}
	}
	p.Fatalf("the Tab key does not reach %s", text)
}

// TestShowsWhatJoins looks at a control plane with kubelets that have joined and machines that are refused, as an administrator.
func TestShowsWhatJoins(t *testing.T) {
	require(t, "chromium")
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{}, "--reserved-node-names=cp-*")
	args, token := s.JoinArgs(t, fmt.Sprintf("?maxNodes=%d", joined))
	var joining sync.WaitGroup
	for i := range joined {
		joining.Go(func() {
			node, err := s.Join(t.Context(), fmt.Sprintf("worker-%d", i+1), args)
			if err == nil {
				err = node.WaitJoined(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	ids := map[string]string{}
	for reason, r := range refusals {
		ids[reason] = r.prepare(t, s)
	}
	time.Sleep(time.Second) // times in the cluster have seconds, and the order matters
	for reason, r := range refusals {
		request(t, s, ids[reason], r.node, r.node)
	}
	// kubejoin decides nothing about the requests of a person without permission.
	s.RunKubectl(t, "create", "clusterrolebinding", "person", "--clusterrole", "system:node-bootstrapper", "--user", "person")
	for _, node := range []string{"by-person", "denied"} {
		must.OK(t, harness.CreateRequest(t.Context(), s.As(t, "person", "system:authenticated"), node, certificates.KubeAPIServerClientKubeletSignerName, node))
	}
	must.OK(t, harness.Decide(t.Context(), s.Client(), "denied", certificates.CertificateDenied))
	p := open(t, s.Endpoint, s.Roots, "en")
	p.see("Sign in to see what joins.")
	p.look("sign-in", nil)
	p.signIn("wrong-" + s.Bearer(t))
	p.see("The server does not accept this token.")
	p.signIn(s.Bearer(t))
	joining.Wait()
	p.see("denied: refused")
	for reason, r := range refusals {
		p.await(r.node+" with "+reason, fmt.Sprintf(`[...document.querySelectorAll('tbody.stuck')].some(b => b.querySelector('th').textContent === %q && b.querySelector('.reason').textContent === %q && b.querySelector('.advice').textContent.length > 20)`, r.node, reason))
	}
	p.await("all workers", fmt.Sprintf("document.querySelectorAll('tbody.joined').length === %d", joined))
	p.look("machines", nil)

	p.visit("#/token/" + token.ID())
	p.see(fmt.Sprintf("%d of %[1]d joined", joined))

	p.visit("#/machine/spent")
	p.see("certificate requested", "TokenSpent", "kubectl describe csr spent")
	p.look("machine", nil)

	p.visit("#/machine/by-person")
	p.see("kubectl certificate approve by-person")

	p.tabTo("Tokens")
	run(p, chromedp.KeyEvent("\r"))
	p.see(token.ID(), fmt.Sprintf("%d of %[1]d", joined))
	p.look("tokens", nil)
	run(p, chromedp.SetValue("input[name=nodeNames]", "by-page"))
	run(p, chromedp.Click("form.create button"))
	p.see("This is shown once.")
	run(p, chromedp.Click(".secret .command button"))
	copied := eval[string](p, "navigator.clipboard.readText()")
	args = must.Value(cluster.JoinArgs(copied))(t)
	made := args[slices.Index(args, "--token")+1]
	s.ParseToken(t, made)
	run(p, chromedp.Click(".secret > button"))
	if shown := eval[string](p, "document.documentElement.outerHTML"); strings.Contains(shown, made) {
		t.Error("the page still has the secret")
	}
	node := must.Value(s.Join(t.Context(), "by-page", args))(t)
	must.OK(t, node.WaitJoined(t.Context()))
	p.visit("#/machine/by-page")
	p.see("joined (Joined)")
	if kept := eval[string](p, "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"); kept != fmt.Sprintf(`[{},{},"","%s/console#/machine/by-page"]`, p.url) {
		t.Errorf("the page keeps %s", kept)
	}
	eval[bool](p, "location.reload() || true")
	p.see("Sign in to see what joins.")

	// A viewer with a token as 'kubejoin console' says.
	s.RunKubectl(t, "-n", "kubejoin-system", "create", "serviceaccount", "viewer")
	s.RunKubectl(t, "create", "clusterrolebinding", "kubejoin-console", "--clusterrole", "kubejoin:viewer", "--serviceaccount", "kubejoin-system:viewer")
	viewer := s.RunKubectl(t, "-n", "kubejoin-system", "create", "token", "viewer", "--audience", "kubejoin", "--duration", "1h")
	s.Secrets.Add("the viewer", viewer)
	p.signIn(viewer)
	p.see("joined (Joined)")
	p.visit("#/machines")
	p.see("TokenSpent")
	p.visit("#/tokens")
	p.see(token.ID())
	if eval[int](p, "document.querySelectorAll('form.create').length") > 0 {
		t.Error("the page offers a new token to a viewer")
	}
	for _, call := range [][2]string{
		{"POST", "/v1/token/print-join-command"}, {"POST", "/v1/token"}, {"POST", "/v1/token/" + token.ID() + "/renew"}, {"DELETE", "/v1/token/" + token.ID()},
		{"DELETE", "/v1/claim/claimed"}, {"POST", "/v1/machine"}, {"DELETE", "/v1/machine/worker-1"}, {"POST", "/v1/revocation"}, {"DELETE", "/v1/revocation/worker-1"},
		{"POST", "/v1/ca/cluster/rotation/prepare"}, {"POST", "/v1/ca/cluster/rotation/trust"}, {"POST", "/v1/ca/cluster/rotation/switch"},
		{"POST", "/v1/ca/cluster/rotation/finish"}, {"POST", "/v1/ca/cluster/rotation/abort"},
	} {
		if got := byHand(p, call[0], call[1], viewer); got != http.StatusForbidden {
			t.Errorf("%s %s as a viewer: got %d, want 403", call[0], call[1], got)
		}
	}
	if got := byHand(p, "POST", "/v1/token", "wrong"); got != http.StatusUnauthorized {
		t.Errorf("with a wrong token: got %d, want 401", got)
	}
	s.CheckSecrets(t)
}

// byHand sends a request from the page, as a user of the browser's console can do, and returns its status.
func byHand(p *page, method, path, bearer string) int {
	p.Helper()
	return eval[int](p, fmt.Sprintf(`fetch(%q, {method: %q, headers: {Authorization: %q}}).then(r => r.status)`, path, method, "Bearer "+bearer))
}

// TestReadmeSession opens the page after the session of README.md. This kubejoin has no cluster.
func TestReadmeSession(t *testing.T) {
	dir := t.TempDir()
	s := harness.ServeStandalone(t, filepath.Join(dir, "kubejoin-data"))
	_, section, _ := strings.Cut(string(harness.ReadFile(t, harness.RepositoryFile(t, "README.md"))), "\n## Try it without a cluster\n")
	section, _, _ = strings.Cut(section, "\n## ")
	bash := exec.CommandContext(t.Context(), "bash", "-e")
	bash.Dir, bash.Env = dir, append(os.Environ(), "KUBEJOIN_URL=https://"+s.Endpoint, "PATH="+filepath.Dir(harness.Kubejoin())+":"+os.Getenv("PATH"))
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(section, -1)
	bash.Stdin = strings.NewReader(blocks[2][1]) // after those that start kubejoin and get a join command
	t.Logf("%s", must.Value(bash.CombinedOutput())(t))
	learn(t, s, string(harness.ReadFile(t, filepath.Join(dir, "kubejoin-data", "token"))))
	p := open(t, s.Endpoint, s.Roots, "en")
	p.signIn(s.Bearer(t))
	p.see("this kubejoin runs without a cluster")
	p.visit("#/tokens")
	p.see("spent", "1 of 1", "worker-*")
	run(p, chromedp.Click("form.create button"))
	p.see("This is shown once.", "kubeadm join")
	learn(t, s, eval[string](p, "document.querySelector('.secret code').textContent"))
	p.visit("#/machines")
	p.await("that the join command goes", "document.querySelector('.secret') === null")
	p.see("this kubejoin runs without a cluster")
	p.visit("#/tokens")
	p.see("0 of 1")
	s.CheckSecrets(t)
}

// TestBrowserTrustsCA runs the command that 'kubejoin console' prints for Chromium on Linux.
func TestBrowserTrustsCA(t *testing.T) {
	require(t, "certutil")
	home := t.TempDir()
	s := harness.ServeStandalone(t, filepath.Join(home, "kubejoin-data"))
	printed := must.Value(exec.CommandContext(t.Context(), harness.Kubejoin(), "console", "--curlrc", s.Curlrc, "--url", "https://"+s.Endpoint).Output())(t)
	trust := exec.CommandContext(t.Context(), "sh", "-ec", regexp.MustCompile(`(?m)^  Chromium, Linux +(.+)$`).FindStringSubmatch(string(printed))[1])
	trust.Env = append(os.Environ(), "HOME="+home)
	t.Logf("%s", must.Value(trust.CombinedOutput())(t))
	open(t, s.Endpoint, nil, "en", chromedp.Env("HOME="+home)).see("Sign in to see what joins.")
}

// learn adds the secret of the token in a text to those that must not be in the log.
func learn(t *testing.T, s *harness.Program, text string) {
	t.Helper()
	s.Secrets.Add("a token", regexp.MustCompile(`\b[a-z0-9]{6}\.([a-z0-9]{16})\b`).FindStringSubmatch(text)[1])
}

// Catches another website that shows or uses the page in the browser of a user. Each request of the browser is authenticated, as
// with a client certificate.
func TestOtherSiteCannotUsePage(t *testing.T) {
	var log logs.Buffer
	var store tokens.Store
	endpoint, roots := serve(t, func() []api.Join { return nil }, func(s *server.Server) {
		s.Logger, store = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), s.Tokens
		s.Callers.Authenticate = func(*http.Request) (auth.User, error) {
			return auth.User{Name: "ada", Groups: []string{"kubejoin:admins"}}, nil
		}
	})
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<iframe src="https://%s/console"></iframe>`, endpoint)
	}))
	defer other.Close()
	p := open(t, endpoint, roots, "en")
	p.see("no machine joins", "Sign in with a token")
	p.visit("#/tokens")
	p.see("There are no tokens.")
	run(p, chromedp.Click("form.create button"))
	p.see("This is shown once.")
	p.refusals = true
	log.Reset()
	run(p, chromedp.Navigate(other.URL))
	harness.Wait(t, "the frame", func() error {
		if !strings.Contains(log.String(), "route=console ") {
			return errors.New(log.String())
		}
		return nil
	})
	for what, options := range map[string]string{"reads": `{}`, "sends a token": `{headers: {Authorization: 'Bearer ` + bearer + `'}}`} {
		if got := eval[string](p, fmt.Sprintf(`fetch('https://%s/v1/token', %s).then(r => 'status ' + r.status, e => e.name)`, endpoint, options)); got != "TypeError" {
			t.Errorf("another site %s: got %s, want that the browser refuses", what, got)
		}
	}
	eval[bool](p, fmt.Sprintf(`fetch('https://%s/v1/token?maxNodes=1', {method: 'POST', mode: 'no-cors', credentials: 'include'}).then(r => r.type === 'opaque')`, endpoint))
	time.Sleep(time.Second) // the page in a frame would load its files
	if all := must.Value(store.List(t.Context()))(t); len(all) != 1 || strings.Contains(log.String(), "route=console-file") || !strings.Contains(log.String(), "route=create-token method=POST status=403") {
		t.Errorf("got %d tokens, want only that of the page; the log:\n%s", len(all), &log)
	}
}
