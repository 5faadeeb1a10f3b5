package clusterinfo

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

const (
	discoveryPath    = "/api/v1/namespaces/" + Namespace + "/configmaps/" + Name
	discoveryRetry   = 5 * time.Second
	discoveryTimeout = 10 * time.Second
	// A full ConfigMap is 1.5 MiB with keys and JSON; kubejoin itself answers with as many signatures
	// as there are tokens. This is a quarter of a million.
	maxAnswer = 32 << 20
)

// ErrUntrusted is wrapped when an endpoint has answered and cannot be trusted: asking again
// does not help.
var ErrUntrusted = errors.New("discovery endpoint is not to be trusted")

// Discovered is what a joining node has learned.
type Discovered struct {
	// Server is the address of the API server.
	Server string
	// CAs are the pinned certificates of the cluster's bundle.
	CAs []*x509.Certificate
	// Kubeconfig names Server and CAs, and holds no credential.
	Kubeconfig []byte
}

// Discover asks the endpoint HOST:PORT for cluster-info as [Discovery.Run] does.
func Discover(ctx context.Context, endpoint string, t tokens.Token, pins []string) (Discovered, error) {
	return Discovery{Endpoint: endpoint, Token: t, Pins: pins}.Run(ctx)
}

// Discovery is what a joining node does with the fields of its [JoinCommand] to know the
// cluster: kubeadm's discovery by token, with pins that cannot be left out and nothing trusted
// beside them.
type Discovery struct {
	// Endpoint is the HOST:PORT to ask. Proxies of the environment are used.
	Endpoint string
	Token    tokens.Token
	// Pins are the CAs to trust, one at least.
	Pins []string
	// Retry is the time between two tries; zero is 5 s.
	Retry time.Duration
	// Timeout ends a single request; zero is 10 s.
	Timeout time.Duration
}

// Run asks for cluster-info until the token's signature is there: first without trust in the
// connection, then, once the signature is verified, trusting the pinned CAs of the kubeconfig
// and nothing else. Both answers must hold the same kubeconfig. What may pass is tried again
// until ctx ends; the error then tells the last reason and wraps the context's. A wrong
// signature, no pinned CA, a certificate that no pinned CA has issued, or another kubeconfig
// the second time end it at once with [ErrUntrusted].
func (d Discovery) Run(ctx context.Context) (Discovered, error) {
	found, err := d.run(ctx)
	if err != nil {
		return Discovered{}, fmt.Errorf("discovery at %q: %w", d.Endpoint, err)
	}
	return found, nil
}

func (d Discovery) run(ctx context.Context) (Discovered, error) {
	if err := CheckEndpoint(d.Endpoint); err != nil {
		return Discovered{}, err
	}
	if !d.Token.HasSecret() {
		return Discovered{}, fmt.Errorf("token %s: its secret is not known", d.Token)
	}
	pins, err := parsePins(d.Pins)
	if err != nil {
		return Discovered{}, err
	}
	if len(pins) == 0 {
		return Discovered{}, errors.New("no CA pin given, want at least one")
	}

	// Nothing that comes over this connection is believed before the signature is verified,
	// and no CA before its pin is found.
	first, err := d.fetch(ctx, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})
	if err != nil {
		return Discovered{}, err
	}
	server, cas, err := ParseKubeconfig([]byte(first))
	if err != nil {
		return Discovered{}, fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	if cas = pinned(cas, pins); len(cas) == 0 {
		return Discovered{}, fmt.Errorf("%w: no CA in its kubeconfig has one of the %d pins given", ErrUntrusted, len(pins))
	}

	roots := x509.NewCertPool()
	for _, ca := range cas {
		roots.AddCert(ca)
	}
	second, err := d.fetch(ctx, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots})
	if err != nil {
		return Discovered{}, err
	}
	if second != first {
		return Discovered{}, fmt.Errorf("%w: another kubeconfig came over the verified connection than before", ErrUntrusted)
	}
	kubeconfig, err := Kubeconfig(server, cas)
	if err != nil {
		return Discovered{}, err
	}
	return Discovered{Server: server, CAs: cas, Kubeconfig: kubeconfig}, nil
}

// fetch gives a kubeconfig with a verified signature of the token.
func (d Discovery) fetch(ctx context.Context, config *tls.Config) (string, error) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     config,
		DisableKeepAlives:   true, // each try may reach another, better server
		TLSHandshakeTimeout: d.timeout(),
	}
	client := &http.Client{
		Transport:     transport,
		Timeout:       d.timeout(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	retry := d.Retry
	if retry <= 0 {
		retry = discoveryRetry
	}
	for {
		kubeconfig, err := d.try(ctx, client)
		if err == nil || errors.Is(err, ErrUntrusted) {
			return kubeconfig, err
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w; the last try: %w", context.Cause(ctx), err)
		case <-time.After(retry):
		}
	}
}

func (d Discovery) try(ctx context.Context, client *http.Client) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+d.Endpoint+discoveryPath, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		if bad := new(tls.CertificateVerificationError); errors.As(err, &bad) {
			return "", fmt.Errorf("%w: %w", ErrUntrusted, bad)
		}
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("answer %d %s to GET %s, want 200", resp.StatusCode, http.StatusText(resp.StatusCode), discoveryPath)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return "", err
	}
	if len(body) > maxAnswer {
		return "", fmt.Errorf("answer of more than %d bytes", maxAnswer)
	}
	return readAnswer(body, d.Token)
}

// readAnswer gives the kubeconfig in an answer if it has the token's signature.
func readAnswer(body []byte, t tokens.Token) (string, error) {
	var configMap struct {
		Data map[string]string `json:"data"`
	}
	if err := json.Unmarshal(body, &configMap); err != nil {
		return "", errors.New("answer is not the JSON of a ConfigMap")
	}
	jws, kubeconfig := configMap.Data[SignatureKey(t.ID())], configMap.Data[KubeconfigKey]
	if jws == "" || kubeconfig == "" {
		return "", fmt.Errorf("cluster-info has no signature by token %s: it may be unknown, expired or not signed yet", t)
	}
	if err := Verify([]byte(kubeconfig), jws, t); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	return kubeconfig, nil
}

func (d Discovery) timeout() time.Duration {
	if d.Timeout > 0 {
		return d.Timeout
	}
	return discoveryTimeout
}
