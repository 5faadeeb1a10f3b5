package kubeadmcerts_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
)

// Encrypts 100,000 texts for kubeadm's own code, and decrypts texts that kubeadm's code encrypts.
func TestEncryptionIsThatOfKubeadm(t *testing.T) {
	need.Long(t)
	const rounds = 100_000
	kubeadm := exec.CommandContext(t.Context(), "go", "run", "./certcrypt")
	kubeadm.Dir = "../../test/kube"
	var stderr bytes.Buffer
	kubeadm.Stderr = &stderr
	in := must.Value(kubeadm.StdinPipe())(t)
	out := must.Value(kubeadm.StdoutPipe())(t)
	must.OK(t, kubeadm.Start())
	type round struct {
		key   joinformat.CertificateKey
		plain []byte
	}
	sent := make(chan round, rounds) // the program may still compile
	go func() {
		defer close(sent)
		defer in.Close()
		w := bufio.NewWriter(in)
		defer w.Flush()
		for range rounds {
			r := round{joinformat.GenerateCertificateKey(), make([]byte, 1+mathrand.IntN(300))}
			_, _ = rand.Read(r.plain)
			data, err := kubeadmcerts.Files{"x": r.plain}.Encrypt(r.key)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := fmt.Fprintf(w, "%s %x %x\n", r.key.Reveal(), r.plain, data["x"]); err != nil {
				return // the program has ended; Wait returns the reason
			}
			sent <- r
		}
	}()
	n := 0
	for lines := bufio.NewScanner(out); lines.Scan(); n++ {
		r := <-sent
		sealed := must.Value(hex.DecodeString(lines.Text()))(t)
		files, err := kubeadmcerts.Decrypt(map[string][]byte{"x": sealed}, r.key)
		if err != nil || !bytes.Equal(files["x"], r.plain) {
			t.Fatalf("round %d: got another text, %v", n, err)
		}
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	if err := kubeadm.Wait(); err != nil || n != rounds {
		t.Errorf("%d of %d rounds, %v: %s", n, rounds, err, stderr.String())
	}
}

func TestEmptyFileStaysEmpty(t *testing.T) {
	key := joinformat.GenerateCertificateKey()
	data, err := kubeadmcerts.Files{"ca.key": nil, "ca.crt": []byte("x")}.Encrypt(key)
	if err != nil || len(data) != 2 || len(data["ca.key"]) != 0 || len(data["ca.crt"]) != 12+1+16 {
		t.Errorf("got %v, %v, want an empty ca.key and 29 bytes of ca.crt", data, err)
	}
	files, err := kubeadmcerts.Decrypt(data, key)
	if err != nil || len(files) != 2 || string(files["ca.crt"]) != "x" || len(files["ca.key"]) != 0 {
		t.Errorf("got %v, %v", files, err)
	}
}

func TestNonceIsNew(t *testing.T) {
	key := joinformat.GenerateCertificateKey()
	data, err := kubeadmcerts.Files{"a": []byte("x"), "b": []byte("x")}.Encrypt(key)
	if err != nil || bytes.Equal(data["a"][:12], data["b"][:12]) {
		t.Errorf("got one nonce twice, %v", err)
	}
}

func TestDecryptRefuses(t *testing.T) {
	key := joinformat.GenerateCertificateKey()
	right := must.Value(kubeadmcerts.Files{"ca.crt": []byte("x"), "sa.key": []byte("y")}.Encrypt(key))(t)
	changed := bytes.Clone(right["ca.crt"])
	changed[20] ^= 1
	for name, test := range map[string]struct {
		data map[string][]byte
		key  joinformat.CertificateKey
	}{
		"no key":      {right, joinformat.CertificateKey{}},
		"another key": {right, joinformat.GenerateCertificateKey()},
		"changed":     {map[string][]byte{"ca.crt": changed}, key},
		"short":       {map[string][]byte{"ca.crt": []byte("short")}, key},
		"one bad":     {map[string][]byte{"sa.key": right["sa.key"], "ca.crt": changed}, key},
	} {
		files, err := kubeadmcerts.Decrypt(test.data, test.key)
		if err == nil || files != nil {
			t.Errorf("%s: got %v, %v, want an error", name, files, err)
		} else if !test.key.IsZero() && strings.Contains(err.Error(), test.key.Reveal()) {
			t.Errorf("%s: the error has the key: %v", name, err)
		}
	}
	if _, err := (kubeadmcerts.Files{"a": []byte("x")}).Encrypt(joinformat.CertificateKey{}); err == nil {
		t.Error("got no error without a key")
	}
}

func TestGeneratedKeysAreRandom(t *testing.T) {
	a, b := joinformat.GenerateCertificateKey(), joinformat.GenerateCertificateKey()
	if _, err := joinformat.ParseCertificateKey(a.Reveal()); err != nil || a == b {
		t.Errorf("want two different keys of 64 digits, %v", err)
	}
}
