package csr_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRetentionDueForEachState(t *testing.T) {
	created := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	const (
		approved = certificates.CertificateApproved
		denied   = certificates.CertificateDenied
		failed   = certificates.CertificateFailed
	)
	ca := must.Value(signer.GenerateCA("x", created.Add(-time.Hour), 100*24*365*time.Hour))(t)
	usages := []certificates.KeyUsage{certificates.UsageClientAuth}
	issue := func(d time.Duration) []byte {
		chain := must.Value(must.Get(signer.NewProfile(signer.ProfileConfig{Usages: usages, Default: d})).Issue(ca, signer.Template{
			CSR: parsedCSR(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "x"}}), Usages: usages,
		}, created))(t)
		return chain
	}
	long, short := issue(1000*time.Hour), issue(10*time.Minute)
	for _, test := range []struct {
		name        string
		conditions  []certificates.RequestConditionType
		certificate []byte
		retention   csr.Retention
		after       time.Duration // time after creation; conditions are set a minute after it
		state       string        // empty: never due
	}{
		{name: "pending", after: 24 * time.Hour, state: "pending"},
		{name: "pending, configured time", retention: csr.Retention{Pending: time.Hour}, after: time.Hour, state: "pending"},
		{name: "approved", conditions: []certificates.RequestConditionType{approved}, after: 24*time.Hour + time.Minute, state: "unissued"},
		{name: "approved, configured time", conditions: []certificates.RequestConditionType{approved}, retention: csr.Retention{Unissued: time.Hour}, after: time.Hour + time.Minute, state: "unissued"},
		{name: "issued", conditions: []certificates.RequestConditionType{approved}, certificate: long, after: time.Hour + time.Minute, state: "issued"},
		{name: "issued, configured time", conditions: []certificates.RequestConditionType{approved}, certificate: long, retention: csr.Retention{Issued: 2 * time.Hour}, after: 2*time.Hour + time.Minute, state: "issued"},
		{name: "expired", conditions: []certificates.RequestConditionType{approved}, certificate: short, after: 10*time.Minute + time.Second, state: "expired"},
		{name: "unreadable certificate", conditions: []certificates.RequestConditionType{approved}, certificate: []byte("x"), after: time.Hour + time.Minute, state: "issued"},
		{name: "denied", conditions: []certificates.RequestConditionType{denied}, after: 6 * time.Minute, state: "denied"},
		{name: "denied, configured time", conditions: []certificates.RequestConditionType{denied}, retention: csr.Retention{Denied: time.Hour}, after: time.Hour + time.Minute, state: "denied"},
		{name: "failed", conditions: []certificates.RequestConditionType{approved, failed}, after: time.Hour + time.Minute, state: "failed"},
		{name: "failed, configured time", conditions: []certificates.RequestConditionType{failed}, retention: csr.Retention{Failed: time.Minute}, after: 2 * time.Minute, state: "failed"},
		{name: "unknown condition", conditions: []certificates.RequestConditionType{"Noted"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := &certificates.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)},
				Status:     certificates.CertificateSigningRequestStatus{Certificate: test.certificate},
			}
			for _, kind := range test.conditions {
				object.Status.Conditions = append(object.Status.Conditions, certificates.CertificateSigningRequestCondition{
					Type: kind, LastUpdateTime: metav1.NewTime(created.Add(time.Minute)),
				})
			}
			due, state := test.retention.Due(object)
			want := created.Add(test.after)
			if test.state == "" {
				want = time.Time{}
			}
			if !due.Equal(want) || state != test.state {
				t.Errorf("got due %s as %q, want %s as %q", due, state, want, test.state)
			}
		})
	}
	if due, state := (csr.Retention{}).Due(&certificates.CertificateSigningRequest{}); !due.IsZero() {
		t.Errorf("object without times: got due %s as %q, want never", due, state)
	}
}

func TestCleanerDeletesOnlyDueRequests(t *testing.T) {
	w := newWorld(t)
	denied := w.ask(w.bootstrap(), serving, "worker-1", &x509.CertificateRequest{DNSNames: []string{"a"}}, nil)
	w.decide(denied.Name, certificates.CertificateDenied)
	approved := w.ask(w.bootstrap(), serving, "worker-1", &x509.CertificateRequest{DNSNames: []string{"a"}}, nil)
	w.approve(approved.Name)
	pending := w.ask(w.bootstrap(), serving, "worker-1", &x509.CertificateRequest{DNSNames: []string{"a"}}, nil)
	informer := csr.NewInformer(w.restrict)
	w.run(func(ctx context.Context) error { informer.RunWithContext(ctx); return nil })
	w.run(csr.Cleaner{
		Client: w.restrict, Informer: informer, Registerer: w.metrics,
		Retention: csr.Retention{Denied: time.Second, Unissued: time.Hour, Pending: 3 * time.Second},
	}.Run)
	exists := func(name string) bool {
		_, err := w.admin.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	wait.Until(w, "denied deleted", func() bool { return !exists(denied.Name) })
	wait.Until(w, "pending deleted", func() bool { return !exists(pending.Name) })
	if !exists(approved.Name) {
		t.Error("the approved request was deleted, want it kept")
	}
	wait.Until(w, "both counted", func() bool {
		return w.count("kubejoin_csr_cleaned_total", "state=denied") == 1 && w.count("kubejoin_csr_cleaned_total", "state=pending") == 1
	})
	// If the cleaner ignored the retention, it would run once a minute.
	if age := time.Since(pending.CreationTimestamp.Time); age < 3*time.Second || age > 40*time.Second {
		t.Errorf("the pending request was deleted at age %s, want 3s to 40s", age)
	}
}
