package kubeadmcerts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
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

	roleName   = "kubeadm:kubeadm-certs"
	configName = "kubeadm-config"
	configKey  = "ClusterConfiguration"
)

// cleanupTimeout is how long to try to delete an unused owner token.
const cleanupTimeout = 10 * time.Second

// ErrNotFound reports that there is no upload.
var ErrNotFound = errors.New("there is no Secret kube-system/" + SecretName)

// An Uploader uploads the shared files of a control plane. It keeps no state, so its methods are safe for concurrent use,
// and the Uploaders of several control planes share one upload.
type Uploader struct {
	// Client needs the verbs get, create, update and delete on Secrets in kube-system, and get on the ConfigMap
	// kubeadm-config there. It is required.
	Client kubernetes.Interface
	// Dir is the folder of the files; empty means DefaultDir.
	Dir string
	// CreateRole creates the Role and RoleBinding that allow bootstrap tokens to read the Secret, as kubeadm does.
	CreateRole bool
}

// Upload writes the files to the Secret and returns the key that decrypts them. If the Secret already has an upload of
// the same files by an Uploader, Upload returns its key, which stays valid. A key is returned for at most
// [joinformat.KeyTTL] after it was made. In both cases the Secret gets a new owner token, which deletes the Secret
// after [joinformat.UploadTTL] or when the key expires. The error is a [joinformat.KeyEndsError] if the key is about
// to expire.
func (u *Uploader) Upload(ctx context.Context) (joinformat.Upload, error) {
	files, err := u.files(ctx)
	if err != nil {
		return joinformat.Upload{}, err
	}
	if u.CreateRole {
		if err := u.createRole(ctx); err != nil {
			return joinformat.Upload{}, err
		}
	}
	for {
		live, err := u.read(ctx)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return joinformat.Upload{}, fmt.Errorf("secret %s: %w", SecretName, err)
		}
		next, err := plan(live, files, time.Now())
		if err != nil {
			return joinformat.Upload{}, err
		}
		owner, err := u.createOwner(ctx, next.expires)
		if err != nil {
			return joinformat.Upload{}, fmt.Errorf("the owner token of Secret %s: %w", SecretName, err)
		}
		err = u.write(ctx, live.secret, next, owner)
		if err == nil {
			_ = u.deleteOwner(ctx, live.owner) // otherwise it expires
			id, _ := strings.CutPrefix(owner.Name, api.BootstrapTokenSecretPrefix)
			return joinformat.Upload{Key: next.key, Expires: next.expires, TokenID: id, Shared: next.shared, Replaced: live.secret != nil && !next.shared}, nil
		}
		var cleanup error
		if refused(err) {
			cleanup = u.deleteOwner(ctx, owner)
		}
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || live.secret != nil && apierrors.IsNotFound(err) {
			continue // another call was faster
		}
		return joinformat.Upload{}, fmt.Errorf("secret %s: %w", SecretName, errors.Join(err, cleanup))
	}
}

func (u *Uploader) secrets() typedcorev1.SecretInterface {
	return u.Client.CoreV1().Secrets(metav1.NamespaceSystem)
}

// ReadConfiguration reads kubeadm's ClusterConfiguration from the ConfigMap kube-system/kubeadm-config.
func ReadConfiguration(ctx context.Context, client kubernetes.Interface) (Configuration, error) {
	stored, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, configName, metav1.GetOptions{})
	if err != nil {
		return Configuration{}, fmt.Errorf("kubeadm's ClusterConfiguration: %w", err)
	}
	c, err := parseConfiguration(stored.Data[configKey])
	if err != nil {
		return Configuration{}, fmt.Errorf("%s in ConfigMap kube-system/%s: %w", configKey, configName, err)
	}
	return c, nil
}

// files reads the files that the ClusterConfiguration names.
func (u *Uploader) files(ctx context.Context) (Files, error) {
	c, err := ReadConfiguration(ctx, u.Client)
	if err != nil {
		return nil, err
	}
	dir := u.Dir
	if dir == "" {
		dir = DefaultDir
	}
	return c.read(dir)
}

