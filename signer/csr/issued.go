package csr

import (
	"context"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
)

// Requested returns the certificates in the CertificateSigningRequests of a cluster, and those that may be about to be issued.
// Cleaners delete the objects an hour after they were issued, so there are no older certificates.
func Requested(ctx context.Context, client kubernetes.Interface) (all []revocation.Certificate, err error) {
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.CertificatesV1().CertificateSigningRequests().List(ctx, options)
	})
	err = list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		csr, ok := object.(*certificates.CertificateSigningRequest)
		if !ok {
			return nil
		}
		r, _ := Request(csr) // the requester can be read in any case
		asked := revocation.Certificate{TokenID: tokens.IDOfUser(r.User), Requester: revocation.SubjectOf(r.User, r.Groups, r.Extra)}
		if cert := leaf(csr); cert != nil { // another signer may have issued what is malformed
			all = append(all, revocation.CertificateOf(asked.TokenID, asked.Requester, cert))
		} else if len(csr.Status.Certificate) == 0 && has(csr, certificates.CertificateApproved) && !has(csr, certificates.CertificateFailed) {
			all = append(all, asked)
		}
		return nil
	})
	return all, err
}
