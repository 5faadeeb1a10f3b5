package kube

import (
	"context"
	"fmt"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Requests explains what kubejoin would decide about certificate requests. It writes nothing.
type Requests struct {
	// Client reads requests by name.
	Client kubernetes.Interface
	// Authority returns the signer's authority. It is called for each explanation.
	Authority func() (*signer.Authority, error)
	// Notes are remarks for people that each explanation includes.
	Notes []string
}

// Explain explains the object or, if it is nil, the CertificateSigningRequest of that name. The error wraps
// [tokens.ErrNotFound] if there is none.
func (r Requests) Explain(ctx context.Context, name string, object *certificates.CertificateSigningRequest) (api.RequestExplanation, error) {
	if object != nil {
		return r.object(ctx, object)
	}
	object, err := r.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return api.RequestExplanation{}, fmt.Errorf("certificate request %s: %w", name, tokens.ErrNotFound)
	}
	if err != nil {
		return api.RequestExplanation{}, err
	}
	return r.object(ctx, object)
}

func (r Requests) object(ctx context.Context, object *certificates.CertificateSigningRequest) (api.RequestExplanation, error) {
	authority, err := r.Authority()
	if err != nil {
		return api.RequestExplanation{}, err
	}
	request, refused := csr.Request(object)
	var said signer.Explanation
	if refused == nil {
		said = authority.Explain(ctx, request)
	}
	e := explain.OfRequest(request, status(object), refused, &said)
	e.Notes = append(e.Notes, r.Notes...)
	return e, ctx.Err()
}

func status(object *certificates.CertificateSigningRequest) string {
	switch r := request(object); {
	case r.Certificate != nil:
		return api.RequestIssued
	case r.Failed != nil:
		return api.RequestFailed
	case r.Denied != nil:
		return api.RequestDenied
	case r.Approved != nil:
		return api.RequestApproved
	}
	return api.RequestPending
}
