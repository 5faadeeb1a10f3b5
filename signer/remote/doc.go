// Package remote is the client of 'kubejoin signer', a process that holds the key of a CA and checks each request by a
// policy of its own. [Client] is a [signer.Remote]. internal/signerd is the server.
//
// A client sends the request itself, not a digest: the signer process could not check a digest. It sends an [Order] to
// [SignPath] and gets the certificate in PEM, or a problem document (RFC 9457).
package remote

import (
	"encoding/pem"
	"errors"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

// Paths of the signer process.
const (
	SignPath = "/v1/sign" // POST an Order
	CAPath   = "/v1/ca"   // GET the certificate that signs
)

// MaxOrder is the maximum size of an order in bytes: a CSR with its base64, and the requester.
const MaxOrder = 96 << 10

// MaxSkew is how much the clocks of both sides may differ. The signer process refuses an order that is older, or that
// it has received before, so that nobody can replay an order.
const MaxSkew = time.Minute

// An Order is the body of a request to sign.
type Order struct {
	// ID is random, so that a repeated order differs from the first one.
	ID         []byte                  `json:"id"`
	SignerName string                  `json:"signerName"`
	CSR        []byte                  `json:"csr"` // PKCS #10 in DER
	Usages     []certificates.KeyUsage `json:"usages"`
	// Made is when the order was made. The certificate begins five minutes earlier, as every certificate of kubejoin.
	Made time.Time `json:"made"`
	// NotAfter is when the certificate expires. The signer process may choose an earlier time.
	NotAfter time.Time `json:"notAfter"`
	// User is who requests the certificate, and Request is the name of the CertificateSigningRequest. They are for the
	// record of the signer process only.
	User    string `json:"user,omitempty"`
	Request string `json:"request,omitempty"`
}

// idSize is the size of an ID in bytes.
const idSize = 16

// Parse validates an order from the requester of that name, and converts it to a signer.Order. Its error is an
// [*approval.Error].
func (o Order) Parse(requester string) (signer.Order, error) {
	made := signer.Order{
		Request: approval.Request{
			SignerName: o.SignerName, Usages: o.Usages, User: o.User, Name: o.Request, Approver: requester,
		},
		Made: o.Made, NotAfter: o.NotAfter,
	}
	if len(o.ID) != idSize {
		return made, approval.Refuse("the ID of the order has %d bytes, want %d", len(o.ID), idSize)
	}
	csr, err := pkcs10.Parse(pem.EncodeToMemory(&pem.Block{Type: pkcs10.BlockType, Bytes: o.CSR}))
	made.Request.CSR = csr
	return made, err
}

// Errors of [Client.Sign].
var (
	// ErrUnavailable is wrapped if the signer process did not respond, or cannot sign now.
	ErrUnavailable = errors.New("the signer process is not available")
	// ErrRefused is wrapped if the policy of the signer process refuses the request.
	ErrRefused = signer.ErrOrderRefused
)
