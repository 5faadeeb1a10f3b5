// Command certcrypt decrypts and encrypts with the code of kubeadm's upload-certs. Each line of its input has a certificate
// key, a plain text and its encryption, in hexadecimal. For each line, the command checks the encryption, and prints
// kubeadm's encryption of the same plain text.
package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"k8s.io/kubernetes/cmd/kubeadm/app/util/crypto"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	for n := 1; lines.Scan(); n++ {
		var values [][]byte
		for field := range strings.SplitSeq(lines.Text(), " ") {
			value, err := hex.DecodeString(field)
			if err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
			values = append(values, value)
		}
		key, plain, sealed := values[0], values[1], values[2]
		opened, err := crypto.DecryptBytes(sealed, key)
		if err != nil || !bytes.Equal(opened, plain) {
			return fmt.Errorf("line %d: kubeadm decrypts another text: %v", n, err)
		}
		again, err := crypto.EncryptBytes(plain, key)
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		fmt.Fprintf(out, "%x\n", again)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return out.Flush()
}
