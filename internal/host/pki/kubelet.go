package pki

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/kubelet"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// kubeletConfig is the part of a KubeletConfiguration with the addresses of the health endpoint and of the kubelet's
// API, and the feature gates.
type kubeletConfig struct {
	Port               int    `json:"port"`
	HealthzPort        *int   `json:"healthzPort"`
	HealthzBindAddress string `json:"healthzBindAddress"`
	TLSCertFile        string `json:"tlsCertFile"`
	TLSPrivateKeyFile  string `json:"tlsPrivateKeyFile"`
	Authentication     struct {
		X509 struct {
			ClientCAFile string `json:"clientCAFile"`
		} `json:"x509"`
	} `json:"authentication"`

	FeatureGates map[string]bool `json:"featureGates"`
}

// kubeletConfig reads the configuration of the kubelet. It returns the zero value if there is no file.
func (h Host) kubeletConfig() (config kubeletConfig, err error) {
	file := filepath.Join(h.KubeletDir, "config.yaml")
	content, err := readFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return config, nil
	}
	if err == nil && yaml.Unmarshal(content, &config) != nil {
		err = fmt.Errorf("%s: want a KubeletConfiguration", file)
	}
	return config, err
}

// kubeletService returns the service of the kubelet, with changed unset. url is empty if the kubelet serves no health endpoint.
func (h Host) kubeletService() (service, error) {
	const defaultPort, defaultServing, defaultAddress = 10248, 10250, "127.0.0.1"
	s := service{name: "kubelet", port: defaultPort, comm: kubeletComm, grace: grace, hint: "start it with: systemctl restart kubelet"}
	config, err := h.kubeletConfig()
	if err != nil {
		return s, err
	}
	if config.HealthzPort != nil {
		s.port = *config.HealthzPort
	}
	if s.port == 0 {
		s.port = cmp.Or(config.Port, defaultServing)
		return s, nil
	}
	address := config.HealthzBindAddress
	if ip := net.ParseIP(address); ip == nil || ip.IsUnspecified() {
		address = defaultAddress
	}
	s.url = "http://" + net.JoinHostPort(address, strconv.Itoa(s.port)) + "/healthz"
	return s, nil
}

// updateKubelet requests certificates, and restarts the kubelet if a file has changed that the kubelet does not reload.
func (h Host) updateKubelet(ctx context.Context, b *backup, a authority, r rotation.Rotation, done *Result) error {
	if b.originals[kubeletConf] == nil {
		return nil
	}
	for _, c := range kubeletCertificates {
		if err := h.renewKubelet(ctx, b, r, c); err != nil {
			h.Log("warning: the kubelet got no new " + c.what + " certificate: " + err.Error() + "; to retry, run the command again; the kubelet renews near the end of the present one")
		}
	}
	s, err := h.kubeletService()
	if err != nil {
		return err
	}
	if s.changed, err = h.kubeletChanged(ctx, b, a, r); err != nil {
		return err
	}
	p, err := h.system.listener(s)
	if err != nil || p.pid == 0 || !p.started.Before(s.changed) {
		return err
	}
	_, err = h.restart(ctx, []service{s}, done)
	return err
}

// kubeletChanged returns when a file changed that the kubelet needs and does not reload; the zero time if none has
// changed. The kubelet reads the CA of its kubeconfig only when it starts, even if the kubeconfig names a CA file.
func (h Host) kubeletChanged(ctx context.Context, b *backup, a authority, r rotation.Rotation) (last time.Time, err error) {
	var names []string
	if h.kubeletNeedsCA(ctx, r) {
		names = []string{kubeletConf, a.bundle}
	}
	for name := range b.index.Written {
		if filepath.IsAbs(name) { // a certificate of the kubelet
			names = append(names, name)
		}
	}
	if link, _, err := h.clientCertificate(); err == nil && link == h.file(kubeletConf) { // kubelet.conf contains the certificate
		names = append(names, kubeletConf)
	}
	return h.lastChanged(b, names)
}

// kubeletNeedsCA reports whether the kubelet must be restarted to read the CAs of the stage. In stage trust, no restart is
// needed if the kubelet trusts the CA that signed the cross certificate, and re-reads its client CAs by itself. API servers
// will present the cross certificate.
func (h Host) kubeletNeedsCA(ctx context.Context, r rotation.Rotation) bool {
	if len(r.Old) != 1 || r.Stage != rotation.Trust || len(r.Cross) == 0 {
		return true
	}
	config, err := h.kubeletConfig()
	gate, given := config.FeatureGates["ReloadKubeletClientCAFile"]
	if !given {
		gate, given = config.FeatureGates["AllBeta"]
	}
	if err != nil || given && !gate {
		return true
	}
	return h.KubeletReloads == nil || !h.KubeletReloads(ctx)
}

// A kubeletCertificate is a kind of certificate that the kubelet renews by itself. The name of its file begins with prefix. If
// prefix is empty, kubelet.conf contains the certificate or names its file.
type kubeletCertificate struct {
	what, prefix, signer string
	usage                certificatesv1.KeyUsage
}

var kubeletCertificates = []kubeletCertificate{
	{"client", "", certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth},
	// A kubelet that renews its certificate prefers this file to a certificate in kubelet.conf.
	{"client", "kubelet-client-", certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth},
	{"serving", "kubelet-server-", certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth},
}

