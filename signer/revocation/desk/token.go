package desk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// settles is how long a certificate may still be issued on a token after the token was disabled: a replica may use a
// cached token, and delivers the certificate some time after the admission.
const settles = admission.MaxDelivery + views

// revokeToken makes a token unusable, revokes the nodes that it admitted, and deletes it. Until it is deleted, the
// token keeps its claims, so that a retry finds the nodes. Each step may be repeated.
//
// It first revokes the certificates that it finds at once. After the time settles, it revokes certificates that
// were issued meanwhile. It also waits for a token that was deleted before. But if there is neither a token nor
// a certificate, the ID is probably misspelt.
func (d *Revoker) revokeToken(ctx context.Context, r Order) (Result, error) {
	existed, err := d.disable(ctx, r.TokenID, r.DryRun)
	if err != nil {
		return Result{}, err
	}
	settled := time.Now().Add(settles)
	result, err := d.revokeIssued(ctx, r, false)
	disabled := !r.DryRun && (existed || len(result.Entries) > 0)
	if err == nil && disabled {
		err = loop.Sleep(ctx, time.Until(settled))
		var withdrawn error
		if err == nil {
			withdrawn = d.withdraw(ctx, func(c revocation.Certificate) bool { return c.TokenID == r.TokenID })
			var late Result
			late, err = d.revokeIssued(ctx, r, true)
			result.add(late)
		}
		if err == nil {
			err = cmp.Or(d.settle(ctx, r, &result, result.Entries), withdrawn, result.unbarred)
		}
	}
	if err == nil && !r.DryRun {
		_, err = d.end(ctx, r.TokenID)
	}
	switch {
	case err != nil && disabled:
		return result, &Incomplete{r.TokenID, refusal(err)}
	case err != nil:
		return result, err
	case len(result.Entries) == 0 && !existed:
		return result, &tokens.Refusal{Reason: NoToken, Message: fmt.Sprintf("there is no token %s, and kubejoin knows no certificate that was issued on it", r.TokenID)}
	case len(result.Entries) == 0:
		result.Warnings = append(result.Warnings, "kubejoin knows no certificate that was issued on token "+r.TokenID)
	}
	return result, nil
}

// disable makes a token unusable, and reports whether it existed. A malformed token, or an invalid token from another
// tool, cannot be changed. Kubernetes may still accept such a token, so disable deletes it.
func (d *Revoker) disable(ctx context.Context, id string, dryRun bool) (existed bool, err error) {
	record, err := d.Tokens.Get(ctx, id, tokens.Live)
	disabled := record.Clone()
	disabled.Disable()
	switch {
	case err != nil || dryRun:
	case disabled.Check() != nil:
		_, err = d.end(ctx, id)
	default:
		_, err = d.Tokens.Update(ctx, id, func(record *tokens.Record) error { record.Disable(); return nil })
	}
	if errors.Is(err, tokens.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// endAttempts is how often end and bar retry after conflicting changes of the token or the claim.
const endAttempts = 20

// end deletes a token, and reports whether it existed.
func (d *Revoker) end(ctx context.Context, id string) (bool, error) {
	for range endAttempts {
		record, err := d.Tokens.Get(ctx, id, tokens.Live)
		if err == nil {
			err = d.Tokens.Delete(ctx, record)
		}
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, tokens.ErrNotFound):
			return false, nil
		case !errors.Is(err, tokens.ErrConflict):
			return false, err
		}
	}
	return false, fmt.Errorf("token %s changed during each of %d attempts to delete it", id, endAttempts)
}

// revokeIssued revokes each node that a token admitted. If another token holds the node's name now, it only revokes the
// known certificates that were issued on the token. With again, it skips entries that allow no certificate: no
// certificate was issued since they were stored.
func (d *Revoker) revokeIssued(ctx context.Context, r Order, again bool) (Result, error) {
	id, entries := r.TokenID, map[revocation.Key]revocation.Entry{}
	add := func(e revocation.Entry) { entries[e.Key()] = e }
	if d.Claims != nil {
		held, err := d.Claims.HeldBy(ctx, id, tokens.Live)
		if err != nil {
			return Result{}, err
		}
		all, err := d.Claims.List(ctx) // without limits, a token has no claims, but its nodes have identities
		if err != nil {
			return Result{}, err
		}
		admitted := slices.DeleteFunc(all, func(c tokens.Claim) bool { return c.Identity.TokenID != id })
		for _, c := range append(held, admitted...) {
			add(revocation.Entry{Node: c.Node})
		}
	}
	known, err := d.known(ctx, issuance.Query{TokenID: id}, func(c revocation.Certificate) bool { return c.TokenID == id })
	if err != nil {
		return Result{}, err
	}
	for _, c := range known {
		other, err := d.heldByOther(ctx, c.Node, id)
		switch {
		case err != nil:
			return Result{}, err
		case other:
			add(revocation.Entry{Fingerprint: c.Fingerprint})
		default:
			add(revocation.Entry{Node: c.Node})
		}
	}
	var all []revocation.Entry
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		all = append(all, entries[key])
	}
	kept := map[revocation.Key]revocation.Entry{}
	if again {
		stored, err := d.List(ctx)
		if err != nil {
			return Result{}, err
		}
		for _, e := range stored {
			if len(e.Allowed) == 0 {
				kept[e.Key()] = e
			}
		}
	}
	return d.revoke(ctx, r, all, kept, known, nil)
}

// heldByOther reports whether to revoke only the certificate and not the node: another token holds the name, or there
// is no name.
func (d *Revoker) heldByOther(ctx context.Context, node, id string) (bool, error) {
	if node == "" || d.Claims == nil {
		return node == "", nil
	}
	c, err := d.Claims.Get(ctx, node, tokens.Live)
	if errors.Is(err, tokens.ErrNotFound) {
		return false, nil
	}
	return err == nil && !c.Released() && c.TokenID != id, err
}
