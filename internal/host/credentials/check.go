package credentials

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maxKubeconfig limits the size of a kubeconfig, of any other file, and of a response, in bytes.
const maxKubeconfig = 1 << 20

// callTimeout limits each request to the API server.
const callTimeout = 10 * time.Second

// A KubeconfigFinding is one fault of a kubeconfig.
type KubeconfigFinding struct {
	// ID is stable, for example "expired".
	ID string `json:"id"`
	// Message says what is wrong, Remedy what to do.
	Message string `json:"message"`
	Remedy  string `json:"remedy"`
}

// A KubeconfigReport is the result of a check of one kubeconfig.
type KubeconfigReport struct {
	File     string              `json:"file"`
	User     string              `json:"user,omitempty"`
	Server   string              `json:"server,omitempty"`
	NotAfter string              `json:"notAfter,omitempty"`
	Findings []KubeconfigFinding `json:"findings"`
	// Unchecked lists checks that could not be made, and why.
	Unchecked []string `json:"unchecked,omitempty"`
}

// Text returns the report with one line for each finding.
func (r KubeconfigReport) Text() string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s; to mend it: %s\n", f.ID, f.Message, f.Remedy)
	}
	for _, u := range r.Unchecked {
		fmt.Fprintf(&b, "could not check %s\n", u)
	}
	if len(r.Findings)+len(r.Unchecked) == 0 {
		fmt.Fprintf(&b, "no findings: %s is good for %s at %s", r.File, r.User, r.Server)
		if r.NotAfter != "" { // only certificates have an expiry
			fmt.Fprintf(&b, " until %s", r.NotAfter)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// A Checker checks kubeconfigs.
type Checker struct {
	// Node is the node for which the kubeconfig should be; empty allows any user.
	Node string
	// Offline makes Check send no request to the API server.
	Offline bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Check returns the list of [KubeadmFiles.List], and adds to kubeconfigs the problems that a Checker finds. For
// example, the CA of a kubeconfig may differ from the CA in pki/ca.crt.
func (k KubeadmFiles) Check(ctx context.Context) ([]CertificateStatus, error) {
	list, err := k.List()
	for i, status := range list {
		if status.Problem != "" || !strings.HasSuffix(status.Name, ".conf") {
			continue
		}
		report, err := Checker{Offline: true, Now: k.Now}.Check(ctx, k.file(status.Name))
		if err != nil {
			return nil, err
		}
		for _, f := range slices.Backward(report.Findings) { // backward, so that the first finding remains
			if f.ID != "near-end" && f.ID != "readable-by-others" { // these findings do not make the kubeconfig unusable
				list[i].Problem = f.Message
			}
		}
	}
	return list, err
}

// Remedies that several findings share.
const (
	remedyNew = "make a new file: kubejoin kubeconfig node NAME, or kubejoin kubeconfig user NAME"
	remedyCA  = "copy the CA certificates of the cluster, for example from /etc/kubernetes/pki/ca.crt, into certificate-authority-data"
)

// checking is the state of one check.
type checking struct {
	Checker
	report KubeconfigReport
	dir    string // folder of the kubeconfig, for relative paths
	now    time.Time

	cluster *clientcmdapi.Cluster
	user    *clientcmdapi.AuthInfo

	caPEM, chainPEM, keyPEM []byte

	roots   []*x509.Certificate
	leaf    *x509.Certificate
	usable  bool // no finding prevents a client from presenting the credential
	badCA   bool // the kubeconfig contains an unreadable CA
	wrongCA bool
}

func (c *checking) find(id, remedy, format string, args ...any) {
	c.report.Findings = append(c.report.Findings, KubeconfigFinding{id, fmt.Sprintf(format, args...), remedy})
}

// Check checks a kubeconfig and the API server in it. The error means that the file could not be read.
func (o Checker) Check(ctx context.Context, file string) (KubeconfigReport, error) {
	c := &checking{Checker: o, dir: filepath.Dir(file), now: time.Now(), report: KubeconfigReport{File: file, Findings: []KubeconfigFinding{}}}
	if o.Now != nil {
		c.now = o.Now()
	}
	content, info, err := readSmall(file)
	if err != nil {
		return c.report, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		c.find("readable-by-others", "chmod 600 "+file, "the file has mode %04o, so other users of this machine may read or change its key", info.Mode().Perm())
	}
	if c.parse(content) {
		c.checkCluster()
		c.checkUser()
		if !o.Offline {
			c.checkServer(ctx)
		} else {
			c.report.Unchecked = append(c.report.Unchecked, "the API server, because of --offline")
		}
		if c.wrongCA {
			c.find("wrong-ca", remedyNew+"; if the API server trusts another CA for clients, check the file without --offline where the API server is reachable",
				"the CA of the file did not issue its client certificate, which %q issued", c.leaf.Issuer)
		}
	}
	return c.report, nil
}

// parse reads the current context. It returns false if nothing more can be checked. It does not show errors of the
// YAML parser, because they may contain parts of the file.
func (c *checking) parse(content []byte) bool {
	config, err := decode(content)
	if err == nil && len(config.Clusters)+len(config.AuthInfos)+len(config.Contexts) == 0 {
		err = errors.New("the file is not a kubeconfig")
	}
	if err != nil {
		c.find("malformed", remedyNew, "%v", err)
		return false
	}
	if config.CurrentContext == "" {
		c.find("no-current-context", "kubectl config use-context CONTEXT --kubeconfig "+c.report.File, "the file has no current-context")
		return false
	}
	at := config.Contexts[config.CurrentContext]
	if at == nil {
		c.find("no-current-context", "kubectl config use-context CONTEXT --kubeconfig "+c.report.File, "current-context is %q, and the file has no such context", config.CurrentContext)
		return false
	}
	c.cluster, c.user = config.Clusters[at.Cluster], config.AuthInfos[at.AuthInfo]
	if c.cluster == nil {
		c.find("no-cluster", remedyNew, "context %q has cluster %q, which the file does not define", config.CurrentContext, at.Cluster)
	}
	if c.user == nil {
		c.find("no-user", remedyNew, "context %q has user %q, which the file does not define", config.CurrentContext, at.AuthInfo)
	}
	return c.cluster != nil && c.user != nil
}

// contentOf returns the embedded content of a field in a kubeconfig, or the content of the file that the field names,
// relative to dir.
func contentOf(dir string, embedded []byte, file string) ([]byte, error) {
	if len(embedded) > 0 || file == "" {
		return embedded, nil
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	content, _, err := readSmall(file)
	return content, err
}

// readSmall reads a file. It refuses devices and pipes, which may never end, and large files.
func readSmall(file string) ([]byte, fs.FileInfo, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, errors.Unwrap(err)) // without the name of the system call
	}
	if !info.Mode().IsRegular() || info.Size() > maxKubeconfig {
		return nil, nil, fmt.Errorf("%s: want a regular file of at most %d bytes", file, maxKubeconfig)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()                             // read-only, so Close loses nothing
	content, err := io.ReadAll(io.LimitReader(f, maxKubeconfig)) // the file may have grown since Stat
	return content, info, err
}

func (c *checking) checkCluster() {
	c.report.Server = c.cluster.Server
	if u, err := url.Parse(c.cluster.Server); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		c.report.Server = ""
		c.find("server-address", "kubectl config set-cluster CLUSTER --server https://HOST:6443 --kubeconfig "+c.report.File, "the address of the API server is invalid, want https://HOST:PORT")
	}
	if c.cluster.InsecureSkipTLSVerify {
		c.find("insecure", remedyCA+", and remove insecure-skip-tls-verify", "insecure-skip-tls-verify is set, so anyone on the network can pose as the API server")
	}
	if u, err := url.Parse(c.cluster.ProxyURL); c.cluster.ProxyURL != "" && (err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme)) {
		c.report.Server = ""
		// Do not quote the URL: it may contain a password.
		c.find("proxy-url", "kubectl config set-cluster CLUSTER --proxy-url http://HOST:PORT --kubeconfig "+c.report.File, "proxy-url is invalid, want http, https or socks5 and a host")
	}
	content, err := contentOf(c.dir, c.cluster.CertificateAuthorityData, c.cluster.CertificateAuthority)
	switch {
	case err != nil:
		c.badCA = true
		c.find("no-ca", remedyCA, "the CA file of the cluster cannot be read: %v", err)
		return
	case len(content) == 0 && c.cluster.CertificateAuthority == "": // like kubectl, trust the CAs of this machine
		if c.Offline {
			c.report.Unchecked = append(c.report.Unchecked, "the CA, because the file has none: clients trust the CAs of the machine")
		}
		return
	}
	c.caPEM = content
	if c.roots, err = pemfile.Certificates(content); err != nil {
		c.badCA = true
		c.find("no-ca", remedyCA, "the CA certificates in the file cannot be read: %v", err)
		return
	}
	if !slices.ContainsFunc(c.roots, func(ca *x509.Certificate) bool { return c.now.Before(ca.NotAfter) }) {
		c.find("ca-expired", remedyCA, "every CA certificate in the file has expired")
	}
}

func (c *checking) checkUser() {
	u := c.user
	chain, err := contentOf(c.dir, u.ClientCertificateData, u.ClientCertificate)
	key := []byte(nil)
	if err == nil {
		key, err = contentOf(c.dir, u.ClientKeyData, u.ClientKey)
	}
	if err != nil {
		c.find("no-credential", remedyNew, "a file that the kubeconfig names cannot be read: %v", err)
		return
	}
	if u.TokenFile != "" {
		if _, err := contentOf(c.dir, nil, u.TokenFile); err != nil {
			c.find("no-credential", remedyNew, "the token file of the user cannot be read: %v", err)
			return
		}
	}
	other := u.Token != "" || u.TokenFile != "" || u.Username != "" || u.Exec != nil || u.AuthProvider != nil
	switch {
	case len(chain)+len(key) == 0 && other && (c.Node != "" || filepath.Base(c.report.File) == kubeletConf):
		c.find("no-certificate", remedyNew, "the user has another credential and no client certificate; a bootstrap kubeconfig belongs in bootstrap-kubelet.conf")
		return
	case len(chain)+len(key) == 0 && other: // only the API server can check a token or password
		c.usable = true
		return
	case len(chain)+len(key) == 0:
		c.find("no-credential", remedyNew, "the user has no credential")
		return
	case len(chain) == 0:
		c.find("no-certificate", "have the certificate signed: kubejoin sign --kubeadm-dir "+c.dir, "the user has a key and no client certificate")
		return
	case len(key) == 0:
		c.find("no-key", remedyNew, "the user has a client certificate and no key")
		return
	}
	certs, err := pemfile.Certificates(chain)
	if err != nil {
		c.find("malformed-certificate", remedyNew, "the client certificate cannot be read: %v", err)
		return
	}
	leaf := certs[0]
	c.leaf, c.report.User, c.report.NotAfter = leaf, leaf.Subject.CommonName, leaf.NotAfter.UTC().Format(time.RFC3339)
	private, err := pemfile.Key(key)
	switch {
	case err != nil:
		c.find("malformed-key", remedyNew, "the private key cannot be read")
	case !matches(private, leaf.PublicKey):
		c.find("key-differs", remedyNew, "the private key does not belong to the client certificate")
	default:
		c.usable, c.chainPEM, c.keyPEM = true, chain, key
	}
	c.checkTimes()
	if !allows(leaf, x509.ExtKeyUsageClientAuth) {
		c.find("not-a-client-certificate", remedyNew, "the certificate is not for clients: it lacks usage client auth")
	}
	c.checkNode()
	if len(c.roots) > 0 {
		// Verify at a time when the certificate is valid: checkTimes reports expired certificates.
		_, err := (&loaded{roots: c.roots}).verify(leaf, certs[1:], leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore)/2))
		var unknown x509.UnknownAuthorityError
		c.wrongCA = errors.As(err, &unknown)
	}
}

