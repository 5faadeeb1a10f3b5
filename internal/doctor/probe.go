package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"
)

// maxAnswer limits how much of a response get reads, in bytes.
const maxAnswer = 32 << 20

const discoveryPath = "/api/v1/namespaces/" + clusterinfo.Namespace + "/configmaps/" + clusterinfo.Name

// anonymous reads cluster-info at the API server without a credential.
func (r *reading) anonymous(ctx context.Context) error {
	client, err := rest.HTTPClientFor(rest.AnonymousClientConfig(r.Cluster))
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	base := strings.TrimSuffix(r.Cluster.Host, "/")
	if !strings.Contains(base, "://") {
		base = "https://" + base
	}
	response, _, err := get(ctx, client, base+discoveryPath)
	if err != nil {
		return err
	}
	switch r.Anonymous = response.StatusCode; r.Anonymous {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return nil
	}
	return fmt.Errorf("the API server returns %s for cluster-info", response.Status)
}

// probe connects to the addresses that joining machines use. No probe sends a credential.
func (r *reading) probe(ctx context.Context) {
	r.advertised()
	if r.Unread[factClusterInfo] == "" && r.ClusterInfo != nil {
		if server, cas, err := r.kubeconfig(); err == nil {
			r.Discovery = dial(ctx, addressOf(server), cas)
			if r.Options.Advertise != "" {
				r.Facts.Advertise = r.advertisedAt(ctx, r.Options.Advertise, cas)
			}
		}
	}
	if r.Options.Advertise != "" && r.Facts.Advertise == nil && r.Unread[factAdvertise] == "" {
		r.Unread[factAdvertise] = "without a valid cluster-info there is no CA to verify " + r.Options.Advertise + " with"
	}
	if r.URL != "" {
		r.Kubejoin = r.kubejoin(ctx)
		if k := r.Kubejoin; k.Unreachable == "" && k.Version != r.Facts.Version && (!isRelease(k.Version) || !isRelease(r.Facts.Version)) {
			r.Unread[factVersionsComparable] = fmt.Sprintf("version %q of %s and %q of this command cannot be compared", k.Version, r.URL, r.Facts.Version)
		}
	}
}

// isRelease reports whether a version can be compared with others.
func isRelease(v string) bool {
	_, err := version.ParseSemantic(v)
	return err == nil
}

// dial opens a TLS connection with these CAs.
func dial(ctx context.Context, address string, cas []*x509.Certificate) *Endpoint {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e := &Endpoint{Address: address}
	connection, err := (&tls.Dialer{Config: &tls.Config{RootCAs: pool(cas), MinVersion: tls.VersionTLS12}}).DialContext(ctx, "tcp", address)
	e.failed(err)
	if err == nil {
		_ = connection.Close() // nothing was sent
	}
	return e
}

// failed records the error of a connection as Untrusted or Unreachable.
func (e *Endpoint) failed(err error) {
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		e.Untrusted = untrusted.Error()
	case err != nil:
		e.Unreachable = err.Error()
	}
}

// advertisedAt reads cluster-info from an address in the same way as a joining machine.
func (r *reading) advertisedAt(ctx context.Context, address string, cas []*x509.Certificate) *Endpoint {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e := &Endpoint{Address: address}
	client := trusting(cas)
	defer client.CloseIdleConnections()
	response, body, err := get(ctx, client, "https://"+address+discoveryPath)
	e.failed(err)
	if err != nil {
		return e
	}
	var object corev1.ConfigMap
	if response.StatusCode != http.StatusOK || json.Unmarshal(body, &object) != nil {
		e.Unreachable = fmt.Sprintf("it returns %s for cluster-info", response.Status)
		return e
	}
	e.Kubeconfig = object.Data[clusterinfo.KubeconfigKey]
	return e
}

// kubejoin reads the public reports of a running kubejoin.
func (r *reading) kubejoin(ctx context.Context) *Kubejoin {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	k := &Kubejoin{URL: strings.TrimSuffix(r.URL, "/")}
	client := trusting(r.Options.CAs)
	if len(r.Options.CAs) == 0 {
		client = trusting(r.Facts.CAs)
	}
	defer client.CloseIdleConnections()
	var v api.Version
	response, body, err := get(ctx, client, k.URL+"/version")
	k.Local = r.Now()
	if err == nil && (response.StatusCode != http.StatusOK || json.Unmarshal(body, &v) != nil) {
		err = fmt.Errorf("GET /version: %s", response.Status)
	}
	if err != nil {
		k.Unreachable = oneLine(err)
		return k
	}
	k.Version = v.Version
	k.Time, _ = http.ParseTime(response.Header.Get("Date"))
	if response, body, err = get(ctx, client, k.URL+"/readyz?verbose"); err != nil {
		k.Unreachable = oneLine(err)
		return k
	}
	k.readChecks(string(body))
	if response.StatusCode != http.StatusOK && len(k.Failing) == 0 {
		k.Failing = []string{response.Status}
	}
	var bundle api.CABundle
	response, body, err = get(ctx, client, k.URL+"/v1/ca?format=json")
	if err == nil && (response.StatusCode != http.StatusOK || json.Unmarshal(body, &bundle) != nil) {
		err = fmt.Errorf("GET /v1/ca: %s", response.Status)
	}
	if err != nil {
		k.PinsUnread = oneLine(err)
	}
	for _, ca := range bundle.Items {
		k.Pins = append(k.Pins, ca.Pin)
	}
	return k
}

// readChecks reads the response to /readyz?verbose.
func (k *Kubejoin) readChecks(body string) {
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if failed, found := strings.CutPrefix(line, "[-]"); found {
			k.Failing = append(k.Failing, failed)
		} else if notice, found := strings.CutPrefix(line, "[+]signer-config ok: "); found {
			k.Signers = notice
		} else if notice, found := strings.CutPrefix(line, "[+]writes ok: "); found {
			k.Writes = notice
		}
	}
}

// trusting returns a client that trusts these CAs, or the system's CAs if cas is empty. It follows no redirects,
// because kubejoin never redirects.
func trusting(cas []*x509.Certificate) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: pool(cas), MinVersion: tls.VersionTLS12},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// get sends a request without a credential, and returns the response and its body.
func get(ctx context.Context, client *http.Client, url string) (*http.Response, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return response, body, err
}

// addressOf returns HOST:PORT of the URL of an API server.
func addressOf(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server
	}
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "443")
	}
	return u.Host
}

// gitVersion returns the version in a response of /version.
func gitVersion(body []byte) (string, error) {
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(body, &v); err != nil || v.GitVersion == "" {
		return "", errors.New("/version of the API server is not that of Kubernetes")
	}
	return v.GitVersion, nil
}
