package server

import (
	"errors"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
)

// problemOf returns the problem of the error of an action. It includes the fields that only some errors have, for
// example the token ID, the reason or the list of what is behind.
func problemOf(err error) *web.Problem {
	p := *web.ProblemOf(err)
	var minted *mint.Error
	var incomplete *desk.Incomplete
	var behind *rotation.NotReady
	var undecided *approval.Error
	if errors.As(err, &minted) {
		if minted.Fate != "" {
			p.Detail += ". " + minted.Fate
		}
		p.TokenID, p.Cause = minted.TokenID, errors.Join(p.Cause, minted.NotDeleted)
	}
	if errors.As(err, &incomplete) {
		p.Detail = (&desk.Incomplete{TokenID: incomplete.TokenID, Err: errors.New(p.Detail)}).Error()
	}
	if errors.As(err, &behind) {
		p.Behind = operations.Behind(behind.Behind)
	}
	if why, found := errors.AsType[*tokens.Refusal](p.Cause); found && (p.Status == http.StatusUnauthorized || p.Status == http.StatusForbidden) {
		p.Detail += "; " + why.Message
	}
	if errors.As(err, &undecided) {
		if undecided.RetryAfter > 0 {
			p = *web.TooMany("%s", undecided.Message)
			p.RetryAfter += undecided.RetryAfter.Truncate(time.Second)
		}
		p.Reason = undecided.Reason
	}
	return &p
}