// allows reports whether clients and servers accept a certificate for a usage.
func allows(cert *x509.Certificate, usage x509.ExtKeyUsage) bool {
	return len(cert.ExtKeyUsage)+len(cert.UnknownExtKeyUsage) == 0 || slices.Contains(cert.ExtKeyUsage, usage) || slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny)
}

// checkTimes finds certificates that are not valid now, or expire soon. A kubelet renews its certificate after 70 to 90
// percent of its lifetime.
func (c *checking) checkTimes() {
	begin, end := c.leaf.NotBefore, c.leaf.NotAfter
	day := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch left := end.Sub(c.now); {
	case c.now.Before(begin):
		c.find("not-yet-valid", "check the clocks of this machine and of the signer: timedatectl", "the client certificate begins at %s, and this machine has %s", day(begin), day(c.now))
	case left <= 0:
		c.find("expired", remedyNew, "the client certificate ended at %s", day(end))
	case left < end.Sub(begin)/10:
		c.find("near-end", remedyNew, "the client certificate ends at %s, in less than a tenth of its lifetime", day(end))
	}
}

// checkNode finds a client certificate that the kubelet of a node cannot use.
func (c *checking) checkNode() {
	name, isNode := strings.CutPrefix(c.leaf.Subject.CommonName, tokens.NodeUserPrefix)
	inGroup := slices.Contains(c.leaf.Subject.Organization, tokens.NodesGroup)
	remedy := "make a file for this node: kubejoin kubeconfig node NAME"
	switch {
	case c.Node != "" && (!isNode || name != c.Node || !inGroup):
		c.find("wrong-user", remedy, "the client certificate is for %q in %q, and node %s needs %q in %q", c.leaf.Subject.CommonName, c.leaf.Subject.Organization, c.Node, tokens.NodeUserPrefix+c.Node, tokens.NodesGroup)
	case filepath.Base(c.report.File) == kubeletConf && (!isNode || !inGroup), isNode != inGroup:
		c.find("wrong-user", remedy, "the client certificate is for %q in %q, which is not a node; want %sNAME in %q", c.leaf.Subject.CommonName, c.leaf.Subject.Organization, tokens.NodeUserPrefix, tokens.NodesGroup)
	}
}

