package credentials

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/atomicfile"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// KubeadmSigners is the domain of the signers in config.Kubeadm. A signer has the name of its certificate.
const KubeadmSigners = "kubeadm.kubejoin.io/"

// A part is one certificate of a control plane, as in 'kubeadm certs check-expiration'.
type part struct {
	name   string
	path   string // below the folder of kubeadm, without suffix; a kubeconfig has .conf
	ca     string
	server bool // it serves
	client bool
}

func (p part) kubeconfig() bool { return strings.HasSuffix(p.path, ".conf") }

func (p part) usages() []certificates.KeyUsage {
	list := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment}
	if p.server {
		list = append(list, certificates.UsageServerAuth)
	}
	if p.client {
		list = append(list, certificates.UsageClientAuth)
	}
	return list
}

const (
	clusterCA    = "pki/ca"
	frontProxyCA = "pki/front-proxy-ca"
	etcdCA       = "pki/etcd/ca"
	kubeletConf  = "kubelet.conf"
)

var parts = []part{
	{"admin.conf", "admin.conf", clusterCA, false, true},
	{"apiserver", "pki/apiserver", clusterCA, true, false},
	{"apiserver-etcd-client", "pki/apiserver-etcd-client", etcdCA, false, true},
	{"apiserver-kubelet-client", "pki/apiserver-kubelet-client", clusterCA, false, true},
	{"controller-manager.conf", "controller-manager.conf", clusterCA, false, true},
	{"etcd-healthcheck-client", "pki/etcd/healthcheck-client", etcdCA, false, true},
	{"etcd-peer", "pki/etcd/peer", etcdCA, true, true},
	{"etcd-server", "pki/etcd/server", etcdCA, true, true},
	{"front-proxy-client", "pki/front-proxy-client", frontProxyCA, false, true},
	{kubeletConf, kubeletConf, clusterCA, false, true},
	{"scheduler.conf", "scheduler.conf", clusterCA, false, true},
	{"super-admin.conf", "super-admin.conf", clusterCA, false, true},
}

