package server

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"sync"

	"sigs.k8s.io/yaml"
)

// openAPI describes every route. Tests hold it against the routes, the types and the problems of
// this package, and all that is answered in them against it.
//
//go:embed openapi.yaml
var openAPI []byte

var openAPIInJSON = sync.OnceValues(func() ([]byte, error) { return yaml.YAMLToJSONStrict(openAPI) })

// OpenAPI is the description of the API, in OpenAPI 3.1 and YAML, as /openapi.yaml answers it.
func OpenAPI() []byte { return append([]byte(nil), openAPI...) }

func (h *handler) openAPIYAML(r *call) (response, error) {
	if err := readQuery(r, &struct{}{}); err != nil {
		return response{}, err
	}
	return h.described.answer(r, openAPI, "application/yaml"), nil // RFC 9512
}

func (h *handler) openAPIJSON(r *call) (response, error) {
	if err := readQuery(r, &struct{}{}); err != nil {
		return response{}, err
	}
	body, err := openAPIInJSON()
	return h.describedJSON.answer(r, body, "application/json"), err
}

// The page about the API for people, and what stands in its place for those who do not ask for
// HTML. Both are made of openapi.yaml, and a test says when to make them anew.
//
//go:generate go run ../internal/reference/write
var (
	//go:embed reference.html
	referencePage []byte
	//go:embed reference.txt
	referenceText []byte
)

// referencePolicy lets the page have no script, no other host, and of styles none but its own.
var referencePolicy = sync.OnceValue(func() string {
	_, style, _ := bytes.Cut(referencePage, []byte("<style>"))
	style, _, _ = bytes.Cut(style, []byte("</style>"))
	sum := sha256.Sum256(style)
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
})

// reference answers the page to browsers, and to others where to go.
func (h *handler) reference(r *call) (response, error) {
	if err := readQuery(r, &struct{}{}); err != nil {
		return response{}, err
	}
	if !accepts(r.Header.Values("Accept"), "text/html") {
		return h.referenceText.answer(r, referenceText, "text/plain; charset=utf-8", "Accept"), nil
	}
	a := h.referencePage.answer(r, referencePage, "text/html; charset=utf-8", "Accept")
	a.header["Content-Security-Policy"] = referencePolicy()
	return a, nil
}
