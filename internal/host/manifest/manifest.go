// Package manifest builds the manifest that runs kubejoin as a static pod.
package manifest

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ExpiryAnnotation holds the expiry of the client certificate in the pod's kubeconfig. The kubelet restarts a static
// pod whose manifest changes. So when the kubeconfig is renewed, the new annotation makes the pod read it.
const ExpiryAnnotation = "kubejoin.io/kubeconfig-expires"

// A StaticPod describes kubejoin as a static pod.
type StaticPod struct {
	Image      string
	Args       []string // arguments of kubejoin
	Kubeconfig string   // file on the host
	Expires    string   // when the kubeconfig expires; empty for no annotation
	Folders    []string // folders of the host; the pod mounts them read-only at the same paths
	Host       string   // address that kubejoin listens on; empty for all addresses
	Port       int32
	Version    string
}

// Pod returns the manifest. Apart from its credential, the pod is the same as in the chart: see
// TestStaticPodIsLikeThePodOfTheChart.
func (s StaticPod) Pod() *corev1.Pod {
	probe := func(path string, period, timeout, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: path, Host: s.Host, Port: intstr.FromString("https"), Scheme: corev1.URISchemeHTTPS,
			}},
			PeriodSeconds: period, TimeoutSeconds: timeout, FailureThreshold: failures,
		}
	}
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "kubejoin", Namespace: "kubejoin-system", Labels: map[string]string{
			"app.kubernetes.io/name":      "kubejoin",
			"app.kubernetes.io/instance":  "kubejoin",
			"app.kubernetes.io/version":   s.Version,
			"app.kubernetes.io/component": "join-service",
			"app.kubernetes.io/part-of":   "kubejoin",
		}},
		Spec: corev1.PodSpec{
			HostNetwork:        true,
			DNSPolicy:          corev1.DNSDefault,
			EnableServiceLinks: new(bool),
			// No API server sets the priority of the class for a static pod.
			Priority:                      ptr(int32(2000001000)),
			PriorityClassName:             "system-node-critical",
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: ptr(int64(30)),
			SecurityContext: &corev1.PodSecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				RunAsUser:      ptr(int64(0)), RunAsGroup: ptr(int64(0)), // ca.key and the kubeconfig belong to root
			},
			Containers: []corev1.Container{{
				Name: "kubejoin", Image: s.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: s.Args,
				Ports:          []corev1.ContainerPort{{Name: "https", ContainerPort: s.Port, HostPort: s.Port, Protocol: corev1.ProtocolTCP}},
				StartupProbe:   probe("/healthz", 2, 0, 60),
				LivenessProbe:  probe("/healthz", 10, 5, 6),
				ReadinessProbe: probe("/readyz", 5, 5, 0),
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(bool), ReadOnlyRootFilesystem: ptr(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
				},
			}},
		},
	}
	if s.Expires != "" {
		pod.Annotations = map[string]string{ExpiryAnnotation: s.Expires}
	}
	mount := func(name, path string, kind corev1.HostPathType) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}},
		})
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true})
	}
	// With this type, the kubelet waits until the file exists.
	mount("kubeconfig", s.Kubeconfig, corev1.HostPathFile)
	for i, folder := range s.Folders {
		mount("mount-"+strconv.Itoa(i), folder, corev1.HostPathDirectory)
	}
	return pod
}

func ptr[T any](v T) *T { return &v }
