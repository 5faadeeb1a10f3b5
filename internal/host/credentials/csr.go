package credentials

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// poll is the interval at which SignByCSRObject checks for the certificate.
const poll = 500 * time.Millisecond

// SignByCSRObject returns a SignFunc that creates a CertificateSigningRequest object and approves it. If the user may not
// approve the object, notify gets a message with the command for a user who may. The SignFunc waits for the certificate until
// ctx ends. It then deletes the object, because its key is discarded.
func SignByCSRObject(client kubernetes.Interface, notify func(message string)) SignFunc {
	objects := client.CertificatesV1().CertificateSigningRequests()
	return func(ctx context.Context, r SigningRequest) (chain []byte, err error) {
		name := "kubejoin-" + strings.ToLower(rand.Text())
		object := &certificates.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       certificates.CertificateSigningRequestSpec{SignerName: r.Signer, Request: r.CSR, Usages: r.Usages},
		}
		if r.Duration > 0 {
			seconds := int32(min(r.Duration/time.Second, math.MaxInt32)) //nolint:gosec // limited
			object.Spec.ExpirationSeconds = &seconds
		}
		if _, err := objects.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("create a CertificateSigningRequest: %w", err)
		}
		defer func() {
			if err != nil {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				defer cancel()
				// If the user may not delete the object, the cluster deletes it after at most a day.
				_ = objects.Delete(ctx, name, metav1.DeleteOptions{})
			}
		}()
		switch err := approve(ctx, client, name); {
		case apierrors.IsForbidden(err):
			notify(fmt.Sprintf("CertificateSigningRequest %s waits for approval: kubectl certificate approve %s", name, name))
		case err != nil:
			return nil, fmt.Errorf("approve CertificateSigningRequest %s: %w", name, err)
		}
		err = wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
			csr, err := objects.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			for _, c := range csr.Status.Conditions {
				if c.Type != certificates.CertificateApproved && c.Status == corev1.ConditionTrue {
					return false, fmt.Errorf("%s: %s (%s)", strings.ToLower(string(c.Type)), c.Message, c.Reason)
				}
			}
			chain = csr.Status.Certificate
			return len(chain) > 0, nil
		})
		if wait.Interrupted(err) && ctx.Err() != nil && !errors.Is(ctx.Err(), context.Canceled) {
			err = errors.New("no certificate in time: nobody approved it, or no controller signs for this signer; see 'kubejoin doctor', and give more time with --wait")
		}
		if err != nil {
			return nil, fmt.Errorf("CertificateSigningRequest %s of signer %s: %w", name, r.Signer, err)
		}
		return chain, nil
	}
}

// approve approves an object, unless kubejoin or another approver has already done so.
func approve(ctx context.Context, client kubernetes.Interface, name string) error {
	objects := client.CertificatesV1().CertificateSigningRequests()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		csr, err := objects.Get(ctx, name, metav1.GetOptions{})
		if err != nil || len(csr.Status.Conditions) > 0 {
			return err
		}
		csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{
			Type: certificates.CertificateApproved, Status: corev1.ConditionTrue,
			Reason: "ApprovedByRequester", Message: "The user of the kubejoin command approved the request.",
		}}
		_, err = objects.UpdateApproval(ctx, name, csr, metav1.UpdateOptions{})
		return err
	})
}
