package pki

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// sign fills b.signed for a stage: certificates for the same keys, signed with the key of the CA of the stage. The backup keeps
// them, so that the next Apply writes the same bytes. A dry run signs with a lookalike of that CA, and keeps nothing.
func (h Host) sign(ctx context.Context, b *backup, a authority, r rotation.Rotation) error {
	of, ca := side(r), r.New
	if of == rotation.FromOld {
		ca = r.Old
	}
	var names []string
	needed := false // whether the key file must change
	for name, original := range b.originals {
		switch by, err := a.signer(name, original, r); {
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		case by != "" && name == a.key:
			needed = true
		case by != "" && b.signed[of][name] == nil:
			names = append(names, name)
		}
	}
	present, err := readAll(h.Dir, []string{a.key})
	if err != nil {
		return err
	}
	// Accept an encrypted key: an operator may have encrypted the key that Apply wrote.
	if matches(present[a.key], ca[:1]) || pemfile.IsEncrypted(present[a.key]) && side(r.At(b.index.Stage)) == of {
		needed = false
	}
	if len(names) == 0 && !needed {
		return nil
	}
	cert, key := ca[0], crypto.Signer(nil)
	if h.DryRun {
		cert, key, err = rotation.Lookalike(cert)
	} else {
		key, err = h.keyOf(ctx, of, cert, present[a.key], b.originals[a.key])
	}
	if err != nil {
		return err
	}
	done, err := h.signWith(ctx, b, a, names, cert, key)
	if err != nil {
		return err
	}
	if needed {
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return errors.New("the key of the CA cannot be stored in a file") // err may contain a part of the key
		}
		done[a.key] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	}
	first := b.signed[of] == nil
	all := contents{}
	maps.Copy(all, b.signed[of])
	maps.Copy(all, done)
	b.signed[of] = all
	if h.DryRun {
		return nil
	}
	dir := filepath.Join(b.dir, signedDirs[of])
	to := dir
	if first {
		to += unfinished
	}
	for name, content := range done {
		if err := h.save(filepath.Join(to, name), content); err != nil {
			return err
		}
	}
	if !first {
		return nil
	}
	return h.rename(to, dir)
}

// keyOf returns the key of a CA from one of the files, or from h.Key. A control plane that joined while this CA
// signed has the key in its own files.
func (h Host) keyOf(ctx context.Context, of rotation.From, ca *x509.Certificate, files ...[]byte) (crypto.Signer, error) {
	for _, content := range files {
		if matches(content, []*x509.Certificate{ca}) {
			return pemfile.Key(content)
		}
	}
	if h.Key == nil {
		return nil, errors.New(map[rotation.From]string{
			rotation.FromNew: "the key of the new CA is required on this host; give the key that 'kubejoin ca prepare' showed: --certificate-key-file FILE",
			rotation.FromOld: "the key of the old CA is required on this host, which joined while the new CA signed; give a copy of it: --ca-key-file FILE",
		}[of])
	}
	key, err := h.Key(ctx)
	if err != nil {
		return nil, err
	}
	if !rotation.Matches(key, ca) {
		return nil, fmt.Errorf("the key is not that of the %s CA, whose copy this needs: --ca-key-file FILE", of)
	}
	return key, nil
}

// signWith signs files of the host again with ca and key, and returns the signed files.
func (h Host) signWith(ctx context.Context, b *backup, a authority, files []string, ca *x509.Certificate, key crypto.Signer) (contents, error) {
	if len(files) == 0 {
		return contents{}, nil
	}
	with, err := signer.NewCA([]*x509.Certificate{ca}, key)
	if err != nil {
		return nil, fmt.Errorf("CA %q: %w", ca.Subject, err)
	}
	signers, err := credentials.SignersWith(with)
	if err != nil {
		return nil, err
	}
	instead := contents{a.bundle: pemfile.Encode(ca)}
	var names []string
	for _, file := range files {
		instead[file] = b.originals[file]
		names = append(names, credentials.CertificateIn(file))
	}
	host := credentials.KubeadmFiles{Dir: h.Dir, Instead: instead}
	all, done, err := host.Renew(ctx, credentials.SignLocally(signers), credentials.Renewal{Names: names})
	if err != nil {
		return nil, fmt.Errorf("sign again: %w", err)
	}
	for _, note := range done.Changes {
		h.Log(note.Name + ": " + note.Text)
	}
	return all, nil
}

// checkTrust returns an error if the stage trusts a CA that is not proven to this host: by the CAs it trusted before,
// by a pin, or by a cross certificate.
func checkTrust(before []*x509.Certificate, pins []string, r rotation.Rotation) error {
	pinned := func(c *x509.Certificate) bool { return slices.Contains(pins, clusterinfo.Pin(c)) }
	unproven := r.Unproven(before, pinned, time.Now())
	if len(unproven) == 0 {
		return nil
	}
	c, source := unproven[0], "the one that 'kubejoin ca prepare' showed"
	// A host that joined in stage finish knows only the new CA. A cross certificate proves nothing to it, because any
	// CA can certify the new CA's key.
	if slices.ContainsFunc(r.Old, c.Equal) {
		source = "that of the old CA on a host that is older than the rotation"
	}
	return fmt.Errorf("nobody proved CA %q to this host; compare its pin with %s, and give it with: --ca-pin %s", c.Subject, source, clusterinfo.Pin(c))
}

// matches reports whether a private key in PEM belongs to a certificate.
func matches(key []byte, certs []*x509.Certificate) bool {
	private, err := pemfile.Key(key)
	return err == nil && slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return rotation.Matches(private, c) })
}
