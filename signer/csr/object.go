package csr

import (
	"bytes"
	"cmp"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/outage"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// FieldManager is the name under which kubejoin writes CSR objects. The API server keeps it in managedFields,
// so kubejoin recognizes certificates that another signer wrote.
const FieldManager = "kubejoin"

// maxRest is the maximum size in bytes of metadata and spec, without the PKCS #10 request, of an object
// that kubejoin handles. A kubelet's object has less than one KiB.
const maxRest = 64 << 10

// NewInformer returns an informer for all CSR objects that [Controller] and [Cleaner] can share. The caller
// runs it. It removes fields that these two do not need. An issued object loses its request, its usages and its
// requester, except for the user name. In managedFields only the approver and the writer of the certificate
// remain. An object that is too large keeps only the reason and the fields that [Cleaner] needs.
func NewInformer(client kubernetes.Interface) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(outage.Follow(client, client.CertificatesV1().CertificateSigningRequests(), "", nil),
		&certificates.CertificateSigningRequest{}, 0, nodeIndex)
	_ = informer.SetTransform(strip) // fails on a running informer
	return informer
}

var certificateField = metav1.NewFieldsV1(`"f:certificate"`)

// cutMark is the subresource of a managedFields entry that strip adds when it cuts an object. The entry's
// manager is the reason.
const cutMark = "kubejoin/too-large"

// strip removes the fields that this package does not read from an object before it is cached: a growing
// cluster may have ten thousand objects. Labels and annotations stay, because an update of the status writes
// them back. Any requester can create objects of a megabyte; strip keeps only a small part of them.
func strip(obj any) (any, error) {
	csr, ok := obj.(*certificates.CertificateSigningRequest)
	if !ok || cutReason(csr) != nil { // an informer may pass an object twice
		return obj, nil
	}
	writer, approver := certificateWriter(csr), approvalWriter(csr)
	csr.ManagedFields = nil
	if writer != "" {
		csr.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: writer, Subresource: "status", FieldsV1: certificateField,
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

// tooLarge returns an [*approval.Error] if kubejoin does not handle an object of this size, or else nil.
// It also works for an object that strip has cut.
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
		return approval.Refuse("metadata and spec without the certificate request have %d bytes, want at most %d", rest, maxRest)
	}
	return nil
}

// cutReason returns the reason why strip cut the object, or nil if the object is whole. An object from the API
// server always has a request, so no requester can fake a cut object.
func cutReason(csr *certificates.CertificateSigningRequest) error {
	for _, entry := range csr.ManagedFields {
		if entry.Subresource == cutMark && len(csr.Spec.Request) == 0 {
			return approval.Refuse("%s", entry.Manager)
		}
	}
	return nil
}

// certificateWriter returns the field manager that wrote status.certificate; empty if there is none or it
// is unknown.
func certificateWriter(csr *certificates.CertificateSigningRequest) string {
	for _, entry := range csr.ManagedFields {
		if entry.Subresource == "status" && entry.FieldsV1 != nil && bytes.Contains(entry.FieldsV1.GetRawBytes(), certificateField.GetRawBytes()) {
			return entry.Manager
		}
	}
	return ""
}

// approvalWriter returns the field manager that last wrote the approval; empty if there is none or it is
// unknown.
func approvalWriter(csr *certificates.CertificateSigningRequest) string {
	writer := ""
	for _, entry := range csr.ManagedFields {
		if entry.Subresource == "approval" {
			writer = entry.Manager
		}
	}
	return writer
}

// approver returns which program approved the request: the API server records the field manager and not the
// user. Without a field manager, approver returns the reason of the condition.
func approver(csr *certificates.CertificateSigningRequest) string {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificates.CertificateApproved {
			return cmp.Or(approvalWriter(csr), c.Reason, "unknown")
		}
	}
	return ""
}

func issued(csr *certificates.CertificateSigningRequest) bool { return len(csr.Status.Certificate) > 0 }

// has reports whether the request has a condition. The API allows Approved and Denied only with status True.
// has ignores a Failed condition with status False or Unknown.
func has(csr *certificates.CertificateSigningRequest, kind certificates.RequestConditionType) bool {
	for _, c := range csr.Status.Conditions {
		if c.Type == kind && (c.Status == "" || c.Status == corev1.ConditionTrue) {
			return true
		}
	}
	return false
}

// over reports whether the request has reached a final state.
func over(csr *certificates.CertificateSigningRequest) bool {
	return issued(csr) || has(csr, certificates.CertificateDenied) || has(csr, certificates.CertificateFailed)
}

// Request converts an object. An error is an [*approval.Error]; the Request then holds what could be read,
// without the CSR.
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
		if *s <= 0 { // the API server requires at least 600
			return r, approval.Refuse("spec.expirationSeconds is %d, want a positive number", *s)
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
