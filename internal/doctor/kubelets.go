package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Limits of the connections to kubelets.
const (
	maxKubelets     = 200
	kubeletsAtATime = 16
	kubeletTimeout  = 3 * time.Second
)

// kubelets reads the serving certificates of the kubelets of Nodes that are Ready. A Node chooses the address in its
// status, so nothing is sent there but a TLS handshake without a credential.
func kubelets(ctx context.Context, nodes []corev1.Node) []Kubelet {
	var all []Kubelet
	var addresses []string
	for _, node := range nodes {
		if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			continue // checkNodes reports it
		}
		all, addresses = append(all, Kubelet{Node: node.Name}), append(addresses, kubeletAddress(node))
	}
	free := make(chan struct{}, kubeletsAtATime)
	var reading sync.WaitGroup
	for i := range all {
		switch {
		case i >= maxKubelets:
			all[i].Unread = "only " + strconv.Itoa(maxKubelets) + " are read"
		case addresses[i] == "":
			all[i].Unread = "its Node has no InternalIP or no port of the kubelet"
		default:
			free <- struct{}{}
			reading.Go(func() {
				defer func() { <-free }()
				var err error
				if all[i].CommonName, err = servedName(ctx, addresses[i]); err != nil {
					all[i].Unread = oneLine(err)
				}
			})
		}
	}
	reading.Wait()
	return all
}

// kubeletAddress returns IP:PORT of the kubelet of a Node; empty if the Node does not report it.
func kubeletAddress(node corev1.Node) string {
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && net.ParseIP(a.Address) != nil && port > 0 {
			return net.JoinHostPort(a.Address, strconv.Itoa(int(port)))
		}
	}
	return ""
}

// servedName returns the common name of the certificate that a TLS server presents.
func servedName(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	// The certificate may be self-signed, and only its name is shown: nothing is trusted.
	connection, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = connection.Close() }()
	leaves := connection.(*tls.Conn).ConnectionState().PeerCertificates
	if len(leaves) == 0 {
		return "", errors.New("no certificate")
	}
	return leaves[0].Subject.CommonName, nil
}

// mendServing has the kubelet request a serving certificate of its own.
const mendServing = `sed -i -e '/^serverTLSBootstrap:/d' -e '$a serverTLSBootstrap: true' /var/lib/kubelet/config.yaml && systemctl restart kubelet`

// checkServingNames finds kubelets that kube-apiserver refuses once it verifies their names (KEP-4872). They have one
// cause and one command, so they are one finding.
func checkServingNames(f *Facts) []Finding {
	var ready, wrong, unread []string
	for _, k := range f.Kubelets {
		switch {
		case k.Unread != "":
			unread = append(unread, k.Node+": "+k.Unread)
		case k.CommonName == "system:node:"+k.Node:
			ready = append(ready, k.Node)
		default:
			wrong = append(wrong, k.Node+" ("+cmp.Or(k.CommonName, "none")+")")
		}
	}
	var all []Finding
	if len(unread) > 0 {
		all = append(all, unseen("%d of %d kubelets: %s", len(unread), len(f.Kubelets), few(unread)))
	}
	if len(wrong) > 0 {
		all = append(all, found("kubelet-serving-name", mendServing,
			"%d of %d kubelets serve with a certificate whose common name is not system:node:NAME: %s; ready: %s",
			len(wrong), len(wrong)+len(ready), few(wrong), cmp.Or(few(ready), "none")).on("each of these nodes"))
	}
	return all
}
