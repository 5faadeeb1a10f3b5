package main

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server/operations/kube"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// Catches a URL that the kubelet of a worker chose, to which a person would send a token, and a command for another cluster.
func TestConsoleOfClusterIsThatOfTrustedPod(t *testing.T) {
	pod := func(node, ip string, mirror bool) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kubejoin-system", Name: "kubejoin-" + node, Labels: map[string]string{"app.kubernetes.io/name": "kubejoin"}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 9443}}}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, HostIP: ip},
		}
		if mirror {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"}
		}
		return p
	}
	for name, test := range map[string]struct {
		pods []*corev1.Pod
		want string
	}{
		"DaemonSet":                          {[]*corev1.Pod{pod("cp", "192.0.2.1", false)}, "https://192.0.2.1:9443/console"},
		"IPv6":                               {[]*corev1.Pod{pod("cp", "2001:db8::1", false)}, "https://[2001:db8::1]:9443/console"},
		"static Pod of a control plane":      {[]*corev1.Pod{pod("cp", "192.0.2.1", true)}, "https://192.0.2.1:9443/console"},
		"static Pod of a worker":             {[]*corev1.Pod{pod("a-worker", "192.0.2.9", true)}, ""},
		"static Pod of a worker, and a real": {[]*corev1.Pod{pod("a-worker", "192.0.2.9", true), pod("cp", "192.0.2.1", true)}, "https://192.0.2.1:9443/console"},
		"not started":                        {[]*corev1.Pod{pod("cp", "", false)}, ""},
		"none":                               {nil, ""},
	} {
		client := fake.NewClientset(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cp", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a-worker"}},
		)
		for _, p := range test.pods {
			if err := client.Tracker().Add(p); err != nil {
				t.Fatal(err)
			}
		}
		o := &remoteOptions{kubeconfigFile: "/etc/kubernetes/a dmin.conf", context: "far"}
		c, err := o.console(t.Context(), &remote{cluster: &kube.Cluster{Client: client}})
		if c.URL != test.want || (err == nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), "--url https://HOST:PORT") {
			t.Errorf("%s: got %q, %v, want %q", name, c.URL, err, test.want)
		}
		// In other namespaces, many users may change a ConfigMap, and so which CA a browser trusts.
		if err == nil && !strings.Contains(c.SaveCA, " -n kubejoin-system ") {
			t.Errorf("%s: %q reads the CA from another namespace", name, c.SaveCA)
		}
		for _, command := range append(c.AccountCommands, c.SaveCA, c.TokenCommand) {
			if err == nil && !strings.HasPrefix(command, "kubectl --kubeconfig '/etc/kubernetes/a dmin.conf' --context far ") {
				t.Errorf("%s: %q does not name the cluster", name, command)
			}
		}
	}
}
