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
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// Operations are what kubejoin does for the HTTPS API and for commands with a kubeconfig. Its methods have the same
// names as in package client. The caller authorizes. An error about a request is an api.InvalidFields. All other errors
// wrap a [tokens.Refusal].
type Operations struct {
	// Minter creates, changes and deletes tokens. It is required.
	Minter *mint.Minter
	// ClusterInfo provides the signatures that responses about tokens show. It is required.
	ClusterInfo ClusterInfo
	// Claims are the claims of node names; nil without them.
	Claims tokens.Claims
	// UserMachines is how many machines each user may have added; zero means unlimited.
	UserMachines int
	// Revocations revokes; nil without revocations.
	Revocations *desk.Revoker
	Readers
	// ExplainNode explains why a machine has or has not joined; nil without a cluster.
	ExplainNode func(ctx context.Context, node string) (api.NodeExplanation, error)
	// Joins lists the machines that join, or only the one with a node name, or those of a token ID. It is usually List of a
	// Joins of package server/explain/kube; nil without a cluster.
	Joins func(ctx context.Context, node, token string) (api.JoinList, error)
	// ExplainCSR explains given or, if given is nil, the certificate request of that name; nil without a cluster. If no
	// request has the name, the error wraps [tokens.ErrNotFound].
	ExplainCSR func(ctx context.Context, name string, given *certificates.CertificateSigningRequest) (api.RequestExplanation, error)
	// MaxRemainingLifetime has the meaning of the same field of [tokens.Releaser].
	MaxRemainingLifetime func() time.Duration
	// Why returns the cause of a warning as the caller may see it. A server says that its log has the cause.
	Why func(what string, cause error) string
}

// CreateToken creates req.Token, or a new one. existing reports that the token existed before. After an error, the
// returned token has an ID only if a token with this ID exists, or may exist.
func (o *Operations) CreateToken(ctx context.Context, req api.CreateToken, permit Permit) (t api.Token, existing bool, err error) {
	usual := cmp.Or(max(o.Minter.SignTimeout, 0), mint.DefaultSignTimeout)
	request, err := Creation(ctx, req, time.Now(), usual, permit, o.Readers)
	if err != nil {
		return api.Token{}, false, err
	}
	made, err := o.Minter.Create(ctx, request)
	if e := (*mint.Error)(nil); errors.As(err, &e) {
		t.ID = e.TokenID
	}
	if err != nil {
		return t, false, Minted(err)
	}
	var v View
	if made.Existing { // a new token needs no read: Create has already waited for its signature
		v, made.Warnings = o.view(ctx, made.Warnings)
	}
	return v.Minted(made, request), made.Existing, nil
}

// Join creates a token, as CreateToken, and returns how to join with it. complete is the argument complete of
// [mint.Minter.Join].
func (o *Operations) Join(ctx context.Context, spec api.TokenSpec, permit Permit, complete func(context.Context, *joinformat.Join) error) (mint.Minted, error) {
	record, err := Record(ctx, spec, tokens.Generate(), time.Now(), permit, o.Readers)
	if err == nil && !(record.Signing && record.Authentication) {
		err = api.InvalidField("usages", "a join command needs a token for signing and authentication")
	}
	if err != nil {
		return mint.Minted{}, err
	}
	made, err := o.Minter.Join(ctx, record, complete)
	return made, Minted(err)
}

// TokensPage returns a page of all tokens, without their secrets.
func (o *Operations) TokensPage(ctx context.Context, page api.ListPage) (api.TokenList, error) {
	records, err := o.Minter.Tokens.List(ctx)
	if err != nil {
		return api.TokenList{}, mint.StoreError(err)
	}
	records, next, err := Page(records, api.KindTokenList, func(r tokens.Record) string { return r.Token.ID() }, page)
	if err != nil {
		return api.TokenList{}, err
	}
	v, warnings := o.view(ctx, nil)
	list := v.Tokens(records)
	list.Warnings, list.Continue = warnings, next
	return list, nil
}

// GetToken returns one token without its secret.
func (o *Operations) GetToken(ctx context.Context, id string) (api.Token, error) {
	record, err := o.Minter.Get(ctx, id)
	return o.shown(ctx, record, false, err)
}

// RenewToken changes when a token expires. permit authorizes the new expiration.
func (o *Operations) RenewToken(ctx context.Context, id string, req api.RenewToken, permit func(expires, now time.Time) error) (api.Token, error) {
	now := time.Now()
	expires, err := Expires(req.TTL, req.Expires, now)
	if err == nil {
		err = permit(expires, now)
	}
	if err != nil {
		return api.Token{}, err
	}
	record, err := o.Minter.Renew(ctx, id, mint.Renewal{Expires: expires, Shorten: req.Shorten, DryRun: req.DryRun})
	return o.shown(ctx, record, req.DryRun, err)
}

// DeleteToken deletes a token, and returns the deleted token.
func (o *Operations) DeleteToken(ctx context.Context, id string, req api.DeleteToken) (api.Token, error) {
	record, err := o.Minter.Delete(ctx, id, mint.Deletion{OnlyExpired: req.OnlyExpired, DryRun: req.DryRun})
	return o.shown(ctx, record, req.DryRun, err)
}

// shown returns a token as the API shows it, after a change or a dry run. err is the error of the Minter.
func (o *Operations) shown(ctx context.Context, record tokens.Record, dryRun bool, err error) (api.Token, error) {
	if err != nil {
		return api.Token{}, err
	}
	v, warnings := o.view(ctx, nil)
	t := v.Token(record)
	t.DryRun, t.Warnings = dryRun, warnings
	return t, nil
}

