package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/kubejoin/kubejoin/server/api"
)

// Certificate requests a certificate and returns it in PEM, followed by the intermediates. After a problem named
// [api.ProblemCertificateWaits], the caller may retry the same request after RetryAfter. The credential is Bearer,
// which may be a bootstrap token, or the client certificate of HTTP.
func (c *Client) Certificate(ctx context.Context, req api.SignCertificate) ([]byte, error) {
	query := url.Values{}
	for name, value := range map[string]string{"signer": req.Signer, "duration": req.Duration} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if req.Usages != nil {
		query["usages"] = append([]string{}, req.Usages...)
		if len(req.Usages) == 0 {
			query.Set("usages", "")
		}
	}
	path := "/v1/certificate"
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	csr := req.CSR
	if csr == nil {
		csr = []byte{}
	}
	var chain []byte
	err := c.send(ctx, http.MethodPost, path, "application/pkcs10", csr, &chain)
	return chain, err
}
