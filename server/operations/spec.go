package operations

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// A NodeReader reads the Node of a name live. The error wraps [tokens.ErrNotFound] if there is no such Node.
type NodeReader func(ctx context.Context, name string) (tokens.NodeRef, error)

// An OwnerReader returns the owner of a token with its UID, which the request may omit. Its error is an
// api.InvalidFields.
type OwnerReader func(ctx context.Context, o tokens.Owner) (tokens.Owner, error)

// GivenOwner is the OwnerReader that reads nothing: the request must have the UID.
func GivenOwner(_ context.Context, o tokens.Owner) (tokens.Owner, error) {
	if o.UID == "" {
		return o, api.InvalidField("owner", "UID is missing, want %s: without a kubeconfig, kubejoin does not read the object", tokens.OwnerForm)
	}
	return o, nil
}

// Readers read the data of a cluster that the creation of a token needs.
type Readers struct {
	// Node reads a Node that a token replaces; nil without a cluster.
	Node NodeReader
	// Owner completes the owner of a token; nil if the store keeps no owners.
	Owner OwnerReader
	// NodeProperties returns why Nodes do not get the properties of their token, as an error about a field of the
	// request; nil without a cluster.
	NodeProperties func(ctx context.Context, field string) error
}

// A Permit authorizes a record that a request describes, and may change it. Of a Node to replace, it sees only the
// name.
type Permit func(record *tokens.Record, now time.Time) error

// Everything is a Permit that permits each record.
func Everything(*tokens.Record, time.Time) error { return nil }

// Creation converts a request to the request to a Minter. usual is the default wait for the signature, which is
// limited to api.MaxWait. Record describes the other parameters and the errors.
func Creation(ctx context.Context, req api.CreateToken, now time.Time, usual time.Duration, permit Permit, read Readers) (mint.Creation, error) {
	wait := min(usual, api.MaxWait)
	var errs []error
	if req.Wait != "" {
		var err error
		if wait, err = api.ParseDuration(req.Wait); err != nil || wait < 0 || wait > api.MaxWait {
			errs = append(errs, api.InvalidField("wait", "%.40q given; want a duration up to %s, or 0 to return without waiting", req.Wait, api.MaxWait))
		}
	}
	token, chosen := tokens.Generate(), req.Token != ""
	if chosen {
		given, err := tokens.Parse(req.Token.Reveal())
		if err != nil {
			errs = append(errs, api.InvalidField("token", "%v", err))
		} else {
			token = given
		}
	}
	record, err := Record(ctx, req.TokenSpec, token, now, permit, read)
	err = api.JoinInvalid(append(errs, err)...)
	r := mint.Creation{Record: record, Chosen: chosen, Wait: wait, DryRun: req.DryRun}
	if req.Expires == "" && !record.Expires.IsZero() {
		r.Lifetime = record.Expires.Sub(now)
	}
	return r, err
}

// Record returns the record that a spec describes, once it is valid and permitted. Only then does it read from the
// cluster. For invalid fields, the error is an api.InvalidFields. Errors of permit are unwrapped.
func Record(ctx context.Context, spec api.TokenSpec, t tokens.Token, now time.Time, permit Permit, read Readers) (tokens.Record, error) {
	record := tokens.Record{Token: t, Description: spec.Description}
	var errs []error
	var err error
	record.Expires, err = Expires(spec.TTL, spec.Expires, now)
	errs = append(errs, err)
	usages := spec.Usages
	if usages == nil {
		usages = []string{api.UsageSigning, api.UsageAuthentication}
	}
	for _, usage := range usages {
		switch usage {
		case api.UsageSigning:
			record.Signing = true
		case api.UsageAuthentication:
			record.Authentication = true
		default:
			errs = append(errs, api.InvalidField("usages", "%.40q given, want signing or authentication", usage))
		}
	}
	switch {
	case spec.Groups != nil:
		record.Groups = spec.Groups
	case record.Authentication:
		record.Groups = []string{tokens.DefaultGroup}
	}
	record.Limits = tokens.Limits{MaxNodes: spec.MaxNodes, NodeNames: spec.NodeNames, Role: spec.Role, Rejoin: spec.Rejoin}
	record.Limits.Node, err = properties(spec, read)
	errs = append(errs, err)
	if s := spec.CertificateDuration; s != "" {
		d, err := api.ParseDuration(s)
		if err != nil || d <= 0 {
			errs = append(errs, api.InvalidField("certificateDuration", "%.40q given; want a duration from %s to %s", s, tokens.MinCertificateDuration, tokens.MaxCertificateDuration))
		} else {
			record.Limits.CertificateDuration = d
		}
	}
	owned, err := checkOwner(spec.Owner, read.Owner)
	errs = append(errs, err)
	checked := record
	if record.Limits.Replaces.Name = spec.ReplaceNode; spec.ReplaceNode != "" {
		checked.Limits.Replaces = tokens.NodeRef{Name: spec.ReplaceNode, UID: someNode} // not read yet
	}
	errs = append(errs, checkReplaced(spec.ReplaceNode, read.Node), InvalidRecord(checked.CheckNew()))
	if err := api.JoinInvalid(errs...); err != nil {
		return record, err
	}
	if err := permit(&record, now); err != nil { // without the permission, users must not learn whether the Node exists
		return record, err
	}
	if record.Limits.Replaces, err = replaced(ctx, spec.ReplaceNode, read.Node); err != nil {
		return record, err
	}
	if spec.Owner != "" {
		if record.Owner, err = read.Owner(ctx, owned); err != nil {
			return record, err
		}
	}
	if p := record.Limits.Node; p != (tokens.NodeProperties{}) {
		err = read.NodeProperties(ctx, fieldOf(p))
	}
	return record, err
}

