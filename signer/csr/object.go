package csr

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/outage"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// FieldManager is the name under which kubejoin writes CSR objects. The API server keeps it in
// their managedFields, so that a certificate that another signer wrote can be told.
const FieldManager = "kubejoin"

// maxRest is the most bytes of metadata and spec, beside the request itself, of an object that
// kubejoin handles. A kubelet's object has less than one KiB.
const maxRest = 64 << 10

// NewInformer is a view of all CSR objects that [Controller] and [Cleaner] can share. The caller
// runs it. It keeps of an object what these two need: of one that is issued neither the request
// nor the requester, and of managedFields only who approved it or wrote the certificate. Of an
// object that is too large it keeps why, and what [Cleaner] needs.
func NewInformer(client kubernetes.Interface) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(outage.Follow(client.CertificatesV1().CertificateSigningRequests(), "", nil),
		&certificates.CertificateSigningRequest{}, 0, nodeIndex)
	_ = informer.SetTransform(strip) // fails on an informer that runs already
	return informer
}

var certificateField = []byte(`"f:certificate"`)

// cutMark is the subresource of the entry of managedFields that says, in its manager, why strip cut
// an object.
const cutMark = "kubejoin/too-large"

// strip takes from an object what nobody here reads, before it is stored: a cluster that grows
// may have ten thousand. Labels and annotations stay while kubejoin may write the status, because
// that writes them, too. Every requester can make objects of a megabyte: of those little is kept.
func strip(obj any) (any, error) {
	csr, ok := obj.(*certificates.CertificateSigningRequest)
	if !ok || cutReason(csr) != nil { // an informer may pass an object twice
		return obj, nil
	}
	writer, approver := certificateWriter(csr), approvalWriter(csr)
	csr.ManagedFields = nil
	if writer != "" {
		csr.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: writer, Subresource: "status", FieldsV1: &metav1.FieldsV1{Raw: certificateField},
		}}
	}
	if approver != "" && !issued(csr) {
		csr.ManagedFields = append(csr.ManagedFields, metav1.ManagedFieldsEntry{Manager: approver, Subresource: "approval"})
	}
	if issued(csr) {
		csr.Spec.Request = nil
		csr.Spec.UID, csr.Spec.Groups, csr.Spec.Extra, csr.Spec.Usages = "", nil, nil, nil
	}
	if err := tooLarge(csr); err != nil {
		csr.ManagedFields = append(csr.ManagedFields, metav1.ManagedFieldsEntry{Manager: err.Error(), Subresource: cutMark})
		csr.ObjectMeta = metav1.ObjectMeta{
			Name: csr.Name, UID: csr.UID, ResourceVersion: csr.ResourceVersion, CreationTimestamp: csr.CreationTimestamp, ManagedFields: csr.ManagedFields,
		}
		csr.Spec = certificates.CertificateSigningRequestSpec{
			SignerName: csr.Spec.SignerName, Username: strings.Clone(csr.Spec.Username[:min(len(csr.Spec.Username), 1<<10)]),
		}
	}
	return csr, nil
}

// tooLarge says, with a [*approval.Refused], why kubejoin does not handle an object of this size, or
// nil. It knows of an object that strip has cut, too.
func tooLarge(csr *certificates.CertificateSigningRequest) error {
	if err := cutReason(csr); err != nil {
		return err
	}
	request := len(csr.Spec.Request)
	if request > pkcs10.MaxBytes {
		_, err := pkcs10.Parse(csr.Spec.Request)
		return err
	}
	meta := csr.ObjectMeta
	meta.ManagedFields = nil
	if rest := meta.Size() + csr.Spec.Size() - request; rest > maxRest {
		return &approval.Refused{
			Reason:  approval.ReasonValidation,
			Message: fmt.Sprintf("metadata and spec have %d bytes beside the certificate request, at most %d are allowed", rest, maxRest),
		}
	}
	return nil
}

// cutReason says why strip cut the object, or nil if the object is whole. An object of the API server
// always has a request, so no requester can pretend that it was cut.
func cutReason(csr *certificates.CertificateSigningRequest) error {
	for _, entry := range csr.ManagedFields {
		if entry.Subresource == cutMark && len(csr.Spec.Request) == 0 {
			return &approval.Refused{Reason: approval.ReasonValidation, Message: entry.Manager}
		}
	}
	return nil
}

// certificateWriter is the field manager that wrote status.certificate; empty if that is not
// known or there is none.
func certificateWriter(csr *certificates.CertificateSigningRequest) string {
	for _, entry := range csr.ManagedFields {
		if entry.Subresource == "status" && entry.FieldsV1 != nil && bytes.Contains(entry.FieldsV1.Raw, certificateField) {
			return entry.Manager
		}
	}
	return ""
}

// approvalWriter is the field manager that last wrote the approval; empty if that is not known or
// there is none.
func approvalWriter(csr *certificates.CertificateSigningRequest) string {
	writer := ""
	for _, entry := range csr.ManagedFields {
		if entry.Subresource == "approval" {
			writer = entry.Manager
		}
	}
	return writer
}

// approver is who approved the request, as far as it can be told: an API server notes the program
// and not the user. Without that note it is the reason that was given.
func approver(csr *certificates.CertificateSigningRequest) string {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificates.CertificateApproved {
			return cmp.Or(approvalWriter(csr), c.Reason, "unknown")
		}
	}
	return ""
}

func issued(csr *certificates.CertificateSigningRequest) bool { return len(csr.Status.Certificate) > 0 }

// has reports whether a condition is there. The API has no Approved or Denied that is not True;
// a Failed that is False or Unknown is nothing that failed.
func has(csr *certificates.CertificateSigningRequest, kind certificates.RequestConditionType) bool {
	for _, c := range csr.Status.Conditions {
		if c.Type == kind && (c.Status == "" || c.Status == corev1.ConditionTrue) {
			return true
		}
	}
	return false
}

// over reports whether nothing more happens to the request.
func over(csr *certificates.CertificateSigningRequest) bool {
	return issued(csr) || has(csr, certificates.CertificateDenied) || has(csr, certificates.CertificateFailed)
}

// Request is what an object asks for. With an error, a [*approval.Refused], it has what can be read
// of it, and no CSR.
func Request(csr *certificates.CertificateSigningRequest) (approval.Request, error) {
	r := approval.Request{
		Name:       csr.Name,
		UID:        string(csr.UID),
		SignerName: csr.Spec.SignerName,
		User:       csr.Spec.Username,
		UserUID:    csr.Spec.UID,
		Groups:     csr.Spec.Groups,
		Extra:      make(map[string][]string, len(csr.Spec.Extra)),
		Usages:     csr.Spec.Usages,
		Created:    csr.CreationTimestamp.Time,
		Approver:   approver(csr),
	}
	for k, v := range csr.Spec.Extra {
		r.Extra[k] = v
	}
	if s := csr.Spec.ExpirationSeconds; s != nil {
		if *s <= 0 { // the API server wants at least 600
			return r, &approval.Refused{
				Reason:  approval.ReasonValidation,
				Message: fmt.Sprintf("spec.expirationSeconds is %d, want a positive number", *s),
			}
		}
		r.Expiration = time.Duration(*s) * time.Second
	}
	if err := tooLarge(csr); err != nil {
		return r, err
	}
	var err error
	r.CSR, err = pkcs10.Parse(csr.Spec.Request)
	return r, err
}
