// Package clusterstore stores rotations of CAs in a cluster: their states, and the keys of new CAs, encrypted, in the
// Secret kube-system/kubejoin-ca-key. Hosts read a copy of the states in the ConfigMap kube-public/kubejoin-ca, and
// verify it. Many users may write to that ConfigMap, so kubejoin itself never uses the copy.
package clusterstore

import (
	"bytes"
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
	// Namespace and Name identify the ConfigMap. Its data has the JSON of a rotation under the name of each CA.
	Namespace = metav1.NamespacePublic
	Name      = "kubejoin-ca"
	// KeyNamespace and KeyName identify the Secret. Its data has the same rotations, and the keys of new CAs
	// under [DataKey].
	KeyNamespace = metav1.NamespaceSystem
	KeyName      = "kubejoin-ca-key"
)

// DataKey returns the name in the Secret's data under which a new CA's key is stored. It contains the ID of the
// rotation, so that a new rotation cannot replace the key of another rotation.
func DataKey(ca rotation.CA, id string) string { return string(ca) + "." + id }

// A Store is a [rotation.Store] and [rotation.Keys]. Its client needs get, create and update on both objects.
type Store struct {
	maps    typedcorev1.ConfigMapInterface
	secrets typedcorev1.SecretInterface
	merged  typedcorev1.ConfigMapInterface // ConfigMaps in KeyNamespace
}

var (
	_ rotation.Store = (*Store)(nil)
	_ rotation.Keys  = (*Store)(nil)
	_ rotation.Copy  = (*Store)(nil)
)

// New returns the Store of a cluster.
func New(client kubernetes.Interface) *Store {
	return &Store{client.CoreV1().ConfigMaps(Namespace), client.CoreV1().Secrets(KeyNamespace), client.CoreV1().ConfigMaps(KeyNamespace)}
}

// Get implements [rotation.Store]. The version is the stored state, or empty without a rotation.
func (s *Store) Get(ctx context.Context, ca rotation.CA) (rotation.Rotation, string, error) {
	secret, err := s.secret(ctx)
	if err != nil {
		return rotation.Rotation{}, "", err
	}
	r, err := FromSecret(secret, ca)
	return r, string(secret.Data[string(ca)]), err
}

// secret returns the Secret. If it does not exist, secret returns a Secret without a name and data.
func (s *Store) secret(ctx context.Context) (*corev1.Secret, error) {
	secret, err := s.secrets.Get(ctx, KeyName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{}, nil
	}
	return secret, err
}

// FromSecret returns the rotation in the Secret; the zero Rotation if it has none of this CA.
func FromSecret(secret *corev1.Secret, ca rotation.CA) (rotation.Rotation, error) {
	data, found := secret.Data[string(ca)]
	if !found {
		return rotation.Rotation{}, nil
	}
	r, err := rotation.Decode(data, ca)
	if err != nil {
		err = fmt.Errorf("secret %s/%s: %w", KeyNamespace, KeyName, err)
	}
	return r, err
}

// States returns the part of the Secret's data that is copied to the ConfigMap.
func States(secret *corev1.Secret) map[string]string {
	states := map[string]string{}
	for _, ca := range rotation.CAs {
		if state, found := secret.Data[string(ca)]; found {
			states[string(ca)] = string(state)
		}
	}
	return states
}

// CheckCopy returns an error if the data of the ConfigMap differs from the states.
func CheckCopy(states, data map[string]string) error {
	for _, ca := range rotation.CAs {
		state, stored := states[string(ca)]
		copied, found := data[string(ca)]
		switch {
		case stored && copied != state:
			return fmt.Errorf("ConfigMap %s/%s has another state of the %s CA than Secret %s/%s: somebody else changed it, or a command was interrupted; a running kubejoin corrects it", Namespace, Name, ca, KeyNamespace, KeyName)
		case !stored && found:
			return fmt.Errorf("ConfigMap %s/%s has a rotation of the %s CA, and Secret %s/%s has none: if you began no rotation, run: kubectl -n %[1]s delete configmap %[2]s; otherwise restore the Secret", Namespace, Name, ca, KeyNamespace, KeyName)
		}
	}
	return nil
}

// Check implements [rotation.Copy]. It reads both objects and returns the error of [CheckCopy].
func (s *Store) Check(ctx context.Context) error {
	m, err := s.maps.Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		m = &corev1.ConfigMap{}
	} else if err != nil {
		return err
	}
	secret, err := s.secret(ctx)
	if err != nil {
		return err
	}
	return CheckCopy(States(secret), m.Data)
}

