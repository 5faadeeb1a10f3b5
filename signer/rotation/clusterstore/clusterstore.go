// Package clusterstore stores rotations of CAs in a cluster: the public state in the ConfigMap kube-public/kubejoin-ca,
// and the keys of new CAs in the Secret kube-system/kubejoin-ca-key, encrypted.
package clusterstore

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Names of the objects.
const (
	// Namespace and Name are those of the ConfigMap. Its data has the JSON of a rotation under the name of each CA.
	Namespace = metav1.NamespacePublic
	Name      = "kubejoin-ca"
	// KeyNamespace and KeyName are those of the Secret. See [DataKey].
	KeyNamespace = metav1.NamespaceSystem
	KeyName      = "kubejoin-ca-key"
)

// DataKey returns the key in the Secret's data of a new CA's key. It has the ID of the rotation, so that a prepare cannot
// replace the key of another one.
func DataKey(ca rotation.CA, id string) string { return string(ca) + "." + id }

// A Store is a [rotation.Store] and [rotation.Keys]. Its client needs get, create and update of the ConfigMap, and these
// and delete of the Secret.
type Store struct {
	maps    typedcorev1.ConfigMapInterface
	secrets typedcorev1.SecretInterface
	merged  typedcorev1.ConfigMapInterface // of KeyNamespace
}

var (
	_ rotation.Store = (*Store)(nil)
	_ rotation.Keys  = (*Store)(nil)
)

// New returns the Store of a cluster.
func New(client kubernetes.Interface) *Store {
	return &Store{client.CoreV1().ConfigMaps(Namespace), client.CoreV1().Secrets(KeyNamespace), client.CoreV1().ConfigMaps(KeyNamespace)}
}

// Get implements [rotation.Store]. The version is the resourceVersion of the ConfigMap; empty if there is none.
func (s *Store) Get(ctx context.Context, ca rotation.CA) (rotation.Rotation, string, error) {
	m, err := s.maps.Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return rotation.Rotation{}, "", nil
	}
	if err != nil {
		return rotation.Rotation{}, "", err
	}
	r, err := FromConfigMap(m, ca)
	return r, m.ResourceVersion, err
}

// FromConfigMap returns the rotation in the ConfigMap; the zero Rotation if it has none of this CA.
func FromConfigMap(m *corev1.ConfigMap, ca rotation.CA) (rotation.Rotation, error) {
	data, found := m.Data[string(ca)]
	if !found {
		return rotation.Rotation{}, nil
	}
	r, err := rotation.Decode([]byte(data), ca)
	if err != nil {
		err = fmt.Errorf("ConfigMap %s/%s: %w", Namespace, Name, err)
	}
	return r, err
}

// Put implements [rotation.Store].
func (s *Store) Put(ctx context.Context, r rotation.Rotation, version string) error {
	data, err := rotation.Encode(r)
	if err != nil {
		return err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name}}
	write := func() (*corev1.ConfigMap, error) { return s.maps.Create(ctx, m, metav1.CreateOptions{}) }
	if version != "" {
		if m, err = s.maps.Get(ctx, Name, metav1.GetOptions{}); err == nil && m.ResourceVersion != version {
			return fmt.Errorf("ConfigMap %s/%s: %w", Namespace, Name, rotation.ErrConflict)
		}
		write = func() (*corev1.ConfigMap, error) { return s.maps.Update(ctx, m, metav1.UpdateOptions{}) }
	}
	if err == nil {
		if m.Data == nil {
			m.Data = map[string]string{}
		}
		m.Data[string(r.CA)] = string(data)
		_, err = write() // the resourceVersion makes the update conditional
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || version != "" && apierrors.IsNotFound(err) {
		return fmt.Errorf("ConfigMap %s/%s: %w", Namespace, Name, rotation.ErrConflict)
	}
	return err
}

