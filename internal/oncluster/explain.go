package oncluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/convert"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// Explain returns why a machine with this node name has or has not joined.
func (c *Cluster) Explain(ctx context.Context, node string) (api.NodeExplanation, error) {
	e, err := kube.Reader{Client: c.Client, Tokens: c.minter.Tokens, Claims: c.claims, ClusterInfo: c.info, Revocations: c.desk.Guard.Store}.Explain(ctx, node)
	if err != nil {
		err = fmt.Errorf("the state of node %s cannot be read from the cluster now; retry: %w", node, err)
	}
	return e, err
}

// ExplainRequest returns what kubejoin with default flags would decide about a certificate request, and why.
func (c *Cluster) ExplainRequest(ctx context.Context, req api.ExplainRequest) (e api.RequestExplanation, err error) {
	var object *certificates.CertificateSigningRequest
	if req.CSR == "" {
		if object, err = convert.CSR(req.Object); err != nil {
			return e, err
		}
	}
	switch e, err = c.byDefaults(ctx).Explain(ctx, req.CSR, object); {
	case errors.Is(err, tokens.ErrNotFound):
		err = fmt.Errorf("there is no CertificateSigningRequest %s", req.CSR)
	case err != nil:
		err = fmt.Errorf("the facts about the request cannot be read from the cluster now; retry: %w", err)
	}
	return e, err
}

// byDefaults explains CSRs as a kubejoin with default flags would decide them. It starts the informers it needs at the
// first request.
func (c *Cluster) byDefaults(ctx context.Context) kube.Requests {
	authority := func() (*signer.Authority, error) {
		nodes, err := csr.OpenNodes(ctx, c.Client)
		if err != nil {
			return nil, err
		}
		noCA := func() (*signer.CA, error) { return nil, errors.New("no CA available") }
		return &signer.Authority{
			Facts:   &csr.Facts{Client: c.Client, Nodes: nodes},
			Nodes:   &admission.Nodes{Tokens: c.minter.Tokens, Claims: c.claims, Node: nodes.Node, Ready: nodes.Ready},
			Signers: signer.FixedSigners(signer.KubernetesSigners(noCA, signer.DefaultDuration)),
		}, nil
	}
	return kube.Requests{
		Client: c.Client, Authority: authority,
		Notes: []string{"this is what kubejoin with default flags would do; for a running kubejoin with its own flags and --signer-config, give --url"},
	}
}
