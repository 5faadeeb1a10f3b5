package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// advertiseAddress is a documentation address (RFC 5737), because kubeadm refuses a loopback address. It occurs in
// certificates and kubeconfigs, but no program connects to it.
const advertiseAddress = "192.0.2.10"

// The two configurations differ in certificatesDir. kubeadm writes certificates to the cluster's folder, but
// nodes read the default folder from kubeadm-config.
const (
	initConfig   = "kubeadm-init.yaml"
	uploadConfig = "kubeadm-upload.yaml"
)

func (c *Cluster) writeConfigs() error {
	for name, certificates := range map[string]string{initConfig: c.pki(""), uploadConfig: "/etc/kubernetes/pki"} {
		// The version is set, so that kubeadm does not request it from the internet. The socket is set, so that kubeadm
		// does not look for one.
		config := fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint:
  advertiseAddress: %s
nodeRegistration:
  name: control-plane
  criSocket: unix:///run/none.sock
bootstrapTokens:
- token: %s
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: %s
controlPlaneEndpoint: %s
certificatesDir: %s
encryptionAlgorithm: ECDSA-P256
apiServer:
  certSANs: [127.0.0.1, localhost]
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
serverTLSBootstrap: %t
`, advertiseAddress, c.setupToken.Reveal(), c.Version, c.Address, certificates, c.options.ServerTLSBootstrap)
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(config), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// kubeadmInit runs a phase of kubeadm init that writes files.
func (c *Cluster) kubeadmInit(ctx context.Context, phase ...string) error {
	_, err := c.kubeadm(ctx, append(append([]string{"init", "phase"}, phase...), "--config", filepath.Join(c.Dir, initConfig))...)
	return err
}

func (c *Cluster) kubeadm(ctx context.Context, args ...string) (string, error) {
	return run(ctx, append(os.Environ(), "HOME="+c.Dir), filepath.Join(c.Bin, "kubeadm"), args...)
}

// setUp creates the objects that Options.Setup selects.
func (c *Cluster) setUp(ctx context.Context) error {
	err := ignoreExists(c.clientset.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:cluster-admins"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "kubeadm:cluster-admins"}},
	}, metav1.CreateOptions{}))
	if err != nil {
		return err
	}
	files := []string{"--config", filepath.Join(c.Dir, uploadConfig), "--kubeconfig", c.Kubeconfig()}
	if _, err := c.kubeadm(ctx, append([]string{"init", "phase", "upload-config", "all"}, files...)...); err != nil {
		return err
	}
	if _, err := c.kubeadm(ctx, append([]string{"init", "phase", "bootstrap-token", "--skip-token-print"}, files...)...); err != nil {
		return err
	}
	// kubeadm 1.35.4 does not create this binding. Certificates that a later kubeadm makes for control planes need it.
	if err := ignoreExists(c.clientset.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:apiserver-kubelet-client"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "kube-apiserver-kubelet-client"}},
	}, metav1.CreateOptions{})); err != nil {
		return err
	}
	// kubeadm always creates a token, so delete it.
	err = c.clientset.CoreV1().Secrets("kube-system").Delete(ctx, "bootstrap-token-"+c.setupToken.ID(), metav1.DeleteOptions{})
	if err != nil || c.options.Setup == Kubeadm {
		return err
	}
	return errors.Join(
		c.clientset.CoreV1().ConfigMaps("kube-public").Delete(ctx, "cluster-info", metav1.DeleteOptions{}),
		c.clientset.RbacV1().RoleBindings("kube-public").Delete(ctx, "kubeadm:bootstrap-signer-clusterinfo", metav1.DeleteOptions{}),
		c.clientset.RbacV1().Roles("kube-public").Delete(ctx, "kubeadm:bootstrap-signer-clusterinfo", metav1.DeleteOptions{}),
	)
}

func ignoreExists[T any](_ T, err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// KubeadmUploadCerts runs kubeadm's phase upload-certs with a certificate key.
func (c *Cluster) KubeadmUploadCerts(ctx context.Context, key string) error {
	content, err := os.ReadFile(filepath.Join(c.Dir, initConfig))
	if err != nil {
		return err
	}
	// kubeadm takes the key from the configuration if there is one.
	withKey := filepath.Join(c.Dir, "kubeadm-upload-certs.yaml")
	kind := "kind: InitConfiguration\n"
	if err := os.WriteFile(withKey, []byte(strings.Replace(string(content), kind, kind+"certificateKey: "+key+"\n", 1)), 0o600); err != nil {
		return err
	}
	_, err = c.kubeadm(ctx, "init", "phase", "upload-certs", "--upload-certs", "--config", withKey, "--kubeconfig", c.Kubeconfig())
	return err
}
