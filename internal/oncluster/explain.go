package oncluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// Explain returns why a machine with this node name has or has not joined.
func (c *Cluster) Explain(ctx context.Context, node string) (api.NodeExplanation, error) {
	e, err := kube.Reader{Client: c.Client, Tokens: c.operations.Minter.Tokens, Claims: c.withClaims.Claims, ClusterInfo: c.info, Revocations: c.operations.Revocations.Guard.Store}.Explain(ctx, node)
	if err != nil {
		err = fmt.Errorf("%s: %w", operations.StateUnread(node), err)
	}
	return e, err
}

// ExplainRequest returns what kubejoin with default flags would decide about a certificate request, and why.
func (c *Cluster) ExplainRequest(ctx context.Context, req api.ExplainRequest) (e api.RequestExplanation, err error) {
	var object *certificates.CertificateSigningRequest
	if req.CSR == "" {
		if object, err = operations.CSR(req.Object); err != nil {
			return e, err
		}
	}
	switch e, err = c.requests.Explain(ctx, req.CSR, object); {
	case errors.Is(err, tokens.ErrNotFound):
		err = errors.New(operations.NoRequest(req.CSR))
	case err != nil:
		err = fmt.Errorf("%s: %w", operations.FactsUnread, err)
	}
	return e, err
}

// byDefaults returns the authority of a kubejoin with default flags. It starts the informers that the authority needs.
func (c *Cluster) byDefaults(ctx context.Context) (*signer.Authority, error) {
	nodes, err := kubefacts.OpenNodes(ctx, c.Client)
	if err != nil {
		return nil, err
	}
	noCA := func() (*signer.CA, error) { return nil, errors.New("no CA available") }
	signers, err := signer.KubernetesSigners(noCA, signer.DefaultDuration)
	return &signer.Authority{
		Facts:   &kubefacts.Facts{Client: c.Client, Nodes: nodes},
		Nodes:   &admission.Nodes{Tokens: c.operations.Minter.Tokens, Claims: c.withClaims.Claims, Node: nodes.Node, Ready: nodes.Ready},
		Signers: signer.FixedSigners(signers),
	}, err
}
