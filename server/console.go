package server

import (
	"embed"
	"path"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/web"
)

// consoleFiles has the page at /console and the files that it loads. The page calls the API as any other client does.
//
//go:embed console
var consoleFiles embed.FS

// consolePolicy is the Content-Security-Policy of the page and its files. It allows only files and calls of this server, and no
// script that makes markup from text.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// consoleTypes has the content types of the files that the page loads.
var consoleTypes = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

// console returns the page.
func (h *handler) console(*call, struct{}) (web.Response, error) {
	return consoleResponse("page.html", "text/html; charset=utf-8")
}

// consoleFile returns a file that the page loads.
func (h *handler) consoleFile(r *call, _ struct{}) (web.Response, error) {
	name := chi.URLParam(r.Request, "file")
	if a, err := consoleResponse(name, consoleTypes[path.Ext(name)]); err == nil && a.ContentType != "" {
		return a, nil
	}
	return h.notFound(r)
}

// consoleResponse returns a file. Unlike other public documents, no cache stores it.
func consoleResponse(name, contentType string) (web.Response, error) {
	body, err := consoleFiles.ReadFile("console/" + name)
	return web.Response{ContentType: contentType, Body: body, Header: map[string]string{"Content-Security-Policy": consolePolicy}}, err
}
