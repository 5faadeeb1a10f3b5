package csr

import (
	"context"
	"fmt"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"golang.org/x/sync/errgroup"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
	utilretry "k8s.io/client-go/util/retry"
)

// Issued returns the certificates in the CertificateSigningRequests of a cluster. Cleaners delete issued requests after
// an hour, so there are no older certificates.
func Issued(ctx context.Context, client kubernetes.Interface) (all []revocation.Certificate, err error) {
	return all, each(ctx, client, func(csr *certificates.CertificateSigningRequest, c revocation.Certificate) {
		if cert := leaf(csr); cert != nil { // another signer may have issued a malformed certificate
			all = append(all, revocation.CertificateOf(c.TokenID, c.Requester, cert))
		}
	})
}

// Withdraw sets condition Failed on the approved requests of revoked requesters that have no certificate. A signer that
// is about to write such a certificate then gets a conflict. signs reports whether kubejoin signs for a signer name.
// The Certificate that revoked gets has only TokenID and Requester.
func Withdraw(ctx context.Context, client kubernetes.Interface, signs func(signerName string) bool, revoked func(revocation.Certificate) bool) error {
	var open []*certificates.CertificateSigningRequest
	if err := each(ctx, client, func(csr *certificates.CertificateSigningRequest, c revocation.Certificate) {
		if isOpen(csr) && signs(csr.Spec.SignerName) && revoked(c) {
			open = append(open, csr)
		}
	}); err != nil {
		return err
	}
	var failing errgroup.Group
	failing.SetLimit(withdrawing)
	for _, csr := range open {
		failing.Go(func() error {
			if err := withdraw(ctx, client, csr); err != nil {
				return fmt.Errorf("certificate request %s is approved, and kubejoin cannot withdraw it: %w", safetext.Text(csr.Name, safetext.MaxName), err)
			}
			return nil
		})
	}
	return failing.Wait()
}

// withdrawing is how many requests Withdraw changes at the same time.
const withdrawing = 10

func withdraw(ctx context.Context, client kubernetes.Interface, csr *certificates.CertificateSigningRequest) error {
	requests := client.CertificatesV1().CertificateSigningRequests()
	err := utilretry.RetryOnConflict(utilretry.DefaultRetry, func() error {
		if !isOpen(csr) {
			return nil
		}
		csr.Status.Conditions = append(csr.Status.Conditions, failedBy(revocation.Reason, "the requester was revoked before the certificate was issued"))
		_, err := requests.UpdateStatus(ctx, csr, metav1.UpdateOptions{FieldManager: FieldManager})
		if apierrors.IsConflict(err) {
			current, getErr := requests.Get(ctx, csr.Name, metav1.GetOptions{})
			if getErr != nil {
				return getErr
			}
			if current.UID != csr.UID { // another request of that name
				return nil
			}
			csr = current
		}
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// isOpen reports whether a request is approved and has no outcome.
func isOpen(csr *certificates.CertificateSigningRequest) bool {
	return len(csr.Status.Certificate) == 0 && has(csr, certificates.CertificateApproved) && !has(csr, certificates.CertificateFailed)
}

// each calls do with each request of a cluster. The revocation.Certificate has only TokenID and Requester.
func each(ctx context.Context, client kubernetes.Interface, do func(*certificates.CertificateSigningRequest, revocation.Certificate)) error {
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.CertificatesV1().CertificateSigningRequests().List(ctx, options)
	})
	return list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		csr, ok := object.(*certificates.CertificateSigningRequest)
		if !ok {
			return nil
		}
		r, _ := Request(csr) // the requester can be read in any case
		do(csr, revocation.Certificate{TokenID: tokens.IDOfUser(r.User), Requester: revocation.SubjectOf(r.User, r.Groups, r.Extra)})
		return nil
	})
}
