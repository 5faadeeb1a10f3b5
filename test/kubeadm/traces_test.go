package kubeadm

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"k8s.io/client-go/util/keyutil"
)

// root returns the folder on the host that has the files of the machine.
func (m *Machine) root() string { return fmt.Sprintf("/proc/%d/root", m.init.PID()) }

// filesBelow returns the content of all regular files below folders of a machine. It leaves out files that are deleted
// meanwhile.
func filesBelow(root string, folders ...string) (map[string]string, error) {
	files := map[string]string{}
	for _, folder := range folders {
		err := filepath.WalkDir(root+folder, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || err == nil && !entry.Type().IsRegular() {
				return nil
			}
			if err != nil {
				return err
			}
			content, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			files[strings.TrimPrefix(path, root)] = string(content)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// encoded finds text that may be PEM in base64, as in a kubeconfig.
var encoded = regexp.MustCompile(`[A-Za-z0-9+/]{64,}={0,2}`)

// certificatesIn returns all certificates in a text: as PEM, as PEM in a string of JSON, and in base64.
func certificatesIn(text string) (found []*x509.Certificate) {
	lines := strings.NewReplacer(`\n`, "\n", "-----BEGIN ", "\n-----BEGIN ").Replace(text)
	found = pemfile.Presented([]byte(lines))
	for _, data := range encoded.FindAllString(text, -1) {
		if inside, err := base64.StdEncoding.DecodeString(data); err == nil && bytes.Contains(inside, []byte("-----BEGIN ")) {
			found = append(found, pemfile.Presented(inside)...)
		}
	}
	return found
}

// leafIn returns a text up to the end of its first certificate.
func leafIn(text string) string {
	const end = "-----END CERTIFICATE-----\n"
	leaf, _, _ := strings.Cut(text, end)
	return leaf + end
}

var keyData = regexp.MustCompile(`client-key-data: (\S+)`)

// keysIn returns the private keys in a text, as PEM or in a kubeconfig.
func keysIn(content []byte) (found []crypto.Signer) {
	for _, embedded := range keyData.FindAllSubmatch(content, -1) {
		if more, err := base64.StdEncoding.DecodeString(string(embedded[1])); err == nil {
			content = append(append(content, '\n'), more...)
		}
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if key, err := keyutil.ParsePrivateKeyPEM(pem.EncodeToMemory(block)); err == nil {
			found = append(found, key.(crypto.Signer))
		}
	}
	return found
}

// tracesOf returns the names of the texts that contain the certificate or the key of a CA, or a certificate that the CA has
// signed.
func tracesOf(ca *tls.Certificate, texts map[string]string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if slices.ContainsFunc(certificatesIn(texts[name]), func(c *x509.Certificate) bool {
			return c.Equal(ca.Leaf) || c.CheckSignatureFrom(ca.Leaf) == nil
		}) || slices.ContainsFunc(keysIn([]byte(texts[name])), func(key crypto.Signer) bool {
			return reflect.DeepEqual(key.Public(), ca.Leaf.PublicKey)
		}) {
			names = append(names, name)
		}
	}
	return names
}

func TestFindsTracesOfCA(t *testing.T) {
	old, other := certtest.CA(t, "kubernetes"), certtest.CA(t, "kubernetes")
	leaf := certtest.Serving(t, old, "127.0.0.1")
	text := func(der []byte) string {
		return "-----BEGIN CERTIFICATE-----\n" + base64.StdEncoding.EncodeToString(der) + "\n-----END CERTIFICATE-----\n"
	}
	root := t.TempDir()
	for name, content := range map[string]string{
		"ca.crt":      text(other.Leaf.Raw) + text(old.Leaf.Raw),
		"leaf.crt":    "comment\n" + text(leaf.Certificate[0]),
		"admin.conf":  "certificate-authority-data: " + base64.StdEncoding.EncodeToString([]byte(text(old.Leaf.Raw))),
		"object.json": `{"ca": "` + strings.ReplaceAll(text(old.Leaf.Raw), "\n", `\n`) + `"}`,
		"ca.key":      keyText(t, old),
		"other.key":   keyText(t, other),
		"other.crt":   text(other.Leaf.Raw),
		"other.conf":  "certificate-authority-data: " + base64.StdEncoding.EncodeToString([]byte(text(other.Leaf.Raw))),
	} {
		must.OK(t, os.WriteFile(filepath.Join(root, name), []byte(content), 0o600))
	}
	files := must.Value(filesBelow(root, "/"))(t)
	files["/leaf.pem"] = leafIn(text(leaf.Certificate[0]) + text(old.Leaf.Raw))
	files["/other.pem"] = leafIn(text(other.Leaf.Raw) + text(old.Leaf.Raw))
	want := []string{"/admin.conf", "/ca.crt", "/ca.key", "/leaf.crt", "/leaf.pem", "/object.json"}
	if got := tracesOf(old, files); !slices.Equal(got, want) || len(files) != 10 {
		t.Errorf("got %q in %d files, want %q", got, len(files), want)
	}
}

func keyText(t *testing.T, ca *tls.Certificate) string {
	t.Helper()
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must.Value(x509.MarshalPKCS8PrivateKey(ca.PrivateKey))(t)}))
}
