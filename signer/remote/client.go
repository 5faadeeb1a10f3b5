package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// timeout limits the time of one order, including the connection.
	timeout = 10 * time.Second
	// dialTimeout limits the time of a connection and its handshake. net/http continues them after the request has
	// ended, and they still use a connection slot.
	dialTimeout = 5 * time.Second
	// maxInFlight is how many orders are in flight at once. Other orders wait within their timeout.
	maxInFlight = 32
	// maxResponse is the maximum size of a response in bytes.
	maxResponse = 64 << 10
	// maxHeader is the maximum size of the header of a response in bytes.
	maxHeader = 16 << 10
)

// A Config says where the signer process is.
type Config struct {
	// URL is https://HOST:PORT, or unix:///PATH of a socket.
	URL string
	// CAFile has the CA of the signer process's own certificate, and CertFile and KeyFile have the client certificate.
	// The Client reads them for each connection. They are only for https.
	CAFile, CertFile, KeyFile string
	// Logger logs certificates that were discarded; nil logs nothing.
	Logger *slog.Logger
	// Registerer registers kubejoin_signer_process_requests_total; nil registers nothing.
	Registerer prometheus.Registerer
}

// Check returns an error for each invalid field.
func (c Config) Check() error {
	socket, err := c.socket()
	if err != nil {
		return err
	}
	for name, file := range map[string]string{"CA": c.CAFile, "client certificate": c.CertFile, "key of the client certificate": c.KeyFile} {
		if (file == "") != (socket != "") {
			if socket == "" {
				return fmt.Errorf("%q needs a file with the %s", c.URL, name)
			}
			return fmt.Errorf("%q needs no file with the %s, because the socket shows who connects", c.URL, name)
		}
	}
	return nil
}

// socket returns the path of the socket; empty for https.
func (c Config) socket() (string, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "":
	case u.Scheme == "https" && u.Hostname() != "" && u.Port() != "" && strings.Trim(u.Path, "/") == "":
		return "", nil
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path) && u.Path == filepath.Clean(u.Path):
		return u.Path, nil
	}
	return "", errors.New("invalid URL of a signer process, want https://HOST:PORT or unix:///PATH")
}

// A Client orders certificates from a signer process. [New] makes one. It is safe for concurrent use.
type Client struct {
	url      string
	http     *http.Client
	log      *slog.Logger
	requests *prometheus.CounterVec
}

var _ signer.Remote = (*Client)(nil)

// New returns a client. The error is the error of [Config.Check].
func New(c Config) (*Client, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	socket, _ := c.socket()
	transport := &http.Transport{MaxConnsPerHost: maxInFlight, MaxIdleConnsPerHost: maxInFlight, IdleConnTimeout: 30 * time.Second, DisableCompression: true, MaxResponseHeaderBytes: maxHeader}
	made := &Client{url: strings.TrimSuffix(c.URL, "/"), http: &http.Client{
		Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, log: c.Logger}
	if made.log == nil {
		made.log = slog.New(slog.DiscardHandler)
	}
	made.requests = metrics.Counter(c.Registerer, "kubejoin_signer_process_requests_total",
		"Certificates that kubejoin has ordered from the signer process of --cluster-signing-key-url, by result: signed, refused, unavailable, or discarded: signed, but not what was ordered.", "result")
	for _, result := range []string{"signed", "refused", "unavailable", "discarded"} {
		made.requests.WithLabelValues(result)
	}
	if socket != "" {
		made.url = "http://signer"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
		return made, nil
	}
	transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		config, err := c.tls()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return (&tls.Dialer{Config: config}).DialContext(ctx, network, address)
	}
	return made, nil
}

// tls reads the files.
func (c Config) tls() (*tls.Config, error) {
	content, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, err
	}
	pool, err := pemfile.Pool(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.CAFile, err)
	}
	pair, err := pemfile.LoadKeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair}}, nil
}

// Sign implements [signer.Remote].
func (c *Client) Sign(ctx context.Context, o signer.Order) ([]byte, error) {
	id := make([]byte, idSize)
	_, _ = rand.Read(id) // documented never to fail
	body, err := json.Marshal(Order{
		ID: id, SignerName: o.Request.SignerName, CSR: o.Request.CSR.Raw, Usages: o.Request.Usages, Made: o.Made, NotAfter: o.NotAfter,
		User: o.Request.User, Request: o.Request.Name,
	})
	if err != nil {
		return nil, err
	}
	certificate, err := c.do(ctx, http.MethodPost, SignPath, body)
	switch {
	case errors.Is(err, ErrRefused):
		c.requests.WithLabelValues("refused").Inc()
	case ctx.Err() != nil: // the caller has given up
	case err != nil:
		c.requests.WithLabelValues("unavailable").Inc()
	default:
		c.requests.WithLabelValues("signed").Inc()
	}
	return certificate, err
}

// Discarded implements [signer.Remote]: it logs and counts a certificate that does not match its order.
func (c *Client) Discarded(o signer.Order, why error) {
	c.requests.WithLabelValues("discarded").Inc()
	c.log.Error("certificate of the signer process discarded, it is not what was ordered", "signer", o.Request.SignerName,
		"subject", o.Request.CSR.Subject.String(), "error", why)
}

// Ping returns the certificate with which the signer process signs. It returns an error if the signer process does not
// respond, or signs with a CA that is not in cas.
func (c *Client) Ping(ctx context.Context, cas []*x509.Certificate) (*x509.Certificate, error) {
	content, err := c.do(ctx, http.MethodGet, CAPath, nil)
	if err != nil {
		return nil, err
	}
	certs, err := pemfile.OnlyCertificates(content)
	if err != nil {
		return nil, fmt.Errorf("%w: its CA: %w", ErrUnavailable, err)
	}
	if !slices.ContainsFunc(cas, certs[0].Equal) {
		return nil, fmt.Errorf("the signer process signs with CA %q, serial number %x, which is not among the %d CAs here: add it to --cluster-signing-cert-file", certs[0].Subject, certs[0].SerialNumber, len(cas))
	}
	return certs[0], nil
}

// do sends a request and returns the body of the response.
func (c *Client) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer func() { _ = response.Body.Close() }() // the body was only read
	content, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: read response: %w", ErrUnavailable, err)
	case len(content) > maxResponse:
		return nil, fmt.Errorf("%w: its response has more than %d bytes", ErrUnavailable, maxResponse)
	case response.StatusCode == http.StatusOK:
		return content, nil
	}
	var problem struct{ Detail string }
	_ = json.Unmarshal(content, &problem) // without a detail, the error has only the status
	kind := ErrUnavailable
	if response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusBadRequest {
		kind = ErrRefused
	}
	return nil, fmt.Errorf("%w: %s: %s", kind, response.Status, safetext.Text(problem.Detail, safetext.MaxMessage))
}
