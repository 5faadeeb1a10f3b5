package tokens

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrReplaced is wrapped if a claim was released and created again while a [Releaser] released it.
var ErrReplaced = errors.New("claim was replaced")

// A releaseError is for the person who releases a name. Its text does not repeat that of the error that it wraps.
type releaseError struct {
	text string
	err  error
}

func (e *releaseError) Error() string { return e.text }
func (e *releaseError) Unwrap() error { return e.err }

// A Releaser releases node names. It may be used concurrently.
type Releaser struct {
	// Tokens and Claims store the tokens and claims. Both are required.
	Tokens Store
	Claims Claims
	// MaxRemainingLifetime returns how long any certificate may still be valid. It is for kubejoin without access to
	// Nodes: the released claim leaves a past that lasts that long. Nil or zero: only a claim with a certificate duration
	// leaves a past.
	MaxRemainingLifetime func() time.Duration
}

// Release frees a node name and its slot on the token. It returns the claim as it was before, and warnings for the person
// who releases it. With dryRun, it changes nothing. It takes three steps:
//
//  1. The token admits nobody under the name any more, see [Leave].
//  2. The claim is released.
//  3. The token gives the slot back, see [GiveBack].
//
// If the slot were given back before step 2, a machine could take it again with the claim that step 2 releases. If a step
// fails, Release can be called again: without a claim, it takes step 3 for each token that counts the name, and returns a
// Claim that has only Node and TokenID.
//
// If the claim changes meanwhile, for example because a machine is admitted with another key, Release starts over.
//
// A node that joined with a token without limits has no claim, but it may have an identity, with which it can rejoin.
// That ends, too.
//
// An invalid name is a [*FieldError]. The error wraps [ErrNotFound] if there is nothing to release, and [ErrReplaced] if
// the name has a new claim.
func (r Releaser) Release(ctx context.Context, node string, dryRun bool) (released Claim, warnings []string, err error) {
	if err := CheckNodeName(node); err != nil {
		return Claim{}, nil, &FieldError{"node", err}
	}
	var first Claim
	for range changeAttempts {
		claim, err := r.Claims.Get(ctx, node)
		switch {
		case errors.Is(err, ErrNotFound), err == nil && claim.Released() && claim.Identity.IsZero():
			return r.giveSlotsBack(ctx, node, dryRun)
		case err != nil:
			return Claim{}, nil, err
		case first.UID == "":
			first = claim
		case !claim.Same(first):
			return Claim{}, nil, replaced(node)
		}
		if dryRun {
			return claim, nil, nil
		}
		if err := Leave(ctx, r.Tokens, r.Claims, claim); err != nil {
			return Claim{}, nil, err
		}
		switch err := Release(ctx, r.Claims, claim, r.past(claim)); {
		case errors.Is(err, ErrConflict):
			continue
		case err != nil && !errors.Is(err, ErrNotFound):
			return Claim{}, nil, err
		case claim.Released():
			return claim, nil, nil
		}
		switch warnings, err := r.giveSlotBack(ctx, claim.TokenID, node); {
		case errors.Is(err, ErrConflict): // the token has another claim on the name
			continue
		case err != nil && !errors.Is(err, ErrNotFound):
			return Claim{}, nil, err
		default:
			return claim, warnings, nil
		}
	}
	return Claim{}, nil, fmt.Errorf("the claim on node name %s changed during each of %d attempts to release it", node, changeAttempts)
}

// past returns the Past that a claim leaves.
func (r Releaser) past(c Claim) ReleasedClaim {
	longest := time.Duration(0)
	if r.MaxRemainingLifetime != nil {
		longest = r.MaxRemainingLifetime()
	}
	if c.Released() && longest == 0 {
		return c.Past
	}
	return c.PastAfterRelease(time.Now(), longest)
}

func replaced(node string) error {
	return &releaseError{"the claim on node name " + node + " was released and created again during this request; check the new claim before you release it", ErrReplaced}
}

// giveSlotsBack gives back the slot of a node without a claim on each token that counts it.
func (r Releaser) giveSlotsBack(ctx context.Context, node string, dryRun bool) (Claim, []string, error) {
	records, err := r.Tokens.List(ctx)
	if err != nil {
		return Claim{}, nil, err
	}
	released := Claim{Node: node}
	var all []string
	for _, record := range records {
		if !slices.Contains(record.Nodes, node) {
			continue
		}
		id := record.Token.ID()
		if !dryRun {
			warnings, err := r.giveSlotBack(ctx, id, node)
			switch {
			case errors.Is(err, ErrNotFound):
				continue
			case errors.Is(err, ErrConflict):
				return Claim{}, nil, replaced(node)
			case err != nil:
				return Claim{}, nil, err
			}
			all = append(all, warnings...)
		}
		released.TokenID = id
	}
	if released.TokenID == "" {
		return Claim{}, nil, &releaseError{"there is no claim on node name " + node, ErrNotFound}
	}
	return released, all, nil
}

// giveSlotBack gives back the slot of a node on its token. It does not compare UIDs: a Secret that was replaced counts all
// claims of its token ID.
func (r Releaser) giveSlotBack(ctx context.Context, id, node string) (warnings []string, err error) {
	record, err := GiveBack(ctx, r.Tokens, r.Claims, id, node)
	switch problem := record.ProblemText(); {
	case err != nil:
		return nil, err
	case problem != "":
		return []string{"token " + id + " is malformed and still counts the name: " + problem}, nil
	case record.Limits.NodeLimit() > 0 && !record.Spent() && !record.Expires.IsZero():
		return []string{"token " + id + " has a free slot again and " + record.Lifetime(time.Now()) + "; to extend it, run: kubejoin token renew " + id}, nil
	}
	return nil, nil
}
