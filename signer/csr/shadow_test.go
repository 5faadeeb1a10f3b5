package csr_test

import (
	"crypto/x509"
	"sync/atomic"
	"testing"
	"time"

	"context"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// In shadow mode the controller counts what it would do and writes nothing.
func TestShadowModeWritesNothing(t *testing.T) {
	w := newWorld(t)
	authority := w.authority(signer.Fixed(w.ca))
	w.run(csr.Controller{Client: w.restrict, Authority: authority, Approve: true, Sign: true, Shadow: true, Registerer: w.metrics}.Run)
	would := func(what string) float64 {
		return w.count("kubejoin_csr_shadow_total", "signer="+kubelet, "would="+what)
	}

	asked := w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil)
	wait.Until(w, "a decision", func() bool { return would("approve") == 1 })
	w.wantUnchanged(asked)
	w.approve(asked.Name)
	wait.Until(w, "a signature", func() bool { return would("sign") == 1 })
	hostile := w.ask(w.bootstrap(), kubelet, "worker-2", &x509.CertificateRequest{DNSNames: []string{"kubernetes"}}, nil)
	w.approve(hostile.Name)
	wait.Until(w, "a refusal", func() bool { return would("fail") == 1 })
	for _, name := range []string{asked.Name, hostile.Name} {
		object := must.Value(w.admin.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{}))(t)
		if len(object.Status.Certificate) > 0 || len(object.Status.Conditions) != 1 {
			t.Errorf("%s: got status %+v, want only the approval", name, object.Status)
		}
		events, err := w.admin.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil || len(events.Items) > 0 {
			t.Errorf("got %d Events about %s, %v, want none", len(events.Items), name, err)
		}
	}
	for _, real := range []string{"kubejoin_csr_decisions_total", "kubejoin_csr_signed_total", "kubejoin_csr_sign_failures_total", "kubejoin_csr_signed_by_other_total"} {
		if n := w.count(real); n != 0 {
			t.Errorf("%s: got %v, want 0", real, n)
		}
	}
}

func (w *world) wantUnchanged(asked *certificates.CertificateSigningRequest) {
	w.Helper()
	now, err := w.admin.CertificatesV1().CertificateSigningRequests().Get(w.Context(), asked.Name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	if now.ResourceVersion != asked.ResourceVersion {
		w.Errorf("%s: got a write, want none: %+v", asked.Name, now.Status)
	}
}

// switched is a rule that decides nothing until it is switched on.
type switched struct{ on, asked *atomic.Int32 }

func (switched) Name() string { return "switched" }

func (s switched) Decide(context.Context, approval.Request, approval.Facts) (approval.Decision, error) {
	s.asked.Add(1)
	if s.on.Load() == 0 {
		return approval.Decision{Reason: "Off", Message: "it is off"}, nil
	}
	return approval.Decision{Verdict: approval.Approve, Reason: "On", Message: "it is on"}, nil
}

// After a hint on the channel Again, waiting requests are decided at once, without the backoff.
func TestAgainDecidesWaitingRequestsAtOnce(t *testing.T) {
	w := newWorld(t)
	rule := switched{&atomic.Int32{}, &atomic.Int32{}}
	signers := must.Get(signer.KubernetesSigners(signer.Fixed(w.ca), time.Hour))
	s := signers[kubelet]
	s.Rules = []approval.Rule{rule}
	signers[kubelet] = s
	again := make(chan struct{}, 1)
	w.run(csr.Controller{
		Client: w.restrict, Authority: &signer.Authority{Signers: signer.FixedSigners(signers)},
		Approve: true, Sign: true, Again: again, Registerer: w.metrics,
	}.Run)
	asked := w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil)
	wait.Until(w, "looks at the request", func() bool { return rule.asked.Load() >= 5 }) // the next retry is 16 s away
	rule.on.Store(1)
	began := time.Now()
	again <- struct{}{}
	w.awaitIssued(asked.Name)
	if took := time.Since(began); took > 12*time.Second {
		t.Errorf("got a certificate %s after the hint, want within 12s", took)
	}
}
