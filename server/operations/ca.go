package operations

import (
	"crypto/x509"
	"encoding/pem"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/server/api"
)

// CAs returns CA certificates as the API shows them.
func CAs(certs []*x509.Certificate) []api.CA {
	shown := make([]api.CA, len(certs))
	for i, c := range certs {
		shown[i] = api.CA{
			Subject: c.Subject.String(), NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(),
			Pin: clusterinfo.Pin(c), Certificate: string(pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: c.Raw})),
		}
	}
	return shown
}