// A Host is a control plane's folder, /etc/kubernetes.
type Host struct {
	Dir string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

func (h Host) now() time.Time {
	if h.Now != nil {
		return h.Now()
	}
	return time.Now()
}

func (h Host) file(path string) string { return filepath.Join(h.Dir, filepath.FromSlash(path)) }

// A loaded is what the folder has of a part.
type loaded struct {
	part
	config *clientcmdapi.Config // of a kubeconfig
	user   *clientcmdapi.AuthInfo
	key    crypto.Signer
	leaf   *x509.Certificate   // nil if the folder has no certificate of it
	chain  []*x509.Certificate // intermediates of leaf
	roots  []*x509.Certificate
	caPEM  []byte
}

// load reads a part. It returns nil if the folder has no key for it.
func (h Host) load(p part) (*loaded, error) {
	l := &loaded{part: p}
	var chain, key []byte
	var err error
	if p.kubeconfig() {
		content, _, err := readSmall(h.file(p.path))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		// Errors of the parser may have parts of the file.
		if l.config, err = clientcmd.Load(content); err != nil {
			return nil, fmt.Errorf("%s: want a kubeconfig", h.file(p.path))
		}
		at := l.config.Contexts[l.config.CurrentContext]
		if at == nil || l.config.AuthInfos[at.AuthInfo] == nil || l.config.Clusters[at.Cluster] == nil {
			return nil, fmt.Errorf("%s: want a current context with a cluster and a user", h.file(p.path))
		}
		l.user = l.config.AuthInfos[at.AuthInfo]
		if l.user.ClientKey != "" { // the kubelet renews its own
			return nil, nil
		}
		chain, key = l.user.ClientCertificateData, l.user.ClientKeyData
	} else {
		key, _, err = readSmall(h.file(p.path + ".key"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		if chain, _, err = readSmall(h.file(p.path + ".crt")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if l.key, err = parseKey(key); err != nil {
		return nil, fmt.Errorf("%s: %w", h.file(p.path), err)
	}
	if len(chain) > 0 {
		if l.leaf, l.chain, err = parseChain(chain); err != nil {
			return nil, fmt.Errorf("%s: certificate: %w", h.file(p.path), err)
		}
	}
	if l.caPEM, _, err = readSmall(h.file(p.ca + ".crt")); err != nil {
		return nil, fmt.Errorf("%s needs the certificate of its CA, not the key: %w", p.name, err)
	}
	first, others, err := parseChain(l.caPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.file(p.ca+".crt"), err)
	}
	l.roots = append(others, first)
	return l, nil
}

// problem returns what is wrong with a certificate of the part, or nil.
func (l *loaded) problem(leaf *x509.Certificate, others []*x509.Certificate, now time.Time) error {
	if leaf == nil {
		return errors.New("not signed yet")
	}
	if !matches(l.key, leaf.PublicKey) {
		return errors.New("certificate and key differ")
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, ca := range l.roots {
		roots.AddCert(ca)
	}
	for _, cert := range others {
		between.AddCert(cert)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && now.After(leaf.NotAfter):
		return errors.New("expired")
	case err != nil:
		return fmt.Errorf("not of CA %s: %w", l.ca, err)
	}
	return nil
}

// A signed is a new certificate that was checked and not yet written.
type signed struct {
	*loaded
	chain []byte
}

// sign has a request of a part signed, and checks the certificate.
func (h Host) sign(ctx context.Context, sign SignFunc, l *loaded, csr *x509.CertificateRequest) (signed, error) {
	fail := func(err error) (signed, error) { return signed{}, fmt.Errorf("%s: %w", l.name, err) }
	if !matches(l.key, csr.PublicKey) {
		return fail(errors.New("the certificate request is not for the key beside it"))
	}
	chain, err := sign(ctx, Request{
		Signer: KubeadmSigners + l.name, Usages: l.usages(),
		CSR: pem.EncodeToMemory(&pem.Block{Type: pkcs10.BlockType, Bytes: csr.Raw}),
	})
	if err != nil {
		return fail(err)
	}
	leaf, others, err := parseChain(chain)
	if err != nil {
		return fail(fmt.Errorf("the signer returned no valid certificate: %w", err))
	}
	if err := l.problem(leaf, others, h.now()); err != nil {
		return fail(fmt.Errorf("the signer returned a certificate that this host cannot use: %w", err))
	}
	same := leaf.Subject.String() == csr.Subject.String() && slices.Equal(leaf.DNSNames, csr.DNSNames) && len(leaf.IPAddresses) == len(csr.IPAddresses)
	for i := 0; same && i < len(leaf.IPAddresses); i++ {
		same = leaf.IPAddresses[i].Equal(csr.IPAddresses[i])
	}
	if !same {
		return fail(errors.New("the signer returned a certificate with another subject or other names"))
	}
	return signed{l, chain}, nil
}

// write replaces the certificate of a part. The key does not change, so one file changes, completely or not at all.
func (h Host) write(s signed) error {
	const public = 0o644 // as kubeadm has it
	file, mode, content := h.file(s.path+".crt"), fs.FileMode(public), s.chain
	if s.kubeconfig() {
		s.user.ClientCertificateData = s.chain
		at := s.config.Contexts[s.config.CurrentContext]
		s.config.Clusters[at.Cluster].CertificateAuthorityData = s.caPEM
		var err error
		if content, err = clientcmd.Write(*s.config); err != nil {
			return err
		}
		file, mode = h.file(s.path), 0o600
	}
	to, err := atomicfile.Prepare(file)
	if err != nil {
		return err
	}
	defer to.Drop()
	if err := to.KeepOwner(); err != nil { // a kubeconfig keeps its key
		return err
	}
	return to.Write(content, mode)
}

// Sign has everything signed that 'kubeadm certs generate-csr' wrote and that has no valid certificate yet. It returns
// the names of what it wrote. It writes nothing unless all certificates were issued.
func (h Host) Sign(ctx context.Context, sign SignFunc) ([]string, error) {
	var all []signed
	found := false
	for _, p := range parts {
		l, err := h.load(p)
		if err != nil {
			return nil, err
		}
		if l == nil {
			continue
		}
		found = true
		if l.problem(l.leaf, l.chain, h.now()) == nil {
			continue
		}
		file := h.file(p.path + ".csr")
		content, _, err := readSmall(file)
		if err != nil {
			return nil, fmt.Errorf("%w; create it with: kubeadm certs generate-csr", err)
		}
		csr, err := pkcs10.Parse(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		one, err := h.sign(ctx, sign, l, csr)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if !found {
		return nil, fmt.Errorf("%s has no keys of kubeadm; create them with: kubeadm certs generate-csr", h.Dir)
	}
	return h.writeAll(all)
}

func (h Host) writeAll(all []signed) (names []string, err error) {
	for _, one := range all {
		if err := h.write(one); err != nil {
			return names, fmt.Errorf("%s: %w", one.name, err)
		}
		names = append(names, one.name)
	}
	return names, nil
}

// Renew has new certificates signed for the keys that the folder has, with the subjects and names of the old ones. names
// selects certificates; none means all. It leaves out kubelet.conf, which the kubelet renews. It copies the old files to
// the folder that it returns, and writes nothing unless all certificates were issued.
func (h Host) Renew(ctx context.Context, sign SignFunc, names []string) (renewed []string, backup string, err error) {
	for _, name := range names {
		if name == kubeletConf || !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return nil, "", fmt.Errorf("%q is not a certificate that can be renewed, want one of %s", name, strings.Join(Renewable(), ", "))
		}
	}
	var all []signed
	for _, p := range parts {
		if p.name == kubeletConf || len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		l, err := h.load(p)
		if err != nil {
			return nil, "", err
		}
		if l == nil || l.leaf == nil {
			if len(names) > 0 {
				return nil, "", fmt.Errorf("%s: there is no certificate to renew", p.name)
			}
			continue
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{RawSubject: l.leaf.RawSubject, DNSNames: l.leaf.DNSNames, IPAddresses: l.leaf.IPAddresses}, l.key)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", p.name, err)
		}
		csr, err := x509.ParseCertificateRequest(der)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", p.name, err)
		}
		one, err := h.sign(ctx, sign, l, csr)
		if err != nil {
			return nil, "", err
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil, "", fmt.Errorf("%s has no certificates of kubeadm", h.Dir)
	}
	if backup, err = h.backUp(all); err != nil {
		return nil, "", fmt.Errorf("keep the old files: %w", err)
	}
	renewed, err = h.writeAll(all)
	return renewed, backup, err
}

// Renewable returns the names that [Host.Renew] accepts.
func Renewable() (names []string) {
	for _, p := range parts {
		if p.name != kubeletConf {
			names = append(names, p.name)
		}
	}
	return names
}

// backUp copies the files that are about to be replaced into a new folder.
func (h Host) backUp(all []signed) (string, error) {
	parent := h.file("tmp") // kubeadm keeps its own copies there
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, "kubejoin-renew-"+h.now().UTC().Format("20060102T150405")+"-")
	if err != nil {
		return "", err
	}
	for _, one := range all {
		path := one.path
		if !one.kubeconfig() {
			path += ".crt"
		}
		content, _, err := readSmall(h.file(path))
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return "", err
		}
		if err := atomicfile.Write(to, content); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// A CertificateStatus is the state of one certificate in the folder of a Host.
type CertificateStatus struct {
	Name     string     `json:"name"`
	CA       string     `json:"certificateAuthority,omitempty"` // empty for a CA
	NotAfter *time.Time `json:"notAfter,omitempty"`
	// KeyOnHost is true for a CA whose key is on the host.
	KeyOnHost bool `json:"keyOnHost,omitempty"`
	// Problem says why the certificate cannot be used; empty if it can.
	Problem string `json:"problem,omitempty"`
}

// List returns the certificates and then the CAs in the folder, like 'kubeadm certs check-expiration'.
func (h Host) List() ([]CertificateStatus, error) {
	list := []CertificateStatus{}
	for _, p := range parts {
		status := CertificateStatus{Name: p.name, CA: caName(p.ca)}
		l, err := h.load(p)
		switch {
		case err != nil:
			status.Problem = err.Error()
		case l == nil:
			continue
		default:
			if l.leaf != nil {
				status.NotAfter = &l.leaf.NotAfter
			}
			if err := l.problem(l.leaf, l.chain, h.now()); err != nil {
				status.Problem = err.Error()
			}
		}
		list = append(list, status)
	}
	for _, path := range []string{clusterCA, etcdCA, frontProxyCA} {
		content, _, err := readSmall(h.file(path + ".crt"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		status := CertificateStatus{Name: caName(path)}
		var leaf *x509.Certificate
		if err == nil {
			leaf, _, err = parseChain(content)
		}
		switch {
		case err != nil:
			status.Problem = err.Error()
		default:
			status.NotAfter = &leaf.NotAfter
			if h.now().After(leaf.NotAfter) {
				status.Problem = "expired"
			}
		}
		_, err = os.Stat(h.file(path + ".key"))
		status.KeyOnHost = err == nil
		list = append(list, status)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no certificates of kubeadm", h.Dir)
	}
	return list, nil
}

// caName returns kubeadm's name of a CA.
func caName(path string) string {
	return strings.ReplaceAll(strings.TrimPrefix(path, "pki/"), "/", "-")
}
