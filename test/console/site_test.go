package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// joined is how many real kubelets the control plane has.
const joined = 11

// refusals are requests for node names that kubejoin refuses, by reason. token prepares one, and returns the ID of its token.
var refusals = map[string]struct {
	node  string
	token func(t *testing.T, s *harness.Site) string
}{
	"TokenSpent": {"spent", func(t *testing.T, s *harness.Site) string {
		id := s.CreateToken(t, tokens.Limits{MaxNodes: 1}).ID()
		request(t, s, id, "first-of-spent")
		s.WaitIssued(t, "first-of-spent")
		return id
	}},
	"NodeNameNotAllowed": {"other-name", func(t *testing.T, s *harness.Site) string {
		return s.CreateToken(t, tokens.Limits{NodeNames: []string{"rack-a-*"}}).ID()
	}},
	"NodeNameReserved": {"cp-1", func(t *testing.T, s *harness.Site) string { return s.CreateToken(t, tokens.Limits{}).ID() }},
	"NodeNameClaimed": {"claimed", func(t *testing.T, s *harness.Site) string {
		must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, s.CreateToken(t, tokens.Limits{MaxNodes: 1}).ID()), "claimer", certificates.KubeAPIServerClientKubeletSignerName, "claimed"))
		s.WaitIssued(t, "claimer")
		return s.CreateToken(t, tokens.Limits{}).ID()
	}},
	"NodeExists": {"existing", func(t *testing.T, s *harness.Site) string {
		must.Value(s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "existing"}}, metav1.CreateOptions{}))(t)
		return s.CreateToken(t, tokens.Limits{}).ID()
	}},
	"TokenRevoked": {"unknown-token", func(*testing.T, *harness.Site) string { return "000000" }},
}

// request creates the request of a machine with the token of this ID. The request and the node have this name.
func request(t *testing.T, s *harness.Site, id, node string) {
	t.Helper()
	must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, id), node, certificates.KubeAPIServerClientKubeletSignerName, node))
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

// check looks at a view in light and dark, with a wide and a narrow window, and in Chinese.
func (p *page) check(view string) {
	p.Helper()
	for _, language := range []string{"en", "zh-CN"} {
		eval[bool](p, `(s => { s.value = `+quote(language)+`; return s.dispatchEvent(new Event('change')) })(document.querySelector('#top select'))`)
		p.await(language, "document.documentElement.lang === "+quote(language)+" && document.querySelector('h1')")
		for _, colors := range []string{"light", "dark"} {
			must.Value(chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: colors}}}))(p.T)
			for _, width := range []int64{1280, 360} {
				run(p, chromedp.EmulateViewport(width, 900))
				p.picture(fmt.Sprintf("%s-%s-%s-%d", view, language, colors, width))
				p.checkAccessibility(view)
				if over := eval[int](p, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
					p.Errorf("%s in %s is %d pixels wider than a window of %d", view, language, over, width)
				}
			}
		}
	}
	eval[bool](p, `(s => { s.value = 'en'; return s.dispatchEvent(new Event('change')) })(document.querySelector('#top select'))`)
	run(p, chromedp.ResetViewport())
}

// TestShowsWhatJoins looks at a control plane with kubelets that have joined and machines that are refused, as an administrator.
func TestShowsWhatJoins(t *testing.T) {
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
		ids[reason] = r.token(t, s)
	}
	time.Sleep(time.Second) // times in the cluster have seconds, and the order matters
	for reason, r := range refusals {
		request(t, s, ids[reason], r.node)
	}
	p := open(t, s.Endpoint, s.Roots, "en")
	p.see("Sign in to see what joins.")
	p.check("sign-in")
	p.signIn("wrong-" + s.Bearer(t))
	p.see("The server does not accept this token.")
	p.signIn(s.Bearer(t))
	joining.Wait()
	for reason, r := range refusals {
		p.await(r.node+" with "+reason, fmt.Sprintf(`[...document.querySelectorAll('tbody.stuck')].some(b => b.querySelector('th').textContent === %q && b.querySelector('.reason').textContent === %q && b.querySelector('.advice').textContent.length > 20)`, r.node, reason))
	}
	p.await("all workers", fmt.Sprintf("document.querySelectorAll('tbody.joined').length === %d", joined))
	p.check("machines")

	p.visit("#/token/" + token.ID())
	p.see(fmt.Sprintf("%d of %[1]d joined", joined))

	p.visit("#/machine/spent")
	p.see("certificate requested", "TokenSpent", "Next commands")
	p.check("machine")

	p.visit("#/tokens")
	p.see(token.ID(), fmt.Sprintf("%d of %[1]d", joined))
	p.check("tokens")
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
	p.see("TokenSpent")
	p.visit("#/tokens")
	p.see(token.ID())
	if eval[int](p, "document.querySelectorAll('form.create').length") > 0 {
		t.Error("the page offers a new token to a viewer")
	}
	for _, call := range [][2]string{
		{"POST", "/v1/token/print-join-command"}, {"POST", "/v1/token"}, {"DELETE", "/v1/token/" + token.ID()}, {"DELETE", "/v1/claim/claimed"}, {"POST", "/v1/machine"},
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

// Catches another website that shows or uses the page in the browser of a user.
func TestOtherSiteCannotUsePage(t *testing.T) {
	endpoint, roots := serve(t, func() []api.Join { return nil })
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<iframe id="frame" src="https://%s/console"></iframe>`, endpoint)
	}))
	defer other.Close()
	p := open(t, endpoint, roots, "en")
	p.refusals = true
	run(p, chromedp.Navigate(other.URL))
	p.await("a frame without the page", `document.getElementById('frame').contentDocument === null`) // the browser shows its own error, of another origin
	for what, options := range map[string]string{"reads": `{}`, "changes": `{method: 'POST', body: '{}'}`, "sends a token": `{headers: {Authorization: 'Bearer ` + bearer + `'}}`} {
		if got := eval[string](p, fmt.Sprintf(`fetch('https://%s/v1/token', %s).then(r => 'status ' + r.status, e => e.name)`, endpoint, options)); got != "TypeError" {
			t.Errorf("another site %s: got %s, want that the browser refuses", what, got)
		}
	}
}
