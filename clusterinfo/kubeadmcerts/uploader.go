package kubeadmcerts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/cluster-bootstrap/token/api"
)

// Names and times of kubeadm.
const (
	// SecretName is the name of the Secret in kube-system.
	SecretName = "kubeadm-certs"

	roleName         = "kubeadm:kubeadm-certs"
	configName       = "kubeadm-config"
	configKey        = "ClusterConfiguration"
	ownerDescription = "Proxy for managing TTL for the kubeadm-certs secret"
)

// cleanupTimeout is how long to try to delete an owner token that has no use.
const cleanupTimeout = 10 * time.Second

// ErrNotFound reports that there is no upload.
var ErrNotFound = errors.New("there is no Secret kube-system/" + SecretName)

// An Uploader uploads the shared files of a control plane. Its methods are safe for concurrent use.
type Uploader struct {
	// Client needs the verbs get, create, update and delete on Secrets in kube-system, and get on the ConfigMap
	// kubeadm-config there. It is required.
	Client kubernetes.Interface
	// Dir is the folder of the files; empty means DefaultDir.
	Dir string
	// CreateRole creates the Role and RoleBinding that let bootstrap tokens read the Secret, as kubeadm does.
	CreateRole bool

	mu   sync.Mutex
	last *upload
}

// An upload is what an Uploader wrote.
type upload struct {
	key   joinformat.CertificateKey
	files Files
	data  map[string][]byte
	owner *corev1.Secret
}

// Upload writes the files to the Secret under a new key. If the Secret still has the files of the last call, the key
// of that call stays valid and is returned again. In both cases the Secret gets a new owner token, which deletes it
// after [joinformat.UploadTTL].
func (u *Uploader) Upload(ctx context.Context) (joinformat.Upload, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	files, err := u.files(ctx)
	if err != nil {
		return joinformat.Upload{}, err
	}
	if u.CreateRole {
		if err := u.createRole(ctx); err != nil {
			return joinformat.Upload{}, err
		}
	}
	owner, expires, err := u.createOwner(ctx, time.Now())
	if err != nil {
		return joinformat.Upload{}, fmt.Errorf("the owner token of Secret %s: %w", SecretName, err)
	}
	result, err := u.write(ctx, files, owner)
	if err != nil {
		err = fmt.Errorf("secret %s: %w", SecretName, err)
		if refused(err) {
			err = errors.Join(err, u.deleteOwner(ctx, owner))
		}
		return joinformat.Upload{}, err
	}
	result.Expires = expires
	return result, nil
}

func (u *Uploader) secrets() typedcorev1.SecretInterface {
	return u.Client.CoreV1().Secrets(metav1.NamespaceSystem)
}

// files reads the files that the ClusterConfiguration names.
func (u *Uploader) files(ctx context.Context) (Files, error) {
	stored, err := u.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, configName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("kubeadm's ClusterConfiguration: %w", err)
	}
	c, err := parseConfiguration(stored.Data[configKey])
	if err != nil {
		return nil, fmt.Errorf("%s in ConfigMap kube-system/%s: %w", configKey, configName, err)
	}
	dir := u.Dir
	if dir == "" {
		dir = DefaultDir
	}
	return c.read(dir)
}

// createOwner creates the bootstrap token that owns the Secret. It has no usages. When a token cleaner deletes it, the
// garbage collector deletes the Secret.
func (u *Uploader) createOwner(ctx context.Context, now time.Time) (*corev1.Secret, time.Time, error) {
	r := tokens.Record{Token: tokens.Generate(), Description: ownerDescription, Expires: now.Add(joinformat.UploadTTL).UTC().Truncate(time.Second)}
	manifest, err := secretstore.Manifest(r)
	if err != nil {
		return nil, time.Time{}, err
	}
	owner, err := u.secrets().Create(ctx, manifest, metav1.CreateOptions{})
	return owner, r.Expires, err
}

// refused reports whether kube-apiserver refused a write. After any other error, such as a lost connection, the Secret
// may have the new owner. Deleting that owner would delete the Secret and end the keys of earlier calls. The owner
// expires instead.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout
}

