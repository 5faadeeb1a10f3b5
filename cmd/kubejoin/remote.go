package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/server/operations/kube"
	"github.com/kubejoin/kubejoin/tokens"
)

// A backend runs the operations of commands on a cluster or on a kubejoin server. An error about invalid fields is an
// api.InvalidFields or an api.Problem.
type backend interface {
	// CreateToken creates req.Token. If it fails, and the token exists or may exist, the returned token has its ID.
	CreateToken(ctx context.Context, req api.CreateToken) (api.Token, error)
	// JoinControlPlane creates a token for a control plane, and uploads the certificates that control planes share.
	JoinControlPlane(ctx context.Context, spec api.TokenSpec) (joinformat.Join, error)
	GetToken(ctx context.Context, id string) (api.Token, error)
	ListTokens(ctx context.Context) (api.TokenList, error)
	RenewToken(ctx context.Context, id string, req api.RenewToken) (api.Token, error)
	DeleteToken(ctx context.Context, id string, req api.DeleteToken) (api.Token, error)
	// ClusterInfo returns the kubeconfig in cluster-info.
	ClusterInfo(ctx context.Context) ([]byte, error)
	ListClaims(ctx context.Context) (api.ClaimList, error)
	ReleaseClaim(ctx context.Context, node string, req api.ReleaseClaim) (api.Claim, error)
	AddMachines(ctx context.Context, req api.AddMachines) (api.MachineList, error)
	ListMachines(ctx context.Context) (api.MachineList, error)
	GetMachine(ctx context.Context, node string) (api.Machine, error)
	DeleteMachine(ctx context.Context, node string, req api.DeleteMachine) (api.Machine, error)
	PrintMachineJoin(ctx context.Context, req api.PrintMachineJoin) ([]byte, error)
	Revoke(ctx context.Context, req api.Revoke) (api.RevocationList, error)
	ListRevocations(ctx context.Context) (api.RevocationList, error)
	UndoRevocation(ctx context.Context, revoked string, req api.UndoRevocation) (api.Revocation, error)
	CARotation(ctx context.Context, ca string) (api.CARotation, error)
	PrepareCA(ctx context.Context, ca string, req api.PrepareCA) (api.CARotation, error)
	// StepCA moves a rotation to a stage. The step "abort" moves it back by one stage.
	StepCA(ctx context.Context, ca, step string, req api.StepCA) (api.CARotation, error)
	Explain(ctx context.Context, node string) (api.NodeExplanation, error)
	ListJoins(ctx context.Context, req api.ListJoins) (api.JoinList, error)
	ExplainRequest(ctx context.Context, req api.ExplainRequest) (api.RequestExplanation, error)
}

// A remote is the cluster or the kubejoin server that a command works on. Either cluster or server is nil.
type remote struct {
	backend
	cluster *kube.Cluster
	server  *client.Client
}

// clusterInfo returns the kubeconfig in cluster-info.
func (r *remote) clusterInfo(ctx context.Context) ([]byte, error) {
	kubeconfig, err := r.ClusterInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("cluster-info: %w", err)
	}
	return kubeconfig, nil
}

// flagNames maps the fields of requests to flags whose names differ.
var flagNames = map[string]string{
	"maxNodes":            "max-nodes",
	"nodeNames":           "node-name",
	"certificateDuration": "certificate-duration",
	"replaceNode":         "replace-node",
	"nodeLabels":          "node-label",
	"nodeTaints":          "node-taint",
	"nodeReadyAfter":      "node-ready-after",
	"controlPlane":        "control-plane",
	"rejoinURL":           "with-rejoin",
	"tokenID":             "token",
	"endsWithin":          "ends-within",
	"notCA":               "not-ca",
	"newCA":               "new-ca-cert-file",
	"newKey":              "new-ca-key-file",
	"noCrossSign":         "no-cross-sign",
	"leaveBehind":         "leave-behind",
	"leaveBehindFiles":    "leave-behind-file",
	"expireTokens":        "expire-tokens",
}

// explain names flags instead of fields in an error about invalid fields.
func explain(err error) error {
	var p *api.Problem
	invalid := fieldProblems(err)
	switch {
	case len(invalid) > 0:
	case errors.As(err, &p) && p.Status == http.StatusBadRequest && p.Field != "":
		return &usageError{err: errors.New(p.Detail)}
	default:
		return err
	}
	var lines []string
	for _, e := range invalid {
		if _, field, ok := e.Item(); ok { // of a request with one item
			e = field
		}
		if e.Field != "" {
			e.Field = "--" + cmp.Or(flagNames[e.Field], e.Field)
		}
		lines = append(lines, e.String())
	}
	return &usageError{err: errors.New(strings.Join(lines, "; "))}
}

// fieldProblems returns the invalid fields that an error is about.
func fieldProblems(err error) (invalid api.InvalidFields) {
	if p := (*api.Problem)(nil); !errors.As(err, &invalid) && errors.As(err, &p) && p.Status == http.StatusBadRequest {
		invalid = p.Errors
	}
	return invalid
}

// reasonOf returns the reason of a refusal: the problem type of a server, or the reason of a refusal by the library. For
// other errors, it returns an empty string.
func reasonOf(err error) string {
	if p := (*api.Problem)(nil); errors.As(err, &p) {
		return strings.TrimPrefix(p.Type, api.ProblemType)
	}
	if refused := (*tokens.Refusal)(nil); errors.As(err, &refused) {
		return refused.Reason
	}
	return ""
}
