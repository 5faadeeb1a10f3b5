// Sign-csr signs the CSR of a kubelet (PEM on standard input) as the signer kubernetes.io/kube-apiserver-client-kubelet,
// and prints the chain. The user who runs it approves the CSR. It still refuses a CSR that the signer's rules forbid.
//
//	go run ./examples/sign-csr -ca kubejoin-data/ca.pem -ca-key kubejoin-data/ca.pem -duration 24h <node.csr
package main

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

func main() {
	log.SetPrefix("sign-csr: ")
	ca := flag.String("ca", "kubejoin-data/ca.pem", "`file` of the CA's certificate")
	key := flag.String("ca-key", "kubejoin-data/ca.pem", "`file` of the CA's private key")
	duration := flag.Duration("duration", signer.DefaultDuration, "lifetime of the certificate")
	flag.Parse()

	request, err := io.ReadAll(io.LimitReader(os.Stdin, pkcs10.MaxBytes+1))
	if err != nil {
		log.Fatal(err)
	}
	chain, err := sign(context.Background(), *ca, *key, request, *duration)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := os.Stdout.Write(chain); err != nil {
		log.Fatal(err)
	}
}

func sign(ctx context.Context, certFile, keyFile string, request []byte, duration time.Duration) ([]byte, error) {
	certs, key, err := loadKey(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	ca, err := signer.NewCA(certs, key)
	if err != nil {
		return nil, err
	}
	csr, err := pkcs10.Parse(request)
	if err != nil {
		return nil, err
	}
	signers, err := signer.KubernetesSigners(signer.Fixed(ca), duration)
	if err != nil {
		return nil, err
	}
	authority := signer.Authority{Signers: signer.FixedSigners(signers)}
	return authority.Sign(ctx, approval.Request{
		SignerName: certificates.KubeAPIServerClientKubeletSignerName,
		Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		CSR:        csr,
	})
}

// loadKey loads the CA. The key can be any crypto.Signer, for example from an HSM, a TPM or a KMS. For
// two files, [signer.LoadCA] is shorter.
func loadKey(certFile, keyFile string) ([]*x509.Certificate, crypto.Signer, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("CA: a key of type %T cannot sign", pair.PrivateKey)
	}
	var certs []*x509.Certificate
	for _, der := range pair.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, nil, fmt.Errorf("CA: %w", err)
		}
		certs = append(certs, cert)
	}
	return certs, key, nil
}
