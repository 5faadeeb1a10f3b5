package certlint

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/signer/issuance"
)

// Records is a folder with the issuance records of many processes, and the certificates of their CAs.
type Records string

// Flag returns a flag for another 'kubejoin serve' whose CA is in caFiles. keepCA copies the CA certificates. Call
// keepCA while the process runs, and again after the process has ended but before the files are removed.
func (r Records) Flag(caFiles ...string) (flag string, keepCA func() error) {
	name := filepath.Join(string(r), rand.Text())
	return "--issuance-record=" + name + recordSuffix, func() error {
		for _, file := range caFiles {
			data, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue // the process never started
			}
			if err != nil {
				return err
			}
			if err := appendTo(name+caSuffix, certificatesOf(data)); err != nil {
				return err
			}
		}
		return nil
	}
}

const (
	recordSuffix = ".jsonl"
	caSuffix     = ".ca.pem"
)

func appendTo(file string, data []byte) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// certificatesOf returns the certificates in PEM data, without the keys.
func certificatesOf(data []byte) (certificates []byte) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			certificates = append(certificates, pem.EncodeToMemory(block)...)
		}
	}
	return certificates
}

// Check checks every certificate of the records with zlint and openssl. It returns their number and the defects that it found.
func (r Records) Check(ctx context.Context) (issued int, findings []string, err error) {
	files, err := filepath.Glob(filepath.Join(string(r), "*"+recordSuffix))
	if err != nil {
		return 0, nil, err
	}
	for _, file := range files {
		certificates, err := readRecord(file)
		if err != nil {
			return 0, nil, fmt.Errorf("%s: %w", file, err)
		}
		issued += len(certificates)
		found, err := lintAll(certificates)
		if err != nil {
			return 0, nil, fmt.Errorf("%s: %w", file, err)
		}
		findings = append(findings, found...)
		found, err = openssl(ctx, strings.TrimSuffix(file, recordSuffix)+caSuffix, certificates)
		if err != nil {
			return 0, nil, fmt.Errorf("%s: %w", file, err)
		}
		findings = append(findings, found...)
	}
	return issued, findings, nil
}

// readRecord returns the certificates of a record, in DER. It skips invalid lines: a killed process may leave half a
// line at the end.
func readRecord(file string) (certificates [][]byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e issuance.Entry
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Outcome != issuance.Issued {
			continue
		}
		der, err := decode(e.Certificate)
		if err != nil {
			return nil, err
		}
		certificates = append(certificates, der)
	}
	return certificates, lines.Err()
}

func decode(certificate string) ([]byte, error) {
	block, rest := pem.Decode([]byte(certificate))
	if block == nil || block.Type != "CERTIFICATE" || len(rest) > 0 {
		return nil, errors.New("the certificate that is recorded is not one PEM block")
	}
	return block.Bytes, nil
}

func lintAll(certificates [][]byte) (findings []string, err error) {
	next := make(chan []byte)
	var mu sync.Mutex
	var linting sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		linting.Go(func() {
			for der := range next {
				found, failed := Check(der)
				mu.Lock()
				findings, err = append(findings, found...), errors.Join(err, failed)
				mu.Unlock()
			}
		})
	}
	for _, der := range certificates {
		next <- der
	}
	close(next)
	linting.Wait()
	return findings, err
}

// batch is how many certificates one openssl process verifies.
const batch = 200

// openssl verifies the certificates against the CA, and parses the first one with 'openssl x509'. If openssl is
// missing, it does nothing, except in CI. The tests of this package report that openssl is missing.
func openssl(ctx context.Context, ca string, certificates [][]byte) (findings []string, err error) {
	if need.Missing("openssl") != "" && os.Getenv("CI") == "" {
		return nil, nil
	}
	if len(certificates) == 0 {
		return nil, nil
	}
	if _, err := os.Stat(ca); err != nil {
		return nil, fmt.Errorf("%d certificates, and the CA was not kept: %w", len(certificates), err)
	}
	dir, err := os.MkdirTemp("", "certlint-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	// -partial_chain: an intermediate CA is a trust anchor. -no_check_time: some certificates have expired by now.
	verify := []string{"verify", "-x509_strict", "-partial_chain", "-no_check_time", "-check_ss_sig", "-purpose", "any", "-CAfile", ca}
	var files []string
	for i, der := range certificates {
		file := filepath.Join(dir, fmt.Sprintf("%d.pem", i))
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
			return nil, err
		}
		files = append(files, file)
		if len(files) < batch && i+1 < len(certificates) {
			continue
		}
		output, err := exec.CommandContext(ctx, "openssl", append(verify, files...)...).CombinedOutput()
		if ok := strings.Count(string(output), ".pem: OK\n"); err != nil || ok != len(files) {
			findings = append(findings, fmt.Sprintf("openssl verify: %d of %d are good: %v\n%.2000s", ok, len(files), err, output))
		}
		files = nil
	}
	// One certificate is enough to check that openssl can parse them.
	output, err := exec.CommandContext(ctx, "openssl", "x509", "-in", filepath.Join(dir, "0.pem"), "-noout", "-text").CombinedOutput()
	if text := string(output); err != nil || !strings.Contains(text, "CA:FALSE") || strings.Contains(text, "Unable to load") {
		findings = append(findings, fmt.Sprintf("openssl x509: %v\n%.2000s", err, output))
	}
	return findings, nil
}
