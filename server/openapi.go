package server

import (
	_ "embed"
	"net/http"
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

func (h *handler) openAPIYAML(r *http.Request) (answer, error) {
	if err := readQuery(r, &struct{}{}); err != nil {
		return answer{}, err
	}
	return h.described.answer(r, openAPI, "application/yaml"), nil // RFC 9512
}

func (h *handler) openAPIJSON(r *http.Request) (answer, error) {
	if err := readQuery(r, &struct{}{}); err != nil {
		return answer{}, err
	}
	body, err := openAPIInJSON()
	return h.describedJSON.answer(r, body, "application/json"), err
}
