package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
)

// A request with an invalid bearer token must be refused even if its certificate is valid.
func TestAuthenticatesReviewerByHeaderOrCertificate(t *testing.T) {
	ca := must.Value(signer.GenerateCA("kube-apiserver", time.Now(), 24*time.Hour))(t)
	pem, _, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.crt")
	must.OK(t, os.WriteFile(file, pem, 0o600))
	for name, options := range map[string]Options{
		"with a CA":    {Webhook: Webhook{ClientCAFile: file, ClientName: "kube-apiserver"}},
		"without a CA": {},
	} {
		s := newService(options, slog.New(slog.DiscardHandler), io.Discard)
		byBearer := must.Value(reviewer(datadir.Dir(dir)))(t)
		webhooks := must.Value(s.webhooks(stores{reviewer: byBearer}, trust{rotation: notRotating}))(t)
		bearer := must.Value(datadir.Dir(dir).ReadWebhookBearer())(t)
		byCertificate := error(nil)
		if options.Webhook.ClientCAFile == "" {
			byCertificate = auth.ErrNoCredentials
		}
		for _, test := range []struct {
			name, header string
			certificate  bool
			want         error
		}{
			{name: "nothing", want: auth.ErrNoCredentials},
			{name: "its bearer token", header: "Bearer " + bearer},
			{name: "its certificate", certificate: true, want: byCertificate},
			{name: "both", header: "Bearer " + bearer, certificate: true},
			{name: "another bearer token beside its certificate", header: "Bearer x" + bearer, certificate: true, want: auth.ErrBadCredentials},
			{name: "another header beside its certificate", header: "Basic YTpi", certificate: true, want: auth.ErrBadCredentials},
		} {
			r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
			if test.header != "" {
				r.Header.Set("Authorization", test.header)
			}
			if test.certificate {
				r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{ca.Certificate()}}
			}
			user, err := webhooks.TokenReview.Authenticate(r)
			if !errors.Is(err, test.want) || (err == nil) != (user.Name == "kube-apiserver") {
				t.Errorf("%s, %s: %q %v, want %v", name, test.name, user.Name, err, test.want)
			}
		}
	}
}
