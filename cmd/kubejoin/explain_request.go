package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// An explainedRequest says which certificate request is to be explained.
type explainedRequest struct{ name, file string }

func (e explainedRequest) given() bool { return e.name != "" || e.file != "" }

func (e explainedRequest) check(args []string) error {
	switch {
	case len(args) > 0:
		return &usageError{err: errors.New("give one of NODE, --csr and --filename")}
	case e.name != "" && e.file != "":
		return &usageError{err: errors.New("--csr: give this or --filename")}
	case e.name != "" && len(validation.IsDNS1123Subdomain(e.name)) > 0:
		return &usageError{err: fmt.Errorf("--csr: %.60q is not the name of an object", tokens.Redact(e.name))}
	}
	return nil
}

// asked reads what is to be explained, as the server takes it.
func (e explainedRequest) asked(stdin io.Reader) (api.ExplainRequest, error) {
	if e.name != "" {
		return api.ExplainRequest{CSR: e.name}, nil
	}
	in := stdin
	if e.file != "-" {
		file, err := os.Open(e.file)
		if err != nil {
			return api.ExplainRequest{}, fmt.Errorf("--filename: %w", err)
		}
		defer func() { _ = file.Close() }() // was only read
		in = file
	}
	content, err := io.ReadAll(io.LimitReader(in, server.MaxBody+1))
	if err != nil {
		return api.ExplainRequest{}, fmt.Errorf("--filename: %w", err)
	}
	if len(content) > server.MaxBody {
		return api.ExplainRequest{}, fmt.Errorf("--filename: %s has more than %d bytes", e.file, server.MaxBody)
	}
	object, err := yaml.YAMLToJSONStrict(content)
	if err != nil {
		return api.ExplainRequest{}, fmt.Errorf("--filename: %s is no YAML: %w", e.file, err)
	}
	return api.ExplainRequest{Object: json.RawMessage(object)}, nil
}

// explainRequest prints what would be done about a request.
func (o *output) explainRequest(cmd *cobra.Command, remotes *remoteOptions, request explainedRequest) error {
	asked, err := request.asked(cmd.InOrStdin())
	if err != nil {
		return err
	}
	return remotes.run(cmd, func(ctx context.Context, r *remote) error {
		e, err := r.ExplainRequest(ctx, asked)
		if err != nil {
			return err
		}
		done, err := o.object(cmd.OutOrStdout(), e)
		if !done {
			_, err = io.WriteString(cmd.OutOrStdout(), plain(e.Text()))
		}
		if err == nil && !e.Granted() {
			err = exitNotJoined
		}
		return err
	})
}

// byDefaults are the requests of a cluster, explained as a kubejoin with default flags would decide
// them. What it takes to know is followed only when somebody asks.
func byDefaults(ctx context.Context, client kubernetes.Interface, store tokens.Store, claims tokens.Claims) kube.Requests {
	authority := sync.OnceValues(func() (*signer.Authority, error) {
		nodes, err := csr.OpenNodes(ctx, client)
		if err != nil {
			return nil, err
		}
		noCA := func() (*signer.CA, error) { return nil, errors.New("no CA is at hand") }
		return &signer.Authority{
			Facts:   &csr.Facts{Client: client, Nodes: nodes},
			Nodes:   &signer.NodeAdmission{Tokens: store, Claims: claims, Node: nodes.Node, Ready: nodes.Ready, Lease: leaderLease},
			Signers: signer.FixedSigners(signer.KubernetesSigners(noCA, signer.DefaultDuration)),
		}, nil
	})
	return kube.Requests{
		Client: client, Authority: authority,
		Notes: []string{"no kubejoin was asked: this is what one with default flags would do; --url asks one that runs, with its own flags and --signer-config"},
	}
}
