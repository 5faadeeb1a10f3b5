package csr_test

import (
	"strings"
	"testing"

	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/informers"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
)

// A second first certificate for a node name is reported, but not a renewal.
func TestReportsSecondCertificateOfNodeName(t *testing.T) {
	w := newWorld(t)
	w.startController()
	first := w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil)
	w.awaitIssued(first.Name)
	w.awaitIssued(w.ask(w.as("system:node:worker-1", "system:nodes"), kubelet, "worker-1", nil, nil).Name) // a renewal
	w.awaitIssued(w.ask(w.bootstrap(), kubelet, "worker-2", nil, nil).Name)
	if n := w.count("kubejoin_csr_shared_node_names_total"); n != 0 {
		t.Errorf("got %v reports of shared names, want none yet", n)
	}
	second := w.ask(w.as("other", "system:bootstrappers", bootstrapGroup), kubelet, "worker-1", nil, nil)
	if e := w.awaitEvent(second, "SharedNodeName"); !strings.Contains(e.Message, "node worker-1") {
		t.Errorf("got Event message %q", e.Message)
	}
	w.poll("the count", func() bool { return w.count("kubejoin_csr_shared_node_names_total", "signer="+kubelet) == 1 })
	for _, o := range []*certificates.CertificateSigningRequest{first, second} {
		w.awaitIssued(o.Name)
	}
}

func TestReportsSharedNodeNameWithOwnInformer(t *testing.T) {
	w := newWorld(t)
	factory := informers.NewSharedInformerFactory(w.restrict, 0)
	informer := factory.Certificates().V1().CertificateSigningRequests().Informer()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	w.run(csr.Controller{Client: w.restrict, Informer: informer, Authority: w.authority(signer.Fixed(w.ca)), Approve: true, Sign: true, Registerer: w.metrics}.Run)
	w.awaitIssued(w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil).Name)
	w.awaitEvent(w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil), "SharedNodeName")
}