// properties returns the labels, taints and readiness that the Nodes of a token get.
func properties(spec api.TokenSpec, read Readers) (tokens.NodeProperties, error) {
	p := tokens.NodeProperties{Labels: tokens.JoinProperties(spec.NodeLabels), Taints: tokens.JoinProperties(spec.NodeTaints), ReadyAfter: spec.NodeReadyAfter}
	if p != (tokens.NodeProperties{}) && read.NodeProperties == nil {
		return p, api.InvalidField(fieldOf(p), "this kubejoin runs without a cluster, so there are no Nodes")
	}
	return p, nil
}

// NodesNotPatched is the error of a request for a token whose Nodes would not get its properties.
func NodesNotPatched(field string) error {
	return api.InvalidField(field, "kubejoin may not patch Nodes; apply deploy/node-properties.yaml, or set nodeProperties: true in the values of the Helm chart, and retry in 2 minutes")
}

// fieldOf returns the first field of a request that sets p.
func fieldOf(p tokens.NodeProperties) string {
	switch {
	case p.Labels != "":
		return "nodeLabels"
	case p.Taints != "":
		return "nodeTaints"
	}
	return "nodeReadyAfter"
}

// Invalid returns the errors in those fields of a request for a token that the decoder could read.
func Invalid(req any) error {
	var create api.CreateToken
	switch req := req.(type) {
	case api.CreateToken:
		create = req
	case api.PrintJoinCommand:
		create.TokenSpec = req.TokenSpec
	}
	_, err := Creation(context.Background(), create, time.Now(), 0, Everything, anyReaders)
	return err
}

// anyReaders are the Readers of checks without a cluster. Every Node exists.
var anyReaders = Readers{
	Node: func(_ context.Context, name string) (tokens.NodeRef, error) {
		return tokens.NodeRef{Name: name, UID: someNode}, nil
	},
	Owner:          GivenOwner,
	NodeProperties: func(context.Context, string) error { return nil },
}

// someNode stands for the UID of a Node that was not read yet.
const someNode = "unread"

func checkOwner(given string, owner OwnerReader) (o tokens.Owner, err error) {
	if given == "" {
		return o, nil
	}
	if o, err = tokens.ParseOwner(given); err == nil && owner == nil {
		err = errors.New("only tokens in Secrets have an owner, and this kubejoin keeps its tokens elsewhere")
	}
	if err != nil {
		err = api.InvalidField("owner", "%v", err)
	}
	return o, err
}

func checkReplaced(name string, node NodeReader) error {
	if name == "" {
		return nil
	}
	if err := tokens.CheckNodeName(name); err != nil {
		return api.InvalidField("replaceNode", "%v", err)
	}
	if node == nil {
		return api.InvalidField("replaceNode", "this kubejoin runs without a cluster, so there is no Node to replace")
	}
	return nil
}

// replaced reads the Node that a token replaces, if it has a name. The token is only for the Node that exists now.
func replaced(ctx context.Context, name string, node NodeReader) (tokens.NodeRef, error) {
	if name == "" {
		return tokens.NodeRef{}, nil
	}
	ref, err := node(ctx, name)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		err = api.InvalidField("replaceNode", "there is no Node %s to replace; an ordinary token is enough", name)
	case err != nil:
		err = &tokens.Refusal{Reason: "node-unavailable", Message: "Node " + name + " cannot be read now; retry", Err: err, Retry: true}
	}
	return ref, err
}

