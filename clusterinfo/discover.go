package clusterinfo

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/tokens"
)

const (
	discoveryPath    = "/api/v1/namespaces/" + Namespace + "/configmaps/" + Name
	discoveryRetry   = 5 * time.Second
	discoveryTimeout = 10 * time.Second
	maxRetryAfter    = 30 * time.Second
	// A full ConfigMap is 1.5 MiB with keys and JSON. kubejoin itself returns a signature for every token,
	// so this allows about 250,000 signatures.
	maxAnswer = 32 << 20
)

// ErrUntrusted means that an endpoint has responded, but cannot be trusted. A retry does not help.
var ErrUntrusted = errors.New("discovery endpoint is not trusted")

// Discovered is what a joining node has learned about the cluster.
type Discovered struct {
	// Server is the address of the API server.
	Server string
	// CAs are those certificates of the cluster's bundle that match a pin.
	CAs []*x509.Certificate
	// Kubeconfig contains Server and CAs, and no credential.
	Kubeconfig []byte
}

// Discover requests cluster-info from the endpoint HOST:PORT as [Discovery.Run] does.
func Discover(ctx context.Context, endpoint string, t tokens.Token, pins []string) (Discovered, error) {
	return Discovery{Endpoint: endpoint, Token: t, Pins: pins}.Run(ctx)
}

// Discovery finds the cluster with the fields of a [JoinCommand], as a joining node does. It is kubeadm's
// discovery by token, but pins are required and nothing else is trusted.
type Discovery struct {
	// Endpoint is the HOST:PORT to request cluster-info from. Proxies in the environment are used.
	Endpoint string
	Token    tokens.Token
	// Pins are the pins of the CAs to trust, at least one.
	Pins []string
	// Retry is the pause between two tries; zero is 5 s. The pause is longer if the endpoint responds with 429 or 503
	// and a Retry-After in seconds, but not longer than 30 s.
	Retry time.Duration
	// Timeout limits the time of a single request; zero is 10 s.
	Timeout time.Duration
}

// Run requests cluster-info until it has a signature by the token. The first request does not verify the
// server's certificate. After the signature is verified, the second request trusts only the pinned CAs in
// the kubeconfig. Both responses must contain the same kubeconfig.
//
// Run retries temporary errors until ctx ends. The error then gives the last reason and wraps the error of ctx.
// Run does not retry the following errors, which wrap [ErrUntrusted]: a wrong signature, an unusable
// kubeconfig, no pinned CA, a certificate from another CA, and a second kubeconfig that differs from the first.
func (d Discovery) Run(ctx context.Context) (Discovered, error) {
	found, err := d.run(ctx)
	if err != nil {
		return Discovered{}, fmt.Errorf("discovery at %q: %w", d.Endpoint, err)
	}
	return found, nil
}

func (d Discovery) run(ctx context.Context) (Discovered, error) {
	d.Retry, d.Timeout = cmp.Or(d.Retry, discoveryRetry), cmp.Or(d.Timeout, discoveryTimeout)
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

	// Trust nothing from this connection until the signature is verified, and no CA until its pin matches.
	first, err := d.fetch(ctx, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})
	if err != nil {
		return Discovered{}, err
	}
	var server string
	var cas []*x509.Certificate
	for again := false; ; again = true {
		if server, cas, err = ParseKubeconfig([]byte(first)); err != nil {
			return Discovered{}, fmt.Errorf("%w: %w", ErrUntrusted, err)
		}
		if cas = pinned(cas, pins); len(cas) == 0 {
			return Discovered{}, fmt.Errorf("%w: no CA in its kubeconfig has one of the %d pins given", ErrUntrusted, len(pins))
		}
		second, err := d.fetch(ctx, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pemfile.PoolOf(cas)})
		if err != nil {
			return Discovered{}, err
		}
		if second == first {
			break
		}
		if again {
			return Discovered{}, fmt.Errorf("%w: its kubeconfig differs over the verified connection", ErrUntrusted)
		}
		first = second // a CA rotation may just have changed it
	}
	kubeconfig, err := kubeconfigOf(server, cas)
	if err != nil {
		return Discovered{}, err
	}
	return Discovered{Server: server, CAs: cas, Kubeconfig: kubeconfig}, nil
}

// fetch returns a kubeconfig with a verified signature by the token.
func (d Discovery) fetch(ctx context.Context, config *tls.Config) (string, error) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     config,
		DisableKeepAlives:   true, // each attempt may reach another server, which may work
		TLSHandshakeTimeout: d.Timeout,
	}
	client := &http.Client{
		Transport:     transport,
		Timeout:       d.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for {
		kubeconfig, err := d.try(ctx, client)
		if err == nil || errors.Is(err, ErrUntrusted) {
			return kubeconfig, err
		}
		pause := d.Retry
		if status := (*statusError)(nil); errors.As(err, &status) {
			pause = max(d.Retry, status.retryAfter)
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w; last error: %w", context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// A statusError is a response whose status is not 200. Its body is not read: it may come from a proxy.
type statusError struct {
	code       int
	retryAfter time.Duration // zero if the response does not ask for a pause
}

func (e *statusError) Error() string {
	return fmt.Sprintf("response %d %s to GET %s, want 200", e.code, http.StatusText(e.code), discoveryPath)
}

// retryAfter returns the pause that a response with status 429 or 503 asks for in seconds, at most maxRetryAfter.
func retryAfter(code int, header http.Header) time.Duration {
	if code != http.StatusTooManyRequests && code != http.StatusServiceUnavailable {
		return 0
	}
	seconds, err := strconv.ParseUint(header.Get("Retry-After"), 10, 32)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
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
		return "", &statusError{resp.StatusCode, retryAfter(resp.StatusCode, resp.Header)}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return "", err
	}
	if len(body) > maxAnswer {
		return "", fmt.Errorf("response of more than %d bytes", maxAnswer)
	}
	return readAnswer(body, d.Token)
}

// readAnswer returns the kubeconfig in a response if it has the token's signature.
func readAnswer(body []byte, t tokens.Token) (string, error) {
	var configMap struct {
		Data map[string]string `json:"data"`
	}
	if err := json.Unmarshal(body, &configMap); err != nil {
		return "", errors.New("response is not a ConfigMap in JSON")
	}
	jws, kubeconfig := configMap.Data[SignatureKey(t.ID())], configMap.Data[KubeconfigKey]
	if jws == "" || kubeconfig == "" {
		return "", fmt.Errorf("cluster-info has no signature by token %s: the token may be unknown, expired, spent or not signed yet", t)
	}
	if err := Verify([]byte(kubeconfig), jws, t); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	return kubeconfig, nil
}
