// Package access tests permissions: the documented tables, kubejoin's own rights, the approval policy, and
// certificates over HTTPS. Its tests reach every operation of the API.
package access

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) {
	harness.Main(m, harness.CertificateIssued, harness.OperationsAnswered, harness.SecretsLookedFor)
}