// find returns the present certificate and the path of its file, or of the link to that file. The path is empty if there is no
// certificate.
func (c kubeletCertificate) find(h Host) (link string, chain []*x509.Certificate, err error) {
	if c.prefix == "" {
		return h.clientCertificate()
	}
	link = filepath.Join(h.KubeletDir, "pki", c.prefix+"current.pem")
	if named, _, err := h.clientCertificate(); err == nil && named == link {
		return "", nil, nil // the entry with the empty prefix covers this file
	}
	return linked(link)
}

// renewKubelet requests a certificate of the kubelet if the present one is from the CA that no longer signs.
func (h Host) renewKubelet(ctx context.Context, b *backup, r rotation.Rotation, c kubeletCertificate) error {
	if h.Sign == nil {
		return nil
	}
	link, chain, err := c.find(h)
	if err != nil || link == "" {
		return err
	}
	want := side(r)
	switch r.Find(chain) {
	case "":
		return longChain(chain)
	case want, rotation.FromOther:
		return nil
	}
	key, err := credentials.NewKey()
	if err != nil {
		return err
	}
	encoded, err := credentials.EncodeKey(key)
	if err != nil {
		return err
	}
	names := &x509.CertificateRequest{Subject: chain[0].Subject, DNSNames: chain[0].DNSNames, IPAddresses: chain[0].IPAddresses}
	h.Log("requesting a " + c.what + " certificate for the kubelet")
	const patience = 30 * time.Second
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, c.usage}
	issued, chain, err := h.Sign.For(wait, key, names, credentials.SigningRequest{Signer: c.signer, Usages: usages})
	if err != nil {
		return err
	}
	if r.Find(chain) != want {
		return fmt.Errorf("kubejoin does not sign with the %s CA yet; first run 'kubejoin ca apply' on the control planes", want)
	}
	if link == h.file(kubeletConf) {
		return h.embed(b, r, issued, encoded)
	}
	info, err := os.Lstat(link)
	if err != nil {
		return err
	}
	// The kubelet uses names of this form.
	file := filepath.Join(filepath.Dir(link), cmp.Or(c.prefix, "kubelet-client-")+time.Now().Format("2006-01-02-15-04-05")+".pem")
	if c.usage == certificatesv1.UsageServerAuth && r.SignsNew() { // API servers may need 5 minutes to read the new CA
		issued = slices.Concat(issued, r.Cross.PEM())
	}
	regular := info.Mode().IsRegular() // the kubelet does not maintain a regular file, only a link
	if regular {
		file = link
	}
	content := slices.Concat(issued, encoded)
	if err := errors.Join(h.wrote(b, file, content), h.saveIndex(b)); err != nil {
		return err
	}
	if err := h.replace(file, content); err != nil || regular {
		return err
	}
	if err := h.fault(link); err != nil {
		return err
	}
	return kubelet.Link(file, link)
}

// embed writes a certificate of the kubelet with its key into kubelet.conf. It stores the result among the files that
// the CA signed again.
func (h Host) embed(b *backup, r rotation.Rotation, chain, key []byte) error {
	config, err := credentials.ParseKubeconfig(b.originals[kubeletConf])
	if err != nil {
		return err
	}
	config.User.ClientCertificateData, config.User.ClientKeyData = chain, key
	content, err := clientcmd.Write(*config.Config)
	if err != nil {
		return err
	}
	of := side(r)
	if err := h.save(filepath.Join(b.dir, signedDirs[of], kubeletConf), content); err != nil {
		return err
	}
	if b.signed[of] == nil {
		b.signed[of] = contents{}
	}
	b.signed[of][kubeletConf] = content
	a := authorities[r.CA]
	want, err := a.wanted(contents{a.bundle: b.originals[a.bundle], kubeletConf: b.originals[kubeletConf]}, b.signed, r)
	if err != nil {
		return err
	}
	if err := errors.Join(h.wrote(b, kubeletConf, want[kubeletConf]), h.saveIndex(b)); err != nil {
		return err
	}
	return h.replace(h.file(kubeletConf), want[kubeletConf])
}

// clientCertificate returns the certificate that kubelet.conf names, and the path of its file or link. The link is
// kubelet.conf itself if that file contains the certificate. The chain is nil without kubelet.conf.
func (h Host) clientCertificate() (link string, chain []*x509.Certificate, err error) {
	content, err := readFile(h.file(kubeletConf))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	config, err := credentials.ParseKubeconfig(content)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", h.file(kubeletConf), err)
	}
	link = config.User.ClientCertificate
	switch {
	case link == "":
		chain, err = pemfile.Certificates(config.User.ClientCertificateData)
		return h.file(kubeletConf), chain, err
	case link != config.User.ClientKey:
		_, chain, _ = linked(absolute(h.Dir, link)) // NodeName reads the node name from this chain
		return "", chain, fmt.Errorf("%s: client-certificate and client-key name different files, want one file with certificate and key, as the kubelet writes it: put both into one file, and set both fields to its path", h.file(kubeletConf))
	}
	return linked(absolute(h.Dir, link))
}

// linked returns the certificate in a file or behind a link. It returns no path and no chain if the file does not exist.
func linked(link string) (string, []*x509.Certificate, error) {
	target, err := filepath.EvalSymlinks(link)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	content, err := readFile(target)
	if err != nil {
		return "", nil, err
	}
	chain, err := pemfile.Certificates(content)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", target, err)
	}
	return link, chain, nil
}
