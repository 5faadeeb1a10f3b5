package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// A joinConfig is a ConfigMap in kube-system that 'kubeadm join' reads with its token.
type joinConfig struct {
	name, key   string
	apiVersions []string
	kind        string
	optional    bool // kubeadm also works without it
	mend        string
}

// fromCluster is the beginning of a command: it writes the ClusterConfiguration of the cluster to a file, and runs
// the kubeadm phase that is appended.
const fromCluster = `kubectl -n kube-system get configmap kubeadm-config -o jsonpath='{.data.ClusterConfiguration}' > /root/kubeadm.yaml && kubeadm init phase `

var joinConfigs = []joinConfig{
	{"kubeadm-config", "ClusterConfiguration", []string{"kubeadm.k8s.io/v1beta4"}, "ClusterConfiguration", false, "kubeadm init phase upload-config kubeadm --config kubeadm.yaml"},
	{"kubelet-config", "kubelet", []string{"kubelet.config.k8s.io/v1beta1"}, "KubeletConfiguration", false, fromCluster + "upload-config kubelet --config /root/kubeadm.yaml"},
	{"kube-proxy", "config.conf", []string{"kubeproxy.config.k8s.io/v1alpha1"}, "KubeProxyConfiguration", true, fromCluster + "addon kube-proxy --config /root/kubeadm.yaml"},
}

func (r *reading) joinConfig(ctx context.Context) error {
	r.JoinConfig = map[string]map[string]string{}
	for _, c := range joinConfigs {
		object, err := r.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, c.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		r.JoinConfig[c.name] = object.Data
	}
	return nil
}

// checkJoinConfig finds ConfigMaps without which 'kubeadm join' fails.
func checkJoinConfig(f *Facts) []Finding {
	var all []Finding
	for _, c := range joinConfigs {
		data, exists := f.JoinConfig[c.name]
		if !exists {
			if !c.optional {
				all = append(all, found("join-config-missing", c.mend, "there is no ConfigMap kube-system/%s, so 'kubeadm join' fails", c.name).on("a control plane"))
			}
			continue
		}
		if c.name == "kubeadm-config" {
			c.apiVersions = slices.Concat(c.apiVersions, otherKubeadmVersions(f.KubernetesVersion))
		}
		if err := c.check(data); err != nil {
			all = append(all, found("join-config-malformed", c.mend, "ConfigMap kube-system/%s is malformed, so 'kubeadm join' fails or ignores it: %v", c.name, err).on("a control plane"))
		}
	}
	return all
}

// otherKubeadmVersions returns the API versions that kubeadm reads besides v1beta4. kubeadm 1.37 dropped v1beta3.
func otherKubeadmVersions(kubernetes string) []string {
	if v, err := version.ParseGeneric(kubernetes); err == nil && v.Minor() < 37 {
		return []string{"kubeadm.k8s.io/v1beta3"}
	}
	return []string{"kubeadm.k8s.io/v1"}
}

// check returns an error if kubeadm cannot decode the first document, or if a further document lacks an API group, a
// version or a kind.
func (c joinConfig) check(data map[string]string) error {
	text, found := data[c.key]
	if !found {
		return fmt.Errorf("it lacks the key %s", c.key)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for first := true; ; first = false {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			if first {
				return fmt.Errorf("%s is empty", c.key)
			}
			return nil
		}
		var is metav1.TypeMeta
		if err == nil {
			err = yaml.Unmarshal(document, &is)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.key, err)
		}
		if group, _, found := strings.Cut(is.APIVersion, "/"); !first && (!found || group == "" || is.Kind == "") {
			return fmt.Errorf("%s has a document with apiVersion %q and kind %q, want a group, a version and a kind", c.key, is.APIVersion, is.Kind)
		}
		if first && (is.Kind != c.kind || !slices.Contains(c.apiVersions, is.APIVersion)) {
			return fmt.Errorf("%s has apiVersion %q and kind %q, want %s and %s", c.key, is.APIVersion, is.Kind, strings.Join(c.apiVersions, " or "), c.kind)
		}
	}
}
