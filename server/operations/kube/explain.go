package kube

import (
	"context"
	"errors"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
)

// ExplainRequest returns what kubejoin with default flags would decide about a certificate request, and why.
func (c *Cluster) ExplainRequest(ctx context.Context, req api.ExplainRequest) (api.RequestExplanation, error) {
	return c.Operations.ExplainRequest(ctx, req, func(*certificates.CertificateSigningRequest) error { return nil })
}

// byDefaults returns the authority of a kubejoin with default flags. It starts the informers that the authority needs.
func byDefaults(ctx context.Context, client kubernetes.Interface, store tokens.Store, claims tokens.Claims) (*signer.Authority, error) {
	nodes := kubefacts.OpenNodes(ctx, client)
	noCA := func() (*signer.CA, error) { return nil, errors.New("no CA available") }
	signers, err := signer.KubernetesSigners(noCA, signer.DefaultDuration)
	return &signer.Authority{
		Facts:   &kubefacts.Facts{Client: client, Nodes: nodes},
		Nodes:   &admission.Nodes{Tokens: store, Claims: claims, Node: nodes.Node, Ready: nodes.Ready},
		Signers: signer.FixedSigners(signers),
	}, err
}
