package pemfile_test

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/pemfile"
)

// A hostile file must not cause a panic, nor cost more than the limits.
func FuzzEncryptedKey(f *testing.F) {
	files, err := filepath.Glob("testdata/*.pem")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		block, _ := pem.Decode(content)
		f.Add(block.Bytes, []byte(passphrase))
	}
	f.Fuzz(func(t *testing.T, der, passphrase []byte) {
		key, err := pemfile.EncryptedKey(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: der}), passphrase)
		if (key == nil) != (err != nil) {
			t.Errorf("key %v and error %v", key, err)
		}
	})
}
