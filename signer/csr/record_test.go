package csr_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	"k8s.io/client-go/kubernetes"
)

// An issued, a refused and a failing request have one entry each, regardless of the number of retries. A later
// success of the failing request is recorded too.
func TestRecordsEachOutcomeOnce(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "record")
	record := must.Value(issuance.OpenFile(path))(t)
	var broken atomic.Bool
	broken.Store(true)
	authority := w.authority(signer.Fixed(w.ca))
	signers := must.Get(signer.KubernetesSigners(signer.Fixed(w.ca), time.Hour))
	signers[user] = must.Get(signer.NewSigner(user, func() (*signer.CA, error) {
		if broken.Load() {
			return nil, errors.New("CA key /etc/x: no such file")
		}
		return w.ca, nil
	}, signers[user].Profile(), nil))
	authority.Signers, authority.Record = signer.FixedSigners(signers), record
	w.run(csr.Controller{Client: w.restrict, Authority: authority, Approve: true, Sign: true, Registerer: w.metrics}.Run)

	refused := w.ask(w.as("system:node:worker-1", "system:nodes"), serving, "worker-1", nil, nil) // its signer refuses a request without names
	w.approve(refused.Name)
	failed := w.ask(w.admin, user, "worker-2", &x509.CertificateRequest{DNSNames: []string{"a.example.com"}}, nil)
	w.approve(failed.Name)
	unreadable := w.askWithTwoPEMBlocks(w.bootstrap(), refused)
	w.approve(unreadable.Name)
	done := w.ask(w.bootstrap(), kubelet, "worker-1", nil, nil)
	cert := w.awaitIssued(done.Name)
	w.await(refused.Name, "refusal", func(o *certificates.CertificateSigningRequest) bool {
		return condition(o, certificates.CertificateFailed) != nil || condition(o, certificates.CertificateDenied) != nil
	})
	w.await(unreadable.Name, "refusal", func(o *certificates.CertificateSigningRequest) bool {
		return condition(o, certificates.CertificateFailed) != nil
	})
	wait.Until(w, "retries", func() bool { return w.count("kubejoin_csr_sign_failures_total", "reason=SigningFailed") >= 4 })

	read := func() map[string][]issuance.Entry {
		content := must.Value(os.ReadFile(path))(t)
		entries := map[string][]issuance.Entry{}
		for line := range bytes.Lines(content) {
			var e issuance.Entry
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			entries[e.Request] = append(entries[e.Request], e)
		}
		return entries
	}
	if e := w.awaitEvent(failed, "SigningFailed"); !strings.Contains(e.Message, "/etc/x: no such file") || e.Namespace != "default" {
		t.Errorf("Event in %s: got message %q", e.Namespace, e.Message)
	}
	entries := read()
	if e := entries[unreadable.Name]; len(e) != 1 || e[0].Outcome != issuance.Refused || e[0].RequestUID != string(unreadable.UID) || e[0].Requester != "machine" ||
		e[0].Approver == "" || !strings.Contains(e[0].Message, "2 PEM blocks") {
		t.Errorf("unreadable request: got entries %+v", e)
	}
	for _, o := range []*certificates.CertificateSigningRequest{refused, failed, done} {
		if len(entries[o.Name]) != 1 {
			t.Fatalf("got %d entries of %s, want 1: %+v", len(entries[o.Name]), o.Name, entries[o.Name])
		}
		e := entries[o.Name][0]
		if e.RequestUID != string(o.UID) || e.Signer != o.Spec.SignerName || e.Requester != o.Spec.Username || !strings.HasPrefix(e.Node, "worker-") ||
			e.Subject != "CN=system:node:"+e.Node+",O=system:nodes" || len(e.SPKI) != 71 || len(e.Usages) != 2 || time.Since(e.Time) > time.Minute {
			t.Errorf("got entry %+v", e)
		}
	}
	if e := entries[done.Name][0]; e.Outcome != issuance.Issued || e.Serial != cert.SerialNumber.Text(16) || !e.NotAfter.Equal(cert.NotAfter) || !e.NotBefore.Equal(cert.NotBefore) ||
		e.Certificate != string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})) || e.Approver != "kubejoin" || e.Rule != "nodeclient" || len(e.Evidence) == 0 {
		t.Errorf("got entry of the issued request %+v", e)
	}
	if e := entries[refused.Name][0]; e.Outcome != issuance.Refused || e.Reason != "SignerValidationFailure" || e.Message == "" || e.Serial+e.Certificate != "" {
		t.Errorf("got entry of the refused request %+v", e)
	}
	if e := entries[failed.Name][0]; e.Outcome != issuance.Failed || !strings.Contains(e.Message, "/etc/x: no such file") || e.Serial+e.Certificate != "" || !slices.Equal(e.DNSNames, []string{"a.example.com"}) {
		t.Errorf("got entry of the failed request %+v", e)
	}

	broken.Store(false)
	w.awaitIssued(failed.Name)
	if all := read()[failed.Name]; len(all) != 2 || all[1].Outcome != issuance.Issued {
		t.Errorf("after the repair: got entries %+v, want a second one: issued", all)
	}
}

// The metric of the oldest waiting renewal works with the reduced objects in the cache.
func TestOldestWaitingRenewalOnCluster(t *testing.T) {
	w := newWorld(t)
	informer := csr.NewInformer(w.restrict)
	w.run(func(ctx context.Context) error { informer.RunWithContext(ctx); return nil })
	var late atomic.Int32
	age := func() float64 {
		families := must.Value(w.metrics.Gather())(t)
		for _, f := range families {
			if f.GetName() == "kubejoin_csr_oldest_waiting_renewal_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	node := w.as("system:node:worker-1", "system:nodes")
	w.askLabelled(node, "worker-1", nil, csrtest.NewKey())
	wait.Until(w, "the cache", func() bool { return len(informer.GetStore().List()) == 1 })
	look := func() {
		// Each Run starts with one check.
		w.run(csr.Renewals{
			Informer: informer, Lifetime: func(context.Context, csr.WaitingRenewal) (time.Duration, bool) { return time.Hour, true },
			Late: func(l []csr.WaitingRenewal) { late.Store(int32(len(l))) }, Registerer: w.metrics,
		}.Run)
	}
	look()
	wait.Until(w, "a renewal that waits", func() bool { return age() > 0 && late.Load() == 0 })
	w.startController()
	wait.Until(w, "its certificate, in the cache", func() bool {
		for _, o := range informer.GetStore().List() {
			if len(o.(*certificates.CertificateSigningRequest).Status.Certificate) == 0 {
				return false
			}
		}
		return true
	})
	look()
	wait.Until(w, "no renewal that waits", func() bool { return age() == 0 })
}

// askWithTwoPEMBlocks creates a CSR object that contains the PEM block of another object twice. API servers
// accept it.
func (w *world) askWithTwoPEMBlocks(client kubernetes.Interface, like *certificates.CertificateSigningRequest) *certificates.CertificateSigningRequest {
	w.Helper()
	object, err := client.CertificatesV1().CertificateSigningRequests().Create(w.Context(), &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: append(bytes.Clone(like.Spec.Request), like.Spec.Request...), SignerName: user,
			Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return object
}
