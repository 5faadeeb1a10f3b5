package csr

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

// Any requester can create objects of up to 1 MiB. The informer must not keep them in full.
func TestKeepsLittleOfLargeObjects(t *testing.T) {
	large := func(parts int) map[string]string {
		all := map[string]string{}
		for i := range parts {
			all[fmt.Sprint("example.com/", i)] = strings.Repeat("v", 1000)
		}
		return all
	}
	for _, test := range []struct {
		name   string
		change func(*certificates.CertificateSigningRequest)
		why    string // part of the reason; empty: the informer keeps the whole object
	}{
		{name: "request at the limit", change: func(o *certificates.CertificateSigningRequest) {
			o.Spec.Request = bytes.Repeat([]byte("A"), pkcs10.MaxBytes)
		}},
		{name: "request over the limit", change: func(o *certificates.CertificateSigningRequest) {
			o.Spec.Request = bytes.Repeat([]byte("A"), pkcs10.MaxBytes+1)
		}, why: "the certificate request has 65537 bytes, want at most 65536"},
		{name: "request of a megabyte", change: func(o *certificates.CertificateSigningRequest) {
			o.Spec.Request = bytes.Repeat([]byte("A"), 1<<20)
		}, why: "1048576 bytes"},
		{name: "some labels", change: func(o *certificates.CertificateSigningRequest) { o.Labels = large(50) }},
		{name: "many labels", change: func(o *certificates.CertificateSigningRequest) { o.Labels = large(1000) }, why: "metadata and spec without the certificate request have"},
		{name: "many annotations", change: func(o *certificates.CertificateSigningRequest) { o.Annotations = large(100) }, why: "metadata and spec without the certificate request have"},
		{name: "many finalizers", change: func(o *certificates.CertificateSigningRequest) {
			o.Finalizers = strings.Split(strings.Repeat("example.com/finalizer ", 10_000), " ")
		}, why: "metadata and spec without the certificate request have"},
		{name: "many owners", change: func(o *certificates.CertificateSigningRequest) {
			o.OwnerReferences = make([]metav1.OwnerReference, 10_000)
		}, why: "metadata and spec without the certificate request have"},
		{name: "many groups", change: func(o *certificates.CertificateSigningRequest) {
			o.Spec.Groups = strings.Split(strings.Repeat("group ", 20_000), " ")
		}, why: "metadata and spec without the certificate request have"},
		{name: "long user name", change: func(o *certificates.CertificateSigningRequest) { o.Spec.Username = strings.Repeat("u", 1<<20) }, why: "metadata and spec without the certificate request have"},
		{name: "large and issued", change: func(o *certificates.CertificateSigningRequest) {
			o.Labels, o.Status.Certificate = large(1000), []byte("x")
		}, why: "metadata and spec without the certificate request have"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := &certificates.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Now()},
				Spec: certificates.CertificateSigningRequestSpec{
					Request: []byte("-----BEGIN"), SignerName: certificates.KubeletServingSignerName, Username: "system:node:worker-1",
				},
				Status: certificates.CertificateSigningRequestStatus{Conditions: []certificates.CertificateSigningRequestCondition{
					{Type: certificates.CertificateApproved, LastUpdateTime: metav1.Now()},
				}},
			}
			test.change(o)
			whole := o.DeepCopy()
			for range 2 { // an informer may pass an object twice
				must.Value(strip(o))(t)
			}
			if test.why == "" {
				if !bytes.Equal(o.Spec.Request, whole.Spec.Request) || len(o.Labels) != len(whole.Labels) || cutReason(o) != nil {
					t.Error("got a shortened object, want it whole")
				}
				return
			}
			if n := o.Size(); n > 4<<10 {
				t.Errorf("the informer keeps %d bytes of %d, want a small object", n, whole.Size())
			}
			for name, object := range map[string]*certificates.CertificateSigningRequest{"cut": o, "whole": whole} {
				if name == "whole" && issued(whole) {
					continue // the controller never reads it
				}
				r, err := Request(object)
				var refused *approval.Error
				if !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason != approval.ReasonValidation || !strings.Contains(refused.Message, test.why) || r.CSR != nil {
					t.Errorf("the %s object: %v, want a refusal with %q", name, err, test.why)
				}
			}
			if o.Name != "csr-1" || o.UID != "u" || o.ResourceVersion != "7" || !o.CreationTimestamp.Equal(&whole.CreationTimestamp) ||
				o.Spec.SignerName != whole.Spec.SignerName || !strings.HasPrefix(whole.Spec.Username, o.Spec.Username) || o.Spec.Username == "" {
				t.Errorf("got object %+v", o)
			}
			if due, _ := (Retention{}).Due(o); due.IsZero() {
				t.Error("got no due time, want the cleaner to delete it")
			}
		})
	}
}

// A requester must not be able to hide a request by setting the mark of shortened objects itself.
func TestIgnoresCutMarkOfRequester(t *testing.T) {
	o := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "mine", Subresource: cutMark}}},
		Spec:       certificates.CertificateSigningRequestSpec{Request: bytes.Repeat([]byte("A"), 1<<20)},
	}
	if _, err := Request(o); err == nil || !strings.Contains(err.Error(), "1048576 bytes") {
		t.Error(err)
	}
	if _, err := strip(o); err != nil || o.Size() > 1<<10 || !strings.Contains(cutReason(o).Error(), "1048576 bytes") {
		t.Errorf("%v: %d bytes, %v", err, o.Size(), cutReason(o))
	}
}

// kubejoin does not decide a request that it cannot read. One Event gives the reason.
func TestLeavesUnreadableRequestAlone(t *testing.T) {
	events := record.NewFakeRecorder(10)
	h := &handler{
		Controller: Controller{Approve: true, Authority: &signer.Authority{Signers: signer.FixedSigners(map[string]signer.Signer{certificates.KubeletServingSignerName: {}})}},
		recorder:   events, log: slog.New(slog.DiscardHandler),
	}
	o := &certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: certificates.CertificateSigningRequestSpec{
		Request: bytes.Repeat([]byte("A"), 1<<20), SignerName: certificates.KubeletServingSignerName,
	}}
	must.Value(strip(o))(t)
	for range 2 {
		if next, err := h.handle(t.Context(), o.DeepCopy()); next != noRetry || err != nil {
			t.Error(next, err)
		}
	}
	if len(events.Events) != 1 {
		t.Fatalf("%d Events, want 1", len(events.Events))
	}
	if e := <-events.Events; !strings.HasPrefix(e, "Warning SignerValidationFailure") || !strings.Contains(e, "1048576 bytes, want at most 65536") {
		t.Error(e)
	}
	o.UID, o.Spec.SignerName = "v", "example.com/other"
	if next, err := h.handle(t.Context(), o); next != noRetry || err != nil || len(events.Events) > 0 {
		t.Errorf("signer of others: got %v, %v and %d Events, want none", next, err, len(events.Events))
	}
}
