package secretstore

import (
	"context"

	"github.com/kubejoin/kubejoin/tokens"
)

// Patch writes a claim over the version before.
func (s *Claims) Patch(ctx context.Context, before, after tokens.Claim) (tokens.Claim, error) {
	return s.patch(ctx, before, after)
}
