package server

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"sync"

	"github.com/kubejoin/kubejoin/internal/web"
	"sigs.k8s.io/yaml"
)

// openAPI describes every route. Tests compare it with the routes, types and problems of this package. They
// also validate the responses of other tests against it.
//
//go:embed openapi.yaml
var openAPI []byte

var openAPIInJSON = sync.OnceValues(func() ([]byte, error) { return yaml.YAMLToJSONStrict(openAPI) })

// OpenAPI returns the description of the API that /openapi.yaml serves: OpenAPI 3.1 in YAML.
func OpenAPI() []byte { return append([]byte(nil), openAPI...) }

func (h *handler) openAPIYAML(r *call, _ struct{}) (web.Response, error) {
	return h.documents.openAPI.Respond(r.Request, openAPI, "application/yaml"), nil // RFC 9512
}

func (h *handler) openAPIJSON(r *call, _ struct{}) (web.Response, error) {
	body, err := openAPIInJSON()
	return h.documents.openAPIJSON.Respond(r.Request, body, "application/json"), err
}

// The API reference in HTML for browsers, and a text for other clients. Both are generated from
// openapi.yaml. A test fails if they are out of date.
//
//go:generate go run ../internal/reference/write
var (
	//go:embed reference.html
	referencePage []byte
	//go:embed reference.txt
	referenceText []byte
)

// referencePolicy is the Content-Security-Policy of the reference page. It allows no scripts, no other hosts and only
// the page's own styles.
var referencePolicy = sync.OnceValue(func() string {
	_, style, _ := bytes.Cut(referencePage, []byte("<style>"))
	style, _, _ = bytes.Cut(style, []byte("</style>"))
	sum := sha256.Sum256(style)
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
})

// reference returns the reference page to clients that accept text/html, and a text to others.
func (h *handler) reference(r *call, _ struct{}) (web.Response, error) {
	if !web.Accepts(r.Header.Values("Accept"), "text/html") {
		return h.documents.referenceText.Respond(r.Request, referenceText, "text/plain; charset=utf-8", "Accept"), nil
	}
	a := h.documents.referencePage.Respond(r.Request, referencePage, "text/html; charset=utf-8", "Accept")
	a.Header["Content-Security-Policy"] = referencePolicy()
	return a, nil
}
