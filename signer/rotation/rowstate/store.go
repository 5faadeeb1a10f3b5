// Package rowstate rotates the CA in the files of kubejoin without a cluster, and of all its replicas. The store of
// tokens has the state, the encrypted key of the new CA and the reports of the replicas. So each replica can continue
// what another replica began. A replica changes its CA files by itself: see [Store.Follow].
package rowstate

import (
	"context"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
)

// Rows are the rows of a store. The value of a missing row is nil.
type Rows interface {
	Get(ctx context.Context, key string, read tokens.Read) (value []byte, err error)
	// Visit calls visit with each row, sorted by key. visit must not keep the value.
	Visit(ctx context.Context, read tokens.Read, visit func(key string, value []byte) error) error
	// Update replaces the value of a key with the result of change, if the value has not changed meanwhile.
	Update(ctx context.Context, key string, change func(value []byte) ([]byte, error)) error
	// Watch sends hints about changes.
	Watch(ctx context.Context) <-chan struct{}
}

// Keys of rows. The state has the name of the CA as its key.
const (
	sealedRows  = "key/"     // ID: the key of the new CA, encrypted
	replicaRows = "replica/" // NAME: a Replica
)

// A Store keeps the rotation of the cluster CA in rows, and updates the files of the CA. It supports no other CA.
type Store struct {
	Rows
	Files
}

var (
	_ rotation.Store = Store{}
	_ rotation.Keys  = Store{}
)

// errOnlyCluster is the error for all CAs except the cluster CA.
var errOnlyCluster = &tokens.FieldError{Field: "ca", Err: errors.New("this kubejoin runs without a cluster and has only the cluster CA")}

// Get implements [rotation.Store]. The version is the stored JSON.
func (s Store) Get(ctx context.Context, ca rotation.CA) (rotation.Rotation, string, error) {
	if ca != rotation.Cluster {
		return rotation.Rotation{}, "", errOnlyCluster
	}
	value, err := s.Rows.Get(ctx, string(ca), tokens.Live)
	if err != nil || value == nil {
		return rotation.Rotation{}, "", err
	}
	r, err := rotation.Decode(value, ca)
	return r, string(value), err
}

// Put implements [rotation.Store].
func (s Store) Put(ctx context.Context, r rotation.Rotation, version string) error {
	content, err := rotation.Encode(r)
	if err != nil {
		return err
	}
	return s.Update(ctx, string(r.CA), func(now []byte) ([]byte, error) {
		if string(now) != version {
			return nil, rotation.ErrConflict
		}
		return content, nil
	})
}

// PutKey implements [rotation.Keys]. The key of the old CA decrypts the new key. So replicas need no other secret,
// except the file that Files.Rows describes.
//
// Only a holder of the old key can store a key for exactly these certificates, so replicas accept them.
func (s Store) PutKey(ctx context.Context, r rotation.Rotation, key crypto.Signer) (none joinformat.CertificateKey, err error) {
	if r.CA != rotation.Cluster {
		return none, errOnlyCluster
	}
	if key == nil {
		return none, ctx.Err()
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return none, err
	}
	old, err := os.ReadFile(s.Files.Key)
	if err != nil {
		return none, err
	}
	if s.Files.Rows != "" {
		if err := atomicfile.Write(s.secretFile(r.ID), []byte(rand.Text())); err != nil {
			return none, err
		}
	}
	aead, err := s.aead(old, r.ID)
	if err != nil {
		return none, err
	}
	sealed := aead.Seal(nil, nil, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), about(r))
	return none, s.Update(ctx, sealedRows+r.ID, func([]byte) ([]byte, error) { return sealed, nil })
}

// about returns the part of a rotation that its stored key authenticates: the certificates.
func about(r rotation.Rotation) []byte { return slices.Concat(r.Old.PEM(), []byte("\n"), r.New.PEM()) }

