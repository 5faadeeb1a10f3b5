// Package datadir manages the folder of --data-dir. It contains the CA, the credentials of callers and the token store, unless
// kubejoin keeps these in a cluster. 'kubejoin serve' creates the files, and the other commands read them.
package datadir

import (
	"bytes"
	"crypto/rand"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/host/trustedpath"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation/rowstate"
)

// Files in the folder.
const (
	CA        = "ca.pem" // certificate and key
	Bundle    = "ca.crt" // the CA certificates for clients
	Operators = "operators.csv"
	Curlrc    = "curlrc"
	Store     = "kubejoin.db"
	// WebhookToken holds only the bearer token of kube-apiserver, as the tokenFile of a kubeconfig requires.
	WebhookToken = "kube-apiserver.token"
)

// files are all files in the folder that kubejoin reads or writes.
var files = []string{CA, Bundle, Operators, Curlrc, WebhookToken, Store}

// caLifetime is the validity of a CA that MakeCA generates, the same as kubeadm's.
const caLifetime = 10 * 365 * 24 * time.Hour

// A Dir is the path of the folder.
type Dir string

// Path returns the path of a file in the folder.
func (d Dir) Path(name string) string { return filepath.Join(string(d), name) }

// Open creates the folder if it is missing. It refuses a folder that other users can read. It also refuses a folder
// whose content another user could write or replace.
func (d Dir) Open() error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if err := trustedpath.Check(string(d)); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	names := slices.Clone(files)
	for _, e := range entries {
		if rowstate.IsAdded(e.Name(), CA) || rowstate.IsAdded(e.Name(), Store) {
			names = append(names, e.Name())
		}
	}
	for _, name := range names {
		path := d.Path(name)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := trustedpath.Check(path); err != nil {
			return fmt.Errorf("--data-dir: %w", err)
		}
	}
	info, err := os.Stat(string(d))
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("--data-dir: %s has mode %04o and will hold keys; want 0700: chmod 700 %s", d, mode, safetext.Quote(string(d)))
	}
	return nil
}

// CheckStore returns an error if the store is an empty file although the folder has other files: kubejoin creates and fills the
// store first. Without this error, kubejoin would start with an empty store, and silently lose all tokens and revocations.
func (d Dir) CheckStore() error {
	store := d.Path(Store)
	if info, err := os.Stat(store); err != nil || info.Size() > 0 {
		return nil // opening the store will return the error of Stat
	}
	for _, name := range files {
		if _, err := os.Stat(d.Path(name)); err == nil && name != Store {
			return fmt.Errorf("--data-dir: %s is empty, although %s exists: restore a backup, or if there is none, delete %[1]s, which gives up its tokens, claims, revocations and issuance record", store, name)
		}
	}
	return nil
}

// MakeCA generates a cluster CA if there is none. Certificate and key share one file, so that an interrupted start
// never leaves one without the other.
func (d Dir) MakeCA(now time.Time) (made bool, err error) {
	file := d.Path(CA)
	if _, err := os.Stat(file); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	ca, err := signer.GenerateCA("kubernetes", now, caLifetime)
	if err != nil {
		return false, err
	}
	cert, key, err := ca.PEM()
	if err != nil {
		return false, err
	}
	return true, atomicfile.Write(file, append(cert, key...))
}

// AdminBearer returns the bearer token of the first operator in the operators file. If the file is missing,
// AdminBearer creates it with one admin, a member of group.
func (d Dir) AdminBearer(group string) (string, error) {
	file := d.Path(Operators)
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		content = fmt.Appendf(nil, "%s,admin,,\"%s\"\n", rand.Text()+rand.Text(), group)
		err = atomicfile.Write(file, content)
	}
	if err != nil {
		return "", fmt.Errorf("operators: %w", err)
	}
	if _, err := auth.ParseTokenFile(content); err != nil {
		return "", fmt.Errorf("operators: %s: %w", file, err)
	}
	rows := csv.NewReader(bytes.NewReader(content))
	rows.Comment, rows.TrimLeadingSpace, rows.FieldsPerRecord = '#', true, -1 // same options as in ParseTokenFile
	first, err := rows.Read()
	if err != nil {
		return "", fmt.Errorf("operators: %s: want one at least: %w", file, err)
	}
	return first[0], nil
}

// bearerPattern is the syntax of RFC 6750, section 2.1. None of its characters is special in a token file.
var bearerPattern = regexp.MustCompile(`\A[A-Za-z0-9._~+/-]+=*\z`)

// IsBearer reports whether s has the form of a bearer token.
func IsBearer(s string) bool { return bearerPattern.MatchString(s) }

// WebhookBearer returns the bearer token of kube-apiserver. It creates the file if it is missing.
func (d Dir) WebhookBearer() (string, error) {
	file := d.Path(WebhookToken)
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		content = []byte(rand.Text() + rand.Text() + "\n")
		err = atomicfile.Write(file, content)
	}
	if err != nil {
		return "", fmt.Errorf("bearer token of kube-apiserver: %w", err)
	}
	return parseBearer(file, content)
}

// ReadWebhookBearer returns the bearer token that WebhookBearer created. It refuses a file that another user could
// have written.
func (d Dir) ReadWebhookBearer() (string, error) {
	file := d.Path(WebhookToken)
	if err := trustedpath.Check(file); err != nil {
		return "", fmt.Errorf("bearer token of kube-apiserver: %w", err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("bearer token of kube-apiserver: %w", err)
	}
	return parseBearer(file, content)
}

func parseBearer(file string, content []byte) (string, error) {
	bearer := strings.TrimSuffix(string(content), "\n")
	if !IsBearer(bearer) {
		return "", fmt.Errorf("%s: want one line with a bearer token of letters, digits and ._~+/-", file)
	}
	return bearer, nil
}
