package credentials

import (
	"errors"
	"fmt"
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
	if clientcmd.IsEmptyConfig(err) {
		err = without(files)
	}
	if err == nil {
		err = CheckConfig(config)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return config, nil
}

// without returns the error for files in which client-go found no cluster. The error of client-go would name a
// variable that is not used.
func without(files []string) error {
	var errs []error
	for _, file := range files {
		fault := "the file has no current context, or no cluster for it"
		if info, err := os.Stat(file); err != nil {
			fault = "there is no such file"
		} else if info.Size() == 0 {
			fault = "the file is empty"
		}
		errs = append(errs, fmt.Errorf("%s: %s", file, fault))
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
