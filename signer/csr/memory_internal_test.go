package csr

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// With 20,000 requests that wait, kubejoin stays far below 200 MB: the cached objects and the controller's data about
// them take at most 50 MB, and garbage takes at most the same.
func TestWaitingRequestsTakeLittleMemory(t *testing.T) {
	const requests, most = 5000, 2500 // bytes for each
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:ip-10-20-30-40.eu-central-1.compute.internal", Organization: []string{"system:nodes"}},
	}, csrtest.NewKey()))(t)
	all := make([][]byte, requests) // as the API server sends them
	for i := range all {
		o := &certificates.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("csr-%05d", i), GenerateName: "csr-", UID: types.UID(fmt.Sprintf("0b8c1a0e-7c7a-4c42-8a3e-%012d", i)),
				ResourceVersion: fmt.Sprint(i), CreationTimestamp: metav1.Now(),
			},
			Spec: certificates.CertificateSigningRequestSpec{
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificates.KubeAPIServerClientKubeletSignerName,
				Username: fmt.Sprintf("system:bootstrap:%06d", i), Groups: []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated"},
				Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
			},
		}
		all[i] = must.Value(o.Marshal())(t)
	}
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nodeIndex)
	h := &handler{
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](time.Hour, time.Hour)),
		fair:  newFairQueue(maxInProgress, func(item) {}), steps: map[key]step{},
	}
	var feeding sync.WaitGroup
	feeding.Go(h.feed)
	for _, sent := range all {
		var o certificates.CertificateSigningRequest
		must.OK(t, o.Unmarshal(sent))
		must.Value(strip(&o))(t)
		must.OK(t, store.Add(&o))
		h.queue.Add(itemOf(&o))
		h.queue.AddRateLimited(itemOf(&o)) // after a failure
		h.reasonChanged(&o, "AddressNotReported")
		h.mark(keyOf(&o), approved)
	}
	wait.Until(t, "the fair queue has all requests", func() bool { return h.queue.Len() == 0 })
	each := (heap() - before) / requests
	t.Logf("%d bytes for a request", each)
	if each > most {
		t.Errorf("got %d bytes for a request, want at most %d", each, most)
	}
	runtime.KeepAlive(all)
	runtime.KeepAlive(store)
	h.queue.ShutDown()
	feeding.Wait()
}
