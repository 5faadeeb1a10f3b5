package credentials

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/yamldoc"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	netutils "k8s.io/utils/net"
)

// KubeadmSigners is the domain of the signers in config.Kubeadm, with a slash. The rest of a signer's name is the name of
// the certificate that it signs, for example apiserver.
const KubeadmSigners = "kubeadm.kubejoin.io/"

// Names of two signers: for the administrator's certificate, and for the client certificate that kube-apiserver
// presents to kubelets.
const (
	AdminSigner         = KubeadmSigners + "admin.conf"
	KubeletClientSigner = KubeadmSigners + "apiserver-kubelet-client"
)

// A part is one certificate of a control plane, as in 'kubeadm certs check-expiration'.
type part struct {
	name   string
	path   string // below the folder of kubeadm, without suffix; a kubeconfig has .conf
	ca     string
	server bool // it is a serving certificate
	client bool
	// commonName and groups are the subject that kubeadm gives the certificate today. commonName is empty if the
	// certificate has the name of the host.
	commonName string
	groups     []string
	// formerly are groups that an older kubeadm gave the certificate instead.
	formerly []string
}

// subject returns today's subject in place of an old one. It returns an error if the common name differs, or if no
// version of kubeadm gives this certificate these groups, because an operator may have chosen them.
func (p part) subject(old pkix.Name) (pkix.Name, error) {
	today := pkix.Name{CommonName: cmp.Or(p.commonName, old.CommonName), Organization: p.groups}
	groups := old.Organization
	// Only the API server and the kubelet read groups from a client certificate, and the cluster CA issues the
	// certificates of their clients.
	known := p.ca != clusterCA || !p.client || slices.Equal(groups, p.groups) || len(groups) == 1 && slices.Contains(p.formerly, groups[0])
	if old.CommonName == "" || old.CommonName != today.CommonName || !known {
		return pkix.Name{}, fmt.Errorf("subject %q given, want %q; make it again in an empty folder: kubeadm certs generate-csr --cert-dir DIR/pki --kubeconfig-dir DIR",
			safetext.Text(old.String(), safetext.MaxName), today)
	}
	return today, nil
}

// renewal returns a request that replaces the certificate old, with additional names, and the differences from old.
func (p part) renewal(old *x509.Certificate, names []string) (*x509.CertificateRequest, []string, error) {
	subject, err := p.subject(old.Subject)
	if err != nil {
		return nil, nil, err
	}
	if len(names) > pkcs10.MaxNames {
		return nil, nil, fmt.Errorf("%d names to add given, want at most %d", len(names), pkcs10.MaxNames)
	}
	var changes []string
	if was := old.Subject.String(); was != subject.String() {
		changes = append(changes, fmt.Sprintf("renewal replaces the subject %q by %q", safetext.Text(was, safetext.MaxName), subject))
	}
	if list := unusualNames(old); len(list) > 0 {
		changes = append(changes, "renewal drops what kubeadm does not write: "+safetext.Text(strings.Join(list, ", "), safetext.MaxName))
	}
	request := &x509.CertificateRequest{Subject: subject, DNSNames: slices.Clone(old.DNSNames), IPAddresses: slices.Clone(old.IPAddresses)}
	for _, name := range names {
		switch added, err := addName(request, name); {
		case err != nil: // like kubeadm, warn and continue
			changes = append(changes, fmt.Sprintf("renewal leaves out a name: %v", err))
		case added:
			changes = append(changes, fmt.Sprintf("renewal adds the name %q", name))
		}
	}
	return request, changes, nil
}

// CheckName returns an error unless kubeadm accepts name in certSANs.
func CheckName(name string) error {
	_, err := addName(&x509.CertificateRequest{}, name)
	return err
}

// addName adds a name from certSANs to the request, as kubeadm does. It returns false if the request already has the name.
func addName(r *x509.CertificateRequest, name string) (bool, error) {
	if ip := netutils.ParseIPSloppy(name); ip != nil {
		if slices.ContainsFunc(r.IPAddresses, ip.Equal) {
			return false, nil
		}
		r.IPAddresses = append(r.IPAddresses, ip)
		return true, nil
	}
	if len(validation.IsDNS1123Subdomain(name)) > 0 && len(validation.IsWildcardDNS1123Subdomain(name)) > 0 {
		return false, fmt.Errorf("%q given, want an IP address, a DNS name in lower case, or a wildcard such as *.example.com", safetext.Text(name, safetext.MaxName))
	}
	if slices.ContainsFunc(r.DNSNames, func(have string) bool { return strings.EqualFold(have, name) }) {
		return false, nil
	}
	r.DNSNames = append(r.DNSNames, name)
	return true, nil
}

var oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// unusualNames returns the names in a certificate that are neither DNS names nor addresses. The signers for kubeadm do not
// issue such names. crypto/x509 parses only some of these names.
func unusualNames(cert *x509.Certificate) (list []string) {
	const email, dns, uri, ip = 1, 2, 6, 7 // GeneralName, RFC 5280, section 4.2.1.6
	for _, extension := range cert.Extensions {
		var all asn1.RawValue
		if !extension.Id.Equal(oidSubjectAltName) {
			continue
		}
		_, err := asn1.Unmarshal(extension.Value, &all)
		for rest := all.Bytes; err == nil && len(rest) > 0; {
			var name asn1.RawValue
			rest, err = asn1.Unmarshal(rest, &name)
			switch name.Tag {
			case dns, ip:
			case email:
				list = append(list, fmt.Sprintf("email %q", name.Bytes))
			case uri:
				list = append(list, fmt.Sprintf("URI %q", name.Bytes))
			default:
				list = append(list, fmt.Sprintf("a name of kind %d", name.Tag))
			}
		}
	}
	return list
}

func (p part) kubeconfig() bool { return strings.HasSuffix(p.path, ".conf") }

// certificate returns the file with the certificate.
func (p part) certificate() string {
	if p.kubeconfig() {
		return p.path
	}
	return p.path + ".crt"
}

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

	adminGroup   = "kubeadm:cluster-admins" // the group in admin.conf from kubeadm 1.29 on
	mastersGroup = "system:masters"
)

var parts = []part{
	{"admin.conf", "admin.conf", clusterCA, false, true, "kubernetes-admin", []string{adminGroup}, []string{mastersGroup}},
	{"apiserver", "pki/apiserver", clusterCA, true, false, "kube-apiserver", nil, nil},
	{"apiserver-etcd-client", "pki/apiserver-etcd-client", etcdCA, false, true, "kube-apiserver-etcd-client", nil, nil},
	{"apiserver-kubelet-client", "pki/apiserver-kubelet-client", clusterCA, false, true, "kube-apiserver-kubelet-client", nil, []string{adminGroup, mastersGroup}},
	{"controller-manager.conf", "controller-manager.conf", clusterCA, false, true, "system:kube-controller-manager", nil, nil},
	{"etcd-healthcheck-client", "pki/etcd/healthcheck-client", etcdCA, false, true, "kube-etcd-healthcheck-client", nil, nil},
	{"etcd-peer", "pki/etcd/peer", etcdCA, true, true, "", nil, nil},
	{"etcd-server", "pki/etcd/server", etcdCA, true, true, "", nil, nil},
	{"front-proxy-client", "pki/front-proxy-client", frontProxyCA, false, true, "front-proxy-client", nil, nil},
	{kubeletConf, kubeletConf, clusterCA, false, true, "", []string{tokens.NodesGroup}, nil},
	{"scheduler.conf", "scheduler.conf", clusterCA, false, true, "system:kube-scheduler", nil, nil},
	{"super-admin.conf", "super-admin.conf", clusterCA, false, true, "kubernetes-super-admin", []string{mastersGroup}, nil},
}

// CertificateIn returns the name of the certificate in a file below the folder of kubeadm. It returns the path of the
// file if kubeadm stores no certificate in it.
func CertificateIn(file string) string {
	if i := slices.IndexFunc(parts, func(p part) bool { return p.certificate() == file }); i >= 0 {
		return parts[i].name
	}
	return file
}

// A Kubeconfig is a kubeconfig with the cluster and the user of its current context.
type Kubeconfig struct {
	*clientcmdapi.Config
	Cluster *clientcmdapi.Cluster
	User    *clientcmdapi.AuthInfo
}