// view reads the data that responses about tokens show in addition to the record, and adds a warning for data
// that cannot be read.
func (o *Operations) view(ctx context.Context, warnings []string) (View, []string) {
	v := ReadView(ctx, o.ClusterInfo, o.Claims)
	for _, u := range v.Unread {
		warnings = append(warnings, u.Warning+": "+o.Why(u.Warning, u.Err))
	}
	return v, warnings
}

// ClaimsPage returns a page of the claims of node names that a token or a machine holds.
func (o *Operations) ClaimsPage(ctx context.Context, page api.ListPage) (api.ClaimList, error) {
	if o.Claims == nil {
		return api.ClaimList{}, errNoClaims
	}
	claims, err := o.Claims.List(ctx)
	if err != nil {
		return api.ClaimList{}, mint.StoreError(err)
	}
	claims = slices.DeleteFunc(claims, func(c tokens.Claim) bool { return c.Released() && c.Machine.IsZero() })
	claims, next, err := Page(claims, api.KindClaimList, func(c tokens.Claim) string { return c.Node }, page)
	if err != nil {
		return api.ClaimList{}, err
	}
	var revoked map[string]bool
	if o.Revocations != nil {
		if revoked, err = o.Revocations.Guard.CachedNodes(ctx); err != nil { // the list is complete except for the field revoked
			o.Why("cannot read revocations for the list of claims", err)
		}
	}
	list := Claims(claims, revoked)
	list.Continue = next
	return list, nil
}

var errNoClaims = &tokens.Refusal{Reason: "no-claims", Message: "this kubejoin does not store claims of node names"}

// ReleaseClaim releases a node name, see [tokens.Releaser] and [desk.Revoker.CheckRelease].
func (o *Operations) ReleaseClaim(ctx context.Context, node string, req api.ReleaseClaim) (api.Claim, error) {
	if o.Claims == nil {
		return api.Claim{}, errNoClaims
	}
	if o.Revocations != nil {
		if err := o.Revocations.CheckRelease(ctx, node); err != nil {
			return api.Claim{}, err
		}
	}
	claim, warnings, err := tokens.Releaser{Tokens: o.Minter.Tokens, Claims: o.Claims, MaxRemainingLifetime: o.MaxRemainingLifetime}.Release(ctx, node, req.DryRun)
	released := Claim(claim)
	released.DryRun, released.Warnings = req.DryRun, warnings
	if err == nil && released.Machine != "" {
		released.Warnings = append(released.Warnings, "node name "+node+" still belongs to its machine; to free the name: kubejoin machine delete "+node)
	}
	switch _, invalid := err.(*tokens.FieldError); {
	case err == nil || invalid:
		return released, Refused(err)
	case errors.Is(err, tokens.ErrNotFound):
		return released, &tokens.Refusal{Reason: "no-claim", Message: err.Error()}
	case errors.Is(err, tokens.ErrReplaced):
		return released, &tokens.Refusal{Reason: "claim-replaced", Message: err.Error()}
	}
	return released, mint.StoreError(err)
}

var errNoRevocations = &tokens.Refusal{Reason: "no-revocations", Message: "this kubejoin does not store revocations"}

// Revoke revokes a node, one certificate, or everything that was issued on a token. by is the requester. permit authorizes the order.
func (o *Operations) Revoke(ctx context.Context, req api.Revoke, by string, permit func() error) (api.RevocationList, error) {
	if o.Revocations == nil {
		return api.RevocationList{}, errNoRevocations
	}
	order := desk.Order{Node: req.Node, Serial: req.Serial, Fingerprint: req.Fingerprint, TokenID: req.TokenID, Reason: req.Reason, By: by, DryRun: req.DryRun}
	err := Refused(order.Check())
	if err == nil {
		err = permit()
	}
	if err != nil {
		return api.RevocationList{}, err
	}
	result, err := o.Revocations.Revoke(ctx, order)
	why := ""
	if result.EndUnknown != nil {
		why = o.Why("cannot tell when revocations end", result.EndUnknown)
	}
	return Revoked(result, req.DryRun, why), Refused(err)
}

// RevocationsPage returns a page of the revocations that are still in effect.
func (o *Operations) RevocationsPage(ctx context.Context, page api.ListPage) (api.RevocationList, error) {
	if o.Revocations == nil {
		return api.RevocationList{}, errNoRevocations
	}
	entries, err := o.Revocations.List(ctx)
	if err != nil {
		return api.RevocationList{}, err
	}
	entries, next, err := Page(entries, api.KindRevocationList, func(e revocation.Entry) string { return string(e.Key()) }, page)
	list := Revocations(entries, false)
	list.Continue = next
	return list, err
}

// UndoRevocation removes a revocation.
func (o *Operations) UndoRevocation(ctx context.Context, revoked string, req api.UndoRevocation) (api.Revocation, error) {
	if o.Revocations == nil {
		return api.Revocation{}, errNoRevocations
	}
	key, err := revocation.ParseKey(revoked)
	if err != nil {
		return api.Revocation{}, api.InvalidField("revoked", "%v; a fingerprint begins with sha256:", err)
	}
	e, err := o.Revocations.Undo(ctx, key, req.DryRun)
	return Revocation(e, req.DryRun), err
}
