package server_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// Catches a file that a cache may keep, that loads or runs anything from elsewhere, or that needs a credential.
func TestServesConsole(t *testing.T) {
	s := newSite(t)
	s.Console = true
	s.start(t)
	types := map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
	for _, file := range must.Get(os.ReadDir("console")) {
		path, name := "/console/"+file.Name(), file.Name()
		if name == "page.html" {
			path = "/console"
		}
		got := s.do(t, "GET", path, "", "", "")
		if got.status != 200 || got.body != string(must.Get(os.ReadFile("console/"+name))) {
			t.Errorf("%s: got %d %.80s, want the file", path, got.status, got.body)
		}
		for header, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
			"Cache-Control":           "no-store", "X-Content-Type-Options": "nosniff", "Etag": "", "Content-Type": types[name[strings.LastIndex(name, "."):]],
		} {
			if is := got.header.Get(header); is != want {
				t.Errorf("%s: got %s %q, want %q", path, header, is, want)
			}
		}
		if head := s.do(t, "HEAD", path, "", "", ""); head.status != 200 || head.body != "" || head.header.Get("Content-Length") != got.header.Get("Content-Length") {
			t.Errorf("HEAD %s: got %d %v", path, head.status, head.header)
		}
		if post := s.do(t, "POST", path, adminBearer, "", ""); post.status != 405 || post.header.Get("Allow") != "GET, HEAD" {
			t.Errorf("POST %s: got %d %v, want 405", path, post.status, post.header)
		}
		// A token in a URL is a mistake of the caller, and must not seem to work.
		if query := s.do(t, "GET", path+"?token="+adminBearer, "", "", ""); query.status != 400 || strings.Contains(query.body, adminBearer) {
			t.Errorf("%s with a query: got %d %s, want 400", path, query.status, query.body)
		}
	}
	for _, path := range []string{"/console/", "/console/page.html", "/console/.", "/console/..%2fopenapi.yaml", "/console/a%00.js", "/console/x.js", "/console/x/page.css"} {
		if got := s.do(t, "GET", path, "", "", ""); got.status != 404 || got.header.Get("Content-Type") != "application/problem+json" || got.header.Get("Cache-Control") != "no-store" || got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: got %d %v, want a problem that no cache stores", path, got.status, got.header)
		}
	}
}

func TestConsoleCanBeSwitchedOff(t *testing.T) {
	s := newSite(t)
	s.start(t)
	for _, path := range []string{"/console", "/console/app.js"} {
		if got := s.do(t, "GET", path, adminBearer, "", ""); got.status != http.StatusNotFound {
			t.Errorf("%s: got %d, want 404", path, got.status)
		}
	}
}

// Catches a script that makes markup from text, keeps the token outside of memory, or names another server. The policy stops most
// of it in a browser, but not storage. Also catches movement, which people can ask their browser to reduce. A page without a build
// step stays small.
func TestConsoleMakesNoMarkupAndStoresNothing(t *testing.T) {
	lines := 0
	for _, file := range must.Get(os.ReadDir("console")) {
		content := strings.ReplaceAll(string(must.Get(os.ReadFile("console/"+file.Name()))), "http://www.w3.org/2000/svg", "")
		for _, word := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "new Function", "localStorage", "sessionStorage", "indexedDB", "document.cookie", "http://", "https://", "style=", "onclick=", "animation", "transition", "smooth"} {
			if strings.Contains(content, word) {
				t.Errorf("%s has %s, want none", file.Name(), word)
			}
		}
		lines += strings.Count(content, "\n")
	}
	if lines > 1200 {
		t.Errorf("the page has %d lines, want at most 1200", lines)
	}
}
