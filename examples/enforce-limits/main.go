// Enforce-limits creates a token for one machine and signs certificate requests under its limits, in one process without a
// cluster. It simulates three machines: the first gets a certificate, and the signer refuses the other two and gives the
// reason.
//
//	go run ./examples/enforce-limits
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	certificates "k8s.io/api/certificates/v1"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("enforce-limits: ")
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour) // signer.LoadCA loads the CA of a cluster
	if err != nil {
		return err
	}
	signers, err := signer.KubernetesSigners(signer.Fixed(ca), time.Hour)
	if err != nil {
		return err
	}
	store := memdb.Open() // boltstore.Open keeps tokens and claims in a file
	claims := store.Claims()
	site := &site{store, &signer.Authority{
		Facts:   signer.Standalone{Claims: claims},
		Nodes:   &admission.Nodes{Tokens: store, Claims: claims},
		Signers: signer.FixedSigners(signers),
	}}

	token := tokens.NewRecord(tokens.Generate(), 2*time.Hour, time.Now())
	token.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-*"}}
	if _, err := store.Create(ctx, token); err != nil {
		return err
	}
	for _, node := range []string{"worker-7", "worker-8", "db-1"} {
		csr, err := request(node)
		if err != nil {
			return err
		}
		_, err = site.issue(ctx, token.Token, csr)
		no, found := errors.AsType[*approval.Error](err)
		switch {
		case found && no.Err == nil:
			fmt.Fprintf(out, "%s: %s %s: %s\n", node, no.Verdict, no.Reason, no.Message)
		case err != nil:
			return err
		default:
			fmt.Fprintf(out, "%s: got a certificate\n", node)
		}
	}
	return nil
}

// A site signs for machines whose token is in the store.
type site struct {
	store     tokens.Store
	authority *signer.Authority
}

// issue signs a request of a machine that has presented a token.
func (s *site) issue(ctx context.Context, token tokens.Token, csr []byte) (chain []byte, err error) {
	record, err := s.store.Get(ctx, token.ID(), tokens.Live)
	if err != nil && !errors.Is(err, tokens.ErrNotFound) {
		return nil, err
	}
	if err != nil || !record.Token.Equal(token) || !record.Authentication || record.Expired(time.Now()) {
		return nil, errors.New("the token is wrong or has expired")
	}
	parsed, err := pkcs10.Parse(csr)
	if err != nil {
		return nil, err
	}
	return s.authority.Issue(ctx, approval.Request{
		SignerName: certificates.KubeAPIServerClientKubeletSignerName,
		User:       tokens.BootstrapUserPrefix + token.ID(),
		Groups:     append([]string{tokens.BootstrappersGroup}, record.Groups...),
		Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		Created:    time.Now(),
		CSR:        parsed,
	})
}

// request returns a certificate request of a node in PEM, as its kubelet makes it with a new key.
func request(node string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	subject := pkix.Name{Organization: []string{tokens.NodesGroup}, CommonName: tokens.NodeUserPrefix + node}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}
