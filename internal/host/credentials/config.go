package credentials

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// LoadConfig returns the client configuration of a context in a kubeconfig, by default the current one. Its errors name the
// flag or the environment variable that gave the kubeconfig.
func LoadConfig(rules *clientcmd.ClientConfigLoadingRules, context string) (*rest.Config, error) {
	source, files := "--kubeconfig", []string{rules.ExplicitPath}
	if rules.ExplicitPath == "" {
		source, files = "$"+clientcmd.RecommendedConfigPathEnvVar, rules.Precedence
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if faults := faultsOf(files, rules.ExplicitPath != "", clientcmd.IsEmptyConfig(err)); faults != nil {
		err = faults // the errors of client-go name Go types, parts of the file and another variable
	}
	if err == nil {
		err = CheckConfig(config)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return config, nil
}

// faultsOf returns the faults of files. A missing file is one if the user named it. With empty set, client-go found no cluster
// in all the files, so that each has a fault.
func faultsOf(files []string, named, empty bool) error {
	var errs []error
	for _, file := range files {
		content, err := os.ReadFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist) && (named || empty):
			err = errors.New("there is no such file")
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			err = errors.Unwrap(err) // without the name of the system call
		case len(content) == 0 && empty:
			err = errors.New("the file is empty")
		default:
			if _, err = decode(content); err == nil && empty {
				err = errors.New("the file has no current context, or no cluster for it")
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
	}
	return errors.Join(errs...)
}

// CheckConfig returns an error for certificates and a key with unreadable PEM blocks. client-go would skip these blocks
// and use the rest. The error names the field of the kubeconfig, and the file if there is one.
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
