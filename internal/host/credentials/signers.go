package credentials

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/config"
)

// SignersOf returns the signers of kubeadm's certificates whose CA is in a folder. missing maps each other
// certificate to the missing file of its CA. passphraseFile decrypts all keys; it is empty if they are not encrypted.
func SignersOf(dir, passphraseFile string) (signers map[string]signer.Signer, missing map[string]string, err error) {
	all, err := config.Parse(filepath.Join(dir, "signers.yaml"), []byte(config.Kubeadm))
	if err != nil {
		return nil, nil, err
	}
	cluster := config.CAFiles{CertFile: filepath.Join(dir, "ca.crt"), KeyFile: filepath.Join(dir, "ca.key")}
	there := *all
	there.Signers, missing = nil, map[string]string{}
	for _, s := range all.Signers {
		if s.CA == (config.CAFiles{}) {
			s.CA = cluster
		}
		s.CA.PassphraseFile = passphraseFile
		switch {
		case !exists(s.CA.CertFile):
			missing[strings.TrimPrefix(s.Name, KubeadmSigners)] = s.CA.CertFile + " does not exist"
		case !exists(s.CA.KeyFile):
			missing[strings.TrimPrefix(s.Name, KubeadmSigners)] = s.CA.KeyFile + " does not exist"
		default:
			there.Signers = append(there.Signers, s)
		}
	}
	if len(there.Signers) == 0 {
		return nil, nil, fmt.Errorf("%s has no CA of kubeadm with its key: want %s and %s, or those of front-proxy-ca or etcd/ca", dir, cluster.CertFile, cluster.KeyFile)
	}
	signers, err = there.Build(config.Defaults{})
	return signers, missing, err
}

// SignersWith returns the signers of kubeadm's certificates with one CA for all of them.
func SignersWith(ca *signer.CA) (map[string]signer.Signer, error) {
	all, err := config.Parse("signers", []byte(config.Kubeadm))
	if err != nil {
		return nil, err
	}
	for i := range all.Signers {
		all.Signers[i].CA = config.CAFiles{}
	}
	return all.Build(config.Defaults{CA: signer.Fixed(ca)})
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}
