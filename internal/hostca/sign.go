package hostca

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// signs reports whether the new CA has to sign for this host, or its key belongs there.
func (b *backup) signs(a authority) bool {
	return slices.ContainsFunc(append(a.signed(), a.key), func(name string) bool { return b.originals[name] != nil })
}

// sign fills b.signed: certificates for the same keys, signed with the key of the new CA. They are kept, so that the next
// Apply writes the same bytes.
func (h Host) sign(ctx context.Context, b *backup, a authority, r rotation.Rotation) error {
	fresh, err := r.NewCerts()
	if err != nil {
		return err
	}
	key, err := pemfile.Key(b.originals[a.key])
	if err != nil || !rotation.Matches(key, fresh[0]) { // unless it joined while the new CA signed
		if h.Key == nil {
			return errors.New("the key of the new CA is required on this host; give the key that 'kubejoin ca prepare' showed: --certificate-key-file FILE")
		}
		if key, err = h.Key(ctx); err != nil {
			return err
		}
		if !rotation.Matches(key, fresh[0]) {
			return errors.New("the key is not that of the new CA")
		}
	}
	dir := filepath.Join(b.dir, signedDir)
	if b.signed, err = h.signIn(ctx, dir+unfinished, b, a, []byte(r.New), key); err != nil {
		return err
	}
	return h.rename(dir+unfinished, dir)
}

// rehearse fills b.signed for a dry run, with certificates of a CA that looks like the new one.
func (h Host) rehearse(ctx context.Context, b *backup, a authority, r rotation.Rotation) (err error) {
	fresh, err := r.NewCerts()
	if err != nil {
		return err
	}
	key, err := credentials.NewKey()
	if err != nil {
		return err
	}
	like := fresh[0]
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), RawSubject: like.RawSubject, NotBefore: like.NotBefore, NotAfter: like.NotAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, &x509.Certificate{RawSubject: like.RawSubject}, key.Public(), key)
	if err != nil {
		return err
	}
	// It gets keys of the host, so it is where sweep removes it after a crash.
	dir, err := os.MkdirTemp(h.file(Backups), "*"+unfinished)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b.signed, err = h.signIn(ctx, dir, b, a, pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: der}), key)
	return err
}

// signIn has the files of the host signed in another folder, in which the CA is the new one.
func (h Host) signIn(ctx context.Context, dir string, b *backup, a authority, bundle []byte, key crypto.Signer) (contents, error) {
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.New("the key of the new CA cannot be stored in a file") // the error may have a part of it
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	if err := errors.Join(h.save(filepath.Join(dir, a.bundle), bundle), h.save(filepath.Join(dir, a.key), encoded)); err != nil {
		return nil, err
	}
	var names []string
	for _, name := range a.signed() {
		if b.originals[name] == nil {
			continue
		}
		if err := h.save(filepath.Join(dir, name), b.originals[name]); err != nil {
			return nil, err
		}
		if path, found := strings.CutSuffix(name, ".crt"); found {
			if err := os.Symlink(h.file(path+".key"), filepath.Join(dir, path+".key")); err != nil {
				return nil, err
			}
		}
		names = append(names, certificate(name))
	}
	if len(names) > 0 {
		signers, _, err := credentials.SignersOf(filepath.Join(dir, "pki"), "")
		if err != nil {
			return nil, fmt.Errorf("new CA: %w", err)
		}
		done, err := credentials.Host{Dir: dir}.Renew(ctx, credentials.SignLocally(signers), credentials.Renewal{Names: names})
		if err != nil {
			return nil, fmt.Errorf("sign again: %w", err)
		}
		for _, note := range done.Changes {
			h.Log(note.Name + ": " + note.Text)
		}
	}
	leave := []string{filepath.Join(dir, "tmp")} // copies of the kubeconfigs
	if b.originals[a.key] == nil {               // the host has no key of the CA, and gets none
		leave = append(leave, filepath.Join(dir, a.key))
	}
	for _, path := range leave {
		if err := os.RemoveAll(path); err != nil {
			return nil, err
		}
	}
	return readAll(dir, a.files())
}

// checkTrust returns an error unless the host may trust everything that a stage trusts.
func checkTrust(before []*x509.Certificate, pins []string, r rotation.Rotation) error {
	pinned := func(c *x509.Certificate) bool { return slices.Contains(pins, clusterinfo.Pin(c)) }
	unproven, err := r.Unproven(before, pinned, time.Now())
	if err != nil || len(unproven) == 0 {
		return err
	}
	old, err := r.OldCerts()
	if err != nil {
		return err
	}
	c, source := unproven[0], "the one that 'kubejoin ca prepare' showed"
	// A host that joined in stage finish knows only the new CA, and anybody can certify the key of that.
	if slices.ContainsFunc(old, c.Equal) {
		source = "that of the old CA on a host that is older than the rotation"
	}
	return fmt.Errorf("nobody proved CA %q to this host; compare its pin with %s, and give it with: --ca-pin %s", c.Subject, source, clusterinfo.Pin(c))
}

// matches reports whether a private key in PEM belongs to a certificate.
func matches(key []byte, certs []*x509.Certificate) bool {
	private, err := pemfile.Key(key)
	return err == nil && slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return rotation.Matches(private, c) })
}