// decode decodes a kubeconfig. Its errors quote nothing from the file, which may contain secrets.
func decode(content []byte) (*clientcmdapi.Config, error) {
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, errors.New("want a kubeconfig: YAML with kind Config")
	}
	return config, yamldoc.Only(content)
}

// ParseKubeconfig parses a kubeconfig. Its errors quote nothing from the file, which may contain secrets.
func ParseKubeconfig(content []byte) (k Kubeconfig, err error) {
	if k.Config, err = decode(content); err != nil {
		return k, err
	}
	if at := k.Contexts[k.CurrentContext]; at != nil {
		k.Cluster, k.User = k.Clusters[at.Cluster], k.AuthInfos[at.AuthInfo]
	}
	if k.Cluster == nil || k.User == nil {
		return k, errors.New("want a kubeconfig with a current context, a cluster and a user")
	}
	return k, nil
}

// KubeadmFiles are the certificates and kubeconfigs of a control plane in a folder, usually /etc/kubernetes.
type KubeadmFiles struct {
	Dir string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// NoCA maps the name of a certificate to the reason why its CA cannot sign it.
	NoCA map[string]string
	// Instead maps paths below Dir to the content to use in place of these files.
	Instead map[string][]byte
}

// ErrNoCA means that a [SignFunc] has no CA for a certificate; its error wraps ErrNoCA.
var ErrNoCA = errors.New("no CA")

func (k KubeadmFiles) now() time.Time {
	if k.Now != nil {
		return k.Now()
	}
	return time.Now()
}

func (k KubeadmFiles) file(path string) string { return filepath.Join(k.Dir, filepath.FromSlash(path)) }

func (k KubeadmFiles) content(path string) ([]byte, error) {
	if content, found := k.Instead[path]; found {
		return content, nil
	}
	content, _, err := readSmall(k.file(path))
	return content, err
}

// A loaded is the content of the folder for one part.
type loaded struct {
	part
	config Kubeconfig // only for a kubeconfig
	user   *clientcmdapi.AuthInfo
	key    crypto.Signer
	leaf   *x509.Certificate   // nil if the folder has no certificate of the part
	chain  []*x509.Certificate // intermediates of leaf
	roots  []*x509.Certificate
	caPEM  []byte
}

// load reads a part that kubejoin can replace. It returns nil if the folder has no key for the part. It also returns nil
// for a kubeconfig that names files, because another program owns these files, for example the kubelet.
func (k KubeadmFiles) load(p part) (*loaded, error) {
	l, err := k.read(p)
	if l != nil && l.user != nil && l.user.ClientKey != "" {
		return nil, nil
	}
	if info, missing := os.Lstat(k.file(p.certificate())); err == nil && missing == nil {
		err = atomicfile.NoLink(k.file(p.certificate()), info)
	}
	return l, err
}

// read reads a part, with the files that a kubeconfig names. It returns nil if the folder has no key for the part.
func (k KubeadmFiles) read(p part) (*loaded, error) {
	l := &loaded{part: p}
	var chain, key []byte
	var err error
	if p.kubeconfig() {
		content, err := k.content(p.path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		if l.config, err = ParseKubeconfig(content); err != nil {
			return nil, fmt.Errorf("%s: %w", k.file(p.path), err)
		}
		l.user = l.config.User
		if chain, err = contentOf(k.Dir, l.user.ClientCertificateData, l.user.ClientCertificate); err != nil {
			return l, fmt.Errorf("%s: client-certificate: %w", k.file(p.path), err)
		}
		if key, err = contentOf(k.Dir, l.user.ClientKeyData, l.user.ClientKey); err != nil {
			return l, fmt.Errorf("%s: client-key: %w", k.file(p.path), err)
		}
	} else {
		key, err = k.content(p.path + ".key")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		if chain, err = k.content(p.path + ".crt"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if l.key, err = pemfile.Key(key); err != nil {
		return l, fmt.Errorf("%s: %w", k.file(p.path), err)
	}
	if len(chain) > 0 {
		certs, err := pemfile.Certificates(chain)
		if err != nil {
			return l, fmt.Errorf("%s: certificate: %w", k.file(p.path), err)
		}
		l.leaf, l.chain = certs[0], certs[1:]
	}
	if l.caPEM, err = k.content(p.ca + ".crt"); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrNoCA, err)
		}
		return l, fmt.Errorf("%s needs the certificate of its CA, not the key: %w", p.name, err)
	}
	if l.roots, err = pemfile.Certificates(l.caPEM); err != nil {
		err = fmt.Errorf("%s: %w", k.file(p.ca+".crt"), err)
	}
	return l, err
}

