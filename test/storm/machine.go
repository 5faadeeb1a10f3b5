package main

import (
	"context"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	certificates "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/ptr"
)

// machineNet is the range of the machines' addresses.
const machineNet = "10.128.0.0/9"

// A machine is a simulated kubelet, or an intruder.
type machine struct {
	id, node string
	number   int
	token    *token
	newKey   newKey
	intruder bool
}

func (m *machine) address() net.IP {
	return net.IPv4(10, 128+byte(m.number>>16), byte(m.number>>8), byte(m.number))
}

// join simulates a machine from power-on to Ready, and starts its heartbeats, which end when beats ends.
func (w *world) join(ctx, beats context.Context, m *machine) {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return
	}
	powerOn := time.Now()
	node, lease, err := w.boot(ctx, m)
	if err != nil {
		if ctx.Err() == nil {
			w.say("%s gave up: %v", m.node, err)
		}
		return
	}
	ready := time.Now()
	w.mu.Lock()
	w.readyAt = append(w.readyAt, ready.Sub(w.began).Seconds())
	w.took = append(w.took, ready.Sub(powerOn).Seconds())
	w.mu.Unlock()
	if m.token.left.Add(-1) == 0 && m.token.spare != nil {
		w.attack(ctx, m)
	}
	if w.heartbeat == 0 {
		return
	}
	w.beating.Go(func() {
		leases := node.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		for sleep(beats, w.heartbeat) == nil {
			lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
			if renewed, err := leases.Update(beats, lease, metav1.UpdateOptions{}); err == nil {
				lease = renewed
			} else if current, err := leases.Get(beats, m.node, metav1.GetOptions{}); err == nil {
				lease = current
			}
		}
	})
}

// boot joins a machine until it is Ready. It returns a client with the node's certificate, and its Lease.
func (w *world) boot(ctx context.Context, m *machine) (*kubernetes.Clientset, *coordinationv1.Lease, error) {
	found, err := w.discover(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	bootstrap, err := connect(found, func(c *rest.Config) { c.BearerToken = m.token.Reveal() })
	if err != nil {
		return nil, nil, err
	}
	certificate, key, err := w.certificate(ctx, bootstrap, m, certificates.KubeAPIServerClientKubeletSignerName)
	if err != nil {
		return nil, nil, err
	}
	node, err := connect(found, func(c *rest.Config) { c.CertData, c.KeyData = certificate, key })
	if err != nil {
		return nil, nil, err
	}
	lease, err := w.register(ctx, node, m)
	return node, lease, err
}

// attack lets two machines try to join. Both must fail: one joins another node with the spent token of m, and the other
// joins under the name of m with an unspent token.
func (w *world) attack(ctx context.Context, m *machine) {
	for _, intruder := range []*machine{
		{id: m.id + "-with-used-token", node: m.node + "-intruder", token: m.token},
		{id: m.id + "-with-its-name", node: m.node, token: m.token.spare},
	} {
		// With the RSA key of its victim, the intruder's request would have the same bytes.
		intruder.number, intruder.intruder, intruder.newKey = m.number, true, onCurve(elliptic.P256())
		w.joining.Go(func() { _, _, _ = w.boot(ctx, intruder) }) // ignore the result: the evidence shows whether the intruder was admitted
	}
}

// discover tries one replica after the other, as through a load balancer.
func (w *world) discover(ctx context.Context, m *machine) (clusterinfo.Discovered, error) {
	for try := m.number; ; try++ {
		short, cancel := context.WithTimeout(ctx, 30*time.Second)
		found, err := clusterinfo.Discover(short, w.replicas[try%len(w.replicas)].listen, m.token.Token, w.pins)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, clusterinfo.ErrUntrusted) {
			return found, err
		}
	}
}

// connect returns a client with a separate connection for one machine. The connection closes when it is idle for a while.
func connect(found clusterinfo.Discovered, credential func(*rest.Config)) (*kubernetes.Clientset, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(found.Kubeconfig)
	if err != nil {
		return nil, err
	}
	credential(config)
	config.QPS = -1
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.Proxy = http.ProxyFromEnvironment // a custom Proxy function prevents that machines share a connection
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfigAndClient(config, client)
}

// certificate requests a certificate and waits for it with the functions of a kubelet. If that fails, it retries with
// another key, after the pauses of a kubelet. An intruder gives up after a denial.
func (w *world) certificate(ctx context.Context, c kubernetes.Interface, m *machine, signer string) (issued, keyPEM []byte, err error) {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + m.node, Organization: []string{"system:nodes"}}}
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth, certificates.UsageKeyEncipherment} // key encipherment only with RSA
	if signer == certificates.KubeletServingSignerName {
		usages[1] = certificates.UsageServerAuth
		template.DNSNames, template.IPAddresses = []string{m.node}, []net.IP{m.address()}
	}
	pauses := wait.Backoff{Duration: 2 * time.Second, Factor: 2, Jitter: 0.1, Steps: 10, Cap: 32 * time.Second}
	for {
		key, err := m.newKey()
		if err != nil {
			return nil, nil, err
		}
		request, err := cert.MakeCSRFromTemplate(key, template)
		if err != nil {
			return nil, nil, err
		}
		w.mu.Lock()
		w.senders[string(request)] = m.id
		w.mu.Unlock()
		use := usages[:2]
		if _, isRSA := key.(*rsa.PrivateKey); isRSA {
			use = usages
		}
		name, uid, err := csr.RequestCertificateWithContext(ctx, c, request, "", signer, nil, use, key)
		if err == nil {
			patience, cancel := context.WithTimeout(ctx, 15*time.Minute)
			issued, err = csr.WaitForCertificate(patience, c, name, uid)
			cancel()
			if err == nil {
				keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key)
			}
			if err == nil || m.intruder {
				return issued, keyPEM, err
			}
		}
		if sleep(ctx, pauses.Step()) != nil {
			return nil, nil, err
		}
		w.say("%s requests a certificate again: %v", m.node, err)
	}
}

// register registers the Node with its Lease, gets its serving certificate and reports that it is Ready.
func (w *world) register(ctx context.Context, c kubernetes.Interface, m *machine) (lease *coordinationv1.Lease, err error) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: m.node, Labels: map[string]string{corev1.LabelHostname: m.node, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{MachineID: m.id, OperatingSystem: "linux", Architecture: "amd64"},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: m.address().String()}, {Type: corev1.NodeHostName, Address: m.node}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady"}},
		},
	}
	beat := coordinationv1.LeaseSpec{HolderIdentity: &m.node, LeaseDurationSeconds: ptr.To[int32](40), RenewTime: ptr.To(metav1.NowMicro())}
	leases := c.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	err = retry(ctx, func() error {
		_, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) { // a kubelet takes over an existing Node of its name
			return err
		}
		lease, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: m.node}, Spec: beat}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			lease, err = leases.Get(ctx, m.node, metav1.GetOptions{})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if _, _, err := w.certificate(ctx, c, m, certificates.KubeletServingSignerName); err != nil {
		return nil, err
	}
	patch := fmt.Appendf(nil, `{"status":{"nodeInfo":{"machineID":%q},"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}]}}`, m.id)
	err = retry(ctx, func() error {
		_, err := c.CoreV1().Nodes().Patch(ctx, m.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	return lease, err
}

// retry calls do until it succeeds, with the pauses of a kubelet that registers its Node.
func retry(ctx context.Context, do func() error) error {
	pauses := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: 10, Cap: 7 * time.Second}
	for {
		err := do()
		if err == nil {
			return nil
		}
		if sleep(ctx, pauses.Step()) != nil {
			return err
		}
	}
}
