package operations

import (
	"context"
	"errors"

	"github.com/kubejoin/kubejoin/internal/dnsname"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	kjson "sigs.k8s.io/json"
)

// Explain returns why a machine with this node name has or has not joined.
func (o *Operations) Explain(ctx context.Context, node string) (api.NodeExplanation, error) {
	if err := tokens.CheckNodeName(node); err != nil {
		return api.NodeExplanation{}, api.InvalidField("node", "%.300v", err)
	}
	if o.ExplainNode == nil {
		return api.NodeExplanation{}, &tokens.Refusal{Reason: "no-cluster", Message: "this kubejoin runs without a cluster and cannot explain nodes; see what it issued: kubejoin issued list --node " + node}
	}
	e, err := o.ExplainNode(ctx, node)
	if err != nil {
		err = unread("the state of node "+node, err)
	}
	return e, err
}

// ExplainRequest returns what each rule would decide about a certificate request. permit authorizes an object that the caller wrote.
func (o *Operations) ExplainRequest(ctx context.Context, req api.ExplainRequest, permit func(*certificates.CertificateSigningRequest) error) (api.RequestExplanation, error) {
	var none api.RequestExplanation
	if o.ExplainCSR == nil {
		return none, &tokens.Refusal{Reason: "no-cluster", Message: "this kubejoin runs without a cluster and cannot explain certificate requests"}
	}
	if (req.CSR == "") == (len(req.Object) == 0) {
		return none, api.InvalidField("csr", "want either csr, the name of a CertificateSigningRequest, or object, a whole CertificateSigningRequest")
	}
	var given *certificates.CertificateSigningRequest
	if req.CSR == "" {
		var err error
		if given, err = csr(req.Object); err == nil {
			err = permit(given)
		}
		if err != nil {
			return none, err
		}
	} else if !dnsname.IsSubdomain(req.CSR) {
		return none, api.InvalidField("csr", "%.40q given, want the name of a CertificateSigningRequest", req.CSR)
	}
	e, err := o.ExplainCSR(ctx, req.CSR, given)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		err = &tokens.Refusal{Reason: "no-such-request", Message: "there is no CertificateSigningRequest " + req.CSR}
	case err != nil:
		err = unread("the facts about the request", err)
	}
	return e, err
}

// unread returns the error of an explanation whose subject could not be read.
func unread(what string, err error) error {
	return &tokens.Refusal{Reason: "cluster-unavailable", Message: what + " cannot be read from the cluster now; retry", Err: err, Retry: true}
}

// csr parses a CertificateSigningRequest. It ignores unknown fields, because kubectl prints fields of newer APIs.
func csr(content []byte) (*certificates.CertificateSigningRequest, error) {
	var object certificates.CertificateSigningRequest
	if err := kjson.UnmarshalCaseSensitivePreserveInts(content, &object); err != nil {
		return nil, api.InvalidField("object", "want a CertificateSigningRequest in JSON")
	}
	if object.APIVersion != certificates.SchemeGroupVersion.String() || object.Kind != "CertificateSigningRequest" {
		return nil, api.InvalidField("object", "apiVersion %.60q and kind %.60q given, want %s and CertificateSigningRequest", object.APIVersion, object.Kind, certificates.SchemeGroupVersion)
	}
	return &object, nil
}