// ControlPlane checks a request for the join command of a control plane, and sets the defaults of its token: one
// machine, the role for reserved names, and the lifetime of the certificate key.
func ControlPlane(req *api.PrintJoinCommand) error {
	switch {
	case req.Format == api.FormatKubeconfig:
		return api.InvalidField("format", "a kubeconfig cannot contain the certificate key; want another format")
	case req.Groups != nil && !slices.Contains(req.Groups, tokens.DefaultGroup):
		return api.InvalidField("groups", "only machines in group %s can download the certificates of control planes", tokens.DefaultGroup)
	}
	req.Role = cmp.Or(req.Role, tokens.RoleControlPlane)
	if req.MaxNodes == 0 && req.ReplaceNode == "" {
		req.MaxNodes = 1
	}
	if req.TTL == "" && req.Expires == "" {
		req.TTL = joinformat.UploadTTL.String()
	}
	return nil
}

// Expires returns when a token expires. Only one of ttl and expires may be given. The zero time means never.
func Expires(ttl, expires string, now time.Time) (time.Time, error) {
	if expires != "" {
		at, err := time.Parse(time.RFC3339, expires)
		at = at.UTC().Truncate(time.Second)
		switch {
		case ttl != "":
			return at, api.InvalidField("expires", "cannot be combined with ttl")
		case err != nil:
			return at, api.InvalidField("expires", "%.40q is not a time such as %s", expires, now.Add(tokens.DefaultTTL).UTC().Format(time.RFC3339))
		case at.Before(now.Add(time.Second)) || at.After(now.Add(api.MaxTTL)):
			return at, api.InvalidField("expires", "%s given; want a time in the future, at most %s from now", expires, api.MaxTTL)
		}
		return at, nil
	}
	lifetime := tokens.DefaultTTL
	if ttl != "" {
		var err error
		lifetime, err = api.ParseDuration(ttl)
		switch {
		case err != nil:
			return time.Time{}, api.InvalidField("ttl", "%.40q given; %v, or 0 to never expire", ttl, err)
		case lifetime != 0 && (lifetime < time.Second || lifetime > api.MaxTTL):
			return time.Time{}, api.InvalidField("ttl", "%s given; want 1s to %s, or 0 to never expire", lifetime, api.MaxTTL)
		}
	}
	if lifetime == 0 {
		return time.Time{}, nil
	}
	// Stores keep whole seconds. Round up, so that the token lives at least as long as requested.
	end := now.Add(lifetime).UTC().Truncate(time.Second)
	if end.Before(now.Add(lifetime)) {
		end = end.Add(time.Second)
	}
	return end, nil
}

// fieldNames maps field names of package tokens to the field names of requests, where they differ.
var fieldNames = map[string]string{
	"expiration":           "expires",
	"max-nodes":            "maxNodes",
	"node-names":           "nodeNames",
	"certificate-duration": "certificateDuration",
	"replaces-node":        "replaceNode",
	"node-labels":          "nodeLabels",
	"node-taints":          "nodeTaints",
	"node-ready-after":     "nodeReadyAfter",
}

// Refused converts a [tokens.FieldError] about a request to an api.InvalidFields, and returns other errors unchanged.
// It does not unwrap err: errors of stores may wrap a FieldError about a stored record.
func Refused(err error) error {
	if field, ok := err.(*tokens.FieldError); ok {
		return InvalidRecord(field)
	}
	return err
}

// Minted returns a [tokens.Refusal] of a Minter unchanged. It converts any other error, which is about an invalid
// record, to an api.InvalidFields. For example, the token expired during the request.
func Minted(err error) error {
	if errors.As(err, new(*tokens.Refusal)) {
		return err
	}
	return InvalidRecord(err)
}

// InvalidRecord returns the api.InvalidFields of an error of tokens.Record.CheckNew, or nil. Do not call it with other
// errors: it would report them as errors of the request.
func InvalidRecord(err error) error {
	if err == nil {
		return nil
	}
	var all api.InvalidFields
	for _, e := range tokens.FieldErrors(err) {
		all = append(all, api.FieldProblem{Field: cmp.Or(fieldNames[e.Field], e.Field), Detail: e.Err.Error()})
	}
	return all
}
