package csr_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/issuance"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// floodLog holds back the certificates of requester flood until it is opened, and counts them.
type floodLog struct {
	issuance.Log
	open   chan struct{}
	issued atomic.Int64
}

func (f *floodLog) Append(ctx context.Context, e issuance.Entry) error {
	if e.Requester != "flood" {
		return f.Log.Append(ctx, e)
	}
	select {
	case <-f.open:
	case <-ctx.Done():
		return ctx.Err()
	}
	f.issued.Add(1)
	return f.Log.Append(ctx, e)
}

// While one requester requests 1,500 certificates at once, the controller issues only a few of them for each
// certificate of another requester. The test counts certificates, because times depend on the load of the
// machine.
func TestServesOthersDuringFlood(t *testing.T) {
	const flood, others = 1500, 40
	w := newWorld(t)
	authority := w.authority(signer.Fixed(w.ca))
	authority.Unthrottled = true // otherwise the rate of its key would stop the flood
	log := &floodLog{Log: authority.Record, open: make(chan struct{})}
	authority.Record = log
	w.run(csr.Controller{Client: w.restrict, Authority: authority, Approve: true, Sign: true, Registerer: w.metrics}.Run)
	key := csrtest.NewKey()
	var creating sync.WaitGroup
	client := w.as("flood", "system:bootstrappers", bootstrapGroup)
	for c := range 10 {
		creating.Go(func() {
			for i := range flood / 10 {
				w.askLabelled(client, fmt.Sprintf("flood-%d-%d", c, i), map[string]string{"of": "flood"}, key)
			}
		})
	}
	creating.Wait()
	close(log.open)
	wait.Until(w, "the flood", func() bool { return log.issued.Load() > flood/100 })

	var meanwhile []int64 // certificates of the flood while another requester waits for its certificate
	began := time.Now()
	for i := range others {
		before := log.issued.Load()
		machine := w.as(fmt.Sprint("machine-", i), "system:bootstrappers", bootstrapGroup)
		changes := must.Value(w.admin.CertificatesV1().CertificateSigningRequests().Watch(t.Context(), metav1.ListOptions{LabelSelector: "of=others"}))(t)
		asked := w.askLabelled(machine, fmt.Sprint("other-", i), map[string]string{"of": "others"}, key)
		for event := range changes.ResultChan() {
			if o, ok := event.Object.(*certificates.CertificateSigningRequest); ok && o.Name == asked.Name && event.Type == watch.Modified && len(o.Status.Certificate) > 0 {
				break
			}
		}
		changes.Stop()
		meanwhile = append(meanwhile, log.issued.Load()-before)
	}
	left := w.pending("of=flood")
	slices.Sort(meanwhile)
	t.Logf("%d others in %s; certificates of the flood for each of them: %v; %d of the flood still wait", others, time.Since(began), meanwhile, left)
	if left == 0 {
		t.Fatal("the flood ended too soon to measure")
	}
	if most := int64(16); meanwhile[others/2] > most {
		t.Errorf("the controller issued %d certificates of the flood for each of the others, want at most %d", meanwhile[others/2], most)
	}
}
