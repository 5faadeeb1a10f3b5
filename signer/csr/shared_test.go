package csr_test

import (
	"testing"

	"k8s.io/client-go/informers"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
)

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
