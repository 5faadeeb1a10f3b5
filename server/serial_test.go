package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server"
)

func TestSerialOf(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, serial := range []string{"1", "7f", "80", "ff", "100", "123456789abcdef0", "7fffffffffffffffffffffffffffffffffffffff", strings.Repeat("ab", 19)} {
		number, _ := new(big.Int).SetString(serial, 16)
		template := &x509.Certificate{SerialNumber: number}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		if got := server.SerialOf(append(chain, chain...)); got != serial {
			t.Errorf("%s is read as %q", serial, got)
		}
		for end := range 110 { // of what is cut off nothing is read beyond its end
			_ = server.SerialOf(chain[:end])
		}
	}
	for _, wrong := range []string{"", "\n", "-----BEGIN CERTIFICATE-----\n" + strings.Repeat("A", 64), "-----BEGIN CERTIFICATE-----\n" + strings.Repeat("/", 64) + "\n"} {
		if got := server.SerialOf([]byte(wrong)); got != "" && got != "0" {
			t.Errorf("%q has serial number %s", wrong, got)
		}
	}
}