// client returns an HTTP client that connects to the API server like kubectl with the same file. It uses the proxy,
// server name, token, exec plugin and impersonation of the file. If the file contains no CA, the client trusts the
// system's CAs. If the credential is unusable, the client presents none.
func (c *checking) client() (*http.Client, error) {
	config := clientcmdapi.NewConfig()
	cluster, user := *c.cluster, clientcmdapi.AuthInfo{}
	if c.usable {
		user = *c.user
	}
	// Use the content that was already read and checked.
	if len(c.caPEM) > 0 {
		cluster.CertificateAuthorityData, cluster.CertificateAuthority = c.caPEM, ""
	}
	if len(user.ClientCertificateData)+len(user.ClientCertificate) > 0 {
		user.ClientCertificateData, user.ClientKeyData, user.ClientCertificate, user.ClientKey = c.chainPEM, c.keyPEM, "", ""
	}
	cluster.LocationOfOrigin, user.LocationOfOrigin = c.report.File, c.report.File
	config.Clusters["c"], config.AuthInfos["u"] = &cluster, &user
	config.Contexts["x"], config.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, err
	}
	rests, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	rests.Timeout, rests.WarningHandler = callTimeout, rest.NoWarnings{}
	web, err := rest.HTTPClientFor(rests)
	if err != nil {
		return nil, err
	}
	web.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return web, nil
}

