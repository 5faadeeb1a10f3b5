package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/kubejoin/kubejoin/server/api"
)

// Certificate asks for a certificate and gives it in PEM, followed by the intermediates that are
// needed with it. A problem named [api.ProblemCertificateWaits] may pass by itself: the same may be
// asked again after its RetryAfter. Who asks is Bearer, which may be a bootstrap token, or the
// client certificate of HTTP.
func (c *Client) Certificate(ctx context.Context, asked api.SignCertificate) ([]byte, error) {
	query := url.Values{}
	for name, value := range map[string]string{"signer": asked.Signer, "duration": asked.Duration} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if asked.Usages != nil {
		query["usages"] = append([]string{}, asked.Usages...)
		if len(asked.Usages) == 0 {
			query.Set("usages", "")
		}
	}
	path := "/v1/certificate"
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	csr := asked.CSR
	if csr == nil {
		csr = []byte{}
	}
	var chain []byte
	err := c.send(ctx, http.MethodPost, path, "application/pkcs10", csr, &chain)
	return chain, err
}
