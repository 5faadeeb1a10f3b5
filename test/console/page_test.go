package console

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/joining"
	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/servingcert"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// bearer is the token of the only user.
const bearer = "admin-bearer-0123456789"

// serve serves kubejoin with these machines, after changes. It returns its address and its CAs.
func serve(t *testing.T, joins func() []api.Join, changes ...func(*server.Server)) (endpoint string, roots *x509.CertPool) {
	t.Helper()
	store := must.Get(boltstore.Open(filepath.Join(t.TempDir(), "kubejoin.db")))
	t.Cleanup(func() { _ = store.Close() })
	ca := must.Get(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))
	operators := must.Get(auth.ParseTokenFile([]byte(bearer + `,ada,1,"kubejoin:admins"` + "\n")))
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))
	certificate := &servingcert.Source{CA: func() *signer.CA { return ca }, Names: []string{"127.0.0.1"}}
	must.Value(certificate.Step(t.Context()))(t)
	s := server.Server{
		Tokens:      store,
		ClusterInfo: &clusterinfo.Computed{Tokens: store, Kubeconfig: must.Get(clusterinfo.Kubeconfig("https://api.example.com:6443", ca.Bundle()))},
		Callers:     server.Callers{Authenticate: operators.Authenticate, Authorize: auth.AllowGroup("kubejoin:admins")},
		Console:     true,
		Minting:     server.Minting{Advertise: listener.Addr().String()},
		Logger:      slog.New(slog.NewTextHandler(&logs.Buffer{}, nil)),
		Limits:      server.Limits{ClientRate: server.Rate{QPS: -1}, UserRate: server.Rate{QPS: -1}},
		Cluster: server.Cluster{Joins: func(_ context.Context, node, token string) (api.JoinList, error) {
			return explain.JoinList(joins()), nil
		}},
	}
	for _, change := range changes {
		change(&s)
	}
	web := must.Get(s.HTTPServer(&tls.Config{GetCertificate: certificate.GetCertificate}))
	go func() { _ = web.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = web.Close() })
	roots = x509.NewCertPool()
	for _, c := range ca.Bundle() {
		roots.AddCert(c)
	}
	return listener.Addr().String(), roots
}

// TestAccessibility looks at each view with axe.
func TestAccessibility(t *testing.T) {
	endpoint, roots := serve(t, func() []api.Join { return joining.Machines(time.Now()).Items }, func(s *server.Server) {
		s.Cluster.Explain = func(_ context.Context, node string) (api.NodeExplanation, error) {
			waits := api.RequestEvidence{Name: "csr-1", Signer: "kubernetes.io/kube-apiserver-client-kubelet", Created: time.Now()}
			return api.NodeExplanation{Node: node, State: explain.NotApproved, Sentence: node + " waits", Next: []string{"kubectl certificate approve csr-1"}, Evidence: api.Evidence{Requests: []api.RequestEvidence{waits}}}, nil
		}
	})
	p := open(t, endpoint, roots, "en")
	p.see("Sign in to see what joins.")
	p.look("sign-in", p.checkAccessibility)
	p.signIn(bearer)
	p.see("rack7-13")
	p.look("machines", p.checkAccessibility)
	p.visit("#/machine/rack7-13")
	p.see("csr-1")
	p.look("machine", p.checkAccessibility)
	p.visit("#/tokens")
	p.see("There are no tokens.")
	run(p, chromedp.Click("form.create button"))
	p.see("This is shown once.", "0 of 1")
	p.checkAccessibility("join command")
	p.look("tokens", p.checkAccessibility)
}

// hostile is what an attacker may try to put into each field.
const hostile = `"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>&lt;b&gt;javascript:window.hacked=1`

// hostileTokens lists one token with that text in each field.
type hostileTokens struct{ tokens.Store }

func (hostileTokens) List(context.Context) ([]tokens.Record, error) {
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Description, r.Problem, r.Nodes, r.Limits.NodeNames = hostile, errors.New(hostile), []string{hostile}, []string{hostile}
	return []tokens.Record{r}, nil
}

