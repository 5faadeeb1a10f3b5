package tokens

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrReplaced is wrapped if a claim was released and created again while a [Releaser] released it.
var ErrReplaced = errors.New("claim was replaced")

// A releaseError is for the person who releases a name. Its text is complete without the text of the wrapped error.
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
	// MaxRemainingLifetime returns how long any certificate may still be valid. Set it if kubejoin has no access to Nodes:
	// each released claim then leaves a Past that lasts this long. If it is nil or returns zero, only a claim with a
	// certificate duration leaves a Past.
	MaxRemainingLifetime func() time.Duration
}

// changeAttempts is how often a Releaser tries while others change the token or the claim.
const changeAttempts = 20

// Release frees a node name and its slot on the token, in one Commit. It returns the claim as it was before, and warnings
// for the person who releases it. With dryRun, it changes nothing.
//
// If Release fails, it can be called again. If there is no claim, it frees the slot on each token that counts the name, and
// returns a Claim that has only Node, TokenID and Machine. If the claim changes meanwhile, for example because kubejoin admits a
// machine with another key, Release starts over.
//
// A node that joined with a token without limits holds no name, but it may have an Identity, with which it can rejoin.
// Release ends this Identity, too.
//
// An invalid name is a [*FieldError]. The error wraps [ErrNotFound] if there is nothing to release, and [ErrReplaced] if
// the name has a new claim.
func (r Releaser) Release(ctx context.Context, node string, dryRun bool) (released Claim, warnings []string, err error) {
	if err := CheckNodeName(node); err != nil {
		return Claim{}, nil, &FieldError{"node", err}
	}
	var first Claim
	for try := range changeAttempts {
		claim, err := r.Claims.Get(ctx, node, Live)
		none := errors.Is(err, ErrNotFound) || err == nil && claim.Released() && claim.Identity.IsZero()
		switch {
		case err != nil && !none:
			return Claim{}, nil, err
		case try == 0 && !none:
			first = claim
		case !none && !claim.Same(first):
			return Claim{}, nil, &releaseError{"the claim on node name " + node + " was released and created again during this request; check the new claim before you release it", ErrReplaced}
		}
		switch {
		case none && first.UID == "":
			claim, warnings, err = r.freeSlots(ctx, node, claim.Machine, dryRun)
		case dryRun:
			return claim, nil, nil
		case none: // somebody else has released it
			claim = first
			if warnings, err = r.free(ctx, first.TokenID, node); errors.Is(err, ErrNotFound) {
				err = nil
			}
		default:
			warnings, err = r.free(ctx, claim.TokenID, node, ClaimChange{claim, claim.AfterRelease(r.past(claim))})
		}
		if !errors.Is(err, ErrConflict) {
			return claim, warnings, err
		}
	}
	return Claim{}, nil, fmt.Errorf("the claim on node name %s changed during each of %d attempts to release it", node, changeAttempts)
}

// past returns the Past of a claim after its release.
func (r Releaser) past(c Claim) ReleasedClaim {
	longest := time.Duration(0)
	if r.MaxRemainingLifetime != nil {
		longest = r.MaxRemainingLifetime()
	}
	return c.PastAfterRelease(time.Now(), longest)
}

// freeSlots frees the slot on each token that counts the name of a node without a claim. The name may have a machine.
func (r Releaser) freeSlots(ctx context.Context, node string, machine Machine, dryRun bool) (released Claim, all []string, err error) {
	records, err := r.Tokens.List(ctx)
	if err != nil {
		return Claim{}, nil, err
	}
	for _, record := range records {
		if !slices.Contains(record.Nodes, node) {
			continue
		}
		id := record.Token.ID()
		if !dryRun {
			warnings, err := r.free(ctx, id, node)
			switch {
			case errors.Is(err, ErrNotFound):
				continue
			case err != nil:
				return Claim{}, nil, err
			}
			all = append(all, warnings...)
		}
		released = Claim{Node: node, TokenID: id, Machine: machine}
	}
	if released.TokenID == "" && !machine.IsZero() {
		return Claim{}, nil, &releaseError{"no token holds node name " + node + ", but a machine with a key of its own does; to free the name: kubejoin machine delete " + node, ErrNotFound}
	}
	if released.TokenID == "" {
		return Claim{}, nil, &releaseError{"there is no claim on node name " + node, ErrNotFound}
	}
	return released, all, nil
}

// free commits a change of a node's claim, and frees the slot of the node on its token. If the token does not count the
// node and there is no change, the error wraps [ErrNotFound]. free does not compare UIDs: a Secret that was created again
// counts all claims of its token ID.
func (r Releaser) free(ctx context.Context, id, node string, change ...ClaimChange) (warnings []string, err error) {
	var record Record
	if id != "" {
		if record, err = r.Tokens.Get(ctx, id, Live); errors.Is(err, ErrNotFound) && len(change) > 0 {
			record, err = Record{}, nil
		} else if err != nil {
			return nil, err
		}
	}
	counted, problem, after := slices.Contains(record.Nodes, node), record.ProblemText(), record.Clone()
	if !counted && len(change) == 0 {
		return nil, fmt.Errorf("token %s counts node %s: %w", id, node, ErrNotFound)
	}
	if problem == "" { // a malformed token stays unchanged: nobody can join with it
		after.Nodes = slices.DeleteFunc(after.Nodes, func(name string) bool { return name == node })
	}
	outcomes, err := r.Claims.Commit(ctx, record, after, change)
	if len(outcomes) > 0 {
		err = cmp.Or(outcomes[0].Err, err)
	}
	switch {
	case err != nil:
		return nil, err
	case problem != "":
		return []string{"token " + id + " is malformed and still counts the name: " + problem}, nil
	case counted && after.Limits.NodeLimit() > 0 && !after.Spent() && !after.Expires.IsZero():
		return []string{"token " + id + " has a free slot again and " + after.Lifetime(time.Now()) + "; to extend it, run: kubejoin token renew " + id}, nil
	}
	return nil, nil
}
