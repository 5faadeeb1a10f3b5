// Package softhsm provides SoftHSM 2 for tests: a hardware security module in software.
package softhsm

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
)

// Module is the path of the library in Debian. PIN is the PIN of each token.
const (
	Module = "/usr/lib/softhsm/libsofthsm2.so"
	PIN    = "271828"
)

// An HSM is a SoftHSM 2 with its own folder.
type HSM struct {
	*testing.T
	// Dir is the folder with the configuration and the tokens. PINFile is the file with the PIN of all tokens.
	Dir, PINFile string
}

// New returns an HSM with tokens of these labels. It sets the environment variable of SoftHSM until the test ends.
func New(t *testing.T, labels ...string) HSM {
	t.Helper()
	need.Programs(t, "softhsm2-util")
	h := HSM{t, t.TempDir(), filepath.Join(t.TempDir(), "pin")}
	config := filepath.Join(h.Dir, "softhsm2.conf")
	must.OK(t, os.Mkdir(filepath.Join(h.Dir, "tokens"), 0o700))
	must.OK(t, os.WriteFile(config, []byte("directories.tokendir = "+filepath.Join(h.Dir, "tokens")+"\nobjectstore.backend = file\nlog.level = ERROR\n"), 0o600))
	t.Setenv("SOFTHSM2_CONF", config)
	for _, label := range labels {
		h.Util("--init-token", "--free", "--label", label, "--so-pin", "314159", "--pin", PIN)
	}
	h.WritePIN(PIN + "\n")
	return h
}

// Util runs softhsm2-util.
func (h HSM) Util(args ...string) {
	h.Helper()
	if out, err := exec.CommandContext(h.Context(), "softhsm2-util", args...).CombinedOutput(); err != nil {
		h.Fatalf("softhsm2-util %q: %v\n%s", args, err, out)
	}
}

// WritePIN writes the file with the PIN.
func (h HSM) WritePIN(pin string) {
	h.Helper()
	must.OK(h.T, os.WriteFile(h.PINFile, []byte(pin), 0o600))
}

// Import imports a key to a token.
func (h HSM) Import(token, label, id string, key any) {
	h.Helper()
	file := filepath.Join(h.TempDir(), "key.pem")
	must.OK(h.T, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must.Value(x509.MarshalPKCS8PrivateKey(key))(h.T)}), 0o600))
	h.Util("--import", file, "--token", token, "--label", label, "--id", id, "--pin", PIN)
}

// URI returns the URI of a key.
func (h HSM) URI(token, object string) string {
	return "pkcs11:token=" + token + ";object=" + object + "?module-path=" + Module + "&pin-source=file:" + h.PINFile
}

// Remove simulates the removal of all tokens, and returns a function that puts them back.
func (h HSM) Remove() func() {
	h.Helper()
	tokens := filepath.Join(h.Dir, "tokens")
	must.OK(h.T, os.Rename(tokens, tokens+".away"))
	must.OK(h.T, os.Mkdir(tokens, 0o700))
	return func() {
		h.Helper()
		must.OK(h.T, os.Remove(tokens))
		must.OK(h.T, os.Rename(tokens+".away", tokens))
	}
}
