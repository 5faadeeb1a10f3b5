package credentials

import (
	"fmt"
	"os"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"k8s.io/client-go/rest"
)

// CheckConfig returns an error for certificates and a key that client-go would use in part: it skips PEM blocks that it
// cannot read. The error names the field of the kubeconfig, and the file if there is one.
func CheckConfig(config *rest.Config) error {
	certificates := func(content []byte) error { _, err := pemfile.Certificates(content); return err }
	key := func(content []byte) error { _, err := pemfile.Key(content); return err }
	for _, p := range []struct {
		field, file string
		data        []byte
		check       func([]byte) error
	}{
		{"certificate-authority", config.CAFile, config.CAData, certificates},
		{"client-certificate", config.CertFile, config.CertData, certificates},
		{"client-key", config.KeyFile, config.KeyData, key},
	} {
		field := p.field + "-data"
		switch {
		case len(p.data) > 0:
		case p.file == "":
			continue
		default:
			field = p.field + ": " + p.file
			var err error
			if p.data, err = os.ReadFile(p.file); err != nil {
				return fmt.Errorf("%s: %w", p.field, err)
			}
		}
		if err := p.check(p.data); err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
	}
	return nil
}
