// Package console tests the page at /console in a real browser.
package console

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// patience is how long a test waits for the page.
const patience = 2 * time.Minute

// A page is a tab of a browser.
type page struct {
	*testing.T
	ctx context.Context
	url string

	refusals bool // the browser refuses what the page does, and says so
}

// open opens the page of a server, in a browser that trusts the server's present key. Without roots, the browser trusts what its
// user trusts. language is as in the header Accept-Language.
func open(t *testing.T, endpoint string, roots *x509.CertPool, language string, more ...chromedp.ExecAllocatorOption) *page {
	t.Helper()
	require(t, "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("chromium"), chromedp.NoSandbox, // tests run as root
		chromedp.Flag("lang", language), chromedp.Flag("accept-lang", language),
		chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(patience),
	)
	if roots != nil {
		connection := must.Value(tls.Dial("tcp", endpoint, &tls.Config{RootCAs: roots}))(t)
		key := sha256.Sum256(connection.ConnectionState().PeerCertificates[0].RawSubjectPublicKeyInfo)
		must.OK(t, connection.Close())
		options = append(options, chromedp.Flag("ignore-certificate-errors-spki-list", base64.StdEncoding.EncodeToString(key[:])))
	}
	ctx, stop := chromedp.NewExecAllocator(t.Context(), append(options, more...)...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	p := &page{T: t, ctx: ctx, url: "https://" + endpoint}
	if _, err := chromedp.Run(ctx, chromedp.Navigate("about:blank")); err != nil { // starts the browser, which lives as long as ctx
		t.Fatal(err)
	}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err == nil && !p.refusals && (m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleException) && !strings.Contains(m.Text, "the server responded with a status of") {
				t.Errorf("message of the page: %s", m.Text)
			}
		}
	}()
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		_, err := chromedp.CallBrowser(ctx, browser.SetPermission, browser.SetPermissionParams{Permission: &browser.PermissionDescriptor{Name: name}, Setting: browser.PermissionSettingGranted})
		must.OK(t, err)
	}
	run(p, chromedp.Navigate(p.url+"/console"))
	return p
}

// require fails the test without a program. Unlike other tests, those of the page are not skipped.
func require(t *testing.T, program string) {
	t.Helper()
	if missing := need.Missing(program); missing != "" {
		t.Fatalf("%s: apt-get install --no-install-recommends %s", missing, need.Known[program].Debian)
	}
}

// run runs an action and returns its value.
func run[T any](p *page, action chromedp.Action[T]) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		p.picture("failed")
		p.Fatalf("%v; the page shows:\n%s", err, p.shown())
	}
	return value
}

// eval returns the value of a JavaScript expression. It waits for a promise.
func eval[T any](p *page, expression string) T {
	p.Helper()
	return run(p, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// shown returns the visible text.
func (p *page) shown() string {
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
	if err != nil {
		return err.Error()
	}
	return text
}

// await waits until a JavaScript expression is true.
func (p *page) await(what, expression string) {
	p.Helper()
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		is, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		if err == nil && is {
			return
		}
		if time.Since(begin) > patience {
			p.picture("failed")
			p.Fatalf("not after %s: %s (%v); the page shows:\n%s", patience, what, err, p.shown())
		}
	}
}

// see waits until the page shows the texts.
func (p *page) see(texts ...string) {
	p.Helper()
	for _, text := range texts {
		p.await("text "+text, "document.body.innerText.includes("+quote(text)+")")
	}
}

func quote(s string) string { return string(must.Get(json.Marshal(s))) }

// picture writes a screenshot to the folder in $PICTURES, if it is set.
func (p *page) picture(name string) {
	p.Helper()
	dir := os.Getenv("PICTURES")
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	content, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.Logf("screenshot: %v", err)
		return
	}
	must.OK(p.T, os.WriteFile(filepath.Join(dir, name+".png"), content, 0o644))
}

// look shows a view in light and dark, with windows from 360 pixels to 4K, and in Chinese.
func (p *page) look(view string, check func(view string)) {
	p.Helper()
	for _, language := range []string{"en", "zh-CN"} {
		eval[bool](p, `(s => { s.value = `+quote(language)+`; return s.dispatchEvent(new Event('change')) })(document.querySelector('#top select'))`)
		p.await(language, "document.documentElement.lang === "+quote(language)+" && document.querySelector('h1')")
		for _, colors := range []string{"light", "dark"} {
			must.Value(chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: colors}}}))(p.T)
			for _, width := range []int64{3840, 1280, 360} {
				run(p, chromedp.EmulateViewport(width, 900))
				p.picture(fmt.Sprintf("%s-%s-%s-%d", view, language, colors, width))
				if check != nil {
					check(view)
				}
				if over := eval[int](p, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
					p.Errorf("%s in %s is %d pixels wider than a window of %d", view, language, over, width)
				}
			}
		}
	}
	eval[bool](p, `(s => { s.value = 'en'; return s.dispatchEvent(new Event('change')) })(document.querySelector('#top select'))`)
	p.await("English", "document.documentElement.lang === 'en'")
	run(p, chromedp.ResetViewport())
	if moving := eval[int](p, "document.getAnimations().length"); moving > 0 {
		p.Errorf("%s has %d animations", view, moving)
	}
}

// checkAccessibility fails the test for each serious finding of axe.
func (p *page) checkAccessibility(view string) {
	p.Helper()
	eval[bool](p, axe(p.T))
	type finding struct {
		ID, Impact, Help string
		Nodes            []struct{ Target []any }
	}
	for _, f := range eval[[]finding](p, `axe.run(document).then(r => r.violations)`) {
		if f.Impact == "serious" || f.Impact == "critical" {
			p.Errorf("%s: axe found %s (%s): %s at %v", view, f.ID, f.Impact, f.Help, f.Nodes)
		}
	}
}

// axe returns the source of axe-core in the version of package-lock.json.
func axe(t *testing.T) string {
	t.Helper()
	file := filepath.Join("node_modules", "axe-core", "axe.min.js")
	if _, err := os.Stat(file); err != nil {
		require(t, "npm")
		install := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		if output, err := install.CombinedOutput(); err != nil {
			t.Fatalf("npm ci: %v\n%s", err, output)
		}
	}
	return strings.TrimSuffix(string(must.Get(os.ReadFile(file))), "\n") + "; true"
}