// checkServer makes requests to the API server as the user.
func (c *checking) checkServer(ctx context.Context) {
	unchecked := func(format string, args ...any) {
		c.report.Unchecked = append(c.report.Unchecked, fmt.Sprintf(format, args...))
	}
	switch {
	case c.report.Server == "" || c.badCA:
		unchecked("the API server, because its address or CA is missing")
		return
	case c.cluster.InsecureSkipTLSVerify: // anyone could impersonate the API server and get the token
		unchecked("the API server, because of insecure-skip-tls-verify")
		return
	}
	web, err := c.client()
	if err != nil && c.usable && c.user.AuthProvider != nil {
		unchecked("the API server, because kubejoin has no auth provider %q; kubectl uses exec plugins in their place", safetext.Text(c.user.AuthProvider.Name, safetext.MaxName))
		return
	}
	if err != nil && len(c.report.Findings) > 0 {
		unchecked("the API server, because no client can use the file")
		return
	}
	if err != nil {
		c.find("unusable", remedyNew, "no client can use the file: %v", safetext.Text(err.Error(), safetext.MaxName))
		return
	}
	defer utilnet.CloseIdleConnectionsFor(web.Transport)
	review := authenticationv1.SelfSubjectReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}}
	body, err := json.Marshal(review)
	if err != nil {
		unchecked("the API server: %v", err)
		return
	}
	credential := "credential"
	if c.leaf != nil {
		credential = "client certificate"
	}
	status, err := c.call(ctx, web, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", body, &review)
	var invalid *tls.CertificateVerificationError
	switch {
	case errors.Is(err, context.Canceled):
		unchecked("the API server, because the check was canceled")
		return
	case errors.As(err, &invalid):
		c.find("server-certificate", remedyCA+"; or check the name of the server in the file", "the certificate of the API server does not pass: %v", invalid.Err)
		return
	case err != nil && c.leaf != nil && c.usable && strings.Contains(err.Error(), "remote error: tls:"):
		c.find("not-accepted", remedyNew, "the server refuses the client certificate: %v", err)
		return
	case err != nil && c.usable && c.user.Exec != nil && strings.Contains(err.Error(), "getting credentials"):
		c.find("no-credential", "run the command of the exec plugin by hand", "the exec plugin of the user returns no credential: %s", safetext.Text(err.Error(), safetext.MaxName))
		return
	case err != nil:
		c.find("unreachable", "check the address, the proxy, and the firewalls between here and there: curl -k "+c.report.Server+"/livez", "the API server is not reachable: %s", safetext.Text(err.Error(), safetext.MaxName))
		return
	}
	if !c.usable {
		return // a finding already reports the credential
	}
	switch status {
	case http.StatusOK, http.StatusCreated:
		c.wrongCA = false // the API server accepts the certificate: it trusts another CA for clients
	case http.StatusUnauthorized:
		c.find("not-accepted", remedyNew, "the API server does not accept the %s (401)", credential)
		return
	case http.StatusForbidden:
		c.find("not-permitted", "check RBAC: kubectl auth can-i --list --as USER; and whether the certificate was revoked", "the API server knows the user and permits nothing (403)")
		return
	default:
		unchecked("the user, because the API server returned status %d", status)
		return
	}
	if user := review.Status.UserInfo.Username; user != "" { // the name of a token's user, or the impersonated name
		c.report.User = safetext.Text(user, safetext.MaxName)
	}
	name, isNode := strings.CutPrefix(c.report.User, tokens.NodeUserPrefix)
	if !isNode {
		return
	}
	switch status, err := c.call(ctx, web, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(name), nil, nil); {
	case err != nil:
		unchecked("node %s: %v", name, err)
	case status == http.StatusForbidden:
		c.find("not-permitted", "check that kube-apiserver runs with --authorization-mode=Node,RBAC, and whether the node was revoked", "the API server does not permit %s to read its own Node (403)", c.report.User)
	case status != http.StatusOK && status != http.StatusNotFound: // not found: the node has not registered yet
		unchecked("node %s, because the API server returned status %d", name, status)
	}
}

// call sends a request and returns the status. It decodes a successful response into the value into, if into is not
// nil. Errors do not contain the request.
func (c *checking) call(ctx context.Context, web *http.Client, method, path string, body []byte, into any) (int, error) {
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.report.Server, "/")+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	response, err := web.Do(r)
	var at *url.Error
	if errors.As(err, &at) {
		return 0, at.Err
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // read-only, so Close loses nothing
	if into != nil && response.StatusCode/100 == 2 {
		// If the response has no name, keep the name in the certificate.
		_ = json.NewDecoder(io.LimitReader(response.Body, maxKubeconfig)).Decode(into)
	}
	return response.StatusCode, nil
}