// problem returns the first defect of a certificate of the part, or nil.
func (l *loaded) problem(leaf *x509.Certificate, others []*x509.Certificate, now time.Time) error {
	if leaf == nil {
		return errors.New("not signed yet")
	}
	if !matches(l.key, leaf.PublicKey) {
		return errors.New("certificate and key differ")
	}
	wrong := func(usage string) error {
		return fmt.Errorf("wrong certificate: subject %q, without usage %s", safetext.Text(leaf.Subject.String(), safetext.MaxName), usage)
	}
	switch {
	case l.server && !allows(leaf, x509.ExtKeyUsageServerAuth):
		return wrong("server auth")
	case l.client && !allows(leaf, x509.ExtKeyUsageClientAuth):
		return wrong("client auth")
	}
	if problem := notNow(leaf, now); problem != "" {
		return errors.New(problem)
	}
	if _, err := l.verify(leaf, others, now); err != nil {
		if ca := l.issuer(leaf, others); ca != nil && notNow(ca, now) != "" {
			return fmt.Errorf("its CA cannot be used: %s", notNow(ca, now))
		}
		return fmt.Errorf("not of CA %s: %w", l.ca, err)
	}
	return nil
}

// notNow returns why a certificate is not valid at the time now; empty if it is valid.
func notNow(cert *x509.Certificate, now time.Time) string {
	switch {
	case now.Before(cert.NotBefore):
		return "not yet valid: it begins at " + cert.NotBefore.UTC().Format(time.RFC3339)
	case now.After(cert.NotAfter):
		return "expired"
	}
	return ""
}