// createOwner creates the bootstrap token that owns the Secret. It has no usages. When a token cleaner deletes it, the
// garbage collector deletes the Secret.
func (u *Uploader) createOwner(ctx context.Context, expires time.Time) (*corev1.Secret, error) {
	manifest, err := secretstore.Manifest(tokens.Record{Token: tokens.Generate(), Description: tokens.UploadDescription, Expires: expires})
	if err != nil {
		return nil, err
	}
	return u.secrets().Create(ctx, manifest, metav1.CreateOptions{})
}

// refused reports whether kube-apiserver refused a write. After any other error, such as a lost connection, the Secret
// may have the new owner. Deleting that owner would delete the Secret and invalidate the keys of earlier calls. So the
// owner is left to expire.
func refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout
}

// deleteOwner deletes an owner token, even if ctx has ended. It does nothing for nil.
func (u *Uploader) deleteOwner(ctx context.Context, owner *corev1.Secret) error {
	if owner == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := u.secrets().Delete(ctx, owner.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &owner.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// A stored is the upload that a cluster has. The zero stored means that it has none.
type stored struct {
	secret *corev1.Secret
	// id is the ID of the owner token in the Secret; empty if it has none.
	id string
	// owner is the owner token, and expires is when it expires. owner is nil if the token was deleted, or if the
	// token is more than the owner of an upload: a user who can change the Secret can make any token its owner.
	owner   *corev1.Secret
	expires time.Time
}

// read reads the upload in the cluster, or returns [ErrNotFound].
func (u *Uploader) read(ctx context.Context) (stored, error) {
	secret, err := u.secrets().Get(ctx, SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return stored{}, ErrNotFound
	}
	if err != nil {
		return stored{}, err
	}
	live := stored{secret: secret}
	i := slices.IndexFunc(secret.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Secret" && strings.HasPrefix(r.Name, api.BootstrapTokenSecretPrefix)
	})
	if i < 0 {
		return live, nil
	}
	ref := secret.OwnerReferences[i]
	live.id = strings.TrimPrefix(ref.Name, api.BootstrapTokenSecretPrefix)
	owner, err := u.secrets().Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return live, nil
	case err != nil:
		return stored{}, err
	}
	if r, err := secretstore.Decode(owner); err == nil && r.OwnsUpload() && owner.UID == ref.UID {
		live.owner, live.expires = owner, r.Expires
	}
	return live, nil
}

// write writes the Secret by compare-and-swap. live is nil if it does not exist.
func (u *Uploader) write(ctx context.Context, live *corev1.Secret, next upload, owner *corev1.Secret) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: SecretName, Annotations: map[string]string{saltAnnotation: next.salt},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Secret"))},
		},
		Type: corev1.SecretTypeOpaque,
		Data: next.data,
	}
	if live == nil {
		_, err := u.secrets().Create(ctx, secret, metav1.CreateOptions{})
		return err
	}
	secret.UID, secret.ResourceVersion = live.UID, live.ResourceVersion
	_, err := u.secrets().Update(ctx, secret, metav1.UpdateOptions{})
	return err
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
	// Expires is when the owner token expires; zero if the token was deleted or never expires.
	Expires time.Time
	// Files are the names of the files that are not empty, sorted.
	Files []string
}

func (s stored) info() Info {
	return Info{Created: s.secret.CreationTimestamp.UTC(), TokenID: s.id, Expires: s.expires, Files: names(s.secret.Data)}
}

// Get returns the upload in the cluster, or [ErrNotFound].
func (u *Uploader) Get(ctx context.Context) (Info, error) {
	live, err := u.read(ctx)
	if err != nil {
		return Info{}, err
	}
	return live.info(), nil
}

// Delete deletes the upload with its owner token, and returns the deleted upload. It returns [ErrNotFound] if
// there is no upload, and a conflict if another upload replaced it meanwhile.
func (u *Uploader) Delete(ctx context.Context) (Info, error) {
	live, err := u.read(ctx)
	if err != nil {
		return Info{}, err
	}
	err = u.secrets().Delete(ctx, SecretName, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &live.secret.UID, ResourceVersion: &live.secret.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err):
		return Info{}, ErrNotFound
	case err != nil:
		return Info{}, err
	}
	_ = u.deleteOwner(ctx, live.owner) // otherwise it expires
	return live.info(), nil
}
