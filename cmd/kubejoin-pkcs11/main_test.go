package main

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/cmd/kubejoin-pkcs11/softhsm"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/kubejoin/kubejoin/signer/remote"
	certificates "k8s.io/api/certificates/v1"
)

// asProgram makes the test binary run as the program. A process can load the PKCS#11 module only once, for one SoftHSM.
const asProgram = "KUBEJOIN_PKCS11_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// The signer process must sign with the key on the token. While the token is unavailable, requests must wait.
func TestSignsForNodes(t *testing.T) {
	h := softhsm.New(t, "ca")
	key := csrtest.RSA2048()
	h.Import("ca", "kubernetes-ca", "01", key)
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, content, 0o600))
		return path
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * 365 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca := must.Value(x509.ParseCertificate(must.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), crypto.Signer(key)))(t)))(t)
	socket := filepath.Join(dir, "sock")
	args := []string{
		"--listen", "unix://" + socket, "--issuance-record", filepath.Join(dir, "record"),
		"--policy", file("policy.yaml", []byte(strings.Replace(config.DefaultPolicy, "# uid: 998", fmt.Sprintf("uid: %d", os.Getuid()), 1))),
		"--cluster-signing-cert-file", file("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})),
		"--cluster-signing-key-file", h.URI("ca", "kubernetes-ca"),
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	var log logs.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), asProgram+"=1"), &log, &log
	must.OK(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if the process has ended
		if err := <-ended; err != nil {
			t.Errorf("%v\n%s", err, log.String())
		}
		if strings.Contains(log.String(), softhsm.PIN) {
			t.Errorf("the log has the PIN:\n%s", log.String())
		}
	}()

	client := must.Value(remote.New(remote.Config{URL: "unix://" + socket}))(t)
	sign := func() error {
		request := csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node("worker-1")}, csrtest.NewKey())
		now := time.Now()
		certificate, err := client.Sign(t.Context(), signer.Order{
			Request: approval.Request{
				SignerName: certificates.KubeAPIServerClientKubeletSignerName, CSR: request,
				Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
			},
			Made: now, NotAfter: now.Add(time.Hour),
		})
		if err != nil {
			return err
		}
		block, _ := pem.Decode(certificate)
		return must.Value(x509.ParseCertificate(block.Bytes))(t).CheckSignatureFrom(ca)
	}
	wait.OK(t, "the first certificate", func() error {
		select {
		case err := <-ended:
			ended <- err
			t.Fatal("the program ended")
		default:
		}
		return sign()
	})

	putBack := h.Remove()
	wait.OK(t, "the token is away", func() error {
		if err := sign(); !errors.Is(err, remote.ErrUnavailable) {
			return fmt.Errorf("got %v, want %w", err, remote.ErrUnavailable)
		}
		return nil
	})
	putBack()
	wait.OK(t, "the token is back", sign)
}

func TestRunNamesWhatIsWrong(t *testing.T) {
	good := []string{"--listen=unix:///run/x", "--issuance-record=" + filepath.Join(t.TempDir(), "record"), "--policy=p", "--cluster-signing-cert-file=c"}
	for _, test := range []struct {
		args  []string
		want  string
		usage bool
	}{
		{[]string{"--unknown"}, "flag provided but not defined: -unknown", true},
		{append(good, "--cluster-signing-key-file=pkcs11:token=a", "more"), "1 arguments given", true},
		{append(good, "--cluster-signing-key-file=pkcs11:token=a", "--log-format=x"), "--log-format: \"x\" given", true},
		{append(good, "--cluster-signing-key-file=pkcs11:token=a", "--cluster-signing-key-passphrase-file=p"), "--cluster-signing-key-passphrase-file: excludes a PKCS#11 key", true},
		{append(good, "--cluster-signing-key-file=pkcs11:token=a;object=b?pin-value=271828"), "--cluster-signing-key-file: pin-value: not accepted", false},
	} {
		err := run(t.Context(), test.args, new(logs.Buffer))
		if err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, errUsage) != test.usage || strings.Contains(err.Error(), "271828") {
			t.Errorf("%q: got %v, want %q", test.args, err, test.want)
		}
	}
}

var ownBlock = regexp.MustCompile("(?ms)^<!-- run by TestCommandsOfTheDocs -->\n```sh\n(.*?)^```$")

// TestCommandsOfTheDocs runs the PKCS#11 commands of docs/signer.md in a folder with a CA and a policy.
func TestCommandsOfTheDocs(t *testing.T) {
	softhsm.New(t)
	blocks := ownBlock.FindAllStringSubmatch(string(must.Value(os.ReadFile("../../docs/signer.md"))(t)), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks found, want 2", len(blocks))
	}
	made := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	cert, key, err := made.PEM()
	must.OK(t, err)
	dir := t.TempDir()
	policy := strings.Replace(config.DefaultPolicy, "# uid: 998", fmt.Sprintf("uid: %d", os.Getuid()), 1)
	for name, content := range map[string]string{"ca.crt": string(cert), "ca.key": string(key), "policy.yaml": policy} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	here := must.Value(os.Getwd())(t)
	// In the docs, the first two arguments of go are -C and a folder. Replace them by this folder.
	script := "go() { command go -C '" + here + "' \"${@:3}\"; }\n" + blocks[0][1] + "exec " + blocks[1][1]
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "bash", "-euc", script)
	var log logs.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
	must.OK(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	client := must.Value(remote.New(remote.Config{URL: "unix://" + filepath.Join(dir, "sock")}))(t)
	wait.OK(t, "kubejoin-pkcs11", func() error {
		select {
		case err := <-ended:
			t.Fatalf("the commands ended: %v\n%s", err, log.String())
		default:
		}
		_, err := client.Ping(t.Context(), []*x509.Certificate{made.Certificate()})
		return err
	})
	stop()
	<-ended
}