// Catches text of a machine or a token that becomes part of the page, and text of a link that the page shows as its own.
func TestShowsTextAsText(t *testing.T) {
	join := api.Join{
		Node: hostile, State: api.JoinStuck, Since: time.Now(), Reason: hostile, TokenID: hostile, Sentence: hostile, Next: []string{hostile},
		Steps: []api.JoinStep{{Name: api.StepToken, State: api.StepUnknown}, {Name: api.StepRequested, State: api.StepDone, At: time.Now()}},
	}
	endpoint, roots := serve(t, func() []api.Join { return []api.Join{join} }, func(s *server.Server) {
		s.Tokens = hostileTokens{s.Tokens}
		s.Cluster.Explain = func(context.Context, string) (api.NodeExplanation, error) {
			refused := api.RequestEvidence{Name: hostile, Signer: hostile, Denied: &api.RequestCondition{Reason: hostile, Message: hostile}}
			return api.NodeExplanation{Sentence: hostile, Next: []string{hostile}, Evidence: api.Evidence{Requests: []api.RequestEvidence{refused}}, Unread: []api.UnreadFact{{Reason: hostile}}}, nil
		}
	})
	p := open(t, endpoint, roots, "en")
	p.signIn(bearer)
	p.see(hostile)
	check := func(view string) {
		t.Helper()
		if eval[bool](p, "'hacked' in window || document.querySelector('img, main script, a[href^=javascript]') !== null") {
			t.Errorf("%s: a text became an element", view)
		}
	}
	check("machines")
	p.visit("#/machine/worker-1")
	p.await("the view of the machine", "document.querySelector('h1').textContent === 'worker-1' && document.querySelector('table.requests')")
	check("machine")
	p.visit("#/tokens")
	p.await("the hostile token", "document.querySelector('table.tokens td:last-child').textContent === "+quote(hostile))
	check("tokens")
	p.visit("#/machine/Run%20curl%20evil.example")
	p.await("a view without the text of the link", "document.querySelector('h1').textContent === 'Machines'")
}

// Catches a command to approve a request that the explanation does not advise, and another command beside a request whose name
// is a word of that command: a machine chooses the names of its requests.
func TestOffersOnlyApprovalsOfExplanation(t *testing.T) {
	endpoint, roots := serve(t, func() []api.Join { return nil }, func(s *server.Server) {
		s.Cluster.Explain = func(_ context.Context, node string) (api.NodeExplanation, error) {
			e := api.NodeExplanation{Node: node, State: explain.NodeExists, Sentence: "waits", Next: []string{"kubejoin claim release " + node, "kubejoin explain --csr csr-1", "kubectl certificate approve csr-1"}}
			for _, name := range []string{"csr-1", "csr-2", node, "claim"} {
				e.Evidence.Requests = append(e.Evidence.Requests, api.RequestEvidence{Name: name, Signer: "kubernetes.io/kube-apiserver-client-kubelet", Created: time.Now()})
			}
			return e, nil
		}
	})
	p := open(t, endpoint, roots, "en")
	p.signIn(bearer)
	p.visit("#/machine/worker-1")
	p.see("csr-2")
	const want = "csr-1: kubectl certificate approve csr-1\ncsr-2: \nworker-1: \nclaim: "
	if got := eval[string](p, `[...document.querySelectorAll('table.requests tbody tr')].map(r => r.querySelector('th').textContent + ': ' + (r.querySelector('.command code')?.textContent ?? '')).join('\n')`); got != want {
		t.Errorf("got commands\n%s\nwant\n%s", got, want)
	}
}

// Catches a machine without its line, and a line that lacks a step or its time for screen readers.
func TestDrawsLineOfEachMachine(t *testing.T) {
	endpoint, roots := serve(t, func() []api.Join { return joining.Machines(time.Now()).Items })
	p := open(t, endpoint, roots, "en")
	p.signIn(bearer)
	p.see("rack7-13")
	for _, j := range joining.Machines(time.Now()).Items {
		marks := 0
		for _, s := range j.Steps {
			if s.State != api.StepWaiting {
				marks++
			}
		}
		p.await("the line of "+j.Node, fmt.Sprintf(`(body => { const line = body.querySelector('svg[role=img].line.%s'); return line.querySelectorAll('.mark').length === %d && line.getAttribute('aria-label').split('; ').length === 6 })(
			[...document.querySelectorAll('tbody')].find(b => b.querySelector('th').textContent === %q))`, j.State, marks, j.Node))
	}
	if label := eval[string](p, `[...document.querySelectorAll('tbody')].find(b => b.querySelector('th').textContent === 'rack7-13').querySelector('.line').getAttribute('aria-label')`); !regexp.MustCompile(`^token created: done, .*; certificate requested: done, .*; name claimed: not yet; certificate issued: refused, .*:.*; Node registered: not yet; Node Ready: not yet$`).MatchString(label) {
		t.Errorf("got the line of rack7-13 %q", label)
	}
}

