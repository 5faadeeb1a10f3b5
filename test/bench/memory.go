package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// autoApproval is kubeadm's binding that allows the automatic approval of requests by bootstrap tokens.
const autoApproval = "kubeadm:node-autoapprove-bootstrap"

// The minimum and maximum size of a stored Node, in bytes.
const leastNode, mostNode = 9_500, 11_000

type memoryRow struct{ resident, most string }

func memoryRows(of string) memoryRow {
	return memoryRow{resident: of + ": resident memory", most: of + ": most memory"}
}

func waitingRows(requests int, tokens string) memoryRow {
	return memoryRows(fmt.Sprintf("%s requests wait, %s", thousands(requests), tokens))
}

func nodeRows(nodes int) memoryRow {
	return memoryRows(fmt.Sprintf("%s Nodes of 10 KB", thousands(nodes)))
}

// measureMemory measures the memory of kubejoin with many waiting requests, and with many Nodes. Each round starts a
// kubejoin with the same objects.
func (b *bench) measureMemory(ctx context.Context) error {
	for _, load := range []csrLoad{{name: "one token", requests: b.waiting, tokens: 1}, {name: "a token each", requests: b.waiting, tokens: b.waiting}} {
		if err := b.onCluster(ctx, func(ctx context.Context) error {
			if err := b.createWaiting(ctx, load); err != nil {
				return err
			}
			return b.memoryRounds(ctx, waitingRows(load.requests, load.name), b.handlesAll)
		}); err != nil {
			return err
		}
	}
	return b.onCluster(ctx, func(ctx context.Context) error {
		made := 0
		for _, n := range b.nodes {
			if err := b.createNodes(ctx, made, n); err != nil {
				return err
			}
			made = n
			// After kubejoin has issued certificates, it has read all Nodes.
			if err := b.memoryRounds(ctx, nodeRows(n), func(ctx context.Context, p running) error {
				return b.csrBurst(ctx, ours, p, csrLoad{name: fmt.Sprintf("a token each, beside %s Nodes", thousands(n)), requests: b.stock, tokens: b.stock})
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// memoryRounds starts a kubejoin in each round, and measures its memory when it has done its work and is idle.
func (b *bench) memoryRounds(ctx context.Context, row memoryRow, work func(context.Context, running) error) error {
	for range b.rounds {
		if err := b.memoryRound(ctx, row, work); err != nil {
			return fmt.Errorf("%s: %w", row.resident, err)
		}
	}
	return nil
}

func (b *bench) memoryRound(ctx context.Context, row memoryRow, work func(context.Context, running) error) (err error) {
	p, _, err := b.launchSigning(ctx, ours, b.cluster.Address)
	if err != nil {
		return err
	}
	defer p.end(&err)
	if err := work(ctx, p); err != nil {
		return err
	}
	time.Sleep(b.settle)
	if err := b.memory(row.resident, ours, p); err != nil {
		return err
	}
	most, err := memoryOf(p.PID(), "VmHWM")
	if err != nil {
		return err
	}
	b.report.add(row.most, ours, most/1e6)
	b.say("%s %s, most %.0f MB", row.resident, b.report.cell(row.resident, ours), most/1e6)
	return nil
}

// createWaiting creates requests that nobody approves, because their requesters lack the permission.
func (b *bench) createWaiting(ctx context.Context, load csrLoad) error {
	b.say("creating %s requests, %s", thousands(load.requests), load.name)
	if _, err := b.cluster.Kubectl(ctx, "delete", "clusterrolebinding", autoApproval); err != nil {
		return err
	}
	secrets, users := generate(load.tokens)
	if err := b.each(ctx, load.tokens, func(ctx context.Context, c client, i int) error { return c.createLimited(ctx, secrets[i], 0) }); err != nil {
		return err
	}
	return b.each(ctx, load.requests, func(ctx context.Context, c client, i int) error {
		request, err := kubeletRequest(i)
		if err == nil {
			_, err = c.CertificatesV1().CertificateSigningRequests().Create(asToken(ctx, users[i%load.tokens]), request, metav1.CreateOptions{})
		}
		return err
	})
}

// handlesAll waits until kubejoin has tried to decide all requests, and checks that all of them still wait.
func (b *bench) handlesAll(ctx context.Context, p running) error {
	deadline := time.Now().Add(patience)
	for {
		tries, err := b.decisions(ctx, p)
		if err != nil {
			return err
		}
		if tries >= float64(b.waiting) {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kubejoin tried to decide %.0f of %d requests within %s", tries, b.waiting, patience)
		}
		time.Sleep(time.Second)
	}
	list, err := b.load[0].CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	waiting := 0
	for _, csr := range list.Items {
		if len(csr.Status.Conditions) == 0 {
			waiting++
		}
	}
	if waiting != b.waiting {
		return fmt.Errorf("%d requests wait, want %d", waiting, b.waiting)
	}
	return nil
}

// decisions returns how often kubejoin has tried to decide a request.
func (b *bench) decisions(ctx context.Context, p running) (sum float64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+p.bearer)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: b.cluster.CAPool()}}}
	defer client.CloseIdleConnections()
	text, err := exchange(client, "https://"+p.address, r)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if _, value, found := strings.Cut(line, "} "); found && strings.HasPrefix(line, "kubejoin_csr_decisions_total{") {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// createNodes creates the Nodes from first to n-1.
func (b *bench) createNodes(ctx context.Context, first, n int) error {
	b.say("creating Nodes: %s", thousands(n-first))
	if err := b.each(ctx, n-first, func(ctx context.Context, c client, i int) error {
		_, err := c.CoreV1().Nodes().Create(ctx, workerNode(first+i), metav1.CreateOptions{FieldManager: "kubelet"})
		return err
	}); err != nil {
		return err
	}
	stored, err := b.load[0].CoreV1().Nodes().Get(ctx, workerNode(first).Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if size := stored.Size(); size < leastNode || size > mostNode {
		return fmt.Errorf("a Node has %d bytes, want %d to %d", size, leastNode, mostNode)
	}
	return nil
}

// workerNode returns a Node with the fields that kubelet, kubeadm, a network plugin and a cloud provider set.
func workerNode(i int) *corev1.Node {
	name := fmt.Sprintf("node-%06d.eu-central-1.compute.internal", i)
	id := fmt.Sprintf("%032x", i)
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse("110"),
			corev1.ResourceEphemeralStorage: resource.MustParse("101430960Ki"), "hugepages-1Gi": resource.MustParse("0"), "hugepages-2Mi": resource.MustParse("0"),
		}
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
				corev1.LabelInstanceTypeStable: "m6i.4xlarge", corev1.LabelTopologyZone: "eu-central-1a", corev1.LabelTopologyRegion: "eu-central-1", "example.com/pool": "general-purpose",
			},
			Annotations: map[string]string{
				"kubeadm.alpha.kubernetes.io/cri-socket":                 "unix:///run/containerd/containerd.sock",
				"node.alpha.kubernetes.io/ttl":                           "300",
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
				"projectcalico.org/IPv4Address":                          nodeAddress(i) + "/9",
				"projectcalico.org/IPv4VXLANTunnelAddr":                  nodeAddress(i),
				"csi.volume.kubernetes.io/nodeid":                        fmt.Sprintf(`{"ebs.csi.aws.com":"i-%s","efs.csi.aws.com":"i-%s"}`, id[:17], id[:17]),
			},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///eu-central-1a/i-" + id[:17]},
		Status: corev1.NodeStatus{
			Capacity: amounts("16", "65152020Ki"), Allocatable: amounts("15890m", "62023Mi"),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: nodeAddress(i)}, {Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalDNS, Address: name},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: id, SystemUUID: id, BootID: id, KernelVersion: "6.8.0-1021-aws", OSImage: "Ubuntu 24.04.2 LTS",
				ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: "v1.37.2", OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
	for _, c := range []struct {
		kind            corev1.NodeConditionType
		status          corev1.ConditionStatus
		reason, message string
	}{
		{corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "CalicoIsUp", "Calico is running on this node"},
		{corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
		{corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
		{corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"},
		{corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"},
	} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: c.kind, Status: c.status, Reason: c.reason, Message: c.message, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	for image := range 42 { // a kubelet reports at most 50
		repository := fmt.Sprintf("registry.example.com/platform/component-%02d", image)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("%s@sha256:%064x", repository, image), repository + ":v1.37.2"}, SizeBytes: int64(image+1) * 7_654_321,
		})
	}
	return node
}

func nodeAddress(i int) string { return fmt.Sprintf("10.%d.%d.%d", 128+(i>>16), (i>>8)&0xff, i&0xff) }