// secretFile returns the path of a file with 130 random bits. Decrypting the stored key of the rotation also
// needs this file.
func (f Files) secretFile(id string) string { return f.Rows + secretSuffix + id }

// aead returns the cipher that encrypts the new key of a rotation with the old key.
func (s Store) aead(oldKey []byte, id string) (cipher.AEAD, error) {
	old, err := pemfile.Key(oldKey)
	if err != nil {
		return nil, fmt.Errorf("old CA key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(old)
	if err != nil {
		return nil, fmt.Errorf("old CA key: %w", err)
	}
	var secret []byte
	if s.Files.Rows != "" {
		if secret, err = os.ReadFile(s.secretFile(id)); err != nil {
			return nil, fmt.Errorf("the new CA key cannot be decrypted without this file: %w; restore it, or if it is lost, go back with: kubejoin ca abort", err)
		}
	}
	key, err := hkdf.Key(sha256.New, der, secret, "kubejoin CA rotation "+id, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// open returns the new key of a rotation in PEM.
func (s Store) open(ctx context.Context, r rotation.Rotation, oldKey []byte) ([]byte, error) {
	sealed, err := s.Rows.Get(ctx, sealedRows+r.ID, tokens.Live)
	if err != nil {
		return nil, err
	}
	if sealed == nil {
		return nil, fmt.Errorf("%s: %w %s, and the new key is not stored any more; copy the CA files of another replica", s.Files.Cert, ErrLeftBehind, r.ID)
	}
	aead, err := s.aead(oldKey, r.ID)
	if err != nil {
		return nil, err
	}
	content, err := aead.Open(nil, nil, sealed, about(r))
	if err != nil {
		return nil, errors.New("cannot decrypt the new CA key with the old CA key and the certificates of this rotation: somebody changed the stored key or the rotation without the old CA key, so kubejoin does not trust either; next: kubejoin ca abort")
	}
	key, err := pemfile.Key(content)
	if err != nil {
		return nil, err
	}
	if !rotation.Matches(key, r.New[0]) {
		return nil, errors.New("the stored key is not the key of the new CA")
	}
	return content, nil
}

// KeepKey implements [rotation.Keys]. It deletes a secret file before its row: without the file, the row cannot
// be decrypted.
func (s Store) KeepKey(ctx context.Context, ca rotation.CA, id string) (found bool, err error) {
	if ca != rotation.Cluster {
		return false, errOnlyCluster
	}
	var others []string
	if err := s.Visit(ctx, tokens.Live, func(key string, _ []byte) error {
		switch other, isKey := strings.CutPrefix(key, sealedRows); {
		case !isKey:
		case other == id:
			found = true
		default:
			others = append(others, key)
		}
		return nil
	}); err != nil {
		return false, err
	}
	if s.Files.Rows != "" {
		if err := drop(s.Files.Rows, secretSuffix, id); err != nil {
			return found, err
		}
	}
	for _, key := range others {
		if err := s.Update(ctx, key, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
			return found, err
		}
	}
	return found, nil
}

// Follow updates the CA files to match the stage of the stored rotation, and reports whether they have changed. If the
// operator copies the key to the hosts, Follow changes nothing.
func (s Store) Follow(ctx context.Context, r rotation.Rotation) (changed bool, err error) {
	if err := s.checkBehind(r); err != nil || !r.HasKey || !r.InProgress() && s.Fixed != "" {
		return false, err
	}
	return s.follow(r, func(oldKey []byte) ([]byte, error) { return s.open(ctx, r, oldKey) })
}

// LeftOut decodes a row, and reports whether a copy of the store omits it. Its errors contain no values.
func LeftOut(key string, value []byte) (bool, error) {
	switch {
	case strings.HasPrefix(key, replicaRows):
		_, err := decodeReplica(key[len(replicaRows):], value)
		return true, err
	case strings.HasPrefix(key, sealedRows):
		return false, nil
	}
	_, err := rotation.Decode(value, rotation.CA(key))
	return false, err
}
