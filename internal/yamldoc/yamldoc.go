// Package yamldoc finds a second YAML document, which sigs.k8s.io/yaml and client-go drop without a word.
package yamldoc

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"
)

// Only returns an error if content has more than one document. It leaves a malformed first document to the parser.
func Only(content []byte) error {
	if !bytes.ContainsAny(content, "\r") && !bytes.Contains(content, []byte("---")) && !bytes.Contains(content, []byte("\n...")) && !bytes.HasPrefix(bytes.TrimLeft(content, "\ufeff \t\n"), []byte("{")) {
		return nil // parsing a large document takes long
	}
	var n yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	for found := false; ; {
		err := decoder.Decode(&n)
		switch {
		case errors.Is(err, io.EOF), err != nil && !found:
			return nil
		case err == nil && n.Content[0].ShortTag() == "!!null": // only comments
		case found:
			return errors.New("more than one YAML document given, want only one")
		default:
			found = true
		}
	}
}