// deleteOwner deletes an owner token, also if ctx has ended.
func (u *Uploader) deleteOwner(ctx context.Context, owner *corev1.Secret) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := u.secrets().Delete(ctx, owner.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &owner.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// write writes the Secret by compare-and-swap.
func (u *Uploader) write(ctx context.Context, files Files, owner *corev1.Secret) (joinformat.Upload, error) {
	for {
		live, err := u.secrets().Get(ctx, SecretName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			live, err = nil, nil
		}
		if err != nil {
			return joinformat.Upload{}, err
		}
		next := upload{files: files, owner: owner}
		shared := live != nil && u.last != nil && u.last.files.equal(files) && maps.EqualFunc(live.Data, u.last.data, bytes.Equal)
		if shared {
			next.key, next.data = u.last.key, u.last.data
		} else {
			next.key = joinformat.GenerateCertificateKey()
			if next.data, err = files.Encrypt(next.key); err != nil {
				return joinformat.Upload{}, err
			}
		}
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: metav1.NamespaceSystem, Name: SecretName,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Secret"))},
			},
			Type: corev1.SecretTypeOpaque,
			Data: next.data,
		}
		if live == nil {
			_, err = u.secrets().Create(ctx, secret, metav1.CreateOptions{})
		} else {
			secret.UID, secret.ResourceVersion = live.UID, live.ResourceVersion
			_, err = u.secrets().Update(ctx, secret, metav1.UpdateOptions{})
		}
		switch {
		case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), live != nil && apierrors.IsNotFound(err):
			continue
		case err != nil:
			return joinformat.Upload{}, err
		}
		if u.last != nil {
			_ = u.deleteOwner(ctx, u.last.owner) // otherwise it expires
		}
		u.last = &next
		id, _ := strings.CutPrefix(owner.Name, api.BootstrapTokenSecretPrefix)
		return joinformat.Upload{Key: next.key, TokenID: id, Shared: shared, Replaced: live != nil && !shared}, nil
	}
}

// createRole creates the Role and RoleBinding of kubeadm, or replaces them.
func (u *Uploader) createRole(ctx context.Context) error {
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: roleName}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{SecretName},
	}}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: roleName},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, Name: tokens.DefaultGroup}},
	}
	rbac := u.Client.RbacV1()
	_, err := rbac.Roles(meta.Namespace).Create(ctx, role, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = rbac.Roles(meta.Namespace).Update(ctx, role, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("role %s: %w", roleName, err)
	}
	_, err = rbac.RoleBindings(meta.Namespace).Create(ctx, binding, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = rbac.RoleBindings(meta.Namespace).Update(ctx, binding, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("RoleBinding %s: %w", roleName, err)
	}
	return nil
}

// Info describes the upload in a cluster, without its contents.
type Info struct {
	Created time.Time
	// TokenID is the ID of the owner token; empty if the Secret has none, so that nothing deletes it.
	TokenID string
	// Expires is when the owner token expires; zero if it is gone or never expires.
	Expires time.Time
	// Files are the names of the files that are not empty, sorted.
	Files []string

	secret *corev1.Secret
}

// Get returns the upload in the cluster, or [ErrNotFound].
func (u *Uploader) Get(ctx context.Context) (Info, error) {
	secret, err := u.secrets().Get(ctx, SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Info{}, ErrNotFound
	}
	if err != nil {
		return Info{}, err
	}
	info := Info{Created: secret.CreationTimestamp.UTC(), Files: names(secret.Data), secret: secret}
	i := slices.IndexFunc(secret.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Secret" && strings.HasPrefix(r.Name, api.BootstrapTokenSecretPrefix)
	})
	if i < 0 {
		return info, nil
	}
	ref := secret.OwnerReferences[i]
	info.TokenID = strings.TrimPrefix(ref.Name, api.BootstrapTokenSecretPrefix)
	owner, err := u.secrets().Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return info, nil
	case err != nil:
		return Info{}, err
	}
	// A malformed time counts as expired.
	if expires, err := time.Parse(time.RFC3339, string(owner.Data[api.BootstrapTokenExpirationKey])); err == nil {
		info.Expires = expires.UTC()
	}
	return info, nil
}

// Delete deletes the upload and returns what it was. Its owner token has no other use and expires. Delete returns
// [ErrNotFound] if there is no upload, and a conflict if another upload replaced it meanwhile.
func (u *Uploader) Delete(ctx context.Context) (Info, error) {
	info, err := u.Get(ctx)
	if err != nil {
		return info, err
	}
	err = u.secrets().Delete(ctx, SecretName, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &info.secret.UID, ResourceVersion: &info.secret.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return Info{}, ErrNotFound
	}
	return info, err
}
