package cluster_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) { cluster.Main(m) }

func TestSetupCreatesObjectsOfKubeadm(t *testing.T) {
	// want tells whether kubeadm-config, the RBAC for tokens and cluster-info exist.
	tests := map[string]struct {
		cluster func(*testing.T) *cluster.Cluster
		want    [3]bool
	}{
		"kubeadm":              {func(t *testing.T) *cluster.Cluster { return cluster.Shared(t) }, [3]bool{true, true, true}},
		"without cluster-info": {setup(cluster.WithoutClusterInfo), [3]bool{true, true, false}},
		"bare":                 {setup(cluster.Bare), [3]bool{false, false, false}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := tt.cluster(t)
			_, config := c.Client().CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubeadm-config", metav1.GetOptions{})
			_, binding := c.Client().RbacV1().ClusterRoleBindings().Get(t.Context(), "kubeadm:node-autoapprove-bootstrap", metav1.GetOptions{})
			_, info := c.Client().CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
			_, public := c.Client().RbacV1().RoleBindings("kube-public").Get(t.Context(), "kubeadm:bootstrap-signer-clusterinfo", metav1.GetOptions{})
			for what, got := range map[string]struct {
				err  error
				want bool
			}{
				"kubeadm-config": {config, tt.want[0]}, "RBAC for tokens": {binding, tt.want[1]},
				"cluster-info": {info, tt.want[2]}, "public read of cluster-info": {public, tt.want[2]},
			} {
				if got.err != nil && !apierrors.IsNotFound(got.err) {
					t.Errorf("%s: %v", what, got.err)
				} else if (got.err == nil) != got.want {
					t.Errorf("%s exists: got %t, want %t", what, got.err == nil, got.want)
				}
			}
			out, err := c.Kubectl(t.Context(), "get", "secrets", "-A", "-o", "name")
			if err != nil || out != "" {
				t.Errorf("got Secrets %q, %v, want none", out, err)
			}
		})
	}
}

func setup(s cluster.Setup) func(*testing.T) *cluster.Cluster {
	return func(t *testing.T) *cluster.Cluster { return cluster.ForTest(t, cluster.Options{Setup: s}) }
}

func TestAnonymousOffAllowsOnlyHealthChecks(t *testing.T) {
	const info = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
	tests := map[string]struct {
		cluster *cluster.Cluster
		want    map[string]int
	}{
		"on":  {cluster.Shared(t), map[string]int{"/livez": 200, info: 200, "/api/v1/nodes": 403}},
		"off": {cluster.ForTest(t, cluster.Options{AnonymousOff: true, KeyAlgorithm: "RSA-2048"}), map[string]int{"/livez": 200, info: 401, "/api/v1/nodes": 401}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			client, err := rest.HTTPClientFor(rest.AnonymousClientConfig(tt.cluster.AdminConfig()))
			if err != nil {
				t.Fatal(err)
			}
			for path, status := range tt.want {
				if got := get(t, client, tt.cluster.Server()+path); got != status {
					t.Errorf("anonymous GET %s: got %d, want %d", path, got, status)
				}
			}
		})
	}
}

func get(t *testing.T, client *http.Client, url string) int {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

func TestServiceAccountKubeconfigAuthenticates(t *testing.T) {
	c := cluster.Shared(t)
	path, err := c.ServiceAccountKubeconfig(t.Context(), "somewhere", "somebody")
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.Config(path)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:somewhere:somebody") {
		t.Errorf("list Secrets: got %v, want forbidden for the service account", err)
	}
}

func TestStoppedAPIServerKeepsItsData(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{Setup: cluster.Bare})
	if err := c.StartAPIServer(t.Context()); err == nil {
		t.Error("a second kube-apiserver started, want an error")
	}
	c.StopAPIServer()
	if _, err := c.Client().Discovery().ServerVersion(); err == nil {
		t.Error("a stopped kube-apiserver responds, want an error")
	}
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Kubectl(t.Context(), "get", "clusterrolebinding", "kubeadm:cluster-admins"); err != nil {
		t.Errorf("after the restart: got %s%v, want the ClusterRoleBinding from before", out, err)
	}
}

// Catches an error without the cause when a component cannot start.
func TestStartReportsInvalidFlag(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{APIServerFlags: []string{"--no-such-flag"}})
	if err == nil {
		t.Fatal(errors.Join(errors.New("the cluster started with an unknown flag, want an error"), c.Close()))
	}
	if !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("got error %v, want the cause in it", err)
	}
}