// verify returns the chains of a certificate to the CAs of the part.
func (l *loaded) verify(leaf *x509.Certificate, others []*x509.Certificate, now time.Time) ([][]*x509.Certificate, error) {
	return leaf.Verify(x509.VerifyOptions{Roots: pemfile.PoolOf(l.roots), Intermediates: pemfile.PoolOf(others), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
}

// issuer returns the CA that issued a certificate, even if that CA is not valid now; nil if the CA is unknown.
func (l *loaded) issuer(leaf *x509.Certificate, others []*x509.Certificate) *x509.Certificate {
	for _, ca := range slices.Concat(l.roots, others) {
		if bytes.Equal(ca.RawSubject, leaf.RawIssuer) && leaf.CheckSignatureFrom(ca) == nil {
			return ca
		}
	}
	return nil
}

// end returns when the certificate of the part becomes unusable: when it expires, or a CA of its chain expires. If
// there are several chains, end uses the chain that lasts longest.
func (l *loaded) end(now time.Time) (end time.Time) {
	chains, err := l.verify(l.leaf, l.chain, now)
	if err != nil {
		chains = [][]*x509.Certificate{{l.leaf}}
		if ca := l.issuer(l.leaf, l.chain); ca != nil {
			chains[0] = append(chains[0], ca)
		}
	}
	for _, chain := range chains {
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if first.NotAfter.After(end) {
			end = first.NotAfter
		}
	}
	return end
}

// A signed is a new certificate that kubejoin has checked, but not yet written.
type signed struct {
	*loaded
	chain []byte
}

// sign requests a certificate of a part, and checks it.
func (k KubeadmFiles) sign(ctx context.Context, sign SignFunc, l *loaded, request *x509.CertificateRequest) (signed, error) {
	fail := func(err error) (signed, error) { return signed{}, fmt.Errorf("%s: %w", l.name, err) }
	chain, certs, err := sign.For(ctx, l.key, request, SigningRequest{Signer: KubeadmSigners + l.name, Usages: l.usages()})
	if err != nil {
		return fail(err)
	}
	leaf := certs[0]
	if err := l.problem(leaf, certs[1:], k.now()); err != nil {
		return fail(fmt.Errorf("the signer returned a certificate that this host cannot use: %w", err))
	}
	if leaf.Subject.String() != request.Subject.String() || !slices.Equal(leaf.DNSNames, request.DNSNames) || !slices.EqualFunc(leaf.IPAddresses, request.IPAddresses, net.IP.Equal) {
		return fail(errors.New("the signer returned a certificate with another subject or other names"))
	}
	return signed{l, chain}, nil
}

// content returns the file with the certificate.
func (s signed) content() ([]byte, error) {
	if !s.kubeconfig() {
		return s.chain, nil
	}
	s.user.ClientCertificateData = s.chain
	s.config.Cluster.CertificateAuthorityData = s.caPEM
	return clientcmd.Write(*s.config.Config)
}

// write replaces the certificate of a part. The key stays the same, so write changes only one file, completely or not at all.
func (k KubeadmFiles) write(s signed) error {
	mode := fs.FileMode(0o644) // the same mode as kubeadm
	if s.kubeconfig() {
		mode = 0o600
	}
	content, err := s.content()
	if err != nil {
		return err
	}
	to, err := atomicfile.Prepare(k.file(s.certificate()))
	if err != nil {
		return err
	}
	defer to.Drop()
	if err := to.KeepOwner(); err != nil { // a kubeconfig keeps its key, so keep its owner and mode too
		return err
	}
	return to.Write(content, mode)
}

// Sign requests certificates for all keys that 'kubeadm certs generate-csr' wrote and that have no valid certificate
// yet. It returns the names of the certificates that it wrote. It writes nothing unless all certificates were issued.
func (k KubeadmFiles) Sign(ctx context.Context, sign SignFunc) ([]string, error) {
	var all []signed
	found := false
	for _, p := range parts {
		l, err := k.load(p)
		if err != nil {
			return nil, err
		}
		if l == nil {
			continue
		}
		found = true
		if l.problem(l.leaf, l.chain, k.now()) == nil {
			continue
		}
		file := k.file(p.path + ".csr")
		content, _, err := readSmall(file)
		if err != nil {
			return nil, fmt.Errorf("%w; create it with: kubeadm certs generate-csr", err)
		}
		csr, err := pkcs10.Parse(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if !matches(l.key, csr.PublicKey) {
			return nil, fmt.Errorf("%s: %s: the certificate request is not for the key beside it", p.name, file)
		}
		if reason := k.NoCA[p.name]; reason != "" {
			return nil, fmt.Errorf("%s: %s", p.name, reason)
		}
		subject, err := p.subject(csr.Subject)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", p.name, file, err)
		}
		one, err := k.sign(ctx, sign, l, &x509.CertificateRequest{
			Subject: subject, DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses, EmailAddresses: csr.EmailAddresses, URIs: csr.URIs,
		})
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if !found {
		return nil, fmt.Errorf("%s has no keys of kubeadm; create them with: kubeadm certs generate-csr", k.Dir)
	}
	return k.writeAll(all)
}

func (k KubeadmFiles) writeAll(all []signed) (names []string, err error) {
	for _, one := range all {
		if err := k.write(one); err != nil {
			return names, fmt.Errorf("%s: %w", one.name, err)
		}
		names = append(names, one.name)
	}
	return names, nil
}

// A Renewal selects what [KubeadmFiles.Renew] renews.
type Renewal struct {
	// Names are names of certificates; empty means all certificates whose CA is available.
	Names []string
	// Add maps a certificate to the names and addresses to add.
	Add map[string][]string
	// LeaveOut skips a certificate in Names if its CA is missing, instead of returning an error.
	LeaveOut bool
}

// A Note is a remark about one certificate.
type Note struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Renewed is the result of [KubeadmFiles.Renew].
type Renewed struct {
	Names []string `json:"renewed"`
	// SetAside are the certificates that Renew skipped because their CA is missing.
	SetAside []Note `json:"setAside,omitempty"`
	// Changes are differences between new and old certificates.
	Changes []Note `json:"changes,omitempty"`
}

// Renew requests new certificates for the keys in the folder. They have the names of the old certificates, and the
// subjects that kubeadm gives them today. Renew skips kubelet.conf, which the kubelet renews, and certificates whose CA is
// missing, unless r.Names lists them. It returns the content of the new files, by path below Dir, and writes nothing.
func (k KubeadmFiles) Renew(ctx context.Context, sign SignFunc, r Renewal) (map[string][]byte, Renewed, error) {
	all, done, err := k.issue(ctx, sign, r)
	files := map[string][]byte{}
	for _, one := range all {
		content, failed := one.content()
		files[one.certificate()], err = content, errors.Join(err, failed)
		done.Names = append(done.Names, one.name)
	}
	return files, done, err
}

// Due returns the names of the certificates for which the function is returns true. It skips kubelet.conf, which the
// kubelet renews.
func (k KubeadmFiles) Due(is func(leaf *x509.Certificate) bool) (names []string, err error) {
	for _, p := range parts {
		l, err := k.load(p)
		if err != nil && (l == nil || l.leaf == nil) {
			return nil, err
		}
		if l != nil && l.leaf != nil && p.name != kubeletConf && is(l.leaf) {
			names = append(names, p.name)
		}
	}
	return names, nil
}

func (k KubeadmFiles) issue(ctx context.Context, sign SignFunc, r Renewal) (all []signed, done Renewed, err error) {
	for _, name := range r.Names {
		if !slices.Contains(Renewable(), name) {
			return nil, done, fmt.Errorf("%q is not a certificate that can be renewed, want one of %s", name, strings.Join(Renewable(), ", "))
		}
	}
	for _, p := range parts {
		wanted := slices.Contains(r.Names, p.name)
		if p.name == kubeletConf || len(r.Names) > 0 && !wanted {
			continue
		}
		l, err := k.load(p)
		if err == nil && (l == nil || l.leaf == nil) {
			if wanted {
				return nil, done, fmt.Errorf("%s: there is no certificate to renew", p.name)
			}
			continue
		}
		var one signed
		var changes []string
		reason := k.NoCA[p.name]
		if err == nil && reason == "" {
			one, changes, err = k.renew(ctx, sign, l, r.Add[p.name])
		}
		if reason == "" && errors.Is(err, ErrNoCA) {
			reason = strings.TrimPrefix(err.Error(), p.name+": ")
		}
		switch {
		case reason != "" && wanted && !r.LeaveOut:
			return nil, done, fmt.Errorf("%s: %s", p.name, reason)
		case reason != "":
			done.SetAside = append(done.SetAside, Note{p.name, reason})
			continue
		case err != nil:
			return nil, done, err
		}
		all = append(all, one)
		for _, text := range changes {
			done.Changes = append(done.Changes, Note{p.name, text})
		}
	}
	switch {
	case len(all) == 0 && len(done.SetAside) > 0:
		return nil, done, fmt.Errorf("nothing to renew without these CAs: %s: %s", done.SetAside[0].Name, done.SetAside[0].Text)
	case len(all) == 0:
		return nil, done, fmt.Errorf("%s has no certificates of kubeadm", k.Dir)
	}
	return all, done, nil
}

// renew requests a new certificate for the key of a part.
func (k KubeadmFiles) renew(ctx context.Context, sign SignFunc, l *loaded, names []string) (signed, []string, error) {
	request, changes, err := l.renewal(l.leaf, names)
	if err != nil {
		return signed{}, nil, fmt.Errorf("%s: %s: %w", l.name, k.file(l.certificate()), err)
	}
	one, err := k.sign(ctx, sign, l, request)
	return one, changes, err
}

// AdminConfig returns the client configuration in admin.conf. chain replaces its certificate, unless it is empty.
func (k KubeadmFiles) AdminConfig(chain []byte) (*rest.Config, error) {
	l, err := k.load(parts[0])
	switch {
	case err != nil:
		return nil, err
	case l == nil:
		return nil, fmt.Errorf("%s has no %s", k.Dir, parts[0].name)
	case len(chain) > 0:
		l.user.ClientCertificateData = chain
	}
	l.config.Cluster.CertificateAuthorityData = l.caPEM
	return clientcmd.NewDefaultClientConfig(*l.config.Config, nil).ClientConfig()
}

// Renewable returns the names that [KubeadmFiles.Renew] accepts.
func Renewable() (names []string) {
	for _, p := range parts {
		if p.name != kubeletConf {
			names = append(names, p.name)
		}
	}
	return names
}

// OfEtcd returns the names of the certificates that the CA of etcd signs.
func OfEtcd() (names []string) {
	for _, p := range parts {
		if p.ca == etcdCA {
			names = append(names, p.name)
		}
	}
	return names
}