// PutKey implements [rotation.Keys]. It encrypts the key as kubeadm encrypts shared certificates.
func (s *Store) PutKey(ctx context.Context, r rotation.Rotation, key crypto.Signer) (joinformat.CertificateKey, error) {
	if key == nil {
		return joinformat.CertificateKey{}, nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return joinformat.CertificateKey{}, fmt.Errorf("key of type %T cannot be stored: give the certificates alone, and bring the key to the hosts", key)
	}
	with := joinformat.GenerateCertificateKey()
	sealed, err := kubeadmcerts.Files{DataKey(r.CA, r.ID): pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}.Encrypt(with)
	if err != nil {
		return joinformat.CertificateKey{}, err
	}
	return with, s.update(ctx, func(data map[string][]byte) { maps.Copy(data, sealed) })
}

// KeepKey implements [rotation.Keys]. It deletes the Secret with the last key.
func (s *Store) KeepKey(ctx context.Context, ca rotation.CA, id string) (found bool, err error) {
	err = s.update(ctx, func(data map[string][]byte) {
		maps.DeleteFunc(data, func(name string, _ []byte) bool {
			return strings.HasPrefix(name, DataKey(ca, "")) && name != DataKey(ca, id)
		})
		_, found = data[DataKey(ca, id)]
	})
	return found, err
}

// maxConflicts is how often update retries.
const maxConflicts = 20

// update changes the data of the Secret. It sends no write if nothing changes.
func (s *Store) update(ctx context.Context, change func(data map[string][]byte)) error {
	for n := 0; ; n++ {
		err := s.updateOnce(ctx, change)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) || n == maxConflicts {
			return err
		}
	}
}

func (s *Store) updateOnce(ctx context.Context, change func(data map[string][]byte)) error {
	secret, err := s.secrets.Get(ctx, KeyName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: KeyName}, Type: corev1.SecretTypeOpaque}
	} else if err != nil {
		return err
	}
	before := len(secret.Data)
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	change(secret.Data) // it only adds keys or only deletes some
	switch {
	case len(secret.Data) == before && (before > 0 || missing):
		return nil
	case missing:
		_, err = s.secrets.Create(ctx, secret, metav1.CreateOptions{})
	case len(secret.Data) == 0:
		err = s.secrets.Delete(ctx, KeyName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}})
	default:
		_, err = s.secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	return err
}

// Merged is the ConfigMap in KeyNamespace to which each kube-apiserver adds the CAs of its clients. None removes one.
const Merged = "extension-apiserver-authentication"

// DropMerged deletes the ConfigMap [Merged], for [rotation.Desk]. Each kube-apiserver creates it again within seconds. The
// client also needs delete of this ConfigMap.
func (s *Store) DropMerged(ctx context.Context, _ rotation.CA) error {
	err := s.merged.Delete(ctx, Merged, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Key reads and decrypts the key of the new CA of a rotation.
func (s *Store) Key(ctx context.Context, r rotation.Rotation, with joinformat.CertificateKey) (crypto.Signer, error) {
	secret, err := s.secrets.Get(ctx, KeyName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return OpenKey(secret, r, with)
}

// OpenKey decrypts the key of the new CA of a rotation. Its errors have no part of a key.
func OpenKey(secret *corev1.Secret, r rotation.Rotation, with joinformat.CertificateKey) (crypto.Signer, error) {
	name := DataKey(r.CA, r.ID)
	sealed, found := secret.Data[name]
	if !found {
		return nil, fmt.Errorf("secret %s/%s has no key %s", KeyNamespace, KeyName, name)
	}
	files, err := kubeadmcerts.Decrypt(map[string][]byte{name: sealed}, with)
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w: want the certificate key that 'kubejoin ca prepare' showed for rotation %s", KeyNamespace, KeyName, err, r.ID)
	}
	key, err := pemfile.Key(files[name])
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s, %s: %w", KeyNamespace, KeyName, name, err)
	}
	fresh, err := r.NewCerts()
	if err != nil {
		return nil, err
	}
	if !rotation.Matches(key, fresh[0]) {
		return nil, errors.New("the stored key is not the key of the new CA")
	}
	return key, nil
}