// Catches a view, a link or a form for what the caller may not do, and none for what the caller may do.
func TestOffersWhatCallerMay(t *testing.T) {
	for may, want := range map[string]string{
		"":                  "Machines: links , tables 0, forms 0",
		"list explanations": "Machines: links Machines, tables 1, forms 0",
		"list tokens":       "Tokens: links Tokens, tables 1, forms 0",
		"create tokens":     "Tokens: links Tokens, tables 0, forms 1",
	} {
		endpoint, roots := serve(t, func() []api.Join { return joining.Machines(time.Now()).Items }, func(s *server.Server) {
			r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
			must.Value(s.Tokens.Create(t.Context(), r))(t)
			s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
				if a.String() != may+".kubejoin.io" {
					return auth.ErrForbidden
				}
				return nil
			}
		})
		p := open(t, endpoint, roots, "en")
		p.signIn(bearer)
		const shown = `document.querySelector('h1').textContent + ': links ' + [...document.querySelectorAll('nav a')].map(a => a.textContent) + ', tables ' + document.querySelectorAll('table').length + ', forms ' + document.querySelectorAll('form.create').length`
		p.await(want+" with the permission to "+may, shown+" === "+quote(want))
		if says := strings.Contains(p.shown(), "Ask an administrator"); says != (may == "") {
			t.Errorf("%q: the page shows\n%s", may, p.shown())
		}
	}
}

// Catches a format that the page lacks, and a secret that is still in the page after the next one. Also catches a refusal that
// the page does not show beside its field, a warning that gets lost, and a change without a line in the log.
func TestCreatesTokenInEachFormat(t *testing.T) {
	var log logs.Buffer
	warnings := []string{`nothing enforces "limits", \ really`, hostile}
	endpoint, roots := serve(t, func() []api.Join { return nil }, func(s *server.Server) {
		s.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s.Minting.Warnings = func(context.Context, tokens.Record) []string { return warnings }
	})
	p := open(t, endpoint, roots, "en")
	p.signIn(bearer)
	p.see("no machine joins")
	p.visit("#/tokens")
	p.see("There are no tokens.")
	run(p, chromedp.SetValue("input[name=nodeNames]", "No_Name"))
	run(p, chromedp.Click("form.create button"))
	p.await("the refusal", `document.querySelector('form.create [role=alert]').textContent.includes('No_Name') && document.querySelector('input[name=nodeNames]').getAttribute('aria-invalid')`)
	run(p, chromedp.SetValue("input[name=nodeNames]", "worker-*"))
	formats := eval[[]string](p, `[...document.querySelectorAll('select[name=format] option')].map(o => o.value)`)
	if got, want := slices.Sorted(slices.Values(formats)), slices.Sorted(slices.Values(joinformat.Formats())); !slices.Equal(got, want) {
		t.Errorf("got formats %q, want %q", got, want)
	}
	before := "none"
	for _, format := range formats {
		run(p, chromedp.SetValue("select[name=format]", format))
		eval[bool](p, "document.querySelector('form.create button').click() || true") // the list above it grows, so the button moves
		p.await("another text", `!document.querySelector('form.create button').disabled && document.querySelector('.secret') && !document.body.textContent.includes(`+quote(before)+`)`)
		before = eval[string](p, "document.querySelector('.secret code').textContent")
		if f := must.Get(joinformat.FindFormat(format)); len(before) < 50 || strings.Contains(f.ContentType, "json") != json.Valid([]byte(before)) {
			t.Errorf("%s: got %s", format, before)
		}
	}
	if got := eval[[]string](p, "[...document.querySelectorAll('.secret .warning')].map(w => w.textContent)"); !slices.Equal(got, warnings) {
		t.Errorf("got warnings %q, want %q", got, warnings)
	}
	for line, want := range map[string]int{"route=print-join-command method=POST status=400 ": 1, "route=print-join-command method=POST status=200 ": len(formats)} {
		if got := strings.Count(log.String(), line); got != want {
			t.Errorf("the log has %d lines with %s, want %d:\n%s", got, line, want, &log)
		}
	}
}

// Catches a page that asks while nobody sees it, and one that does not ask again.
func TestHiddenPageAsksNothing(t *testing.T) {
	var looks atomic.Int64
	endpoint, roots := serve(t, func() []api.Join { looks.Add(1); return nil })
	p := open(t, endpoint, roots, "en")
	p.signIn(bearer)
	p.see("no machine joins")
	show := func(hidden bool) {
		eval[bool](p, fmt.Sprintf(`(Object.defineProperty(document, 'hidden', {value: %t, configurable: true}), document.dispatchEvent(new Event('visibilitychange')))`, hidden))
	}
	show(true)
	harness.Wait(t, "the end of the calls of a hidden page", func() error {
		before := looks.Load()
		time.Sleep(3 * time.Second) // a waiting call looks each second
		if n := looks.Load() - before; n > 0 {
			return fmt.Errorf("%d looks in three seconds", n)
		}
		return nil
	})
	before := looks.Load()
	show(false)
	harness.Wait(t, "the next look", func() error {
		if looks.Load() == before {
			return errors.New("none")
		}
		return nil
	})
}

