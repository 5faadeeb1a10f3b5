package kubefacts

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	goruntime "runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// realNode returns a Node of the size that kubelets report: 10 KB, most of it images.
func realNode(i int) *corev1.Node {
	ip := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
	name := fmt.Sprintf("worker-%06d.zone-b.example.com", i)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(fmt.Sprintf("3f2b6a1e-5c0d-4e8f-9a7b-%012x", i)), ResourceVersion: strconv.Itoa(918_000_000 + i),
			CreationTimestamp: metav1.Now(),
			Labels:            map[string]string{},
			Annotations:       map[string]string{"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:status":{` + strings.Repeat(`"f:conditions":{"k:{\"type\":\"DiskPressure\"}":{"f:lastHeartbeatTime":{}}},`, 10) + `}}`)}}},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.244.0.0/24", PodCIDRs: []string{"10.244.0.0/24"}, ProviderID: "cloud://zone-b/" + name},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: fmt.Sprintf("%032x", i), SystemUUID: fmt.Sprintf("3f2b6a1e-5c0d-4e8f-9a7b-%012x", i), BootID: fmt.Sprintf("9c2b6a1e-5c0d-4e8f-9a7b-%012x", i),
				KernelVersion: "6.12.41-generic", OSImage: "Ubuntu 24.04.3 LTS", ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: "v1.36.2", OperatingSystem: "linux", Architecture: "amd64",
			},
			Capacity: corev1.ResourceList{}, Allocatable: corev1.ResourceList{},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		},
	}
	for n := range 12 {
		node.Labels[fmt.Sprintf("topology.example.com/label-%d", n)] = fmt.Sprintf("value-%d-of-node-%d", n, i)
	}
	for _, r := range []corev1.ResourceName{"cpu", "memory", "pods", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi"} {
		node.Status.Capacity[r], node.Status.Allocatable[r] = resource.MustParse("64"), resource.MustParse("63")
	}
	for _, c := range []corev1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", corev1.NodeReady} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: c, Status: corev1.ConditionTrue, Reason: "KubeletReports" + string(c), Message: "kubelet reports the state of " + string(c),
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	for n := range 40 {
		image := fmt.Sprintf("registry.example.com/team-%d/service-%d", n%7, n)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{image + "@sha256:" + strings.Repeat("0123456789abcdef", 4), image + ":v1.2.3"}, SizeBytes: 123_456_789})
	}
	return node
}

// serveNodes is an API server that streams n Nodes. It prints its address and never returns.
func serveNodes(n int) {
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("sendInitialEvents") != "true" {
			http.Error(w, "want a streamed list", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		send := func(kind string, node *corev1.Node) {
			node.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Node"})
			var object strings.Builder
			if err := encoder.Encode(node, &object); err != nil {
				panic(err)
			}
			event := metav1.WatchEvent{Type: kind}
			event.Object.Raw = []byte(object.String())
			frame, err := event.Marshal()
			if err != nil {
				panic(err)
			}
			_, _ = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
		}
		for i := range n {
			send("ADDED", realNode(i))
		}
		send("BOOKMARK", &corev1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "999000000", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	fmt.Println(server.URL)
	select {}
}

// BenchmarkNodesMemory measures the memory that Nodes need after a streamed list: live bytes for each, and the resident
// memory of the process. The API server is the same benchmark in another process.
func BenchmarkNodesMemory(b *testing.B) {
	if n, err := strconv.Atoi(os.Getenv("SERVE_NODES")); err == nil {
		serveNodes(n)
	}
	for _, n := range []int{20_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			server := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkNodesMemory$")
			server.Env = append(os.Environ(), "SERVE_NODES="+strconv.Itoa(n))
			out, err := server.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := server.Start(); err != nil {
				b.Fatal(err)
			}
			defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
			lines := bufio.NewScanner(out)
			for lines.Scan() && !strings.HasPrefix(lines.Text(), "http://") {
				continue // the header of the benchmark
			}
			client, err := kubernetes.NewForConfig(&rest.Config{Host: lines.Text(), QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
			if err != nil {
				b.Fatal(err)
			}
			debug.FreeOSMemory()
			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			idle := residentMB(b, "VmRSS")
			for b.Loop() {
				nodes, err := OpenNodes(b.Context(), client)
				if err != nil {
					b.Fatal(err)
				}
				if all, err := nodes.Nodes(b.Context()); err != nil || len(all) != n {
					b.Fatalf("got %d Nodes, %v", len(all), err)
				}
				b.ReportMetric(idle, "MB-idle")
				b.ReportMetric(residentMB(b, "VmRSS"), "MB-filled")
				b.ReportMetric(residentMB(b, "VmHWM"), "MB-peak")
				debug.FreeOSMemory()
				b.ReportMetric(residentMB(b, "VmRSS"), "MB-freed")
				goruntime.ReadMemStats(&after)
				b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/float64(n), "B/Node")
				goruntime.KeepAlive(nodes)
			}
		})
	}
}

// residentMB returns a memory size of this process in MB.
func residentMB(b *testing.B, field string) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip(err)
	}
	kb, err := strconv.ParseFloat(regexp.MustCompile(field + `:\s+(\d+) kB`).FindStringSubmatch(string(status))[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kb / 1000
}
