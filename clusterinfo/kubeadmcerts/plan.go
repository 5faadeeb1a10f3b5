package kubeadmcerts

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
)

// saltAnnotation is the annotation of the Secret with the salt of its key. kubeadm ignores it, and removes it when
// kubeadm itself uploads with a key of its own.
const saltAnnotation = "kubejoin.io/certificate-key-salt"

// minKeyLeft is the minimum time for which a returned key stays valid: a machine has to boot and join within it.
const minKeyLeft = 30 * time.Minute

// maxSkew is how far the clock of another control plane may be ahead. A key whose time is later would be valid for
// too long.
const maxSkew = 5 * time.Minute

// An upload is the content to write to the Secret.
type upload struct {
	salt    string
	key     joinformat.CertificateKey
	data    map[string][]byte
	expires time.Time
	shared  bool // an earlier call returned the key
}

// plan returns the upload that replaces live, or shares its key.
//
// The key is derived from all files and a random salt, which begins with its creation time. So each control plane can
// compute the key of an upload by another control plane, even after a restart, and the key is not stored. Only a host
// that has all files can compute the key, and the key decrypts only these files.
func plan(live stored, files Files, now time.Time) (upload, error) {
	now = now.UTC().Truncate(time.Second)
	if next, end, ok := live.share(files); ok && now.Before(live.expires) && now.Before(end) && end.Sub(now) <= joinformat.KeyTTL+maxSkew {
		if end.Sub(now) < minKeyLeft {
			return upload{}, &joinformat.KeyEndsError{Expires: end}
		}
		next.expires = now.Add(joinformat.UploadTTL)
		if live.expires.After(next.expires) { // clocks of control planes differ
			next.expires = live.expires
		}
		if end.Before(next.expires) {
			next.expires = end
		}
		return next, nil
	}
	salt := now.Format(time.RFC3339) + "/" + rand.Text()
	key := files.key(salt)
	data, err := files.Encrypt(key)
	return upload{salt: salt, key: key, data: data, expires: now.Add(joinformat.UploadTTL)}, err
}

// share returns the live upload and when its key expires. ok is false if it has other files or another key.
func (s stored) share(files Files) (next upload, end time.Time, ok bool) {
	if s.owner == nil {
		return upload{}, time.Time{}, false
	}
	salt := s.secret.Annotations[saltAnnotation]
	since, _, _ := strings.Cut(salt, "/")
	made, err := time.Parse(time.RFC3339, since)
	if err != nil {
		return upload{}, time.Time{}, false
	}
	key := files.key(salt)
	inside, err := Decrypt(s.secret.Data, key)
	return upload{salt: salt, key: key, data: s.secret.Data, shared: true}, made.Add(joinformat.KeyTTL), err == nil && inside.equal(files)
}

// key derives the certificate key of an upload of these files.
func (f Files) key(salt string) joinformat.CertificateKey {
	content, err := json.Marshal(f) // sorts the names
	if err != nil {
		panic(err) // cannot happen: JSON can encode each map of bytes
	}
	raw, err := hkdf.Key(sha256.New, content, []byte(salt), "kubejoin certificate key", 32)
	if err != nil {
		panic(err) // cannot happen: HKDF fails only for more than 8160 bytes
	}
	key, err := joinformat.ParseCertificateKey(hex.EncodeToString(raw))
	if err != nil {
		panic(err) // cannot happen: raw has 32 bytes
	}
	return key
}