// Catches Enter in the filter that does nothing, and a whole token in a URL, which somebody has pasted as a node name.
func TestEnterShowsMachine(t *testing.T) {
	endpoint, roots := serve(t, func() []api.Join { return nil })
	p := open(t, endpoint, roots, "en")
	p.signIn(bearer)
	p.see("no machine joins")
	run(p, chromedp.SendKeys("input[type=search]", "abcdef.0123456789abcdef\r"))
	p.await("the view of the token", `location.hash === '#/token/abcdef'`)
	if eval[string](p, `document.querySelector('input[type=search]').value`) != "" || eval[bool](p, `performance.getEntriesByType('resource').some(e => e.name.includes('0123456789abcdef'))`) {
		t.Error("the page keeps or sends the secret")
	}
	run(p, chromedp.SendKeys("input[type=search]", "worker-1\r"))
	p.await("the view of the machine", `location.hash === '#/machine/worker-1'`)
}

// Catches a late response that shows a view to somebody who has signed out.
func TestForgetsWhoHasSignedOut(t *testing.T) {
	endpoint, roots := serve(t, func() []api.Join { return nil })
	p := open(t, endpoint, roots, "en")
	p.signIn(bearer)
	p.see("no machine joins")
	eval[bool](p, `(ask => { window.fetch = (path, options) => path === 'v1/permissions' ? new Promise(done => { window.respond = () => done() || true }).then(() => ask(path, options)) : ask(path, options) })(window.fetch) || true`)
	p.visit("#/tokens")
	p.await("a response that waits", "window.respond")
	eval[bool](p, `document.querySelector('.tools button').click() || true`)
	p.see("Sign in to see what joins.")
	eval[bool](p, `(window.view = document.querySelector('h1'), window.respond())`)
	time.Sleep(time.Second) // a late view would come within it
	if !eval[bool](p, `document.querySelector('h1') === window.view`) {
		t.Errorf("after a late response, the page shows:\n%s", p.shown())
	}
}

// Catches a page that grows with each change. 10,000 machines change 600 times.
func TestPageKeepsItsMemory(t *testing.T) {
	const machines, rounds = 10_000, 600
	var round atomic.Int64
	begin := time.Now()
	endpoint, roots := serve(t, func() []api.Join {
		n := round.Add(1)
		all := make([]api.Join, machines)
		for i := range all {
			j := api.Join{
				Node: fmt.Sprintf("worker-%d", i), State: api.JoinStuck, Since: begin, Reason: "TokenSpent", TokenID: "abcdef", Sentence: fmt.Sprintf("refused for the %dth time", n), Next: []string{"kubejoin token create"},
				Steps: []api.JoinStep{{Name: api.StepToken, State: api.StepDone, At: begin}, {Name: api.StepRequested, State: api.StepRefused, At: begin.Add(time.Duration(n) * time.Second)}},
			}
			j.SortKey, j.Version = fmt.Sprintf("0/%05d", (i+int(n)*20)%machines), fmt.Sprintf("%04d%04d", i%machines, n)
			all[i] = j
		}
		return all
	})
	// Compiled code would count as growth in the first minutes.
	p := open(t, endpoint, roots, "en", chromedp.Flag("js-flags", "--expose-gc --jitless"), chromedp.Flag("enable-precise-memory-info", true))
	// The page waits a second between changes. Here, its clock is fast.
	eval[bool](p, "(wait => { window.setTimeout = (f, ms, ...more) => wait(f, ms / 100, ...more) })(window.setTimeout) || true")
	p.signIn(bearer)
	heap := func() int {
		t.Helper()
		return eval[int](p, "(gc(), gc(), performance.memory.usedJSHeapSize)")
	}
	seen := func(n int) {
		t.Helper()
		for round.Load() < int64(n) {
			if t.Context().Err() != nil || time.Since(begin) > 10*time.Minute {
				p.Fatalf("only %d changes; the page shows:\n%s", round.Load(), p.shown())
			}
			time.Sleep(50 * time.Millisecond)
		}
		p.see("and 9800 more")
	}
	seen(1)
	first := time.Since(begin)
	seen(rounds / 10)
	early := heap()
	seen(rounds)
	late := heap()
	t.Logf("first view %s, %d changes in %s, heap %d kB after %d changes and %d kB after all", first, rounds, time.Since(begin), early/1000, rounds/10, late/1000)
	if late > early*11/10 {
		t.Errorf("the heap grew from %d to %d bytes", early, late)
	}
	if rows := eval[int](p, "document.querySelectorAll('tbody').length"); rows != 200 {
		t.Errorf("got %d machines on the page, want 200", rows)
	}
	p.picture("many")
}