// Publish implements [rotation.Copy].
func (s *Store) Publish(ctx context.Context) (wrong, err error) {
	for n := 0; ; n++ {
		wrong, err = s.publishOnce(ctx)
		if !isConflict(err) || n == maxConflicts {
			return wrong, err
		}
	}
}

func (s *Store) publishOnce(ctx context.Context) (wrong, err error) {
	m, err := s.maps.Get(ctx, Name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name}}
	} else if err != nil {
		return nil, err
	}
	secret, err := s.secret(ctx) // read after the ConfigMap, so that no older state replaces a newer state
	if err != nil {
		return nil, err
	}
	states := States(secret)
	if wrong = CheckCopy(states, m.Data); wrong == nil {
		return nil, nil
	}
	whole := true // whether the Secret has all rotations of the ConfigMap
	for _, ca := range rotation.CAs {
		// Keep a rotation that the Secret lacks: the Secret may have been lost, which only a person can decide.
		if copied, found := m.Data[string(ca)]; found && states[string(ca)] == "" {
			states[string(ca)], whole = copied, false
		}
	}
	if maps.Equal(states, m.Data) {
		return nil, nil
	}
	m.Data, m.BinaryData = states, nil // this also drops data from others, which could fill the ConfigMap
	if missing {
		_, err = s.maps.Create(ctx, m, metav1.CreateOptions{})
	} else {
		_, err = s.maps.Update(ctx, m, metav1.UpdateOptions{}) // conditional by the resourceVersion
	}
	if apierrors.IsInvalid(err) && whole { // for example because it is immutable
		err = fmt.Errorf("%w; Secret %s/%s has all rotations of this ConfigMap, so let kubejoin create it again: kubectl -n %s delete configmap %s", err, KeyNamespace, KeyName, Namespace, Name)
	}
	return wrong, err
}

func isConflict(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// FromConfigMap returns the rotation in the copy, for hosts; the zero Rotation if it has none of this CA.
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

// Put implements [rotation.Store]. If it fails after it has stored the state, another Put of the same state
// publishes the copy.
func (s *Store) Put(ctx context.Context, r rotation.Rotation, version string) error {
	state, err := rotation.Encode(r)
	if err != nil {
		return err
	}
	if err := s.update(ctx, func(data map[string][]byte) error {
		if string(data[string(r.CA)]) != version {
			return fmt.Errorf("secret %s/%s: %w", KeyNamespace, KeyName, rotation.ErrConflict)
		}
		data[string(r.CA)] = state
		return nil
	}); err != nil {
		return err
	}
	_, err = s.Publish(ctx)
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
	return with, s.update(ctx, func(data map[string][]byte) error { maps.Copy(data, sealed); return nil })
}

// KeepKey implements [rotation.Keys].
func (s *Store) KeepKey(ctx context.Context, ca rotation.CA, id string) (found bool, err error) {
	err = s.update(ctx, func(data map[string][]byte) error {
		maps.DeleteFunc(data, func(name string, _ []byte) bool {
			return strings.HasPrefix(name, DataKey(ca, "")) && name != DataKey(ca, id)
		})
		_, found = data[DataKey(ca, id)]
		return nil
	})
	return found, err
}

// maxConflicts is how often a write is retried after a conflict.
const maxConflicts = 20

// update changes the data of the Secret. It sends no write if nothing changes.
func (s *Store) update(ctx context.Context, change func(data map[string][]byte) error) error {
	for n := 0; ; n++ {
		err := s.updateOnce(ctx, change)
		if !isConflict(err) || n == maxConflicts {
			return err
		}
	}
}

func (s *Store) updateOnce(ctx context.Context, change func(data map[string][]byte) error) error {
	secret, err := s.secret(ctx)
	if err != nil {
		return err
	}
	before := maps.Clone(secret.Data)
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if err := change(secret.Data); err != nil || maps.EqualFunc(before, secret.Data, bytes.Equal) {
		return err
	}
	if secret.Name == "" {
		secret.Name, secret.Type = KeyName, corev1.SecretTypeOpaque
		_, err = s.secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = s.secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	return err
}

// Merged is the ConfigMap in KeyNamespace to which each kube-apiserver adds the CAs of its clients. No kube-apiserver
// removes a CA from it.
const Merged = "extension-apiserver-authentication"

// DropMerged deletes the ConfigMap [Merged], for [rotation.Desk]. Each kube-apiserver creates it again within seconds.
// The client also needs delete on this ConfigMap.
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

// OpenKey decrypts the key of the new CA of a rotation. Its errors contain no part of a key.
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
	if !rotation.Matches(key, r.New[0]) {
		return nil, errors.New("the stored key is not the key of the new CA")
	}
	return key, nil
}
